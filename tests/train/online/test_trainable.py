"""What can be trained on: what tokenizers and servers do to a text without changing it passes, and nothing else."""

from __future__ import annotations

import copy

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from humanline.train.data.render import Renderer
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import Completion


@pytest.fixture(scope="module")
def sentencepiece() -> PreTrainedTokenizerFast:
    """Spaces are part of words (as Llama 2 and Mistral have it); decoding drops the one before the first word."""
    pieces = ["<unk>", "<s>", "</s>", "▁The", "▁mat", "▁a", ".", "▁", *"Themat.abc"]
    model = models.Unigram([(piece, -float(i + 1)) for i, piece in enumerate(dict.fromkeys(pieces))], unk_id=0)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=True,
    )


def trainable(tokenizer, *, max_length=64, max_tokens=16, vocabulary=None):
    return Trainable(Renderer(tokenizer, "plain", max_length), max_tokens, vocabulary)


def reason(ours, text, ids, finish="end", prompt=3):
    """Why a completion is refused; None where it is not."""
    try:
        ours.check(Completion(text, tuple(ids), finish), prompt)
    except Untrainable as error:
        return error.reason
    return None


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    """From 0 to the model's last row, which may be beyond the tokenizer's last token; no further."""
    ours = trainable(tokenizer, vocabulary=len(tokenizer) + 8)
    word = ids_of(tokenizer, "mat")
    for extra, expected in ((-1, True), (len(tokenizer) + 7, False), (len(tokenizer) + 8, True), (2**40, True)):
        assert (reason(ours, "mat", [*word, extra]) == "ids_outside_vocabulary") == expected
    assert reason(trainable(tokenizer), "mat", [*word, len(tokenizer)]) == "ids_outside_vocabulary"


@pytest.mark.parametrize(("prompt", "room"), [(3, 16), (48, 16), (50, 14), (63, 1)])
def test_no_more_tokens_than_there_is_room_for(tokenizer, prompt, room):
    """At most max_tokens, and at most what max_length leaves behind the prompt."""
    (letter,) = ids_of(tokenizer, "z")
    ours = trainable(tokenizer)
    assert reason(ours, "z" * room, [letter] * room, "length", prompt) is None
    assert reason(ours, "z" * (room + 1), [letter] * (room + 1), "length", prompt) == "too_many_tokens"


def test_what_decoders_differ_in_is_the_same_text(tokenizer):
    """Special tokens, kept or dropped, halves of characters, space at the ends and composed letters do not count."""
    ours, end = trainable(tokenizer), tokenizer.eos_token_id
    word = ids_of(tokenizer, "The mat")
    begin = tokenizer.convert_tokens_to_ids("<|user|>")
    assert begin in tokenizer.all_special_ids or tokenizer.added_tokens_decoder[begin].special
    half = ids_of(tokenizer, "🙂")[:-1]
    assert half and "\ufffd" in tokenizer.decode(half)
    same = [
        ("The mat", [*word, end], "end"),
        (f"The mat{tokenizer.eos_token}", [*word, end], "end"),
        ("The mat", [begin, *word, end], "end"),
        (" The mat\n", [*word, end], "end"),
        ("The mat", [*word, *half], "length"),
        ("The mat\ufffd", [*word, *half], "length"),
        ("Ko\u0308ln", [*ids_of(tokenizer, "Köln"), end], "end"),
        ("", [end], "end"),
    ]
    for text, ids, finish in same:
        assert reason(ours, text, ids, finish) is None, (text, ids)


def test_every_other_text_is_another_one(tokenizer):
    """One letter, one space inside, a part of the ids' text or more than it: refused, and both are in the message."""
    ours, end = trainable(tokenizer), tokenizer.eos_token_id
    word = ids_of(tokenizer, "The mat")
    for text in ("The cat", "Themat", "The  mat", "The", "The mat.", "", "the mat"):
        for finish in ("end", "length"):
            assert reason(ours, text, [*word, end], finish) == "ids_of_another_text", text
    with pytest.raises(Untrainable, match="its text is 'The cat', but its token ids say 'The mat'"):
        ours.check(Completion("The cat", tuple(word), "length"), 3)
    with pytest.raises(Untrainable, match=r"its text is \.\.\.'.*\\x1b.*', but its token ids say \.\.\.'z+'"):
        ours.check(Completion("z" * 14 + "\x1b", tuple(ids_of(tokenizer, "z") * 15), "length"), 3)


def test_a_stop_text_may_end_inside_a_token(tokenizer):
    """A text cut behind its stop text lacks the rest of the last token, but of no earlier one."""
    ours = trainable(tokenizer)
    letters = [ids_of(tokenizer, letter)[0] for letter in "ab"]
    (pair,) = ids_of(tokenizer, "at") if len(ids_of(tokenizer, "at")) == 1 else [None]
    assert pair is not None
    assert reason(ours, "aba", [*letters, pair], "stop") is None
    assert reason(ours, "ab", [*letters, pair], "stop") is None
    assert reason(ours, "a", [*letters, pair], "stop") == "ids_of_another_text"
    assert reason(ours, "aba", [*letters, pair], "length") == "ids_of_another_text"
    assert reason(ours, "abx", [*letters, pair], "stop") == "ids_of_another_text"


def test_a_space_before_the_first_word_and_tidied_spaces(sentencepiece):
    """Servers tell the first word's space or not, and tidy spaces before dots or not; the text is the same."""
    ours = trainable(sentencepiece)
    ids = [sentencepiece.convert_tokens_to_ids(piece) for piece in ("▁The", "▁mat", "▁", ".")]
    assert sentencepiece.decode(ids, clean_up_tokenization_spaces=False) == "The mat ."
    for text in ("The mat .", " The mat .", "The mat.", " The mat."):
        assert reason(ours, text, [*ids, sentencepiece.eos_token_id]) is None, text
    assert reason(ours, "Themat .", ids) == "ids_of_another_text"


def test_an_end_token_that_is_not_special_may_be_in_the_text_or_not(tokenizer):
    """Some models end by a token that their tokenizer takes for a word; only where the completion ended by it."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(["<stop>"])
    ours, word = trainable(tokenizer), ids_of(tokenizer, "mat<stop>")
    assert reason(ours, "mat", word, "end") is None
    assert reason(ours, "mat<stop>", word, "end") is None
    assert reason(ours, "mat", word, "length") == "ids_of_another_text"


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_a_tokenizer_that_rewrites_text_is_caught_where_it_changes_what_is_read(tokenizer, form):
    """Composed letters are the same text; letters replaced by others are not."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.backend_tokenizer.normalizer = getattr(normalizers, form)()
    ours = trainable(tokenizer)
    assert reason(ours, "o\u0308", ids_of(tokenizer, "o\u0308"), "length") is None
    expected = None if form == "NFC" else "ids_of_another_text"
    assert reason(ours, "x²", ids_of(tokenizer, "x²"), "length") == expected
