"""Several processes compute what one does, and go on where others stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from humanline.system.launcher import too_slow_to_stop
from humanline.system.stop import StopRequested
from humanline.train.config import TrainConfig
from humanline.train.config.evaluation import EvaluationConfig
from humanline.train.data.stream import StepBatch
from humanline.train.loop import train
from humanline.train.online.rounds import Rounds
from humanline.train.run import checkpoints
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.metrics import read_metrics
from tests.conftest import ROOT
from tests.helpers.kills import Server, result_of
from tests.helpers.processes import free_port
from tests.helpers.support import CLIP, OBJECTIVES, REJECT, SCHEDULES, config

TRAINING = {"steps": 5, "batch_size": 12, "micro_batch_size": 3}


def job(
    config: TrainConfig, resume: bool = False, stop_after: int = 0, expect: tuple[str, ...] = ("",), full: int = 0
) -> dict:
    facts = {"resume": resume, "stop_after": stop_after, "full": full, "expect": expect}
    return {"config": config.model_dump(), **facts}


def two_processes(tmp_path, jobs: list[dict], count: int = 2, server: Server | None = None) -> str:
    """Run jobs (`ddp_run.py`) in so many gloo processes, one after the other, and return what they printed.

    In every job all processes run the policy equally often, also those that a stop or an error ended. A launcher starts
    the processes, or, if it is given, `server` forks them.
    """
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps(jobs))
    said = launched(tasks, count) if server is None else server.ranks("tests.helpers.ddp_run", tasks, folder=tmp_path)
    passes = Counter(re.findall(r"^.*: \d+ passes$", said, re.MULTILINE))
    assert passes.total() == count * len(jobs) and not any(times % count for times in passes.values()), passes
    return said


def launched(tasks: Path, count: int) -> str:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(count), "--master_port", str(free_port())]
    result = subprocess.run(
        [sys.executable, *launcher, "tests/helpers/ddp_run.py", str(tasks)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr[-9000:]
    return result.stderr


UNSCORED = ("RoundError", "MainProcessError")
REFUSED = ("OutputError", "CheckpointError", "MainProcessError")


BUDGET = {"micro_batch_size": None, "micro_batch_tokens": 130, "padding": "free"}
OWN_LOSS = {"kind": "function", "call": "tests.helpers.own_parts:hinge", "options": {"margin": 0.5}}
OWN = {
    "transform": {"kind": "function", "call": "tests.helpers.own_parts:bend", "options": {"limit": 0.02}},
    "reference": {
        "schedule": {"kind": "function", "call": "tests.helpers.own_parts:behind", "options": {"steps": 3}},
    },
}
VARIANTS = {
    **{name: (name, {}) for name in OBJECTIVES},
    "bco": ({"kind": "bco", "beta": 0.5}, {}),
    "local": (OBJECTIVES["grpo"] | {"normalise": "local"}, {"training": TRAINING | {"micro_batch_size": 5}}),
    "lora": ("grpo", {"adapter": {"rank": 4, "alpha": 8.0}, "baseline": "initial"}),
    "packed": ("kto", {"training": TRAINING | BUDGET | {"activation_checkpointing": True}}),
    "own": (OWN_LOSS, OWN),
}


def settings(toy, folder, name, objective="kto", baseline="reference", **changes) -> TrainConfig:
    reference = {"schedule": {"kind": "before_step", "every": 2}, "baseline": baseline}
    changes = {"training": TRAINING, "transform": CLIP, "reference": reference, **changes}
    return config(
        toy,
        folder / name,
        objective,
        data__eval=toy["held_out"],
        evaluation={"batch_size": 2, "every": 2},  # 5 shares for 2 ranks
        **changes,
    )


def variant(toy, folder, name) -> TrainConfig:
    objective, changes = VARIANTS[name]
    return settings(toy, folder, name, objective, **changes)


def ragged(toy, folder) -> TrainConfig:
    """One round of groups that lose some of their answers, in passes of one row; some steps have an odd number."""
    training = {"steps": None, "batch_size": 3, "micro_batch_size": 1}
    return online(toy, folder, "ragged", "digits_unless_fifth", {"failed": "drop"}, training=training)


def online(toy, folder, name="online", call="digits", scoring=(), **changes) -> TrainConfig:
    """One round: the samples of a second one would depend on how two processes round their gradients."""
    reward = {"kind": "function", "call": f"tests.helpers.toy_rewards:{call}"}
    return config(
        toy,
        folder / name,
        "grpo",
        data={"train": toy["pairs"], "max_length": 64},
        source={
            "kind": "rounds",
            "contexts_per_round": 12,
            "samples": 4,
            "count": 1,
            "steps": 3,
            "sampling": {"max_tokens": 8, "engine": {"kind": "generate", "batch_size": 8}},
            "scoring": {"rewards": [reward], "workers": 1} | dict(scoring),
        },
        reference={"schedule": {"kind": "before_step", "every": 2}},
        **{
            "training": TRAINING | {"steps": None},
            **changes,
        },
    )


def far(toy, folder) -> TrainConfig:
    """A run that measures how far it travels, by ten answers in three passes, of which one process has the odd one."""
    prompts = folder.parent / "far.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} hgfe"}) + "\n" for i in range(100, 105)))
    distance = {"prompts": str(prompts), "samples": 2, "max_tokens": 6, "to_start": "looks"}
    given = settings(toy, folder, "far", "dpo")
    evaluation = EvaluationConfig.model_validate({"batch_size": 4, "every": 2, "distance": distance})
    return given.model_copy(update={"evaluation": evaluation})


def row_count(batch: StepBatch) -> int:
    return sum(len(micro.rows) for micro in batch.micro_batches)


def numbers_in(path: Path) -> list[float]:
    """Return all numbers of a JSON file in their order."""
    found: list[float] = []
    json.loads(
        path.read_text(), object_hook=lambda tree: found.extend(v for v in tree.values() if v.__class__ in (int, float))
    )
    return found


def trained(folder) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize(
    "names,forked",
    [(("kto", "local"), True), pytest.param(tuple(VARIANTS), False, marks=pytest.mark.slow)],
    ids=["two of them", "all, launched"],
)
def test_two_ranks_do_what_one_does(toy, tmp_path, monkeypatch, server, names, forked):
    """Two gloo processes compute what one does, for the variants named; all of them are slow. They go on together.

    Ragged groups, rounds that are stopped or cannot be scored and runs that break are played with all variants alone.

    Groups are split, kept whole (`local`), or so ragged that one process has a row less than the other. Loss, z_0,
    token counts and weights are those of one process; a run that a signal to one of two has stopped ends with the same
    bits as one left alone. A run that has broken, which the main process sees, ends in both. Where nothing can be
    scored, both end, and each time again until that is allowed. One launch for all of it: starting two processes takes
    longest.
    """
    two = tmp_path / "two"
    stopped, other = settings(toy, two, "stopped"), settings(toy, two, "stopped", seed=9)
    limits = {"action": "stop", "steps": 2, "loss": None, "log_ratio": 1e-9}
    broken = settings(toy, two, "broken", training=TRAINING | {"collapse": limits})
    rare = (
        []
        if forked
        else [
            job(ragged(toy, two)),
            job(online(toy, two, "stopped-online"), stop_after=1, expect=("StopRequested",)),
            job(online(toy, two, "stopped-online"), resume=True),
            job(online(toy, two, "unscored", "nan", {"failed": 0.0}), expect=UNSCORED),
            job(online(toy, two, "unscored", "nan", {"failed": 0.0}), resume=True, expect=UNSCORED),
            job(online(toy, two, "unscored", "nan", {"failed": 0.0, "failed_share": 1.0}), resume=True),
            job(broken, expect=("CollapseError",)),
            job(broken, resume=True, expect=("CollapseError",)),
        ]
    )
    said = two_processes(
        tmp_path,
        [
            *(job(variant(toy, two, name)) for name in names),
            job(online(toy, two)),
            job(far(toy, two)),
            *rare,
            job(stopped, stop_after=3, expect=("StopRequested",)),
            job(other, resume=True, expect=REFUSED),  # other settings: both raise, none waits for the other
            job(stopped, expect=REFUSED),  # not without --resume
            job(stopped, resume=True),
        ],
        server=server if forked else None,
    )
    times = 0 if forked else 2
    assert said.count("the run has broken; the main process says how") == times  # of the other process, each time
    assert said.count("the run seems to have broken, after 2 updates") == times
    rows, step = [], Rounds.step
    monkeypatch.setattr(Rounds, "step", lambda self, s: (rows.append(row_count(b := step(self, s))), b)[1])
    for name in (*names, "online", "far", *([] if forked else ["ragged"])):
        make = {"online": online, "ragged": ragged, "far": far}.get(
            name, lambda toy, folder, name=name: variant(toy, folder, name)
        )
        one = make(toy, tmp_path / "one")
        single = train(one, show_progress=False)
        mine, theirs = (list(read_metrics(tmp_path / where / name / "metrics.jsonl")) for where in ("one", "two"))
        for row, other_row in zip(mine, theirs, strict=True):
            for key in set(row) - {"kind", "seconds", "tokens_per_second"}:
                assert other_row[key] == pytest.approx(row[key], rel=2e-3, abs=2e-5), (name, key)
        levels = [tmp_path / where / name / "levels.json" for where in ("one", "two")]
        fixed = name not in ("online", "ragged")
        assert [path.exists() for path in levels] == [fixed] * 2  # in rounds there are none
        if fixed:
            assert numbers_in(levels[1]) == pytest.approx(numbers_in(levels[0]), abs=1e-5)
        alone = trained(single.model)
        for key, tensor in trained(two / name / "final").items():
            torch.testing.assert_close(tensor, alone[key], rtol=1e-3, atol=2e-4)

    assert forked or any(count % 2 for count in rows)  # in some step of `ragged`

    for file in ("plan.json", "samples.jsonl", "scores.jsonl", "kept.jsonl"):
        parts = [(tmp_path / where / "online" / "rounds" / "00000" / file).read_bytes() for where in ("one", "two")]
        assert parts[0] == parts[1], file

    starts = [(tmp_path / where / "far" / "distance" / "start.jsonl").read_bytes() for where in ("one", "two")]
    assert starts[0] == starts[1]

    assert said.count("round 0: 48 of 48 completions have no score (48 not_finite)") == times
    for name, tensor in () if forked else trained(two / "stopped-online" / "final").items():
        assert torch.equal(tensor, trained(two / "online" / "final")[name])

    assert re.search("after [34] of 5 updates", said), said  # the second process may read the log a step late
    (saved,) = (two / "stopped/checkpoints").iterdir()
    names = {path.name for path in saved.iterdir()}
    assert {"rank-0-reference-0-0.safetensors", "rank-1-reference-0-0.safetensors"} <= names
    assert result_of(stopped) == result_of(settings(toy, two, "kto"))


class StopAfter:
    """A StopSignal that is there once the log has so many steps."""

    def __init__(self, folder: Path, after: int) -> None:
        self.metrics, self.after = folder / "metrics.jsonl", after

    def hold(self) -> None:
        """Do nothing: it never raises by itself."""

    @property
    def requested(self) -> str | None:
        text = self.metrics.read_text() if self.metrics.exists() else ""
        return "SIGTERM" if text.count('"step"') >= self.after else None


ANY = {"transform": CLIP, "optimizer": {"lr": 1e-3, "warmup_fraction": 0.4, "adam_eps": 1e-3}}
WHOLE, SHARED, MIXED = ("none",) * 4, ("full", "full", "none", "full"), ("none", "full", "full", "none")
CHAINS: dict[str, tuple[tuple[str, ...], str, dict]] = {
    "shared": (SHARED, "kto", {}),
}
BOUND = REJECT | {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
MORE_CHAINS: dict[str, tuple[tuple[str, ...], str, dict]] = {
    "whole": (WHOLE, "kto", {}),
    "lora": (MIXED, "dpo", {"adapter": {"rank": 1, "alpha": 8.0}}),  # with rows for one process alone
    "dpo": (SHARED, "dpo", {}),
    "kto-lora": (MIXED, "kto", {"adapter": {"rank": 2, "alpha": 8.0}}),
    "kto-model": (SHARED, "kto", {"reference": {"schedule": SCHEDULES["before_3"], "storage": "model"}}),
    "lora-model": (SHARED, "dpo", {"adapter": {"rank": 2, "alpha": 8.0}, "reference": {"storage": "model"}}),
    "after": (MIXED, "dpo", {"reference": {"schedule": SCHEDULES["after_2"]}}),
    "after-model": (SHARED, "dpo", {"reference": {"schedule": SCHEDULES["after_2"], "storage": "model"}}),
    "round": (SHARED, "kto", {"reference": {"schedule": SCHEDULES["round_4"]}}),
    "anchored": (SHARED, "grpo", {"reference": {"schedule": SCHEDULES["before_3"], "baseline": "initial"}}),
    "bound": (SHARED, "dpo", {"transform": BOUND}),
    "bco": (MIXED, {"kind": "bco", "beta": 0.5}, {}),
    "own": (SHARED, OWN_LOSS, OWN),
    "packed": (SHARED, "kto", {"training": BUDGET | {"activation_checkpointing": True}}),
}


def spread(one: TrainConfig, sharding: str) -> TrainConfig:
    return one.model_copy(update={"training": one.training.model_copy(update={"sharding": sharding})})


def go_on_in_turn(toy, tmp_path, chains, also=((), ())) -> None:
    """Train by one process, two, three and one, each with a `training.sharding` of its own, and by one alone.

    Each stop is in the middle of a window, whose log-probabilities others have computed, as they have the held-out
    ones. `also` are jobs that run beside, by two processes and by three.
    """

    def made(name: str, output: Path) -> TrainConfig:
        _, objective, changes = chains[name]
        training = {"steps": 10, "batch_size": 12, "micro_batch_size": 2} | changes.get("training", {})
        reference = {"schedule": {"kind": "before_step", "every": 4}} | changes.get("reference", {})
        held_out = {"data__eval": toy["held_out"], "evaluation": {"batch_size": 2, "every": 2}}  # 5 shares
        own = ANY | held_out | changes | {"training": training, "reference": reference}
        return config(toy, output, objective, **own)

    runs = {name: made(name, tmp_path / name) for name in chains}

    def stage(number: int) -> list[TrainConfig]:
        return [spread(one, chains[name][0][number]) for name, one in runs.items()]

    for one in stage(0):
        with pytest.raises(StopRequested, match="after 2 of 10"):
            train(one, stop=StopAfter(Path(one.output), 2), show_progress=False)
    stopped = {"resume": True, "expect": ("StopRequested",)}
    two_processes(tmp_path, [*(job(one, stop_after=5, **stopped) for one in stage(1)), *also[0]])
    said = two_processes(tmp_path, [*(job(one, stop_after=7, **stopped) for one in stage(2)), *also[1]], count=3)
    assert len(re.findall("after [78] of 10 updates", said)) == 3 * len(runs), said
    for one in stage(3):
        (saved,) = sorted((Path(one.output) / "checkpoints").iterdir())[-1:]
        assert {f"rank-{rank}-held-out-0.safetensors" for rank in range(3)} <= {path.name for path in saved.iterdir()}
        train(one, resume=True, show_progress=False)
    for name, one in runs.items():
        whole = train(made(name, tmp_path / f"{name}-alone"), show_progress=False)
        alone, mine = trained(whole.model), trained(Path(one.output) / "final")
        assert max(float((mine[key] - tensor).abs().max()) for key, tensor in alone.items()) < 2e-6, name
        logs = [list(read_metrics(Path(where) / "metrics.jsonl")) for where in (one.output, tmp_path / f"{name}-alone")]
        for mine_row, row in zip(*logs, strict=True):
            values = {**row, **row.get("held_out", {})}
            for key in values.keys() - {"seconds", "tokens_per_second", "held_out"}:
                got = {**mine_row, **mine_row.get("held_out", {})}[key]
                # A gradient moves with the weights, which may differ by 2e-6, times the curvature of the loss.
                near = 1e-5 if key == "grad_norm" else 2e-6
                wanted = values[key] if isinstance(values[key], str) else pytest.approx(values[key], rel=near, abs=2e-6)
                assert got == wanted, (name, key)


@pytest.mark.slow
def test_any_number_of_processes_goes_on(toy, tmp_path):
    """Begun by one process, gone on by two, three and one, a run ends with the weights of one that was left alone.

    Some of them share its weights out. In rounds three go on where two have stopped in the middle of
    one. Where the loss is a mean of each micro-batch, whose contents depend on the number of processes, another number
    is refused.
    """
    local = settings(toy, tmp_path, "local", VARIANTS["local"][0], **VARIANTS["local"][1])
    rounds = online(toy, tmp_path)
    by_two = [job(one, stop_after=1, expect=("StopRequested",)) for one in (rounds, local)]
    go_on_in_turn(toy, tmp_path, CHAINS, (by_two, [job(rounds, resume=True)]))
    other = train(online(toy, tmp_path / "one"), show_progress=False)
    for name, tensor in trained(other.model).items():
        torch.testing.assert_close(trained(tmp_path / "online/final")[name], tensor, rtol=1e-3, atol=2e-4)
    with pytest.raises(CheckpointError, match=r"processes .*normalise: local.* 2 +1\n"):
        train(local, resume=True, show_progress=False)


@pytest.mark.slow
def test_any_number_of_processes_goes_on_in_every_variant(toy, tmp_path):
    """The same for every schedule, second models, an anchor, the largest ratio of a batch, and packed rows."""
    go_on_in_turn(toy, tmp_path, MORE_CHAINS)


def test_a_batch_that_ranks_cannot_share_is_refused(toy):
    """A number of micro-batches that does not divide by the ranks is refused before anything runs."""
    from humanline.train.config.objective import DpoObjective
    from humanline.train.data.batch import Unit
    from humanline.train.data.sequences import TokenSequence
    from humanline.train.data.stream import Stream

    unit = Unit("a", (TokenSequence((1, 2), 1), TokenSequence((1, 3), 1)))
    with pytest.raises(ValueError, match="makes 3 of them, which 2 processes cannot share evenly"):
        Stream(
            [unit] * 9,
            DpoObjective(),
            batch_size=9,
            micro_batch_size=3,
            seed=0,
            pad_id=0,
            max_length=8,
            rank=0,
            ranks=2,
        )


@pytest.mark.slow
def test_two_processes_wait_for_the_disk_together(toy, tmp_path):
    """A full disk that one process finds keeps both waiting; a stop of the other ends both, and nothing is lost."""
    waits = {"training": TRAINING | {"disk_full": "wait"}, "checkpoint": {"every": 2}}
    plain, waited, ended = (settings(toy, tmp_path, name, **waits) for name in ("plain", "waited", "ended"))
    stopped = {"stop_after": 2, "full": 1000, "expect": ("StopRequested",)}
    jobs = [job(plain), job(waited, full=3), job(ended, **stopped), job(ended, resume=True)]
    said = two_processes(tmp_path, jobs)
    assert (
        said.count("it is tried again every 0.2 seconds") == 2 and said.count("there is space on the disk again") >= 1
    )
    assert len(re.findall(r"rank [01]: StopRequested: stopped by .* while it waited for space", said)) == 2
    assert result_of(waited) == result_of(plain) == result_of(ended)


def test_a_save_that_a_launcher_would_cut_off_is_said_once(monkeypatch, toy, tmp_path, capsys):
    """Nobody else says so before a stop has lost hours: a large checkpoint takes minutes, a launcher waits 30 s."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(checkpoints, "too_slow_to_stop", lambda _: too_slow_to_stop(100))
    train(config(toy, tmp_path / "run", training__steps=3, checkpoint__every=1))
    assert capsys.readouterr().err.count("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1000") == 1
