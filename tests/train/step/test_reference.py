"""Which weights score which batch, and that scoring ahead is the reference model without the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from humanline.train.data.batch import Block, MicroBatch
from humanline.train.data.stream import StepBatch
from humanline.train.run.metrics import read_metrics
from humanline.train.run.result import RunResult
from humanline.train.setup import Run
from humanline.train.step.reference import BatchLogprobs, LogprobsAhead
from tests.helpers.support import (
    CLIP,
    OBJECTIVES,
    REJECT,
    SCHEDULES,
    run,
    run_with,
    same,
    steps,
    weights,
    without_timing,
)


class Spy:
    """A run's objective that records the policy's weights, the batch and the reference's scores of every step."""

    def __init__(self, run: Run) -> None:
        self.policy, self.objective, self.loss = run.trained.policy, run.objective, run.objective.loss
        self.weights: dict[int, dict] = {}
        self.batches: dict[int, StepBatch] = {}
        self.ref: dict[int, list[BatchLogprobs]] = {}

    def look(self, step, batch, ref, score, reduce):
        self.weights[step] = {k: v.clone() for k, v in self.policy.state_dict().items()}
        self.batches[step], self.ref[step] = batch, ref
        return self.objective.look(step, batch, ref, score, reduce)


def spied(*args, **changes) -> tuple[Spy, RunResult]:
    """Run with a spy in the place of the objective."""
    spies = []

    def hand_in(run: Run) -> Run:
        spies.append(Spy(run))
        return replace(run, objective=spies[0])

    result = run_with(hand_in, *args, **changes)
    return spies[0], result


def assert_scored_by(spy, snapshot) -> None:
    """Assert that step s was scored, bit for bit, by the weights recorded at step snapshot(s) and by no others."""
    policy = spy.policy.eval()
    for step, batch in spy.batches.items():
        policy.load_state_dict(spy.weights[snapshot(step)])
        for micro, (ref, mismatched) in zip(batch.micro_batches, spy.ref[step], strict=True):
            with torch.no_grad():
                assert torch.equal(ref, policy(micro.block.input_ids, micro.block.mask)), f"step {step}"
                if mismatched is not None:
                    block = micro.mismatched
                    assert torch.equal(mismatched, policy(block.input_ids, block.mask)), f"step {step}"
    assert not same(spy.weights[0], spy.weights[1])  # so that a wrong snapshot would show


TRANSFORMS = {"none": {"kind": "none"}, "clip": CLIP, "reject": REJECT}


def quick_alone(quick: list, *kinds: Iterable) -> list:
    """Return every combination of kinds; those that are named are quick, in which each of a kind is there once."""
    assert all({one[i] for one in quick} == set(kind) for i, kind in enumerate(kinds))
    return [pytest.param(*one, marks=() if one in quick else pytest.mark.slow) for one in product(*kinds)]


@pytest.mark.parametrize(
    "k,micro_batch_size,storage",
    quick_alone(
        [(1, 8, "model"), (2, 2, "score_ahead"), (3, 2, "model"), (7, 8, "score_ahead")],
        [1, 2, 3, 7],
        [8, 2],
        ["score_ahead", "model"],
    ),
)
def test_before_step_scores_with_the_weights_before_the_sync(toy, tmp_path, k, micro_batch_size, storage):
    """With BeforeStep(k) step s is scored by theta at k * floor(max(0, s - 1) / k), at accumulation 1 and 4."""
    spy, _ = spied(
        toy,
        tmp_path / "run",
        training={"steps": 10, "batch_size": 8, "micro_batch_size": micro_batch_size},
        reference={"schedule": {"kind": "before_step", "every": k}, "storage": storage},
    )
    assert_scored_by(spy, lambda s: k * (max(0, s - 1) // k))


@pytest.mark.parametrize(
    "k,storage",
    quick_alone(
        [(1, "score_ahead"), (2, "model"), (3, "score_ahead"), (7, "model")], [1, 2, 3, 7], ["score_ahead", "model"]
    ),
)
def test_after_step_scores_with_the_weights_after_the_sync(toy, tmp_path, k, storage):
    """With AfterStep(k) step s is scored by theta at k * floor(s / k)."""
    schedule = {"kind": "after_step", "every": k}
    spy, _ = spied(toy, tmp_path / "run", training__steps=9, reference={"schedule": schedule, "storage": storage})
    assert_scored_by(spy, lambda s: s - s % k)


@pytest.mark.parametrize("storage", ["score_ahead", "model"])
@pytest.mark.parametrize("name,snapshot", [("never", lambda s: 0), ("round_4", lambda s: s - s % 4)])
def test_never_and_each_round(toy, tmp_path, name, snapshot, storage):
    """Never scores with theta_0, EachRound with the weights at the start of the round; KTO's other pairs too."""
    spy, _ = spied(toy, tmp_path / "run", "kto", reference={"schedule": SCHEDULES[name], "storage": storage})
    assert_scored_by(spy, snapshot)


SOME = [
    ("dpo", "never", "none"),
    ("grpo", "before_1", "clip"),
    ("kto", "before_3", "reject"),
    ("dpo", "after_2", "reject"),
    ("kto", "round_4", "clip"),
]


@pytest.mark.parametrize("objective,schedule,transform", quick_alone(SOME, OBJECTIVES, SCHEDULES, TRANSFORMS))
def test_scoring_ahead_equals_a_second_model_bitwise(toy, tmp_path, objective, schedule, transform):
    """Weights and metrics after a run are bit for bit those of a reference model in memory, epoch seams included."""
    results = [
        run(
            toy,
            tmp_path / storage,
            objective,
            transform=TRANSFORMS[transform],
            training={"steps": 8, "batch_size": 10, "micro_batch_size": 4},
            reference={"schedule": SCHEDULES[schedule], "storage": storage},
        )
        for storage in ("score_ahead", "model")
    ]
    assert same(weights(results[0]), weights(results[1]))
    assert without_timing(steps(results[0])) == without_timing(steps(results[1]))


def test_scoring_never_drops(toy, tmp_path):
    """Where training drops out, scoring still does not: the scores are those of the weights in eval mode."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(toy["model"], attention_dropout=0.5).save_pretrained(tmp_path / "dropping")
    AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(tmp_path / "dropping")
    spy, result = spied(toy, tmp_path / "run", model=str(tmp_path / "dropping"), training__dropout=True)
    assert steps(result)[0]["log_ratio_rms"] > 0  # training did drop out
    assert_scored_by(spy, lambda s: 0)


@pytest.mark.parametrize(  # the next test has both storages
    "storage", ["score_ahead", pytest.param("model", marks=pytest.mark.slow)]
)
def test_initial_baseline(toy, tmp_path, storage):
    """Under AfterStep(1) the KL term is 0 against the reference and grows against the initial baseline."""
    kl = {}
    for baseline in ("reference", "initial"):
        result = run(
            toy,
            tmp_path / baseline,
            "grpo",
            reference={"schedule": {"kind": "after_step", "every": 1}, "storage": storage, "baseline": baseline},
        )
        kl[baseline] = [row["kl"] for row in steps(result)]
    assert kl["reference"] == [0.0] * 8
    assert kl["initial"][0] == 0.0 and all(value > 0 for value in kl["initial"][1:])


def test_initial_baseline_is_the_same_in_both_storages(toy, tmp_path):
    """With a moving reference, a fixed baseline and groups in pieces both storages still agree bit for bit."""
    results = [
        run(
            toy,
            tmp_path / storage,
            "grpo",
            training={"steps": 6, "batch_size": 8, "micro_batch_size": 3},
            transform=REJECT,
            reference={"schedule": SCHEDULES["before_3"], "storage": storage, "baseline": "initial"},
        )
        for storage in ("score_ahead", "model")
    ]
    assert same(weights(results[0]), weights(results[1]))
    assert without_timing(steps(results[0])) == without_timing(steps(results[1]))
    assert steps(results[0])[-1]["detached"] > 0


def test_where_groups_are_cut_changes_rounding_alone(toy, tmp_path):
    """A GRPO run by single answers, by threes or in one pass has the same losses, metrics and held-out metrics."""
    rows = {}
    for size in (None, 3, 1):
        result = run(
            toy,
            tmp_path / str(size),
            "grpo",
            training={"steps": 4, "batch_size": 4, "micro_batch_size": size},
            transform=CLIP,
            reference={"schedule": SCHEDULES["before_1"]},
            data__eval=toy["held_out"],
            evaluation={"batch_size": 3},
        )
        rows[size] = [
            list(read_metrics(result.metrics_file))[i] for i in (0, 1, 2, -1)
        ]  # Adam magnifies rounding later
        rows[size] = [row.get("held_out", row) for row in rows[size]]
    for one, three, whole in zip(rows[1], rows[3], rows[None], strict=True):
        assert one.keys() == three.keys() == whole.keys()
        for name in set(whole) - {"kind", "seconds", "tokens_per_second"}:
            assert one[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name
            assert three[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name


def test_post_update_sync_switches_the_method_off(toy, tmp_path):
    """AfterStep(1) makes every log-ratio 0 and every DPO loss ln 2; BeforeStep(1) does so at step 0 only."""
    ln2 = pytest.approx(0.6931472, abs=1e-6)
    after = steps(run(toy, tmp_path / "after", reference__schedule={"kind": "after_step", "every": 1}))
    assert [row["log_ratio_rms"] for row in after] == [0.0] * 8
    assert all(row["loss"] == ln2 for row in after)
    before = steps(run(toy, tmp_path / "before", reference__schedule={"kind": "before_step", "every": 1}))
    assert before[0]["log_ratio_rms"] == 0.0 and before[0]["loss"] == ln2
    assert all(row["log_ratio_rms"] > 0 for row in before[1:])


@pytest.mark.parametrize(
    "schedule,precision",
    quick_alone(
        [
            *((name, "bf16") for name in ("never", "before_3", "round_4")),
            ("before_1", "float32"),
            ("after_2", "float32"),
        ],
        SCHEDULES,
        ["float32", "bf16"],
    ),
)
def test_log_ratios_are_exactly_zero_at_learning_rate_zero(toy, tmp_path, schedule, precision):
    """If the weights do not move, scoring and training agree in every bit under every schedule."""
    result = run(
        toy,
        tmp_path / "run",
        "kto",
        optimizer={"lr": 0.0},
        training={"steps": 6, "batch_size": 8, "micro_batch_size": 3, "precision": precision},
        reference={"schedule": SCHEDULES[schedule]},
    )
    assert [row["log_ratio_rms"] for row in steps(result)] == [0.0] * 6


def test_score_ahead_keeps_one_window(toy, tmp_path):
    """The store never holds more than the coming window: k + 1 steps at the start, k afterwards."""
    sizes = []

    class Measured:
        def __init__(self, reference):
            self.reference = reference

        def __getattr__(self, name):
            return getattr(self.reference, name)

        def begin_step(self, step, pause):
            self.reference.begin_step(step, pause)
            sizes.append(len(self.reference.window))

    def measured(run: Run) -> Run:
        return replace(run, references=[Measured(run.references[0])])

    schedule = {"kind": "before_step", "every": 3}
    run_with(measured, toy, tmp_path / "run", training__steps=10, reference__schedule=schedule)
    assert max(sizes) == 4


def test_a_live_reference_is_never_aliased(toy, tmp_path):
    """The second model holds copies: training the policy leaves the initial reference untouched."""
    results = [
        run(toy, tmp_path / name, training__steps=3, reference={"storage": name}) for name in ("model", "score_ahead")
    ]
    assert steps(results[0])[2]["log_ratio_rms"] > 0
    assert same(weights(results[0]), weights(results[1]))


def test_scores_of_batches_that_became_others_are_forgotten():
    """What was scored of a step and of later ones is dropped and scored again, what was scored before it stays."""
    asked: list[int] = []
    block = Block(("a",), torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool), (3,))
    micro = MicroBatch((), block, None, desirable=torch.tensor([True]), advantages=None)

    class Batches:
        end = 6

        def step(self, step):
            asked.append(step)
            return SimpleNamespace(micro_batches=[micro], total_tokens=2)

    version = 0.0
    reference = LogprobsAhead(
        SimpleNamespace(snapshot=lambda step: 2),
        lambda block: torch.full((1, 2), version),
        Batches(),
        torch.device("cpu"),
        _same,
    )
    reference.next_step = 2
    reference.begin_step(2, lambda: None)
    assert asked == [2, 3, 4, 5]
    version = 1.0
    reference.forget(4)
    reference.begin_step(2, lambda: None)
    assert asked == [2, 3, 4, 5, 4, 5]
    assert [float(reference.logprobs(s, 0, micro)[0][0, 0]) for s in (2, 3, 4, 5)] == [0.0, 0.0, 1.0, 1.0]


def _same(value, how):
    return value
