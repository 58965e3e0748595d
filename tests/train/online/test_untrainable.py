"""Answers that cannot be trained on: `humanline train` against servers that send them, and files that hold them."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from humanline.cli import main
from humanline.system.stop import StopRequested
from humanline.train.config import load_config
from humanline.train.loop import train as run
from humanline.train.online.ledger import json_rows, read_lines
from humanline.train.online.trainable import Trainable
from humanline.train.policy.load import load_tokenizer
from humanline.train.run.metrics import read_metrics
from tests.helpers.scripted_server import GIVEN, NO_TEXTS, Asked, Reply, serving

LIMIT = 12  # of tokens of a completion


@pytest.fixture(scope="module")
def tokenizer(toy):
    return load_tokenizer(toy["model"])


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch):
    """A recipe of one round of one step that samples from a server, and its prompts; the current folder has both."""
    lines = Path(toy["pairs"]).read_text().splitlines()[:6]
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": json.loads(line)["prompt"]}) + "\n" for line in lines)
    )
    tree = {
        "model": toy["model"],
        "output": str(tmp_path / "run"),
        "objective": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
        "data": {"train": "prompts.jsonl", "max_length": 64},
        "training": {"batch_size": 3, "micro_batch_size": 3},
        "optimizer": {"lr": 1e-3},
        "reference": {"schedule": {"kind": "each_round"}},
        "source": {
            "kind": "rounds",
            "contexts_per_round": 3,
            "samples": 2,
            "count": 1,
            "sampling": {
                "max_tokens": LIMIT,
                "engine": {
                    "kind": "server",
                    "url": "http://127.0.0.1:9",
                    "attempts": 2,
                    "concurrency": 2,
                    "new_weights": {"kind": "path"},
                },
            },
            "scoring": {
                "rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}],
                "workers": 1,
                "seconds": 60.0,
            },
        },
        "checkpoint": {"minutes": None},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    return "recipe.yaml"


def healthy(tokenizer, asked: Asked, name: str = "token_ids") -> dict:
    """An answer whose text follows from the seed, with its own token ids."""
    text = f"{asked.body['seed'] % 10_000:04d}"
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    message = {"role": "assistant", "content": text}
    return {"index": 0, "message": message, "finish_reason": "stop", name: ids}


def outside(tokenizer, choice):
    return choice | {"token_ids": [10**6, *choice["token_ids"][1:]]}


def negative(tokenizer, choice):
    return choice | {"token_ids": [-1, *choice["token_ids"][1:]]}


def another_text(tokenizer, choice):
    return choice | {"token_ids": [*tokenizer.encode("abc", add_special_tokens=False), tokenizer.eos_token_id]}


def another_text_of_sglang(tokenizer, choice):
    wrong = another_text(tokenizer, choice)
    return {name: value for name, value in wrong.items() if name != "token_ids"} | {
        "response_token_ids": wrong["token_ids"]
    }


def too_many(tokenizer, choice):
    text = "9 a" * LIMIT
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > LIMIT
    return choice | {"message": {"content": text}, "token_ids": ids, "finish_reason": "length"}


def too_many_untold(tokenizer, choice):
    return {"index": 0, "message": {"content": "9 a" * 2000}, "finish_reason": "stop"}


WRONG = {
    "ids_outside_vocabulary": (outside, r"token id 1000000 is none of the model's, which are 0 to 319"),
    "negative": (negative, r"token id -1 is none"),
    "ids_of_another_text": (another_text, r"its token ids say 'abc'"),
    "under SGLang's name": (another_text_of_sglang, r"its token ids say 'abc'"),
    "too_many_tokens": (too_many, rf"tokens, where source.sampling.max_tokens {LIMIT}"),
    "too many, of a text alone": (too_many_untold, rf"tokens, where source.sampling.max_tokens {LIMIT}"),
}


def answers(tokenizer, spoil=None, *, each: int = 1):
    """Answer as told, every so many-th completion spoiled; the n-th answer counts from 1."""
    given = itertools.count(1)  # which threads of the server share

    def answer(asked: Asked) -> Reply:
        if not asked.path.endswith("/completions"):
            return Reply({})
        if asked.path == GIVEN:
            return NO_TEXTS
        number = next(given)
        choice = healthy(tokenizer, asked)
        if spoil is not None and number % each == 0:
            choice = spoil(tokenizer, choice)
        return Reply({"choices": [choice]})

    return answer


def train(recipe: str, url: str, *words: str) -> int:
    return main(["train", recipe, f"source.sampling.engine.url={url}", *words])


def samples(folder: Path) -> list[dict]:
    return read_lines(folder / "run" / "rounds" / "00000" / "samples.jsonl")


def right(tokenizer, row: dict) -> bool:
    """Whether every completion of a row is one that the healthy server sends."""
    return all(
        tokenizer.decode(one["ids"], skip_special_tokens=True) == one["text"] and len(one["ids"]) <= LIMIT
        for one in row["completions"]
    )


QUICK = ("ids_outside_vocabulary", "ids_of_another_text", "too many, of a text alone")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in WRONG]
)
def test_a_server_of_bad_answers_ends_the_run_and_a_healthy_one_goes_on(recipe, tokenizer, tmp_path, capsys, kind):
    """Bad answers alone end with a sentence and nothing of them on the disk; --resume with good ones ends with 0."""
    spoil, sentence = WRONG[kind]
    with serving(answers(tokenizer, spoil)) as server:
        assert train(recipe, server.url) == 2
        asked = server.chats()
    said = " ".join(capsys.readouterr().err.split())
    assert "2 times in a row (source.sampling.engine.attempts) what cannot be trained on" in said
    assert said.count("--resume") == said.count("What is finished is kept") == 1
    assert re.search(sentence, said), said
    assert len({one.body["seed"] for one in asked}) == len(asked)  # asked again with another seed
    assert not list((tmp_path / "run").rglob("samples*"))
    with serving(answers(tokenizer)) as server:
        assert train(recipe, server.url, "--resume") == 0
    assert len(samples(tmp_path)) == 3 and all(right(tokenizer, row) for row in samples(tmp_path))


def test_some_bad_answers_are_asked_for_again_and_counted(recipe, tokenizer, tmp_path, capsys):
    """With every third answer bad the run ends with 0 on good ones; terminal and metrics count the others by reason."""
    spoils = [outside, another_text, too_many]
    turn = iter(range(1000))
    with serving(answers(tokenizer, lambda *one: spoils[next(turn) % 3](*one), each=3)) as server:
        assert train(recipe, server.url, "source.sampling.engine.concurrency=1") == 0
    rows = samples(tmp_path)
    assert all(right(tokenizer, row) and len(row["completions"]) == 2 for row in rows)
    counts = sum((Counter(row.get("asked_again", {})) for row in rows), Counter())
    assert counts.total() == 2  # of 8 answers, the third and the sixth
    (row,) = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "round" in row]
    assert row["asked_again"] == 2 and {name: row[f"asked_again/{name}"] for name in counts} == counts
    said = " ".join(capsys.readouterr().err.split())
    assert "2 answers could not be trained on and were asked for again (1 ids outside vocabulary, 1 ids of" in said
    report = json.loads((tmp_path / "run/rounds/00000/report.json").read_text())
    assert report["facts"]["asked_again"] == 2


@pytest.mark.parametrize("name", [pytest.param("token_ids", marks=pytest.mark.slow), "response_token_ids"])
def test_ids_that_are_told_are_the_ones_trained_on(recipe, tokenizer, tmp_path, name):
    """Under vLLM's name and SGLang's the ids are kept as told, though another split of the text is the usual one."""
    split = [tokenizer.convert_tokens_to_ids(letter) for letter in "ab"]
    assert tokenizer.encode("ab", add_special_tokens=False) != split

    def answer(asked: Asked) -> Reply:
        if not asked.path.endswith("/completions"):
            return Reply({})
        text = {"message": {"content": "ab"}, "index": 0, "finish_reason": "stop"}
        return Reply({"choices": [text | {name: [*split, tokenizer.eos_token_id]}]})

    with serving(answer) as server:
        assert train(recipe, server.url) == 0
    got = {tuple(one["ids"]) for row in samples(tmp_path) for one in row["completions"]}
    assert got == {(*split, tokenizer.eos_token_id)}


# ---------------------------------------------------------------------------------------------------------------------
# What an earlier version of this program has written down


@pytest.fixture
def unchecked(monkeypatch):
    """A context in which nothing is checked, as in versions that wrote whatever a server sent."""

    @contextlib.contextmanager
    def without():
        with monkeypatch.context() as patch:
            for name in ("check", "check_ids"):
                patch.setattr(Trainable, name, lambda *_: None)
            yield

    return without


@pytest.mark.parametrize(
    "kind",
    [
        "ids_outside_vocabulary",
        pytest.param("ids_of_another_text", marks=pytest.mark.slow),
        pytest.param("too_many_tokens", marks=pytest.mark.slow),
    ],
)
def test_a_poisoned_round_is_named_and_made_again(recipe, tokenizer, tmp_path, capsys, unchecked, monkeypatch, kind):
    """Samples in the ledger that cannot be trained on are named with their line and sampled again, to exit code 0."""
    spoil, _ = WRONG[kind]
    scoring = (
        "source.scoring.rewards=[{kind: function, call: 'tests.helpers.toy_rewards:nan_once'}]"  # so that it stops here
    )
    monkeypatch.setenv("NAN_UNTIL", str(tmp_path / "mended"))
    with serving(answers(tokenizer, spoil)) as server, unchecked():
        assert train(recipe, server.url, scoring) == 2
    poison = samples(tmp_path)
    assert len(poison) == 3 and not all(right(tokenizer, row) for row in poison)
    capsys.readouterr()
    (tmp_path / "mended").touch()
    with serving(answers(tokenizer)) as server:
        assert train(recipe, server.url, "--resume", scoring) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "round 0 holds samples that cannot be trained on" in said and "samples.jsonl:1: " in said
    assert all(right(tokenizer, row) for row in samples(tmp_path))
    assert read_lines(tmp_path / "run/rounds/00000.before-1/samples.jsonl") == poison
    reasons = [row["reason"] for row in read_lines(tmp_path / "run/rounds/ledger.jsonl") if row["state"] == "DISCARDED"]
    assert len(reasons) == 1 and "cannot be trained on" in reasons[0]


def test_rows_of_a_journal_are_held_to_the_same(recipe, tokenizer, tmp_path, unchecked):
    """A sampling that goes on asks again for what its journal holds in vain, and counts it by reason."""
    good, given = answers(tokenizer, another_text), iter(range(1000))

    def answer(asked: Asked) -> Reply:
        if asked.path.endswith("/completions") and next(given) >= 4:
            return Reply({"error": "out of order"}, status=400)
        return good(asked)

    with serving(answer) as server, unchecked():
        assert train(recipe, server.url, "source.sampling.engine.concurrency=1") == 2
    (journal,) = (tmp_path / "run").rglob("*.journal.jsonl")
    assert len(read_lines(journal)) == 2
    with serving(answers(tokenizer)) as server:
        assert train(recipe, server.url, "--resume") == 0
        assert len(server.chats()) == 6
    assert all(right(tokenizer, row) for row in samples(tmp_path))
    assert sorted(len(row.get("asked_again", {})) for row in samples(tmp_path)) == [0, 1, 1]
    (row,) = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "round" in row]
    assert row["asked_again/ids_of_another_text"] == 2


class _StopAt:
    """A StopSignal that is asked to stop once so many steps are in the log."""

    def __init__(self, metrics: Path, steps: int) -> None:
        self.metrics, self.steps = metrics, steps

    def hold(self) -> None:
        """Do nothing."""

    @property
    def requested(self) -> str | None:
        there = self.metrics.exists() and self.metrics.read_text().count('"step"') >= self.steps
        return "SIGTERM" if there else None


@pytest.mark.parametrize("older", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_checkpoint_in_the_middle_of_a_poisoned_round_is_skipped(
    recipe, tokenizer, tmp_path, capsys, unchecked, older
):
    """Training goes back to the start of the poisoned round; where no checkpoint is that old, it says what to do."""
    given = iter(range(1000))
    spoil = lambda tok, choice: another_text(tok, choice) if next(given) >= 6 * older else choice  # noqa: E731
    changes = ["source.count=2", "source.steps=2", "checkpoint.every=1"]
    with serving(answers(tokenizer, spoil)) as server, unchecked():
        config = load_config(recipe, [f"source.sampling.engine.url={server.url}", *changes])
        with pytest.raises(StopRequested):
            run(config, stop=_StopAt(tmp_path / "run/metrics.jsonl", 3 if older else 1), show_progress=False)
    capsys.readouterr()
    with serving(answers(tokenizer)) as server:
        assert train(recipe, server.url, "--resume", *changes) == (0 if older else 2)
    said = " ".join(capsys.readouterr().err.split())
    number = 1 if older else 0
    assert f"it is in the middle of round {number}, which cannot be trained on" in said and "samples.jsonl:1" in said
    if older:
        assert all(right(tokenizer, row) for row in read_lines(tmp_path / "run/rounds/00001/samples.jsonl"))
    else:
        assert "remove the checkpoints to begin anew" in said
        shutil.rmtree(tmp_path / "run" / "checkpoints")
        with serving(answers(tokenizer)) as server:
            assert train(recipe, server.url, "--resume", *changes) == 0
        assert all(right(tokenizer, row) for row in samples(tmp_path))


# ---------------------------------------------------------------------------------------------------------------------
# Stages on files


def test_stages_on_files_name_file_and_line(recipe, tokenizer, tmp_path, capsys):
    """Sample ends on bad answers and goes on; score and pair name the row of a file that no training must stand on."""
    words = ["--quiet", "--out"]
    with serving(answers(tokenizer, outside)) as server:
        url = f"source.sampling.engine.url={server.url}"
        assert main(["sample", recipe, url, *words, "samples.jsonl"]) == 2
    assert "what cannot be trained on" in capsys.readouterr().err
    with serving(answers(tokenizer, another_text, each=7), server.port) as server:
        assert main(["sample", recipe, url, "--out", "samples.jsonl"]) == 0
    assert "1 answers could not be trained on and were asked for again (1 ids of another text)" in " ".join(
        capsys.readouterr().err.split()
    )
    rows = read_lines(tmp_path / "samples.jsonl")
    assert len(rows) == 6 and all(right(tokenizer, row) for row in rows)
    assert main(["score", recipe, "samples.jsonl", *words, "scored.jsonl"]) == 0
    scored = read_lines(tmp_path / "scored.jsonl")
    for command, given in (("score", rows), ("pair", scored)):
        for change, sentence in (
            ({"ids": [320]}, "token id 320 is none of the model's, which are 0 to 319"),
            ({"text": "9" * 9}, "its text is '999999999'"),
            ({"text": "9 " * LIMIT, "ids": tokenizer.encode("9 " * LIMIT, add_special_tokens=False)}, "tokens, where"),
        ):
            bad = json.loads(json.dumps(given))
            bad[3]["completions"][1] |= change
            (tmp_path / "bad.jsonl").write_text("".join(json_rows(bad)))
            assert main([command, recipe, "bad.jsonl", *words, "out.jsonl"]) == 2
            said = " ".join(capsys.readouterr().err.split())
            assert f"bad.jsonl:4: {bad[3]['id']}: completion 2: " in said and sentence in said
            assert not (tmp_path / "out.jsonl").exists()
    texts = json.loads(json.dumps(rows))
    for one in texts[0]["completions"]:
        one["ids"] = []  # a file from elsewhere may tell none
    (tmp_path / "texts.jsonl").write_text("".join(json_rows(texts)))
    assert main(["score", recipe, "texts.jsonl", *words, "out.jsonl"]) == 0
