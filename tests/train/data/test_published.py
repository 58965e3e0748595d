"""Published sets read as they are: token ids and masks by a plain oracle, and those of TRL's own trainers."""

from __future__ import annotations

import copy
import json
import re

import pytest

from humanline.train.config import TrainConfig
from humanline.train.data.batch import make_block
from humanline.train.data.prompts import read_contexts
from humanline.train.data.run_data import renderer_of
from humanline.train.data.sets import read_sets
from humanline.train.data.source import DataError
from tests.conftest import ROOT
from tests.helpers.chat_templates import THINKING, with_template
from tests.helpers.published import PUBLISHED, TOOLS_TEXT, calls, says, user

PAGE = ROOT / "docs" / "data-formats.md"
REWARD = {"kind": "exact_match", "answer_column": "answer"}


def config_of(path, published, **data):
    rounds = {
        "kind": "rounds",
        "contexts_per_round": 1,
        "samples": 2,
        "sampling": {"max_tokens": 8},
        "scoring": {"rewards": [{"kind": "format", "pattern": "."}]},
    }
    return TrainConfig.model_validate(
        {
            "model": "m",
            "output": "o",
            "objective": {
                "kind": published.objective,
                **({"allow_single_label": True} if published.objective == "kto" else {}),
            },
            "data": {"train": str(path), "max_length": 512} | published.data | data,
            "training": {"steps": 1, "batch_size": 1},
            "optimizer": {"lr": 1e-3},
            **({"source": rounds, "reference": {"storage": "model"}} if not published.answers else {}),
        }
    )


@pytest.fixture
def read(tmp_path, tokenizer):
    """Return token ids, masks and the report of some rows, as training sees them."""

    def rows_of(published, rows=None, **data):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows or [published.row]))
        config = config_of(path, published, **data)
        renderer = renderer_of(config, with_template(tokenizer, THINKING))
        if config.rounds is not None:
            contexts, report = read_contexts(config, config.data.train, renderer)
            return [(list(context.ids), [False] * len(context.ids)) for context in contexts], report
        sets = read_sets(config, renderer)
        found = [(list(one.ids), list(one.mask)) for unit in sets.train for one in unit.sequences]
        for unit in sets.train:  # what a batch counts is what sequences say
            block = make_block(unit.sequences, ["x"] * len(unit.sequences), 0)
            for row, one in enumerate(unit.sequences):
                assert block.mask[row, : len(one.ids) - 1].tolist() == list(one.mask[1:])
            assert int(block.mask.sum()) == unit.tokens
        return found, sets.reports["train"]

    return rows_of


def plain_ids(tokenizer, parts):
    """Return the ids of texts that are tokenised apart, and which of them are learned, as (text, learned) says."""
    ids, mask = [], []
    for text, learned in parts:
        found = tokenizer.encode(text, add_special_tokens=False)
        ids += found
        mask += [learned] * len(found)
    return ids, mask


def written(turns, tools=""):
    """Write what the template makes of turns, by hand, with the opening of an answer."""
    if turns[0][0] == "text":
        return "<|bos|>" + turns[0][1]
    listed = f"<|system|>\nTools:\n{tools}<|end|>\n" if tools else ""
    return f"<|bos|>{listed}" + "".join(f"<|{role}|>\n{text}<|end|>\n" for role, text in turns) + "<|assistant|>\n"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_row_is_read_as_it_is(read, tokenizer, name):
    """Prompt and answers of each form are those that its publishers mean, and the answer with its end is learned."""
    published = PUBLISHED[name]
    found, _ = read(published)
    tools = json.dumps(json.loads(TOOLS_TEXT)[0]) if "tools" in published.row else ""
    before = (written(published.turns, tools), False)
    expected = [plain_ids(tokenizer, [before, (f"{answer}<|end|>", True)]) for answer in published.answers]
    assert found == (expected or [plain_ids(tokenizer, [before])])


@pytest.mark.parametrize("name", [name for name, one in PUBLISHED.items() if len(one.answers) == 2])
def test_published_pairs_are_what_kto_takes_without_a_setting(read, name):
    """KTO reads each pair as a good answer and a bad one, of the same tokens."""
    published = PUBLISHED[name]
    as_pairs, _ = read(published)
    as_labelled, _ = read(PUBLISHED["KTO-mix"], [published.row], **published.data)
    assert as_labelled == as_pairs


def test_the_page_has_a_row_for_each_form():
    """docs/data-formats.md names each form that is tested here, and no other one."""
    table = PAGE.read_text().split("## Published sets")[1].split("\n## ")[0]
    rows = re.findall(r"^\| \*\*(.+?)\*\*", table, re.MULTILINE)
    assert rows == list(PUBLISHED)


# ---------------------------------------------------------------------------------------------------------------------
# Several turns

FIRST, SECOND, AGAIN = "Where?", "Up.", "Are you sure?"
LONG = [user("q"), says(FIRST), user("Here."), says(SECOND), user(AGAIN), says("Yes.")]
SHORT = [user("q"), says("No.")]
PAIR = {"chosen": LONG, "rejected": SHORT}
ALL_PARTS = [
    ("<|bos|><|user|>\nq<|end|>\n<|assistant|>\n", False),
    (f"{FIRST}<|end|>", True),
    ("\n<|user|>\nHere.<|end|>\n<|assistant|>\n", False),
    (f"{SECOND}<|end|>", True),
    (f"\n<|user|>\n{AGAIN}<|end|>\n<|assistant|>\n", False),
    ("Yes.<|end|>", True),
]


def test_all_turns_of_a_pair_are_learned_by_position(read, tokenizer):
    """Under turns: all the assistant's turns that differ are learned with their ends, and nothing that others say."""
    found, report = read(PUBLISHED["argilla dpo-mix"], [PAIR], turns="all")
    short = plain_ids(tokenizer, [ALL_PARTS[0], ("No.<|end|>", True)])
    assert found == [plain_ids(tokenizer, ALL_PARTS), short]
    said = sum(len(tokenizer.encode(ALL_PARTS[place][0], add_special_tokens=False)) for place in (2, 4))
    assert report.lengths.said == said
    assert f"{said} tokens of other turns inside of answers are read, not learned" in str(report)


def test_turns_that_are_the_same_are_the_prompt(read, tokenizer):
    """What both conversations begin with is never learned, the assistant's turns in it neither."""
    pair = {"chosen": LONG, "rejected": [*LONG[:3], says("Down.")]}
    found, _ = read(PUBLISHED["argilla dpo-mix"], [pair], turns="all")
    common = [(text, False) for text, _ in ALL_PARTS[:3]]
    # The prompt is tokenised as one text.
    before = ("".join(text for text, _ in common), False)
    assert found == [
        plain_ids(tokenizer, [before, *ALL_PARTS[3:]]),
        plain_ids(tokenizer, [before, ("Down.<|end|>", True)]),
    ]


@pytest.mark.parametrize("row", [{"messages": LONG}, {"prompt": "q", "completion": LONG[1:]}])
def test_all_answers_of_a_conversation_are_learned(read, tokenizer, row):
    """Without a second answer to differ from, every turn of the assistant behind the prompt is learned."""
    found, _ = read(PUBLISHED["KTO-mix"], [row | {"label": True}], turns="all")
    assert found == [plain_ids(tokenizer, ALL_PARTS)]
    last, report = read(PUBLISHED["KTO-mix"], [{"messages": LONG, "label": True}])
    before = ("".join(text for text, _ in ALL_PARTS[:5]), False)
    assert last == [plain_ids(tokenizer, [before, ALL_PARTS[5]])] and not report.lengths.said


def test_what_a_tool_says_is_not_learned(read, tokenizer):
    """Calls of a tool are answers, and its results are not."""
    talk = [user("q"), calls("up"), {"role": "tool", "content": "done"}, says("Up.")]
    found, _ = read(PUBLISHED["KTO-mix"], [{"messages": talk, "label": True}], turns="all")
    parts = [
        ("<|bos|><|user|>\nq<|end|>\n<|assistant|>\n", False),
        ('<call>point {"way": "up"}</call><|end|>', True),
        ("\n<|user|>\n<result>done</result><|end|>\n<|assistant|>\n", False),
        ("Up.<|end|>", True),
    ]
    assert found == [plain_ids(tokenizer, parts)]


def test_hh_with_all_turns(read, tokenizer):
    """Pairs of HH-RLHF that part early are learned from as far as they differ."""
    human = "\n\nHuman: q\n\nAssistant:"
    row = {"chosen": f"{human} {FIRST}\n\nHuman: Here.\n\nAssistant: {SECOND}", "rejected": f"{human} No."}
    found, _ = read(PUBLISHED["HH-RLHF"], [row], turns="all")
    short = plain_ids(tokenizer, [ALL_PARTS[0], ("No.<|end|>", True)])
    assert found == [plain_ids(tokenizer, ALL_PARTS[:4]), short]


@pytest.mark.parametrize("limit", [26, 31, 47])
def test_cut_answers_of_several_turns_keep_their_masks(read, tokenizer, limit):
    """A cut takes from the end, and says nothing of what is cut."""
    ids, mask = plain_ids(tokenizer, ALL_PARTS)
    assert limit < len(ids)
    found, _ = read(PUBLISHED["argilla dpo-mix"], [PAIR], turns="all", max_length=limit, too_long="truncate")
    assert found[0] == (ids[:limit], mask[:limit])


@pytest.mark.parametrize(
    ("row", "turns", "expected"),
    [
        (PAIR, "last", r"part 5 turns before the end of 'chosen'; expected them to differ in their last turn only, or"),
        (
            {"chosen": LONG, "rejected": [*LONG[:2], user("There."), says("No.")]},
            "all",
            r"the two answers part in the user's turn, 4 turns before the end of 'chosen'; expected two answers to the",
        ),
        ({"chosen": [user("q"), says("a"), says("b")], "rejected": SHORT}, "all", r"is the assistant's too"),
        ({"chosen": [user("q"), says("a"), user("b")], "rejected": SHORT}, "all", r"ends with the user's turn"),
        (
            {"chosen": [user("q"), {**says("a"), "reasoning_content": "so"}, user("b"), says("c")], "rejected": SHORT},
            "all",
            r"the chat template writes an earlier answer in another way once others follow: ",
        ),
    ],
)
def test_several_turns_that_cannot_be_learned_are_refused(read, row, turns, expected):
    """Pairs that part in a user's turn, turns out of order and templates that rewrite earlier answers are errors."""
    with pytest.raises(DataError, match=expected):
        read(PUBLISHED["argilla dpo-mix"], [row], turns=turns)


def test_plain_text_takes_one_answer(read):
    """Bare text has no place for what others say."""
    with pytest.raises(DataError, match=r"template: plain takes one answer; use template: chat, or data\.turns: last"):
        read(PUBLISHED["argilla dpo-mix"], [PAIR], turns="all", template="plain")


# ---------------------------------------------------------------------------------------------------------------------
# Bad rows, as a run reports them


def test_a_file_as_hh_is_published_is_read_and_its_bad_rows_are_named(read, tokenizer):
    """Blank answers and pairs that part early are dropped, counted by reason and named, and the rest is what it was."""
    published = PUBLISHED["HH-RLHF"]
    blank = published.row | {"rejected": published.row["rejected"].rpartition(" Down")[0]}
    early = {"chosen": published.row["chosen"], "rejected": "\n\nHuman: Which way is north?\n\nAssistant: Dunno."}
    other = {name: text.replace("north", "south") for name, text in published.row.items()}
    rows = [published.row, blank, other, early] + [
        {name: text.replace("north", f"way {n}") for name, text in published.row.items()} for n in range(36)
    ]
    found, report = read(published, rows, bad_rows="drop")
    assert found == read(published, [row for row in rows if row not in (blank, early)])[0]
    assert str(report.bad_rows) == (
        "2 of 40 rows dropped as bad: 1 the content of 'rejected' message N (assistant) is empty (rows.jsonl:2); "
        "1 the two answers part N turns before the end of 'chosen' (rows.jsonl:4)"
    )
    assert str(report.bad_rows) in str(report)
    with pytest.raises(DataError, match=r"2 of 40 rows are bad \(5\.0%\), more than data\.bad_rows_limit: 0\.04"):
        read(published, rows, bad_rows="drop", bad_rows_limit=0.04)
    with pytest.raises(DataError, match=r"2 problems, 38 right rows"):
        read(published, rows)


def test_turn_marks_inside_of_one_turn_are_pointed_out(read):
    """Texts of HH-RLHF under a chat template are one turn unless the recipe says otherwise; the report says so."""
    published = PUBLISHED["HH-RLHF as text"]
    assert "1 prompts are one user's turn with the turn marks" in str(read(published, template="chat")[1])
    assert "turn marks" not in str(read(published)[1]) + str(read(PUBLISHED["HH-RLHF"])[1])


def test_rows_that_the_template_refuses_are_bad_rows_too(read):
    """They are dropped and named beside those that cannot be read, under one limit."""
    published = PUBLISHED["argilla dpo-mix"]
    wrong = copy.deepcopy(published.row)
    wrong["chosen"][-1]["name"] = "north"  # a key that the template does not write
    rows = [published.row, wrong, published.row | {"chosen": []}, *[published.row] * 5]
    found, report = read(published, rows, bad_rows="drop", bad_rows_limit=0.25)
    assert len(found) == 12 and report.lengths.total == 6
    assert (report.bad_rows.bad, report.bad_rows.total) == (2, 8)
    assert {place for reason in report.bad_rows.reasons for place in reason.places} == {"rows.jsonl:2", "rows.jsonl:3"}
    with pytest.raises(DataError, match="2 of 8 rows are bad"):
        read(published, rows, bad_rows="drop", bad_rows_limit=0.2)


# ---------------------------------------------------------------------------------------------------------------------
# TRL's own trainers


def trl_sequences(name, published, tokenizer, folder):
    """Return what TRL's trainer of an objective makes of a row: token ids, and which of them are learned."""
    import trl
    from datasets import Dataset

    from humanline.train.policy.new_model import tiny_llama

    row = {key: value for key, value in (published.row | published.for_trl).items() if value is not None}
    model = str(folder / "model")
    tiny_llama(tokenizer, hidden_size=16, layers=1, heads=2, max_length=512).save_pretrained(model)
    shared = {"output_dir": str(folder), "report_to": "none", "use_cpu": True, "bf16": False}
    if published.objective == "grpo":
        options = trl.GRPOConfig(**shared, num_generations=2, per_device_train_batch_size=2)
        trainer = trl.GRPOTrainer(
            model,
            reward_funcs=lambda completions, **more: [0.0] * len(completions),
            args=options,
            train_dataset=Dataset.from_list([row]),
            processing_class=tokenizer,
        )
        (ids,) = trainer._tokenize_prompts([row["prompt"]])[0]
        return [(list(ids), [False] * len(ids))]
    pairs = published.objective == "dpo"
    options = (trl.DPOConfig if pairs else trl.KTOConfig)(**shared, max_length=None, per_device_train_batch_size=2)
    trained = [row] if pairs else [row, row | {"label": False}]
    trainer = (trl.DPOTrainer if pairs else trl.KTOTrainer)(
        model, args=options, train_dataset=Dataset.from_list(trained), processing_class=tokenizer
    )
    made = trainer.train_dataset[0]
    parts = ("chosen_ids", "rejected_ids") if pairs else ("completion_ids",)
    prompt = list(made["prompt_ids"])
    return [(prompt + list(made[part]), [False] * len(prompt) + [True] * len(made[part])) for part in parts]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_row_is_what_trl_makes_of_it(read, tokenizer, tmp_path, name):
    """Token ids and masks are those of TRL's trainers, but for the line end behind an answer's end token.

    The template writes it, TRL learns it, and no model that stops at its end token ever gets to say it. Of bare text
    TRL writes no begin token unless the tokenizer adds it by itself.
    """
    pytest.importorskip("trl", reason="needs the extra `bench`: trl is not installed")
    published = PUBLISHED[name]
    (line_end,) = tokenizer.encode("\n", add_special_tokens=False)
    ours, _ = read(published)
    theirs = trl_sequences(name, published, with_template(tokenizer, THINKING), tmp_path / "trl")
    if published.turns[0][0] == "text":
        begin = tokenizer.bos_token_id
        expected = [([begin, *ids], [False, *mask]) for ids, mask in theirs]
    elif published.answers:
        assert all(ids[-1] == line_end and mask[-1] for ids, mask in theirs)
        expected = [(ids[:-1], mask[:-1]) for ids, mask in theirs]
    else:
        expected = theirs
    assert ours == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL
def test_trl_takes_words_that_both_answers_begin_with_as_prompt(read, tokenizer, tmp_path):
    """Of two texts TRL's prompt goes on to the first difference, inside the answers: ids agree, fewer are learned."""
    pytest.importorskip("trl", reason="needs the extra `bench`: trl is not installed")
    published = PUBLISHED["HH-RLHF as text"]
    row = {side: text.replace(" Down", " Up") for side, text in published.row.items()}
    ours, _ = read(published, [row])
    changed = type(published)(row, published.turns, published.answers, published.data)
    theirs = trl_sequences("text", changed, with_template(tokenizer, THINKING), tmp_path / "trl")
    assert [ids[1:] for ids, _ in ours] == [ids for ids, _ in theirs]
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        assert sum(mine) > sum(other) and all(a or not b for a, b in zip(mine[1:], other, strict=True))
