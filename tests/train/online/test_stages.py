"""The stages of a round on files, and the commands that run them alone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from humanline.cli import main
from humanline.system import folders as system_folders
from humanline.system.lock import is_lock
from humanline.system.stop import StopRequested
from humanline.train.config import load_config
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context, Draw, with_system
from humanline.train.data.render import Renderer
from humanline.train.data.rows import read_rows
from humanline.train.online import commands as tools
from humanline.train.online.journal import gather_samples, regroup, sample_into
from humanline.train.online.ledger import LedgerError, append, json_rows, read_lines
from humanline.train.online.stages import read_rollouts, read_scores, score_rows, score_share, score_table
from humanline.train.online.trainable import Trainable
from humanline.train.online.types import Completion, Rollout, SamplerError, Score, saying_how_to_go_on
from humanline.train.policy.load import load_tokenizer
from tests.helpers.scripted_server import Reply, serving


def text_of(rows) -> str:
    return "".join(json_rows(rows))


class Sampler:
    """Draws what key, context and sample say; by itself a batch at a time, else (size None) one context at a time."""

    def __init__(self, size, *, fails_at=None, short=False):
        self.size, self.fails_at, self.short, self.asked = size, fails_at, short, []

    def together(self, samples):
        return self.size

    def sample(self, contexts, samples, *, key):
        self.asked.append([one.id for one in contexts])
        batches = [contexts[i : i + (self.size or 1)] for i in range(0, len(contexts), self.size or 1)]
        if self.size is None:
            batches = batches[::-1]  # any order
        for number, batch in enumerate(batches):
            if self.fails_at is not None and len(self.asked) + number > self.fails_at:
                raise SamplerError("gone")
            yield [
                Rollout(
                    one.id,
                    one.prompt,
                    tuple(
                        Completion(f"{key} {one.id} {n}\u2028", (n, 7), "end", (-0.5, -1e-3 * n))
                        for n in range(samples - self.short)
                    ),
                    one.extra,
                )
                for one in batch
            ]


CONTEXTS = [Context(f"c{i}", (Message("user", f"q {i}"),), tuple(range(i + 1)), {"answer": i}) for i in range(7)]


def work(journal, sampler, contexts=CONTEXTS, **more):
    sample_into(journal, contexts, 3, sampler, key=(4, 2), policy="abc", **more)


def rows_of(*journals):
    rows = [row for journal in journals for row in read_lines(journal)]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def expected():
    return {
        one.id: {
            "id": one.id,
            "prompt": [{"role": "user", "content": one.prompt[0].content}],
            "extra": {"answer": one.extra["answer"]},
            "policy": "abc",
            "completions": [
                {"text": f"(4, 2) {one.id} {n}\u2028", "ids": [n, 7], "finish": "end", "logprobs": [-0.5, -1e-3 * n]}
                for n in range(3)
            ],
        }
        for one in CONTEXTS
    }


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 50])
def test_sampling_goes_on_from_any_part_of_its_journal(tmp_path, size):
    """Cut at every line and inside lines, the journal is completed to the same rows; whole batches are left alone."""
    journal = tmp_path / "journal.jsonl"
    first = Sampler(size)
    work(journal, first)
    whole = journal.read_bytes()
    assert rows_of(journal) == expected()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 7
    names = [json.loads(line)["id"] for line in lines]
    batches = [[one.id for one in CONTEXTS[i : i + (size or 1)]] for i in range(0, 7, size or 1)]
    if size is not None:
        assert first.asked == batches
    for count in range(8):
        before = sum(map(len, lines[:count]))
        inside = (1, len(lines[count]) // 2, len(lines[count]) - 1) if count < 7 else ()
        for cut in (0, *inside):
            journal.write_bytes(whole[: before + cut])
            again, told = Sampler(size), []
            work(journal, again, progress=lambda done, due, told=told: told.append((done, due)))
            assert rows_of(journal) == expected()
            missing = set(names[count:])
            if size is None:
                assert again.asked == [[one.id for one in CONTEXTS if one.id in missing]] * bool(missing)
                assert told == [(n, 7) for n in range(count + 1, 8)]
            else:
                assert again.asked == [batch for batch in batches if missing & set(batch)]
                assert [due for _, due in told] == [7] * len(again.asked)
                assert not told or told[-1] == (7, 7)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_ranks_share_the_batches_of_one(tmp_path, size, ranks):
    """Together ranks sample each context once, in the very batches that one rank would ask for."""
    samplers = [Sampler(size) for _ in range(ranks)]
    journals = [tmp_path / f"{rank}.jsonl" for rank in range(ranks)]
    for rank, sampler in enumerate(samplers):
        work(journals[rank], sampler, rank=rank, ranks=ranks)
    assert rows_of(*journals) == expected()
    asked = [batch for sampler in samplers for batch in sampler.asked]
    if size is None:
        assert sorted(name for batch in asked for name in batch) == [one.id for one in CONTEXTS]
    else:
        assert sorted(asked) == [[one.id for one in CONTEXTS[i : i + size]] for i in range(0, 7, size)]
    counts = [len(rows_of(journal)) for journal in journals]
    assert max(counts) - min(counts) <= (size or 1)


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("before,now", [(1, 2), (2, 1), (2, 3), (3, 1), (2, 2)])
def test_another_number_of_ranks_goes_on(tmp_path, size, before, now):
    """What other ranks had sampled when they were stopped is not sampled again, and no row of theirs is lost.

    So it is where the journals were moved and the process was killed before the old ones were gone. As many ranks as
    before find their journals as they left them.
    """
    contexts = [Context(f"c{i}", (Message("user", f"q {i}"),), (1, 2), {}) for i in range(18)]
    journals = [tmp_path / f"samples-rank-{rank}.jsonl" for rank in range(max(before, now))]
    for rank in range(before):
        with contextlib.suppress(SamplerError):
            work(journals[rank], Sampler(size, fails_at=2), contexts, rank=rank, ranks=before)
    left = {journal: journal.read_bytes() for journal in journals[:before]}
    done = rows_of(*left)
    earlier = tmp_path / "samples-earlier.jsonl"
    assert 2 <= len(done) < 18
    for killed in (True, False):
        there = sorted(tmp_path.glob("samples-*.jsonl"))
        regroup(there, journals[:now], earlier, contexts, size)
        if before == now:
            assert not earlier.exists() and all(journal.read_bytes() == text for journal, text in left.items())
            return
        assert sorted(tmp_path.glob("samples-*.jsonl")) == [earlier]
        for journal, text in left.items() if killed else ():
            journal.write_bytes(text)
    samplers = [Sampler(size) for _ in range(now)]
    for rank, sampler in enumerate(samplers):
        work(journals[rank], sampler, contexts, rank=rank, ranks=now, earlier=earlier)
    again = {name for sampler in samplers for batch in sampler.asked for name in batch if name in done}
    assert not again or size == 2  # whole batches alone give the same bits
    there = [path for path in (earlier, *journals[:now]) if path.is_file()]
    gather_samples(tmp_path / "all.jsonl", there, contexts, "abc")
    work(tmp_path / "alone.jsonl", Sampler(size), contexts)
    assert rows_of(tmp_path / "all.jsonl") == rows_of(tmp_path / "alone.jsonl")
    append(journals[now - 1], [Rollout("c1", (), (), {}, policy="abc").row()])  # sampled again: the later row counts
    there = [path for path in (earlier, *journals[:now]) if path.is_file()]
    gather_samples(tmp_path / "all.jsonl", there, contexts, "abc")
    assert rows_of(tmp_path / "all.jsonl")["c1"]["completions"] == []


def test_work_before_a_failure_is_kept(tmp_path):
    """What a sampler gave before it failed is in the journal, and is not asked for again."""
    journal = tmp_path / "journal.jsonl"
    with pytest.raises(SamplerError, match="gone"):
        work(journal, Sampler(2, fails_at=2))
    assert list(rows_of(journal)) == ["c0", "c1", "c2", "c3"]
    again = Sampler(2)
    work(journal, again)
    assert again.asked == [["c4", "c5"], ["c6"]] and rows_of(journal) == expected()


def test_too_few_completions_are_an_error(tmp_path):
    """A sampler that gives fewer completions than asked for is refused, and nothing of that batch is kept."""
    with pytest.raises(SamplerError, match="c0: 2 completions came, 3 were asked for"):
        work(tmp_path / "journal.jsonl", Sampler(2, short=True))
    assert rows_of(tmp_path / "journal.jsonl") == {}


@pytest.mark.parametrize("keys", [("id", "prompt", "policy"), ("policy", "id"), ("no", "policy", "id")])
def test_rows_whose_keys_are_in_another_order_are_read(tmp_path, keys):
    """Short ones too, and such whose first key is as long as id."""
    journal = tmp_path / "journal.jsonl"
    work(journal, Sampler(2))
    rows = [{"no": "it is not this", **row} for row in read_lines(journal)]
    for row in rows:
        append(tmp_path / "other.jsonl", [{key: row.pop(key) for key in keys} | row])
    sampler = Sampler(2)
    work(tmp_path / "other.jsonl", sampler)
    assert sampler.asked == []


@pytest.mark.parametrize("line", ["{}", "7", "{"])
def test_a_damaged_journal_is_an_error_with_its_place(tmp_path, line):
    """A row of a journal that is none names file and line."""
    journal = tmp_path / "journal.jsonl"
    work(journal, Sampler(2))
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(LedgerError, match=r"journal\.jsonl:3"):
        work(journal, Sampler(2))


@pytest.mark.parametrize("damage", [("]", "["), ('"completions"', '"complétions"'), ('"ids": [0', '"ids": ["0"')])
def test_a_row_whose_samples_are_damaged_is_an_error_with_its_place(tmp_path, toy, damage):
    """A row that only its id and policy are whole of names file and line, and what to do."""
    renderer = Renderer(load_tokenizer(toy["model"]), "chat", 64)
    trainable = Trainable(renderer, 16, None)
    journal = tmp_path / "journal.jsonl"
    work(journal, Sampler(2))
    journal.write_text("".join(line.replace(*damage) for line in journal.read_text().splitlines(keepends=True)))
    with pytest.raises(LedgerError, match=r"journal\.jsonl:1: .*; remove the file to do its work again"):
        work(journal, Sampler(2), trainable=trainable)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gone", "gone. What is finished is kept: mend that, then go on"),
        ("gone.", "gone. What is finished is kept: mend that, then go on"),
        (
            "its last words:\nout of memory",
            "its last words:\nout of memory\nWhat is finished is kept: mend that, then go on",
        ),
        ("its last words:\nbye.", "its last words:\nbye.\nWhat is finished is kept: mend that, then go on"),
    ],
)
def test_how_work_is_gone_on_with_is_a_sentence_of_its_own(text, said):
    """It has one full stop before it, or a line of its own behind words of several lines."""
    with pytest.raises(SamplerError) as failed, saying_how_to_go_on("go on"):
        raise SamplerError(text)
    assert str(failed.value) == said


def test_rollouts_come_back_from_their_rows(tmp_path):
    """Rows read again are equal rollouts, with every kind of character, and without log-probs where there are none."""
    rollouts = [
        Rollout(
            "a\n東京",
            (Message("system", "s"), Message("user", "\u2028\x00🙂")),
            (Completion("", (), "length"), Completion("x\r\n", (1, 2), "stop", (-0.1, -1e-30))),
            {"answer": {"deep": [1, None, "ü"]}},
            "policy",
        ),
        Rollout("b", (Message("user", "q"),), ()),
    ]
    path = tmp_path / "samples.jsonl"
    path.write_text(text_of(one.row() for one in rollouts))
    assert [one.row() for one in read_rollouts(path)] == [one.row() for one in rollouts]


GOOD = {
    "id": "a",
    "prompt": [{"role": "user", "content": "q"}],
    "extra": {},
    "policy": "",
    "completions": [{"text": "t", "ids": [1], "finish": "end", "logprobs": None}],
}
COMPLETION = GOOD["completions"][0]
BAD_SAMPLES = {
    "nothing": {},
    "no prompt": {k: v for k, v in GOOD.items() if k != "prompt"},
    "text prompt": GOOD | {"prompt": "q"},
    "number prompt": GOOD | {"prompt": 5},
    "turns of text": GOOD | {"prompt": ["q"]},
    "content is a number": GOOD | {"prompt": [{"role": "user", "content": 5}]},
    "extra is null": GOOD | {"extra": None},
    "id is a number": GOOD | {"id": 5},
    "id is a list": GOOD | {"id": ["a"]},
    "completions are null": GOOD | {"completions": None},
    "completions of text": GOOD | {"completions": ["t"]},
    "completions are an object": GOOD | {"completions": COMPLETION},
    "text is null": GOOD | {"completions": [COMPLETION | {"text": None}]},
    "ids are null": GOOD | {"completions": [COMPLETION | {"ids": None}]},
    "ids are text": GOOD | {"completions": [COMPLETION | {"ids": "12"}]},
    "ids are floats": GOOD | {"completions": [COMPLETION | {"ids": [1.5]}]},
    "unknown finish": GOOD | {"completions": [COMPLETION | {"finish": "eos"}]},
    "logprobs are text": GOOD | {"completions": [COMPLETION | {"logprobs": "x"}]},
    "too few logprobs": GOOD | {"completions": [COMPLETION | {"logprobs": []}]},
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_rows_that_are_no_samples_are_refused(tmp_path, name):
    """A row of another kind, or with a value of another type, is an error with its place."""
    path = tmp_path / "samples.jsonl"
    path.write_text(text_of([GOOD, BAD_SAMPLES[name]]))
    with pytest.raises(LedgerError, match=r"samples\.jsonl:2: no row of samples"):
        read_rollouts(path)


class Scorer:
    """Scores a completion by its text; the last comes first."""

    def __init__(self):
        self.seen = []

    def score(self, rollouts):
        for index in reversed(range(len(rollouts))):
            for number in reversed(range(len(rollouts[index].completions))):
                text = rollouts[index].completions[number].text
                self.seen.append((rollouts[index].prompt, text))
                yield index, number, Score(float(len(text)), "ok", {"length": 1.0}, text)


def many_rollouts(seed=0):
    """Prompts and texts that repeat, within and across rollouts."""
    rng = random.Random(seed)
    return [
        Rollout(
            f"r{i}",
            (Message("user", f"question {i % 4}"),),
            tuple(Completion("x" * rng.randint(1, 6), (1,), "end") for _ in range(rng.randint(0, 6))),
        )
        for i in range(20)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_share_completions_by_content(ranks):
    """Each completion is scored once, under its own place; equal texts of equal prompts are all one rank's."""
    rollouts, found, owner = many_rollouts(), {}, {}
    for rank in range(ranks):
        scorer, told = Scorer(), []
        share = list(
            score_share(
                rollouts, scorer, rank=rank, ranks=ranks, progress=lambda done, due, t=told: t.append((done, due))
            )
        )
        assert told == [(n + 1, len(share)) for n in range(len(share))]
        for index, number, score in share:
            assert (index, number) not in found
            found[index, number] = score
        for content in scorer.seen:
            assert owner.setdefault(content, rank) == rank
    assert {place: score.reason for place, score in found.items()} == {
        (i, n): one.text for i, rollout in enumerate(rollouts) for n, one in enumerate(rollout.completions)
    }
    assert set(owner.values()) == set(range(ranks))


def test_scoring_stops_after_the_score_it_has():
    """Asked to stop, it gives the scores so far and asks the scorer for no more."""
    scorer = Scorer()
    found = list(score_share(many_rollouts(), scorer, stopping=lambda: len(scorer.seen) >= 3))
    assert len(found) == len(scorer.seen) == 3


def test_scores_come_back_from_their_rows(tmp_path):
    """Values, statuses, parts and reasons read again are equal, whatever the order in which they came."""
    rollouts = many_rollouts()
    scores = [
        [
            Score(0.1 * n, "ok", {"a": 1e-30}, "") if n % 2 else Score(None, "timeout", {}, "slow\n東")
            for n, _ in enumerate(r.completions)
        ]
        for r in rollouts
    ]
    found = [(i, n, score) for i, own in enumerate(scores) for n, score in enumerate(own)]
    random.Random(1).shuffle(found)
    path = tmp_path / "scores.jsonl"
    path.write_text(text_of(score_rows(rollouts, score_table(rollouts, found))))
    assert read_scores(path, rollouts) == scores
    with pytest.raises(LedgerError, match=f"{rollouts[found[0][0]].id}: completion {found[0][1] + 1} was not scored"):
        score_table(rollouts, found[1:])


SCORE = {"value": 1.0, "status": "ok", "parts": {}}
BAD_SCORES = {
    "other id": [{"id": "b", "scores": [SCORE]}],
    "too many rows": [{"id": "a", "scores": [SCORE]}] * 2,
    "no rows": [],
    "no scores": [{"id": "a"}],
    "null scores": [{"id": "a", "scores": None}],
    "too few": [{"id": "a", "scores": []}],
    "too many": [{"id": "a", "scores": [SCORE, SCORE]}],
    "a bare number": [{"id": "a", "scores": [1.0]}],
    "a value of text": [{"id": "a", "scores": [SCORE | {"value": "1"}]}],
    "a value of true": [{"id": "a", "scores": [SCORE | {"value": True}]}],
    "not a number": [{"id": "a", "scores": [SCORE | {"value": float("nan")}]}],
    "infinite": [{"id": "a", "scores": [SCORE | {"value": float("inf")}]}],
    "no value": [{"id": "a", "scores": [{"status": "ok", "parts": {}}]}],
}


@pytest.mark.parametrize("name", BAD_SCORES)
def test_rows_that_are_not_these_scores_are_refused(tmp_path, name):
    """Scores of other samples, too few or too many, or values that are no finite numbers, are an error."""
    path = tmp_path / "scores.jsonl"
    path.write_text(text_of(BAD_SCORES[name]))
    with pytest.raises(LedgerError, match=r"scores\.jsonl"):
        read_scores(path, [Rollout.from_row(GOOD)])


def test_rounds_take_each_prompt_once_a_pass():
    """Within a pass no prompt comes twice, rounds are the same for the same seed, the longest prompts come first."""
    draw = Draw(CONTEXTS, 2, seed=3)
    for pass_ in range(4):
        rounds = [draw.round(3 * pass_ + i) for i in range(3)]
        names = [one.id for round_ in rounds for one in round_]
        assert len(names) == len(set(names)) == 6
        assert all(len(a.ids) >= len(b.ids) for a, b in rounds)
    order = [[one.id for one in draw.round(n)] for n in range(12)]
    assert order == [[one.id for one in Draw(CONTEXTS, 2, seed=3).round(n)] for n in range(12)]
    assert order != [[one.id for one in Draw(CONTEXTS, 2, seed=4).round(n)] for n in range(12)]
    assert len({tuple(order[3 * i] + order[3 * i + 1]) for i in range(4)}) > 1  # shuffled anew
    assert {name for round_ in order for name in round_} == {one.id for one in CONTEXTS}
    even = Draw(CONTEXTS[:6], 3, seed=3)
    for pass_ in range(3):
        names = [one.id for i in range(2) for one in even.round(2 * pass_ + i)]
        assert sorted(names) == [f"c{i}" for i in range(6)]
    with pytest.raises(ValueError, match="contexts_per_round 8 is larger than the data: 7 prompts"):
        Draw(CONTEXTS, 8, seed=0)


def test_a_system_prompt_comes_first_where_there_is_none():
    """It is put before prompts without a system message, and replaces none."""
    user, system = Message("user", "q"), Message("system", "own")
    assert with_system((user,), "new") == (Message("system", "new"), user)
    assert with_system((system, user), "new") == (system, user)
    assert with_system((user,), None) == (user,)


# The commands.

REWARD = """
import os

def letters(prompt, completion, answer):
    with open("calls.txt", "a") as file:
        file.write("1")
    return len(set(completion)) / 8
"""


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch):
    """A folder with a recipe of rounds, prompts, and a callable that scores; the current one."""
    (tmp_path / "own_rewards.py").write_text(REWARD)
    (tmp_path / "prompts.jsonl").write_text(text_of({"prompt": f"{i} abc", "answer": str(i)} for i in range(6)))
    tree = {
        "model": toy["model"],
        "output": str(tmp_path / "run"),
        "objective": {"kind": "dpo", "beta": 0.5},
        "data": {"train": "prompts.jsonl", "max_length": 48},
        "training": {"steps": 2, "batch_size": 2, "micro_batch_size": 2},
        "optimizer": {"lr": 1e-3},
        "reference": {"schedule": {"kind": "each_round"}},
        "source": {
            "kind": "rounds",
            "contexts_per_round": 4,
            "samples": 3,
            "score_margin": 0.01,
            "sampling": {"max_tokens": 6, "engine": {"kind": "generate", "batch_size": 6}},
            "scoring": {
                "rewards": [{"kind": "function", "call": "own_rewards:letters", "columns": ["answer"]}],
                "workers": 1,
                "seconds": 30.0,
            },
        },
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    return "recipe.yaml"


@pytest.fixture
def answer(toy):
    """The row of a completion that says a text with the toy's own tokens."""
    tokenizer = load_tokenizer(toy["model"])
    return lambda text: COMPLETION | {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}


def command(*words):
    return main([*words, "--quiet"])


def test_sample_score_and_pair_end_with_preference_data(recipe, tmp_path, capsys):
    """The three commands make a file that training reads, whose pairs are the best and the worst by the callable."""
    assert command("sample", recipe, "--out", "samples.jsonl") == 0
    assert command("score", recipe, "samples.jsonl", "--out", "scored.jsonl") == 0
    assert command("pair", recipe, "scored.jsonl", "--out", "pairs.jsonl") == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{n}.jsonl") for n in ("samples", "scored", "pairs")]
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".*"))
    rollouts = read_rollouts(tmp_path / "samples.jsonl")
    assert [one.extra["answer"] for one in rollouts] == [str(i) for i in range(6)]
    assert all(len(one.completions) == 3 for one in rollouts) and len({one.policy for one in rollouts}) == 1
    scored = read_lines(tmp_path / "scored.jsonl")
    want = []
    for rollout, row in zip(rollouts, scored, strict=True):
        assert Rollout.from_row(row).row() == rollout.row()
        values = [len(set(one.text)) / 8 for one in rollout.completions]
        assert [score["value"] for score in row["scores"]] == values
        best, worst = values.index(max(values)), values.index(min(values))
        pair = tuple(rollout.completions[place].text for place in (best, worst))
        if max(values) - min(values) >= 0.01 and all(text.strip() for text in pair):
            want.append((rollout.prompt, *pair))
    rows = read_rows("pairs.jsonl", "preference")
    assert [(row.prompt, row.chosen, row.rejected) for row in rows] == want and len(want) >= 3


def test_limit_takes_the_first_prompts(recipe, tmp_path):
    """--limit N samples from the first N prompts and draws for them what it would draw anyway."""
    assert command("sample", recipe, "--out", "two.jsonl", "--limit", "2") == 0
    assert command("sample", recipe, "--out", "all.jsonl") == 0
    assert (tmp_path / "two.jsonl").read_bytes().splitlines() == (tmp_path / "all.jsonl").read_bytes().splitlines()[:2]
    assert command("sample", recipe, "--out", "none.jsonl", "--limit", "0") == 2


class StopAt:
    """A StopSignal that is asked to stop at its n-th look, while it holds."""

    def __init__(self, number):
        self.number, self.asked, self.holding = number, 0, False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def hold(self):
        self.holding = True

    @property
    def requested(self):
        if self.holding:
            self.asked += 1
        return "SIGTERM" if self.asked > self.number else None


@pytest.mark.parametrize("more", [(), ("adapter={rank: 2}",)], ids=["whole", "adapter"])
def test_an_interrupted_sample_goes_on(recipe, tmp_path, monkeypatch, capsys, more):
    """Stopped, it exits with 75, keeps what is whole, and the same command ends with the bytes of a run left alone."""
    assert command("sample", recipe, *more, "--out", "left_alone.jsonl") == 0
    partial = tmp_path / "samples.jsonl.partial"
    counts = []
    for number in (0, 8, 1):
        with monkeypatch.context() as patch:
            patch.setattr("humanline.system.stop.StopSignal", lambda number=number: StopAt(number))
            assert command("sample", recipe, *more, "--out", "samples.jsonl") == 75
        said = capsys.readouterr().err
        assert "SIGTERM" in said and str(partial) in said and "same command" in said
        assert not (tmp_path / "samples.jsonl").exists()
        counts.append(len(read_lines(partial / "samples.journal.jsonl")))
    assert counts[0] == 0 < counts[1] <= counts[2] < 6
    journal = (partial / "samples.journal.jsonl").read_bytes()
    (partial / "samples.journal.jsonl").write_bytes(journal + b'{"id": "torn')
    assert command("sample", recipe, *more, "--out", "samples.jsonl") == 0
    assert (tmp_path / "samples.jsonl").read_bytes() == (tmp_path / "left_alone.jsonl").read_bytes()
    assert not partial.exists()


def test_an_interrupted_score_goes_on(recipe, tmp_path):
    """Stopped, scores so far are kept: the callable is called once for each distinct completion, and ends the same."""
    command("sample", recipe, "--out", "samples.jsonl")
    config = load_config(recipe, [])
    stop = StopAt(4)
    with pytest.raises(StopRequested, match=r"scored\.jsonl\.partial"):
        tools.score(config, "samples.jsonl", "scored.jsonl", stop=stop)
    assert not (tmp_path / "scored.jsonl").exists()
    before = (tmp_path / "calls.txt").stat().st_size
    tools.score(config, "samples.jsonl", "scored.jsonl", say=lambda text: None)
    distinct = {(r.prompt, c.text) for r in read_rollouts(tmp_path / "samples.jsonl") for c in r.completions}
    assert 0 < before < len(distinct) == (tmp_path / "calls.txt").stat().st_size
    tools.score(config, "samples.jsonl", "again.jsonl", say=lambda text: None)
    assert (tmp_path / "scored.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()


BREAKS = """
import os

def breaks(prompt, completion):
    if not os.path.exists("mended"):
        raise ConnectionError("nobody answers")
    return 0.5
"""


@pytest.mark.parametrize("failed", ["error", 0.0])
def test_scores_of_which_too_many_lack_are_no_file(recipe, tmp_path, capsys, failed):
    """The score command ends with 2, counts and reasons; the same one then asks again for what failed, and no more."""
    (tmp_path / "breaking.py").write_text(BREAKS)
    command("sample", recipe, "--out", "samples.jsonl")
    own = {"kind": "function", "call": "own_rewards:letters", "columns": ["answer"]}
    rewards = json.dumps([own, {"kind": "function", "call": "breaking:breaks"}])
    words = ["score", recipe, "samples.jsonl", f"source.scoring.rewards={rewards}", "--out", "scored.jsonl"]
    words.append(f"source.scoring.failed={failed}")
    for share in (0.5, 0.99):  # which belongs to no plan
        assert command(*words, f"source.scoring.failed_share={share}") == 2
        said = capsys.readouterr().err
        assert (
            "samples.jsonl: 18 of 18 completions have no score (18 error; by reward: 18 function_2), a larger " in said
        )
        assert "- 18 times error: source.scoring.rewards[1] (function_2): ConnectionError: nobody answers" in said
        assert "give the same command again" in said and "--resume" not in said
    assert not (tmp_path / "scored.jsonl").exists()
    paid = (tmp_path / "calls.txt").read_text()
    (tmp_path / "mended").touch()
    assert command(*words) == 0
    assert (tmp_path / "calls.txt").read_text() == paid
    scored = read_lines(tmp_path / "scored.jsonl")
    assert all(score["status"] == "ok" for row in scored for score in row["scores"])
    assert not list(tmp_path.glob("*.partial"))


def test_scores_that_lack_by_leave_are_written_down_and_pair_decides(recipe, tmp_path, capsys):
    """At failed_share 1 the file holds statuses; pair refuses it by the same rules, and without talk of --resume."""
    (tmp_path / "breaking.py").write_text(BREAKS)
    command("sample", recipe, "--out", "samples.jsonl")
    broken = f"source.scoring.rewards={json.dumps([{'kind': 'function', 'call': 'breaking:breaks'}])}"
    words = ["score", recipe, "samples.jsonl", broken, "source.scoring.failed_share=1"]
    assert command(*words, "--out", "scored.jsonl") == 0
    scored = read_lines(tmp_path / "scored.jsonl")
    assert {score["status"] for row in scored for score in row["scores"]} == {"error"}
    for failed, share in (("error", 1.0), ("drop", 0.5), ("0", 0.5)):
        change = [f"source.scoring.failed={failed}", f"source.scoring.failed_share={share}"]
        assert command("pair", recipe, "scored.jsonl", *change, "--out", "pairs.jsonl") == 2
        said = capsys.readouterr().err
        assert "scored.jsonl: 18 of 18 completions have no score (18 error)" in said
        assert "score the samples again" in said and "--resume" not in said
    assert not (tmp_path / "pairs.jsonl").exists()


def test_sample_says_how_it_is_gone_on_with(recipe, tmp_path, capsys):
    """Where a server gives nothing, the sample command names the same command, and no option that it does not have."""

    def answer(asked):
        return Reply({"error": "out of order"}, status=503) if asked.path.endswith("/completions") else Reply({})

    with serving(answer) as server:
        engine = {"kind": "server", "url": server.url, "attempts": 1, "concurrency": 1, "new_weights": {"kind": "path"}}
        words = ["sample", recipe, f"source.sampling.engine={json.dumps(engine)}", "--out", "samples.jsonl"]
        assert command(*words) == 2
    said = capsys.readouterr().err
    assert "503" in said and "give the same command again" in said and "--resume" not in said
    assert (tmp_path / "samples.jsonl.partial").is_dir()


def test_nothing_is_overwritten(recipe, tmp_path, capsys):
    """An --out that exists, or whose folder does not, is refused before anything is loaded; the file is as it was."""
    (tmp_path / "there.jsonl").write_text("mine")
    for words in (["sample", recipe], ["score", recipe, "there.jsonl"], ["pair", recipe, "there.jsonl"]):
        assert command(*words, "--out", "there.jsonl") == 2
        assert "exists already" in capsys.readouterr().err
        assert command(*words, "--out", "no/folder.jsonl") == 2
        assert "there is no folder" in capsys.readouterr().err
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    assert not list(tmp_path.glob("*.partial"))


def at_once(*works):
    """Do works in threads that begin together, and return what each gave or raised."""
    ready = threading.Barrier(len(works))

    def outcome(work):
        ready.wait()
        try:
            return work()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(outcome, works))


def test_of_three_stages_at_once_one_works(recipe, tmp_path):
    """Each of sample, score and pair: two are refused, no completion is scored twice, and the file is as from one."""
    config, silent = load_config(recipe, []), {"say": lambda text: None}
    stages = {
        "samples": lambda out: tools.sample(config, out, **silent),
        "scored": lambda out: tools.score(config, "samples.jsonl", out, **silent),
        "pairs": lambda out: tools.pair(config, "scored.jsonl", out, **silent),
    }
    for name, stage in stages.items():
        found = at_once(*[lambda stage=stage, name=name: stage(f"{name}.jsonl")] * 3)
        refused = [one for one in found if isinstance(one, tools.ToolError)]
        assert len(refused) == 2 and tmp_path / f"{name}.jsonl" in found, found
        assert all("in use by another run (process" in str(one) or "exists already" in str(one) for one in refused)
        if name == "scored":
            distinct = {(r.prompt, c.text) for r in read_rollouts(tmp_path / "samples.jsonl") for c in r.completions}
            assert (tmp_path / "calls.txt").stat().st_size == len(distinct)
        alone = stage("alone.jsonl")
        assert alone.read_bytes() == (tmp_path / f"{name}.jsonl").read_bytes()
        alone.unlink()
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".*"))


def test_a_second_sample_is_refused_before_any_request(recipe, tmp_path):
    """While the first waits for its server, others with the same --out ask it nothing."""
    hold = threading.Event()

    def answer(asked):
        return Reply({}, status=503, hold=hold) if asked.path.endswith("/completions") else Reply({})

    with serving(answer) as server, ThreadPoolExecutor(1) as pool:
        engine = {"kind": "server", "url": server.url, "attempts": 1, "concurrency": 1, "new_weights": {"kind": "path"}}
        config = load_config(recipe, [f"source.sampling.engine={json.dumps(engine)}"])
        first = pool.submit(tools.sample, config, "samples.jsonl", say=lambda text: None)
        while not any(asked.path.endswith("/completions") for asked in server.asked):
            assert not first.done()
            time.sleep(0.01)
        try:
            before = len(server.asked)
            for _ in range(2):
                with pytest.raises(tools.ToolError, match=r"--out 'samples.jsonl' is in use by another run \(process"):
                    tools.sample(config, "samples.jsonl", say=lambda text: None)
            assert len(server.asked) == before
        finally:
            hold.set()
        with pytest.raises(SamplerError, match="503"):
            first.result()


def test_an_output_that_something_else_has_made_meanwhile_is_left_alone(recipe, tmp_path, capsys):
    """The file stays as it is, the work is kept, and the same command ends without doing any of it again."""
    command("sample", recipe, "--out", "samples.jsonl")
    broken = REWARD.replace("    return", "    open('scored.jsonl', 'w').write('mine')\n    return")
    (tmp_path / "own_rewards.py").write_text(broken)
    assert command("score", recipe, "samples.jsonl", "--out", "scored.jsonl") == 2
    assert "was made by something else meanwhile, and is left as it is" in capsys.readouterr().err
    assert (tmp_path / "scored.jsonl").read_text() == "mine"
    paid = (tmp_path / "calls.txt").stat().st_size
    (tmp_path / "scored.jsonl").unlink()
    assert command("score", recipe, "samples.jsonl", "--out", "scored.jsonl") == 0
    assert (tmp_path / "calls.txt").stat().st_size == paid and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "source.samples=2",
        "source.sampling.temperature=0.5",
        "source.sampling.engine.batch_size=3",
        "data.max_length=40",
    ],
)
def test_work_of_another_recipe_is_not_gone_on_with(recipe, tmp_path, capsys, change):
    """Settings that draw other completions refuse the folder of work under way, which is left alone."""
    config = load_config(recipe, [])
    with pytest.raises(StopRequested):
        tools.sample(config, "samples.jsonl", stop=StopAt(8), say=lambda text: None)
    partial = tmp_path / "samples.jsonl.partial"
    before = {path.name: path.read_bytes() for path in partial.iterdir() if not is_lock(path.name)}
    assert command("sample", recipe, change, "--out", "samples.jsonl") == 2
    assert "another model, other data or other settings" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in partial.iterdir() if not is_lock(path.name)} == before
    assert not (tmp_path / "samples.jsonl").exists()


def test_work_of_the_same_recipe_is_gone_on_with_whatever_need_not_be_the_same(recipe, tmp_path):
    """A limit that only warns may change; a plan of an earlier version, nested and by its names, is the same plan."""
    config = load_config(recipe, [])
    with pytest.raises(StopRequested):
        tools.sample(config, "samples.jsonl", stop=StopAt(8), say=lambda text: None)
    partial = tmp_path / "samples.jsonl.partial"
    journal = (partial / "samples.journal.jsonl").read_text()
    plan = json.loads((partial / "plan.json").read_text())
    sampling = config.rounds.sampling.model_dump(mode="json")
    del sampling["mismatch_limit"]
    plan = {name: value for name, value in plan.items() if not name.startswith("source.")} | {"sampling": sampling}
    (partial / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    assert command("sample", recipe, "source.sampling.mismatch_limit=0.5", "--out", "samples.jsonl") == 0
    assert journal and (tmp_path / "samples.jsonl").read_text().startswith(journal)


def test_a_folder_in_which_nothing_was_begun_is_gone_on_with(recipe, tmp_path):
    """A kill before the plan was written leaves an empty folder, or half a plan: the same command goes on."""
    for left in ([], [".plan.json.partial"]):
        partial = tmp_path / f"out{len(left)}.jsonl.partial"
        partial.mkdir()
        for name in left:
            (partial / name).write_text("{")
        assert command("sample", recipe, "--out", f"out{len(left)}.jsonl", "--limit", "1") == 0
        assert not partial.exists()


def test_a_kill_in_the_last_moment_leaves_nothing_for_ever(recipe, tmp_path, monkeypatch, capsys, answer):
    """The work under way of a call killed while it was removed goes with the same command's next call."""
    row = GOOD | {"completions": [answer("t"), answer("u")], "scores": [SCORE, SCORE | {"value": 0.0}]}
    (tmp_path / "scored.jsonl").write_text(text_of([row]))

    def stop(what: str) -> None:
        if what.endswith("unnamed"):
            raise KeyboardInterrupt

    call, left = ("pair", recipe, "scored.jsonl", "--out", "pairs.jsonl"), tmp_path / ".pairs.jsonl.partial.deleting"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(system_folders, "barrier", stop)
        tools.pair(load_config(recipe), "scored.jsonl", "pairs.jsonl")
    assert left.is_dir() and (tmp_path / "pairs.jsonl").is_file()
    assert command(*call) == 2 and "exists already" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))


def test_no_pair_above_the_margin_is_an_error_that_says_by_how_much(recipe, tmp_path, capsys, answer):
    """Exit code 2, no file, and the largest difference in the message; also where all scores are equal at margin 0."""
    row = GOOD | {"completions": [answer("t"), answer("u")]}
    scores = [[0.5, 0.375], [0.25, 0.0]]
    rows = [row | {"id": f"{i}", "scores": [SCORE | {"value": v} for v in own]} for i, own in enumerate(scores)]
    (tmp_path / "scored.jsonl").write_text(text_of(rows))
    assert command("pair", recipe, "scored.jsonl", "source.score_margin=0.3", "--out", "pairs.jsonl") == 2
    said = capsys.readouterr().err
    assert "largest difference among them is 0.25" in said and "score_margin" in said
    (tmp_path / "equal.jsonl").write_text(text_of([row | {"scores": [SCORE, SCORE]}]))
    assert command("pair", recipe, "equal.jsonl", "source.score_margin=0.0", "--out", "pairs.jsonl") == 2
    assert "no pair is left of 1 prompts" in capsys.readouterr().err
    assert not (tmp_path / "pairs.jsonl").exists()
    assert command("pair", recipe, "scored.jsonl", "source.score_margin=0.25", "--out", "pairs.jsonl") == 0
    assert len(read_lines(tmp_path / "pairs.jsonl")) == 1


def test_pairs_with_a_blank_answer_are_left_out(recipe, tmp_path, capsys, answer):
    """Training could not read them; the others are written, and how many were blank is said."""
    rows = [
        GOOD
        | {
            "id": name,
            "completions": [answer(text), answer("t")],
            "scores": [SCORE, SCORE | {"value": 0.0}],
        }
        for name, text in (("a", " \n"), ("b", "fine"))
    ]
    (tmp_path / "scored.jsonl").write_text(text_of(rows))
    assert main(["pair", recipe, "scored.jsonl", "--out", "pairs.jsonl"]) == 0
    assert "1 with a blank answer left out" in capsys.readouterr().err
    assert [row.chosen for row in read_rows("pairs.jsonl", "preference")] == ["fine"]


@pytest.mark.parametrize("content", ["", "not json\n{}\n", '{"prompt": "a"}\n', "[1]\n"])
def test_a_file_that_holds_no_samples_is_refused(recipe, tmp_path, capsys, content):
    """Whatever else a file holds, score and pair say that it is none, exit with 2, leave it alone and make nothing."""
    (tmp_path / "given.jsonl").write_text(content)
    for name in ("score", "pair"):
        assert command(name, recipe, "given.jsonl", "--out", "out.jsonl") == 2
        assert "given.jsonl" in capsys.readouterr().err
    assert (tmp_path / "given.jsonl").read_text() == content
    assert not (tmp_path / "out.jsonl").exists()


def test_a_users_file_without_a_last_line_end_is_read_whole_and_left_alone(recipe, tmp_path, answer):
    """A samples file from elsewhere may end without a line end: its last row counts, and no byte of it is changed."""
    rows = [GOOD | {"id": name, "completions": [answer("t"), answer("uv")]} for name in "ab"]
    scored = [row | {"scores": [SCORE, SCORE | {"value": 0.0}]} for row in rows]
    for name, content in (("samples", rows), ("scored", scored)):
        text = text_of(content).rstrip("\n")
        (tmp_path / f"{name}.jsonl").write_text(text)
        words = {"samples": "score", "scored": "pair"}[name]
        rewards = ["source.scoring.rewards=[{kind: tag_count}]"]
        assert command(words, recipe, f"{name}.jsonl", *rewards, "--out", f"{words}.out") == 0
        assert (tmp_path / f"{name}.jsonl").read_text() == text
        assert len(read_lines(tmp_path / f"{words}.out")) == 2


def test_samples_without_scores_are_no_pairs(recipe, tmp_path, capsys, answer):
    """Pair says which command adds scores."""
    (tmp_path / "samples.jsonl").write_text(text_of([GOOD | {"completions": [answer("t")]}]))
    assert command("pair", recipe, "samples.jsonl", "--out", "pairs.jsonl") == 2
    assert "humanline score" in capsys.readouterr().err


def test_a_recipe_without_rounds_is_refused(toy, tmp_path, monkeypatch, capsys):
    """The stages want a recipe with rounds, and say where to get one."""
    monkeypatch.chdir(tmp_path)
    tree = {"model": toy["model"], "output": "run", "objective": {"kind": "dpo"}, "data": {"train": toy["pairs"]}}
    tree |= {"training": {"steps": 1, "batch_size": 2}, "optimizer": {"lr": 1e-3}}
    Path("plain.yaml").write_text(yaml.safe_dump(tree))
    Path("given.jsonl").write_text(text_of([GOOD]))
    for words in (
        ["sample", "plain.yaml"],
        ["score", "plain.yaml", "given.jsonl"],
        ["pair", "plain.yaml", "given.jsonl"],
    ):
        assert command(*words, "--out", "out.jsonl") == 2
        assert "source is not rounds" in capsys.readouterr().err
    assert os.listdir(tmp_path) and not Path("out.jsonl").exists()


def test_appended_rows_are_read_back_in_order(tmp_path):
    """What stages append is what they read, batch after batch."""
    path = tmp_path / "journal.jsonl"
    for start in range(0, 6, 2):
        append(path, [{"id": start}, {"id": start + 1}])
    assert [row["id"] for row in read_lines(path)] == list(range(6))
