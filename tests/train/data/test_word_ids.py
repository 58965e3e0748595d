"""Texts are tokenised by way of their words where that gives the ids of the tokenizer itself, and only there."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from humanline.train.data import word_ids
from humanline.train.data.word_ids import WordIds, pieces_by, treats_words_apart

TEXT = "the cat don't sit, 12345 times! on  two\n\nmats; THE Cat's\tmat (mat) a\u0301b café 你好 世界\r\n x = 3.5 / y"
PIECES = [
    *(
        "a",
        "the",
        "cat",
        "don't",
        "'S",
        "I'LL",
        "12345",
        "7",
        "!",
        "?!",
        "(",
        "/",
        "é",
        "e\u0301",
        "\u0301",
        "你好",
        "б",
    ),
    *(" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\u00a0", "\u3000", "\u200b", "\u180e"),
    *("<|user|>", "<|end|>", "<|", "Ǆ", "ʰ", "½", "🙂", "_"),
]


@functools.cache
def made(kind: str) -> Tokenizer:
    """Return a small tokenizer that cuts texts as a known one does."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    tokenizer.pre_tokenizer = byte_level
    if kind == "composing":
        tokenizer.normalizer = normalizers.NFC()
    if kind != "gpt2":
        patterns = sorted(pattern for pattern in word_ids._PATTERNS if not pattern.startswith("'s"))
        number = {"composing": 0, "first": 0, "second": 1, "third": 2}[kind]
        cutter = pre_tokenizers.Split(Regex(patterns[number]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cutter, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT, TEXT.replace(" ", "  "), TEXT.replace(" ", "\n "), TEXT.upper()], trainer)
    tokenizer.add_special_tokens(["<|user|>", "<|end|>"])
    return tokenizer


def whole(tokenizer: Tokenizer, texts: Any) -> list[list[int]]:
    """Return the tokenizer's own ids."""
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


KINDS = ("gpt2", "first", "second", "third", "composing")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=8))
def test_the_ids_of_a_text_are_those_of_its_words(kind, texts):
    """Whatever stands beside a space: the ids are the tokenizer's own, the first time and when words are known."""
    tokenizer = made(kind)
    assert treats_words_apart(tokenizer)
    right = whole(tokenizer, texts)
    words = WordIds(functools.partial(whole, tokenizer), pieces_by(tokenizer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_ids, "_NEW", 2.0)  # however many are new
        assert words.many(texts) == words.many(texts) == right
        patch.setattr(word_ids, "_KNOWN", 1)
        patch.setattr(word_ids, "_LONGEST", 3)
        patch.setattr(word_ids, "_TEXTS", 2)
        assert words.many(texts) == words.many(texts) == right


def test_a_word_is_tokenised_once_and_much_that_is_new_as_it_is(monkeypatch):
    """Of texts of known words nothing is asked of the tokenizer; where most words are new, whole texts are."""
    tokenizer, asked = made("gpt2"), list[str]()

    def encode(texts):
        asked.extend(texts)
        return whole(tokenizer, texts)

    words = WordIds(encode, pieces_by(tokenizer))
    texts = ["a cat on the mat", "the cat on a mat", "a mat on the cat"] * 5
    assert words.many(texts) == whole(tokenizer, texts) and " on" in asked and "a cat on the mat" not in asked
    asked.clear()
    assert words.many(["the mat on a cat"]) == whole(tokenizer, ["the mat on a cat"])
    assert not asked
    new = [f"{number} x{number} y{number}" for number in range(100)]
    assert words.many(new) == whole(tokenizer, new) and asked == new
    monkeypatch.setattr(word_ids, "_TEXTS", 2)
    words.many(new)
    assert words.many(["a cat on the mat"]) == whole(tokenizer, ["a cat on the mat"])
    assert words._in_vain > word_ids._IN_VAIN  # and no words are looked at any more


def test_other_tokenizers_are_left_to_tokenise_whole_texts():
    """A token that takes the space behind it, an added one with a space, and other ways to cut, are no such case."""
    for change in (
        lambda t: t.add_special_tokens([AddedToken("<|x|>", rstrip=True)]),
        lambda t: t.add_special_tokens([AddedToken("<|x|>", lstrip=True)]),
        lambda t: t.add_tokens([AddedToken("new york", normalized=False)]),
        lambda t: t.add_tokens([AddedToken("word", single_word=True)]),
        lambda t: setattr(t, "normalizer", normalizers.Replace(" ", "▁")),
        lambda t: setattr(t, "normalizer", normalizers.Sequence([normalizers.NFKC()])),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: setattr(t, "pre_tokenizer", None),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        lambda t: setattr(
            t,
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        ),
        lambda t: setattr(t.model, "dropout", 0.1),
    ):
        tokenizer = Tokenizer.from_str(made("gpt2").to_str())
        assert treats_words_apart(tokenizer)
        change(tokenizer)
        assert not treats_words_apart(tokenizer)
