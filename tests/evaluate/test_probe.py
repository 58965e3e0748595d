"""`humanline inspect-data --probe`: the first steps of the run itself, looked at row by row, of which nothing stays."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from humanline.cli import main
from humanline.evaluate.drift import ACTS, Probe, TokenSums, describe_probe, drift_of, probe_as_json
from humanline.evaluate.inspect_run import inspect_data
from humanline.evaluate.inspection import as_json, describe
from humanline.evaluate.records import EvaluationError
from humanline.system.disk import WriteError
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.online.samplers.generate import GenerateSampler
from humanline.train.run.metrics import MetricsLog
from humanline.train.run.processes import NonFiniteError
from tests.helpers.support import CLIP, REJECT, SCHEDULES, config, run_with, steps

HUMANLINE = {"transform": CLIP, "reference": {"schedule": SCHEDULES["before_3"]}}


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder in which the probe has its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def probed(toy, folder: Path, count: int = 5, objective="dpo", **changes):
    """Inspect the toy's pairs with a probe."""
    how = {name: changes.pop(name) for name in ("rows", "stop", "progress") if name in changes}
    given = config(toy, folder / "run", objective, **changes)
    return inspect_data(given, out=str(folder / "look"), say=lambda text: None, probe=count, **how)


VARIANTS = {
    "one pass": {**HUMANLINE},
    "passes of unequal size, without padding": {
        **HUMANLINE,
        "training": {"steps": 8, "batch_size": 8, "micro_batch_tokens": 90, "padding": "free"},
    },
    "two labelled answers of a pair": {**HUMANLINE, "objective": "kto", "training__micro_batch_size": 3},
    "split groups, an adapter with dropout, a second model and warm-up": {
        **HUMANLINE,
        "objective": "grpo",
        "adapter": {"rank": 4, "dropout": 0.3},
        "training": {"steps": 8, "batch_size": 8, "micro_batch_size": 5},
        "optimizer": {"lr": 3e-2, "warmup_fraction": 0.7},
        "reference": {"schedule": SCHEDULES["round_4"], "storage": "model"},
        "data__eval": "held_out",
    },
    "Beta rejection": {"transform": REJECT, "reference": {"schedule": SCHEDULES["before_1"]}},
}


def listening(oracle):
    """Return a change of a run: a plain loop over what its losses are given adds up the tokens of each answer."""

    def change(ready):
        inner = ready.objective.loss

        def loss(facts, batch, logprobs, ref, baseline):
            for row, place in enumerate(batch.rows):
                name, _, side = place.unit.id.partition("#")
                own = oracle[facts.step][name, ("chosen", "rejected").index(side) if side else place.member]
                for token in range(logprobs.shape[1]):
                    if batch.block.mask[row, token]:
                        ratio = (logprobs[row, token] - ref[row, token]).item()
                        outside = [ratio < CLIP["log_eps_low"], ratio > CLIP["log_eps_high"]]
                        for number, value in enumerate([1, ratio, abs(ratio), *outside]):
                            own[number] += value
            return inner(facts, batch, logprobs, ref, baseline)

        ready.objective.loss = loss
        return ready

    return change


QUICK = {"one pass", "split groups, an adapter with dropout, a second model and warm-up"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_what_is_clipped_is_what_the_run_clips(toy, tmp_path, temporary, name):
    """Step by step exactly, and answer by answer, over more than an epoch too; quartiles and answers add up to it."""
    changes = dict(VARIANTS[name])
    if "data__eval" in changes:  # which the run looks at, and the probe does not
        changes["data__eval"] = toy["held_out"]
    taken = 5 if name != "one pass" else 7  # 56 pairs of 48
    found = probed(toy, tmp_path, taken, **changes)
    oracle = defaultdict(lambda: defaultdict(lambda: np.zeros(5)))
    rows = steps(run_with(listening(oracle), toy, tmp_path / "real", **changes))[:taken]
    marks = ("detached", "above_bound") if "Beta" in name else ("clipped_low", "clipped_high")
    assert len(found.probe.by_step) == taken
    for mine, theirs in zip(found.probe.by_step, rows, strict=True):
        for mark in marks:
            assert round(theirs[mark] * mine["tokens"]) == mine[mark]
            assert theirs[mark] == pytest.approx(mine[mark] / mine["tokens"], abs=1e-6)
    tokens = found.probe.tokens
    sums = tokens.tokens, tokens.sums, tokens.sizes, *(tokens.marks[mark] for mark in marks)
    known = 3 if "Beta" in name else 5  # of what the transform detaches the loop knows nothing
    for row, own in enumerate(found.names):
        for member in range(2):
            wanted = sum(oracle[step][own, member] for step in range(taken))
            assert [one[row, member] for one in sums][:known] == pytest.approx(wanted[:known].tolist(), abs=1e-5)
    drifts = found.drifts(found.probe)
    whole, quarters = drifts["all"], [drifts[f"quartile {number}"] for number in (1, 2, 3, 4)]
    assert whole.acted == sum(one[mark] for one in found.probe.by_step for mark in whole.counts) > 0
    for parts in (quarters, [drifts["chosen"], drifts["rejected"]]):
        assert sum(one.acted for one in parts) == whole.acted and sum(one.tokens for one in parts) == whole.tokens
        assert sum(one.mean.mean * one.tokens for one in parts) == pytest.approx(whole.mean.mean * whole.tokens)
    assert sum(one.seen for one in quarters) == whole.seen == min(48, whole.seen)
    assert [one.rows for one in quarters] == np.bincount(found.quartiles.numbers)[1:].tolist()
    text, special = "\n".join(describe(found)), "dropout" in name
    assert ("0 there, but for dropout" in text) == ("in the warm-up" in text) == special
    assert found.probe.still == ((0, 4) if special else (0,))
    assert list(temporary.iterdir()) == []


def digests(*folders: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for folder in folders
        for path in sorted([folder, *folder.rglob("*")])
    }


def test_nothing_is_changed_or_left(toy, tmp_path, temporary, monkeypatch):
    """Model, data, the run's output and every other file stay as they are; also where the probe is stopped, or fails.

    Trackers that are named, and not even installed, are not asked for.
    """
    monkeypatch.chdir(tmp_path)
    changes = HUMANLINE | {"data__eval": toy["held_out"], "tracking": {"trackers": ["wandb"]}}
    inspect_data(config(toy, tmp_path / "run", **changes), out="look", say=lambda text: None)
    (tmp_path / "look/inspection.json").unlink()
    before = digests(Path(toy["model"]).parent, tmp_path)
    found = probed(toy, tmp_path, **changes)
    (tmp_path / "look/inspection.json").unlink()
    assert "held-out evaluation, tracking (wandb)" in "\n".join(describe(found))
    with StopSignal() as stop:

        def ask(done: int, due: int) -> None:
            stop.requested = "SIGTERM" if done == 3 else None

        with pytest.raises(StopRequested, match="nothing is kept"):
            probed(toy, tmp_path, stop=stop, progress=lambda what: ask, **changes)
    with pytest.raises(NonFiniteError):
        probed(toy, tmp_path, **changes, optimizer__lr=1e30)

    def full(self: MetricsLog, row: object) -> None:
        raise WriteError(Path("metrics.jsonl"), OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(MetricsLog, "write", full)
    with pytest.raises(EvaluationError, match=r"No space left.*; set TMPDIR"):
        probed(toy, tmp_path, **changes)
    assert digests(Path(toy["model"]).parent, tmp_path) == before


@pytest.mark.parametrize(
    "own", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["of data.eval", "own prompts"]
)
def test_the_distance_from_the_start_is_not_measured(toy, tmp_path, temporary, monkeypatch, own):
    """No answer is drawn for it, which no step depends on; the probe sees what it sees without."""
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} hgf"}) + "\n" for i in range(100, 108)))
    changes = HUMANLINE | {"data__eval": toy["held_out"]}
    plain = probed(toy, tmp_path / "plain", 2, **changes)
    monkeypatch.setattr(GenerateSampler, "sample", None)
    far = {"distance": {"prompts": str(prompts) if own else None}}
    found = probed(toy, tmp_path / "far", 2, **changes, evaluation=far)
    assert found.probe.by_step == plain.probe.by_step
    assert "held-out evaluation, the distance from the start" in "\n".join(describe(found))


@pytest.mark.slow
def test_a_probe_goes_on_where_a_broken_run_would_stop(toy, tmp_path, temporary):
    """The break is said, and no checkpoint is spoken of."""
    limits = {"action": "stop", "clipped": 0.001, "steps": 1}
    found = probed(toy, tmp_path, **HUMANLINE, training__collapse=limits)
    assert len(found.probe.by_step) == 5 and "seems to have broken" in found.probe.broke
    assert found.probe.broke.endswith("the run itself would stop there (training.collapse.action)")
    assert found.probe.broke in "\n".join(describe(found))


def test_rows_without_a_level_are_told_apart(toy, tmp_path, temporary):
    """Of a set of which some rows were scored, all rows are trained on, and the groups add up all the same."""
    found = probed(toy, tmp_path, rows=20, **HUMANLINE)
    drifts = found.drifts(found.probe)
    groups = [*(f"quartile {number}" for number in (1, 2, 3, 4)), "without level"]
    assert drifts["without level"].rows == 28 and drifts["all"].rows == 48
    for of in ("rows", "seen", "tokens", "acted"):
        assert sum(getattr(drifts[name], of) for name in groups) == getattr(drifts["all"], of)
    tree = json.loads((tmp_path / "look/inspection.json").read_text())["probe"]
    assert (
        tree["drift"]["all"]["acted"]
        == drifts["all"].acted
        == sum(one["clipped_low"] + one["clipped_high"] for one in tree["by_step"])
    )


@pytest.mark.slow
def test_labelled_answers_have_a_drift_each(toy, tmp_path, temporary):
    data = {"train": toy["unpaired"], "max_length": 64, "shape": "unpaired"}
    found = probed(toy, tmp_path, objective="kto", data=data, transform=CLIP)
    drifts = found.drifts(found.probe)
    assert {"all", "desirable", "undesirable", "quartile 1"} <= drifts.keys() and "chosen" not in drifts
    assert drifts["desirable"].tokens + drifts["undesirable"].tokens == drifts["all"].tokens


def test_what_cannot_be_clipped_is_said(toy, tmp_path, temporary):
    """Without a transform the drift is reported; without a step away from the reference that it is 0."""
    text = "\n".join(describe(probed(toy, tmp_path / "a", 3)))
    assert "nothing is clipped by this recipe" in text and "clipped  " not in text
    still = probed(toy, tmp_path / "b", 3, transform=CLIP, optimizer__lr=0.0)
    text = "\n".join(describe(still))
    assert "every log-ratio is exactly 0" in text and "no token was clipped" in text and "0.00 %  " in text
    share = as_json(still)["probe"]["drift"]["all"]["share"]
    assert share == {"value": 0.0, "se": None, "low": None, "high": None}
    assert still.probe.still == (0,)


def test_the_command_keeps_a_probe_beside_the_scores(toy, tmp_path, temporary, capsys, monkeypatch):
    """It says beforehand what the probe takes; of clipping nothing is said without one."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_bytes(Path(toy["pairs"]).read_bytes())
    tree = config(toy, tmp_path / "run", data__train="pairs.jsonl", **HUMANLINE).model_dump(mode="json")
    Path("recipe.yaml").write_text(json.dumps(tree))
    assert main(["inspect-data", "recipe.yaml"]) == 0
    assert "of clipping nothing is said" in capsys.readouterr().out
    assert main(["inspect-data", "recipe.yaml", "--probe", "4"]) == 0
    heard = capsys.readouterr()
    assert "of clipping nothing is said" not in heard.out
    assert all(f"quartile {number}  " in heard.out.partition("probe  ")[2] for number in (1, 2, 3, 4))
    assert "will train 4 of 8 steps" in heard.err and str(temporary) in heard.err
    (kept,) = Path("pairs.jsonl.scores").glob("probe-*.json")
    tree = json.loads(kept.read_text())
    assert tree["inspection"]["probe"]["steps"] == 4 and tree["recipe"]["transform"]["kind"] == "clip"
    assert not (tmp_path / "run").exists() and list(temporary.iterdir()) == []


def test_a_probe_that_would_tell_nothing_is_refused(toy, tmp_path, temporary, capsys, monkeypatch):
    """Before anything is scored, with the reason."""
    monkeypatch.chdir(tmp_path)
    tree = config(toy, tmp_path / "run", **HUMANLINE).model_dump(mode="json")
    Path("recipe.yaml").write_text(json.dumps(tree))
    Path("nll.yaml").write_text(json.dumps(config(toy, tmp_path / "run", {"kind": "nll"}).model_dump(mode="json")))
    for words, message in [
        (["recipe.yaml", "--probe", "0"], ">= 1; got 0"),
        (["recipe.yaml", "--probe", "1"], "give at least 2"),
        (["recipe.yaml", "--probe", "9"], "has only 8 steps"),
        (["recipe.yaml", "--probe", "3", "reference.schedule={kind: after_step, every: 1}"], "nothing drifts"),
        (["nll.yaml", "--probe", "3"], "has none"),
        (["recipe.yaml", "--probe", "3", "training.batch_size=100"], "larger than the data"),
        (["tiny-online", "--probe", "3"], "--probe is not for prompts"),
        ([toy["pairs"], "--model", toy["model"], "--probe", "3"], "Give the recipe: humanline inspect-data RECIPE"),
    ]:
        assert main(["inspect-data", *words, "--out", "look", "--quiet"]) == 2, words
        assert message in capsys.readouterr().err, words
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    assert main(["inspect-data", "recipe.yaml", "--probe", "3", "--out", "look", "--quiet"]) == 2
    assert "set TMPDIR" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "nll.yaml", "temporary"}


def test_drift_is_a_mean_over_tokens_clustered_by_prompt():
    """Rows that no step was in are no cluster; what no row was in has no mean."""
    tokens = TokenSums(
        prompts=np.array([1, 2, 2, 3]),
        tokens=np.array([[4], [1], [3], [0]]),
        sums=np.array([[2.0], [-1.0], [3.0], [0.0]]),
        sizes=np.array([[2.0], [1.0], [3.0], [0.0]]),
        marks={"clipped_low": np.array([[0], [1], [0], [0]]), "clipped_high": np.array([[1], [0], [1], [0]])},
    )
    found = drift_of(tokens, "clip")
    assert (found.rows, found.seen, found.tokens, found.acted) == (4, 3, 8, 3)
    assert (found.mean.mean, found.size.mean, found.share.mean) == (0.5, 0.75, 0.375)
    assert found.mean.error == 0 and found.size.error == pytest.approx(math.sqrt(2 * (1 + 1)) / 8)
    assert found.mean.degrees == 1
    assert drift_of(tokens.take(np.array([False, False, False, True])), "clip").mean is None
    assert drift_of(tokens, "none").acted == 0


def test_the_share_of_few_prompts_has_bounds_from_0_to_1():
    """Two prompts tell little of a share, but not that it may be negative; of none or all of the tokens no error."""

    def shown(clipped: list[int]) -> tuple[dict, str]:
        counts = np.array(clipped)[:, None]
        ones = np.ones((2, 1))
        tokens = TokenSums(np.array([1, 2]), 8 * ones.astype(int), ones, ones, dict.fromkeys(ACTS["clip"], counts))
        by_step = ({"step": 0, "tokens": 16, "log_ratio_size": 0.0}, {"step": 1, "tokens": 0, "log_ratio_size": 0.0})
        probe = Probe(2, 9, "clip", ("how",), ("answer",), tokens, np.arange(2), (0,), by_step, None)
        drifts = probe.drifts(None, None)
        return probe_as_json(probe, drifts)["drift"]["all"]["share"], "\n".join(describe_probe(probe, drifts))

    share, text = shown([0, 1])
    assert (share["value"], share["low"], share["high"]) == (0.125, 0.0, 1.0) and share["se"] > 0
    assert "12.50 % (0.00 to 100.00)" in text and "2 of 2 rows were in these steps, 0 in none" in text
    for clipped, value in ([0, 0], 0.0), ([4, 4], 1.0):
        assert shown(clipped)[0] == {"value": value, "se": None, "low": None, "high": None}
