"""Examples -> token sequences: the template, the boundary and the limits."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from humanline.train.data.chat_template import RenderError
from humanline.train.data.messages import Message
from humanline.train.data.render import Renderer
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.shapes import Group, Preference, PromptOnly, Unpaired
from humanline.train.data.source import DataError
from humanline.train.data.tokenize import Tokenizing, tokenize
from humanline.train.data.write import Unfit
from tests.helpers import strategies
from tests.helpers.rows import render

USER = (Message("user", "What is the cat on?"),)
TALK = (Message("system", "Be brief."), *USER, Message("assistant", "A mat."), Message("user", "And the dog?"))
END, BOS, PAD = "<|end|>", "<|bos|>", "<|pad|>"
SEEN = "The cat sat on the mat, and the dog sat on the cat. What is the cat on? "  # words that merge into long tokens
text_of = strategies.texts(SEEN)


def decode(tokenizer, ids):
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def halves(tokenizer, sequence):
    return (
        decode(tokenizer, sequence.ids[: sequence.prompt_length]),
        decode(tokenizer, sequence.ids[sequence.prompt_length :]),
    )


def changed(tokenizer, **attributes):
    """Return a copy of a tokenizer with some attributes replaced."""
    other = copy.deepcopy(tokenizer)
    for name, value in attributes.items():
        setattr(other, name, value)
    return other


@pytest.fixture(scope="session")
def chat(tokenizer):
    """Offer a chat renderer with room for everything."""
    return Renderer(tokenizer, "chat", 4096)


@pytest.fixture(scope="session")
def plain(tokenizer):
    """Offer a plain renderer with room for everything."""
    return Renderer(tokenizer, "plain", 4096)


# --- the two templates -----------------------------------------------------------------------------------------------


def test_chat_renders_the_template_and_ends_with_the_end_token(tokenizer, chat):
    """The prompt is the template's text up to the answer, and nothing after the end token is trained."""
    prompt, answer = halves(tokenizer, render(chat, TALK, "On the cat."))
    assert prompt == (
        "<|bos|><|system|>\nBe brief.<|end|>\n<|user|>\nWhat is the cat on?<|end|>\n<|assistant|>\nA mat.<|end|>\n"
        "<|user|>\nAnd the dog?<|end|>\n<|assistant|>\n"
    )
    assert answer == "On the cat.<|end|>"


def test_plain_renders_the_bare_text(tokenizer, plain):
    """Without a template there is a begin token, the prompt, the completion and an end token."""
    assert halves(tokenizer, render(plain, USER, " A mat.")) == (f"{BOS}What is the cat on?", f" A mat.{END}")


def test_plain_needs_no_begin_token(tokenizer):
    """A tokenizer without a begin token starts with the prompt itself."""
    renderer = Renderer(changed(tokenizer, bos_token=None), "plain", 64)
    assert halves(tokenizer, render(renderer, USER, "A mat."))[0] == "What is the cat on?"


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_the_prompt_to_sample_from_is_the_prompt_trained_on(tokenizer, template):
    """Sampling continues from exactly the token ids that stand before the completion in training."""
    renderer = Renderer(tokenizer, template, 64)
    sequence = render(renderer, USER, "A mat.")
    assert renderer.render_prompt(USER) == sequence.ids[: sequence.prompt_length]
    assert decode(tokenizer, renderer.render_prompt(USER)) == renderer.writer.prompt_text(USER)


@given(prompt=text_of, answer=text_of)
def test_the_boundary_never_merges(tokenizer, chat, plain, prompt, answer):
    """For any texts, the ids before the boundary decode to the prompt's text and those after it to the completion's."""
    turns = (Message("user", prompt),)
    assert halves(tokenizer, render(plain, turns, answer)) == (BOS + prompt, answer + END)
    expected = f"{BOS}<|user|>\n{prompt}{END}\n<|assistant|>\n", answer + END
    assert halves(tokenizer, render(chat, turns, answer)) == expected


@given(cut=st.integers(1, len(SEEN.strip()) - 1))
def test_the_boundary_never_merges_inside_a_known_sentence(tokenizer, plain, cut):
    """Wherever a sentence is cut in two, mid-word or not, prompt and completion are tokenised as if alone."""
    first, second = SEEN.strip()[:cut], SEEN.strip()[cut:]
    sequence = render(plain, (Message("user", first),), second)
    alone = [tokenizer.encode(text, add_special_tokens=False) for text in (BOS + first, second + END)]
    assert list(sequence.ids) == alone[0] + alone[1]
    assert sequence.prompt_length == len(alone[0])
    assert halves(tokenizer, sequence) == (BOS + first, second + END)


def test_the_boundary_holds_where_joint_tokenisation_would_merge(tokenizer, plain):
    """A word cut by the boundary keeps a token on each side, though the whole word has tokens of its own."""
    sequence = render(plain, (Message("user", "The c"),), "at")
    joint = tokenizer.encode(f"{BOS}The cat{END}", add_special_tokens=False)
    assert list(sequence.ids) != joint
    assert halves(tokenizer, sequence) == (f"{BOS}The c", f"at{END}")


def test_the_mask_goes_by_position_when_pad_is_the_end_token(tokenizer):
    """The end token of the completion counts and those of the prompt do not, also when padding uses the same id."""
    padded_with_end = changed(tokenizer, pad_token=END)
    assert padded_with_end.pad_token_id == padded_with_end.eos_token_id
    sequence = render(Renderer(padded_with_end, "chat", 128), TALK, "A mat.")
    counted = [token for token, counts in zip(sequence.ids, sequence.mask, strict=True) if counts]
    assert decode(padded_with_end, counted) == f"A mat.{END}"
    assert sequence.ids[: sequence.prompt_length].count(padded_with_end.eos_token_id) == 4
    assert sum(sequence.mask) == sequence.completion_length


def test_an_end_token_is_added_where_the_template_writes_none(tokenizer):
    """A template without an end of turn still trains the end of sequence."""
    bare = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}" + (
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    renderer = Renderer(changed(tokenizer, chat_template=bare), "chat", 64)
    assert halves(tokenizer, render(renderer, USER, "A mat."))[1] == f"A mat.\n{END}"


def test_another_end_of_turn_token_is_enough(tokenizer):
    """A template that ends turns with a special token other than the end of sequence is left as it is."""
    turn_end = tokenizer.chat_template.replace("eos_token", f"'{PAD}'")
    renderer = Renderer(changed(tokenizer, chat_template=turn_end), "chat", 64)
    assert halves(tokenizer, render(renderer, USER, "A mat."))[1] == f"A mat.{PAD}"


# --- templates and tokenizers that cannot be used --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"template": "chatml"}, "template must be one of 'chat', 'plain'; got 'chatml'"),
        ({"too_long": "cut"}, "too_long must be one of 'error', 'drop', 'truncate'; got 'cut'"),
        ({"max_length": 1}, "max_length must be an integer >= 2"),
        ({"max_length": 9.5}, "max_length must be an integer >= 2"),
        ({"max_prompt_length": 64}, "max_prompt_length must be an integer from 1 to max_length - 1 = 63; got 64"),
        ({"max_prompt_length": 0}, "max_prompt_length must be an integer from 1 to max_length - 1 = 63; got 0"),
    ],
)
def test_arguments_outside_their_domain_are_refused(tokenizer, arguments, message):
    """Each argument of the renderer is checked by name."""
    with pytest.raises(ValueError, match=message):
        Renderer(tokenizer, **{"template": "chat", "max_length": 64} | arguments)


def test_chat_needs_a_template(tokenizer):
    """Asking for the chat template of a tokenizer without one is an error that names the way out."""
    without = changed(tokenizer, chat_template=None)
    with pytest.raises(ValueError, match="no chat template; set template: plain, or use a tokenizer with one"):
        Renderer(without, "chat", 64)
    assert render(Renderer(without, "plain", 64), USER, "A mat.").completion_length > 0


def test_an_end_token_is_needed(tokenizer):
    """A tokenizer without an end token is refused, since no completion could end."""
    with pytest.raises(ValueError, match="no end-of-sequence token, so no completion could end; set eos_token"):
        Renderer(changed(tokenizer, eos_token=None), "plain", 64)


def test_a_template_that_does_not_continue_its_prompt_is_an_error(tokenizer):
    """A template whose text with the answer departs from its generation prompt is an error that shows where."""
    thinking = tokenizer.chat_template.replace(r"{{ '<|assistant|>\n' }}", r"{{ '<|assistant|>\n<think>' }}")
    assert thinking != tokenizer.chat_template
    renderer = Renderer(changed(tokenizer, chat_template=thinking), "chat", 64)
    with pytest.raises(
        RenderError, match=r"does not continue its own prompt: .*'A mat.*where the prompt has '<think>'"
    ):
        render(renderer, USER, "A mat.")


def test_a_template_that_refuses_a_role_is_an_error_that_names_the_example(tokenizer):
    """A template without a system role gives its own reason, with the example's place in the data."""
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    renderer = Renderer(changed(tokenizer, chat_template=refusing + tokenizer.chat_template), "chat", 256)
    rows = [Unpaired("rows.jsonl:1", USER, "A mat."), Unpaired("rows.jsonl:2", TALK, "A mat.")]
    with pytest.raises(DataError) as caught:
        tokenize(rows, renderer)
    (problem,) = caught.value.problems
    assert problem.startswith("rows.jsonl:2: the chat template refuses the roles system, user, assistant, user: System")


def test_plain_takes_one_user_message(tokenizer, plain):
    """A conversation cannot be rendered without a template, and no separator is made up."""
    with pytest.raises(RenderError, match="takes one user message; got system, user, assistant, user; use template"):
        render(plain, TALK, "A mat.")
    with pytest.raises(RenderError, match="takes one user message; got none"):
        render(plain, (), "A mat.")


TURN = "<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n"
OPENING = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}", "A mat.<|end|>"),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "A mat.\n<|end|>"),
        ("{% for m in messages %}" + TURN + "{% endfor %}", "<|assistant|>\nA mat.<|end|>"),
        ("{% for m in messages %}" + TURN + "{% endfor %}" + OPENING, "A mat.<|end|>"),
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n<think>\n\n</think>\n\n"
            "{{ m.content }}<|end|>\n{% else %}" + TURN + "{% endif %}{% endfor %}" + OPENING,
            "<think>\n\n</think>\n\nA mat.<|end|>",
        ),
    ],
    ids=["contents and ends", "contents and lines", "no opening", "trimmed", "empty thoughts"],
)
def test_templates_of_every_usual_form_are_taken(tokenizer, template, answer):
    """Templates that name no roles, open no answer, trim or write empty thoughts are rendered as they are."""
    renderer = Renderer(changed(tokenizer, chat_template=template), "chat", 64)
    assert halves(tokenizer, render(renderer, USER, "A mat."))[1] == answer


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}" + OPENING,
            r"leaves out message 1 of the prompt \(system\)",
        ),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}",
            r"does not write the whole answer, but 'On the cat",
        ),
        (
            "{% for m in messages %}" + TURN + "{% endfor %}<|assistant|>\n",
            r"ends with '<\|end\|>\\n<\|assistant\|>', as if another answer followed; it must write the opening",
        ),
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
            r"ends with 'assistant:', as if another answer followed",
        ),
    ],
    ids=["a lost message", "lost reasoning", "another turn", "another turn in words"],
)
def test_templates_that_lose_text_or_go_on_are_refused(tokenizer, template, message):
    """A template that drops a message or part of the answer, or opens a turn after it, would train the wrong text."""
    renderer = Renderer(changed(tokenizer, chat_template=template), "chat", 128)
    with pytest.raises(RenderError, match=message):
        render(renderer, TALK, "Hm.</think>On the cat.")


def test_a_tokenizer_without_a_pad_token_is_taken(tokenizer):
    """Rendering needs no pad token."""
    without = changed(tokenizer, pad_token=None)
    assert without.pad_token_id is None
    expected = render(Renderer(tokenizer, "chat", 64), USER, "A mat.")
    assert render(Renderer(without, "chat", 64), USER, "A mat.") == expected


def test_a_second_begin_token_is_an_error(tokenizer):
    """A template that writes the begin token twice is refused."""
    doubled = changed(tokenizer, chat_template="{{ bos_token }}" + tokenizer.chat_template)
    with pytest.raises(ValueError, match=r"writes the begin token '<\|bos\|>' twice"):
        render(Renderer(doubled, "chat", 64), USER, "A mat.")


def test_a_tokenizer_that_adds_a_begin_token_adds_no_second_one(tokenizer):
    """The begin token that a tokenizer adds on its own is not added to rendered text."""
    from tokenizers.processors import TemplateProcessing

    adding = copy.deepcopy(tokenizer)
    adding.backend_tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    assert adding.encode("a")[0] == adding.bos_token_id
    for template in ("chat", "plain"):
        ids = render(Renderer(adding, template, 64), USER, "A mat.").ids
        assert ids.count(adding.bos_token_id) == 1


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_special_tokens_in_the_content_are_refused(tokenizer, template):
    """A special token written in a message or an answer is named with its example, not read as control."""
    renderer = Renderer(tokenizer, template, 128)
    rows = [
        Unpaired("rows.jsonl:1", (Message("user", f"Stop.{END} Go."),), "A mat."),
        Unpaired("rows.jsonl:2", USER, "A mat.<|user|>\nmore"),
        Unpaired("rows.jsonl:3", (Message("user", "<|end is no token"),), "A < b | c > d"),
    ]
    with pytest.raises(DataError) as caught:
        tokenize(rows, renderer)
    assert str(caught.value).startswith("2 of 3 examples hold special tokens")
    assert caught.value.problems == (
        "rows.jsonl:1: message 1 of the prompt (user) holds the special token '<|end|>'; expected text without it",
        "rows.jsonl:2: the completion holds the special token '<|user|>'; expected text without it",
    )


def metaspace_tokenizer(scheme):
    """Return a tokenizer that marks words by a space before them, also before the first word of a text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<s>", "</s>"], show_progress=False)
    backend.train_from_iterator(["the cat sat on the mat What is the cat on? A mat. <>|\n user assistant"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def test_no_space_appears_at_the_boundary():
    """A tokenizer that puts a space before the first word of a text puts none before the completion."""
    tokenizer = metaspace_tokenizer("first")
    sequence = render(Renderer(tokenizer, "plain", 64), USER, "A mat.")
    assert decode(tokenizer, sequence.ids) == "<s>What is the cat on?A mat.</s>"
    spaced = render(Renderer(tokenizer, "plain", 64), USER, " A mat.")
    assert decode(tokenizer, spaced.ids) == "<s>What is the cat on? A mat.</s>"


def test_a_tokenizer_that_loses_or_adds_text_is_refused():
    """A tokenizer that does not give back what it was given is an error that shows where."""
    with pytest.raises(
        ValueError, match=r"does not give back the text it was given: .* became .*; load it without added"
    ):
        render(Renderer(metaspace_tokenizer("always"), "plain", 64), USER, "A mat.")


@pytest.mark.parametrize("place", [0, 6])
@pytest.mark.parametrize("column", ["prompt", "answer"])
def test_text_that_the_tokenizer_has_no_token_for_is_named_wherever_it_stands(place, column):
    """A row alone is refused, so that it is not `<unk>` behind others; it may be dropped and counted."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False)
    backend.train_from_iterator([SEEN], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    rows = [Unpaired(f"f:{n}", USER, "The cat sat on the mat") for n in range(7)]
    lost = {"prompt": ((Message("user", "the 東京 cat?"),), "The mat"), "answer": (USER, "the 東京 mat")}[column]
    rows[place] = Unpaired("f:lost", *lost)
    with pytest.raises(DataError, match=r"f:lost: the tokenizer has no tokens for a part of '.*the 東京") as caught:
        tokenize(rows, Renderer(tokenizer, "plain", 200))
    assert len(caught.value.problems) == 1
    dropping = Tokenizing(Renderer(tokenizer, "plain", 200), dropping=True)
    assert [row.id for row in dropping.add(rows)] == [row.id for row in rows if row.id != "f:lost"]
    assert len(dropping.dropped) == 1 and "f:lost" in dropping.dropped[0]


def test_completions_are_not_read_behind_the_token_of_unknown_text():
    """Where the end token takes spaces with it, another special token stands before them, and no row is refused."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    names = ["<unk>", "<s>", AddedToken("</s>", rstrip=True, special=True)]
    backend.train_from_iterator([SEEN], trainers.BpeTrainer(vocab_size=60, special_tokens=names, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    assert tokenizer.added_tokens_decoder[0].content == "<unk>" and tokenizer.added_tokens_decoder[2].rstrip
    renderer = Renderer(tokenizer, "plain", 200)
    ((sequence,),) = tokenize([Unpaired("f:1", USER, "The cat sat")], renderer).sequences
    assert halves(tokenizer, sequence) == ("<s>What is the cat on?", "The cat sat</s>")
    assert renderer.anchor == "<s>"


def test_spaces_swallowed_by_special_tokens_are_no_loss(tokenizer):
    """A tokenizer whose special tokens take the space after them is accepted, as the model was trained with it."""
    taking = copy.deepcopy(tokenizer)
    taking.add_special_tokens(
        {"extra_special_tokens": [AddedToken("<|user|>", rstrip=True), AddedToken("<|assistant|>", rstrip=True)]}
    )
    sequence = render(Renderer(taking, "chat", 64), USER, "A mat.")
    assert halves(taking, sequence) == (f"{BOS}<|user|>What is the cat on?{END}\n<|assistant|>", f"A mat.{END}")


def test_turns_behind_an_end_token_that_takes_spaces_are_those_of_a_prompt(tokenizer):
    """The conversation that is learned from has the ids that a model is given which goes on with it."""
    taking = copy.deepcopy(tokenizer)
    taking.add_special_tokens({"eos_token": AddedToken(END, rstrip=True, special=True)})
    turns = (*USER, Message("assistant", "A mat."), Message("user", "And the dog?"), Message("assistant", "The cat."))
    renderer = Renderer(taking, "chat", 200)
    every, last = renderer.encode(turns[:1], turns[1:]), renderer.encode(turns[:3], turns[3].content)
    assert every.ids == last.ids and f"{END}<|user|>" in decode(taking, every.ids)  # no line end in between
    learned = [token for token, counts in zip(every.ids, every.mask, strict=True) if counts]
    assert decode(taking, learned) == f"A mat.{END}The cat.{END}"
    ((batch,),) = tokenize([Unpaired("f:1", turns[:1], turns[1:], True)], Renderer(taking, "chat", 200)).sequences
    assert batch == every


def test_composed_characters_are_no_loss(tokenizer):
    """A tokenizer that composes characters is accepted."""
    from tokenizers.normalizers import NFC

    composing = copy.deepcopy(tokenizer)
    composing.backend_tokenizer.normalizer = NFC()
    sequence = render(Renderer(composing, "chat", 64), USER, "Ko\u0308ln")
    assert halves(composing, sequence)[1] == f"K\u00f6ln{END}"


def test_the_template_hash_follows_template_and_special_tokens(tokenizer):
    """The hash is the same for the same template and tokens, and differs when either changes."""
    first = Renderer(tokenizer, "chat", 64).template_hash
    assert first == Renderer(copy.deepcopy(tokenizer), "chat", 128, "drop").template_hash
    others = [
        Renderer(tokenizer, "plain", 64),
        Renderer(changed(tokenizer, chat_template=tokenizer.chat_template + " "), "chat", 64),
        Renderer(changed(tokenizer, pad_token=END), "chat", 64),
    ]
    assert len({first, *(renderer.template_hash for renderer in others)}) == 4
    assert len(first) == 64


# --- limits ----------------------------------------------------------------------------------------------------------

LONG = "The cat sat on the mat. " * 10


def limits(tokenizer, too_long, max_length, **more):
    return Renderer(tokenizer, "plain", max_length, too_long, **more)


def test_a_cut_completion_has_no_end_token_and_the_example_is_untouched(tokenizer, plain):
    """Truncation cuts the completion's end, adds no end token and leaves example and prompt as they were."""
    example = Unpaired("f:1", USER, LONG)
    before = copy.deepcopy(example)
    whole = render(plain, USER, LONG)
    tokenized = tokenize([example], limits(tokenizer, "truncate", 40))
    ((sequence,),) = tokenized.sequences
    assert example == before
    assert tokenized.examples[0] is example
    assert sequence == TokenSequence(whole.ids[:40], whole.prompt_length, truncated=True)
    assert tokenizer.eos_token_id not in sequence.ids
    assert tokenized.report.truncated == 1


def test_a_completion_that_just_fits_is_whole(tokenizer, plain):
    """At the exact length nothing is cut; one token less costs the end token and is called truncated."""
    length = len(render(plain, USER, LONG).ids)
    whole = render(limits(tokenizer, "truncate", length), USER, LONG)
    assert (whole.ids[-1], whole.truncated) == (tokenizer.eos_token_id, False)
    cut = render(limits(tokenizer, "truncate", length - 1), USER, LONG)
    assert (cut.ids, cut.truncated) == (whole.ids[:-1], True)


@given(max_length=st.integers(2, 40), too_long=st.sampled_from(["drop", "truncate"]), answer=text_of)
def test_what_is_kept_fits_and_keeps_its_prompt(tokenizer, plain, max_length, too_long, answer):
    """For any limit, a kept sequence is a beginning of the whole one, within the limit, with a completion token."""
    whole = render(plain, USER, answer)
    try:
        sequence = render(limits(tokenizer, too_long, max_length), USER, answer)
    except Unfit as error:
        fits = whole.prompt_length < max_length and (too_long == "truncate" or len(whole.ids) <= max_length)
        assert not fits
        assert error.reason == ("prompt_too_long" if whole.prompt_length >= max_length else "too_long")
    else:
        assert sequence.ids == whole.ids[: len(sequence.ids)]
        assert len(sequence.ids) == min(max_length, len(whole.ids))
        assert sequence.completion_length >= 1
        assert sequence.truncated == (len(whole.ids) > max_length)


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_a_prompt_that_leaves_no_room_is_never_trained_on(tokenizer, too_long):
    """A prompt that alone reaches the limit is left out and counted, whatever the policy for long completions."""
    rows = [Unpaired("f:1", (Message("user", LONG),), "A mat."), Unpaired("f:2", USER, "A mat.")]
    tokenized = tokenize(rows, limits(tokenizer, too_long, 40))
    assert [example.id for example in tokenized.examples] == ["f:2"]
    assert (tokenized.report.kept, tokenized.report.dropped_prompt_too_long) == (1, 1)


def test_prompts_have_a_limit_of_their_own(tokenizer, plain):
    """A prompt longer than max_prompt_length is left out, one of just that length is kept."""
    length = render(plain, USER, "A mat.").prompt_length
    render(limits(tokenizer, "drop", 4096, max_prompt_length=length), USER, "A mat.")
    with pytest.raises(Unfit, match=f"the prompt has {length} tokens; expected at most {length - 1}"):
        render(limits(tokenizer, "truncate", 4096, max_prompt_length=length - 1), USER, "A mat.")


def test_dropping_counts_each_reason(tokenizer):
    """Under "drop" every example left out is counted under its reason, and the rest is kept in order."""
    rows = [
        Unpaired("f:1", USER, "A mat."),
        Unpaired("f:2", USER, LONG),
        Unpaired("f:3", (Message("user", LONG),), "A mat."),
        Unpaired("f:4", USER, "  \n"),
        Unpaired("f:5", USER, "The dog."),
    ]
    tokenized = tokenize(rows, limits(tokenizer, "drop", 40))
    report = tokenized.report
    assert [example.id for example in tokenized.examples] == ["f:1", "f:5"]
    assert len(tokenized) == len(tokenized.sequences) == report.kept == 2
    assert (report.total, report.truncated, report.dropped_identical) == (5, 0, 0)
    assert (report.dropped_too_long, report.dropped_prompt_too_long, report.dropped_empty_completion) == (1, 1, 1)
    assert str(report).startswith(
        "2 of 5 kept, 1 dropped: too long, 1 dropped: prompt too long, 1 dropped: empty completion; longest "
    )


def test_errors_name_the_examples_and_the_limit_that_would_do(tokenizer, plain):
    """Under "error" nothing is left out silently: the message names each example and a limit that keeps 99 %."""
    rows = [Unpaired(f"f:{i}", USER, LONG if i % 2 else "A mat.") for i in range(50)]
    length = len(render(plain, USER, LONG).ids)
    with pytest.raises(DataError) as caught:
        tokenize(rows, limits(tokenizer, "error", 40))
    lines = str(caught.value).splitlines()
    assert lines[0] == "25 of 50 examples cannot be used with max_length 40"
    assert lines[1:-1] == [
        f"  f:1: prompt and completion have {length} tokens; expected at most 40 (25 times in all, also at f:3, "
        "f:5, ...)"
    ]
    assert lines[-1].startswith(f"data.max_length: {length} would keep 99 % whole; or set data.too_long")
    assert len(tokenize(rows, limits(tokenizer, "error", length))) == 50


def test_the_99_percent_limit_is_the_smallest(tokenizer, plain):
    """With 200 examples, two may be longer than the limit that keeps 99 %, and no smaller limit does."""
    rows = [Unpaired(f"f:{i}", USER, "mat " * (i + 1)) for i in range(200)]
    lengths = sorted(len(render(plain, row.prompt, row.completion).ids) for row in rows)
    report = tokenize(rows, plain).report
    assert sum(length <= report.limit_99 for length in lengths) == 198
    assert report.limit_99 in lengths
    assert report.longest == lengths[-1]
    assert report.prompt_limit_99 == render(plain, USER, "A").prompt_length


def test_pairs_identical_once_cut_are_dropped_and_counted(tokenizer):
    """Two answers that differ only beyond the cut are not trained on as a preference."""
    pairs = [Preference("f:1", USER, LONG + "yes", LONG + "no"), Preference("f:2", USER, "yes", "no")]
    tokenized = tokenize(pairs, limits(tokenizer, "truncate", 40))
    assert [pair.id for pair in tokenized.examples] == ["f:2"]
    assert tokenized.report.dropped_identical == 1
    assert tokenized.report.truncated == 0
    assert len(tokenize(pairs, limits(tokenizer, "error", 4096))) == 2


def test_examples_with_special_tokens_can_be_left_out_and_are_counted(tokenizer):
    """With special_tokens "drop" such examples are left out whatever happens to long ones, and counted."""
    pairs = [Preference("f:1", USER, f"yes {END}", "no"), Preference("f:2", USER, "yes", "no")]
    renderer = Renderer(tokenizer, "chat", 4096, special_tokens="drop")
    tokenized = tokenize(pairs, renderer)
    assert [pair.id for pair in tokenized.examples] == ["f:2"]
    assert tokenized.report.dropped_special_token == 1
    assert "1 dropped: special tokens in the text" in str(tokenized.report)
    with pytest.raises(DataError, match=r"1 of 2 examples hold special tokens\n(.|\n)*data.special_tokens: drop"):
        tokenize(pairs, Renderer(tokenizer, "chat", 4096, "drop"))
    with pytest.raises(DataError, match="1 of 1 examples hold special tokens"):
        tokenize(pairs[:1], renderer)


def test_pairs_that_the_template_makes_identical_are_an_error(tokenizer):
    """Answers that differ in spaces only, under a template that trims them, are found before any cut."""
    trimming = changed(
        tokenizer, chat_template=tokenizer.chat_template.replace("message['content']", "(message['content'] | trim)")
    )
    with pytest.raises(DataError, match=r"f:1: the answers are the same tokens\n"):
        tokenize(
            [Preference("f:1", USER, "yes", "yes "), Preference("f:2", USER, "yes", "no")],
            Renderer(trimming, "chat", 64),
        )


def test_one_unusable_answer_leaves_out_the_whole_pair_or_group(tokenizer):
    """A pair or a group is kept whole or not at all."""
    renderer = limits(tokenizer, "drop", 40)
    pairs = [Preference("f:1", USER, "yes", LONG), Preference("f:2", USER, "yes", "no")]
    assert [pair.id for pair in tokenize(pairs, renderer).examples] == ["f:2"]
    groups = [
        Group("f:1", USER, ("a", "b", LONG), (1.0, 0.0, 0.5)),
        Group("f:2", USER, ("a", "a", "b"), (1.0, 1.0, 0.0)),
    ]
    tokenized = tokenize(groups, renderer)
    assert [group.id for group in tokenized.examples] == ["f:2"]
    assert len(tokenized.sequences[0]) == 3


def test_a_group_of_equal_answers_is_dropped(tokenizer):
    """A group whose answers are all the same has nothing to compare."""
    groups = [Group("f:1", USER, ("a", "a"), (1.0, 0.0)), Group("f:2", USER, ("a", "b"), (1.0, 0.0))]
    assert tokenize(groups, limits(tokenizer, "drop", 40)).report.dropped_identical == 1


def test_prompts_need_room_for_one_token(tokenizer, plain):
    """A prompt alone is kept if at least one token can be sampled after it, and has no completion tokens."""
    length = len(plain.render_prompt(USER))
    prompt = PromptOnly("f:1", USER, {})
    tokenized = tokenize([prompt], limits(tokenizer, "error", length + 1))
    ((sequence,),) = tokenized.sequences
    assert (sequence.prompt_length, sequence.completion_length, sum(sequence.mask)) == (length, 0, 0)
    assert tokenized.report.limit_99 == length + 1
    with pytest.raises(DataError, match=f"f:1: the prompt has {length} tokens; expected at most {length - 1}"):
        tokenize([prompt], limits(tokenizer, "error", length))


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_nothing_left_is_an_error(tokenizer, too_long):
    """If every example is left out, the error says so instead of returning an empty set."""
    with pytest.raises(DataError, match=r"no example is left with max_length 5\n  f:1: the prompt has"):
        tokenize([Unpaired("f:1", USER, "A mat.")], limits(tokenizer, too_long, 5))
    with pytest.raises(DataError, match="there are no examples to tokenise"):
        tokenize([], limits(tokenizer, too_long, 5))


def test_sequences_follow_their_examples(tokenizer, plain):
    """Each example's sequences are its own answers rendered, in order, whatever was rendered before."""
    pairs = [Preference(f"f:{i}", (Message("user", f"Question {i // 2}"),), f"yes {i}", f"no {i}") for i in range(6)]
    tokenized = tokenize(pairs, plain)
    for pair, (chosen, rejected) in zip(tokenized.examples, tokenized.sequences, strict=True):
        assert halves(tokenizer, chosen) == (BOS + pair.prompt[0].content, pair.chosen + END)
        assert halves(tokenizer, rejected) == (BOS + pair.prompt[0].content, pair.rejected + END)


def test_equal_ids_share_their_memory(tokenizer, plain):
    """Each token id is one object however often it occurs, so that large sets cost 8 bytes a token."""
    first, second = tokenize([Unpaired("f:1", USER, LONG), Unpaired("f:2", USER, LONG + "!")], plain).sequences
    objects = Counter(id(token) for (sequence,) in (first, second) for token in sequence.ids)
    assert len(objects) == len(set(first[0].ids) | set(second[0].ids))
