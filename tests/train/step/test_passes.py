"""Processes that share a run: each makes as many passes as the others, and what one has kept the others find."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from humanline.schedule import BeforeStep
from humanline.system.files import DamagedError
from humanline.train.config.objective import BcoObjective, BetaTransform, ClipTransform
from humanline.train.data.batch import IDLE, Unit, idle_micro_batch, idle_sequence
from humanline.train.data.stream import FixedBatches
from humanline.train.online.round_log import mismatch
from humanline.train.run.state import RandomState
from humanline.train.step.held_out import Evaluator
from humanline.train.step.loss import ObjectiveStep
from humanline.train.step.reference import LogprobsAhead
from tests.helpers.units import OBJECTIVES, sequence, stream_of, unit

CPU = torch.device("cpu")
KINDS = {**OBJECTIVES, "bco": BcoObjective(kind="bco", beta=0.5)}
MEMBERS = {"dpo": 2, "kto": 1, "bco": 1, "grpo": 3}


def units_of(kind: str, count: int) -> list[Unit]:
    rng = random.Random(kind)
    units = [unit(rng, i, [rng.randint(3, 20) for _ in range(MEMBERS[kind])]) for i in range(count)]
    if kind == "grpo":  # ragged: rows that no number of processes shares evenly
        units[0] = unit(rng, 0, [4, 5])
    return units


class Policy:
    """Gives each token a log-probability that its row's ids say, and counts passes; `noise` tells processes apart."""

    def __init__(self, noise: float = 0.0) -> None:
        self.passes, self.noise = 0, noise

    def __call__(self, block) -> torch.Tensor:
        self.passes += 1
        values = -(block.input_ids[:, 1:] * 0.1 + block.input_ids.cumsum(1)[:, :-1] * 1e-3) - self.noise
        return torch.where(block.mask, values, 0.0)


def alone(value: torch.Tensor, how: str) -> torch.Tensor:
    return value


@pytest.mark.parametrize("limit", [{"micro_batch_size": 1}, {"micro_batch_tokens": 70}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_processes_make_equally_many_passes(kind, limit):
    """Scoring, held-out sets that do not divide evenly, z_0, batch_max and the sampler's mismatch, over three of three.

    The held-out set has four micro-batches, or a single one, of which two processes have none.
    """
    reject = BetaTransform.model_validate(
        {"kind": "beta_rejection", "policy": {"a": 1, "b": 1}, "ref": {"a": 1, "b": 1}}
        | {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
    )
    clip = ClipTransform(kind="clip", log_eps_low=-0.1, log_eps_high=0.1)
    passes = []
    for rank in range(3):
        policy = Policy()
        stream = stream_of(units_of(kind, 6), KINDS[kind], **limit, rank=rank, ranks=3)
        ahead = LogprobsAhead(BeforeStep(every=1), policy, FixedBatches(stream, 2), CPU, alone)
        ahead.begin_step(0, lambda: None)
        batch, counts = stream.step(0), [policy.passes]
        ref = [ahead.logprobs(0, index, micro) for index, micro in enumerate(batch.micro_batches)]
        for transform in (clip, reject) if kind in ("dpo", "grpo") else (clip,):
            ObjectiveStep(KINDS[kind], transform, 0, CPU).look(0, batch, ref, policy, alone)
            counts.append(policy.passes)
        (whole,) = stream_of(units_of(kind, 6), KINDS[kind]).step(0).micro_batches
        sampled = {whole.block.names[0]: [0.0] * int(whole.block.mask[0].sum())}  # a row of a single process
        mismatch("x", sampled, batch, lambda micro, policy=policy: policy(micro.block), alone)
        counts.append(policy.passes)
        for count in (7, 2):
            evaluator = Evaluator(
                KINDS[kind],
                units_of("dpo" if kind == "grpo" else kind, count),  # best and worst
                [unit(random.Random(i), i, [5, 6]) for i in range(count)] if kind == "kto" else [],
                logprobs_of=policy,
                reduce=alone,
                batch_size=2,
                pad_id=0,
                max_length=40,
                device=CPU,
                rank=rank,
                ranks=3,
            )
            with contextlib.suppress(ZeroDivisionError):  # of means, which nobody here sums up over processes
                evaluator.start()
            counts.append(policy.passes)
        passes.append(counts)
    assert passes[0] == passes[1] == passes[2] and len(set(passes[0])) >= 4


def test_idle_passes_add_exactly_nothing():
    """A micro-batch without rows, and with mismatched pairs that are none, leaves z_0 as it is, to the bit."""
    units = units_of("kto", 4)
    idle = idle_sequence(one for unit in units for one in unit.sequences)
    assert len(idle.ids) == min(unit.length for unit in units)
    batch = stream_of(units, OBJECTIVES["kto"]).step(0)
    nothing = idle_micro_batch(idle, 0, [(IDLE, idle)])
    policy, points = Policy(), []
    for micros in (batch.micro_batches, (*batch.micro_batches, nothing)):
        own = replace(batch, micro_batches=micros, total_micro_batches=len(micros))
        ref = [(0.5 * policy(m.block), 1.5 * policy(m.mismatched)) for m in micros]
        clip = ClipTransform(kind="clip", log_eps_low=-0.1, log_eps_high=0.1)
        points.append(ObjectiveStep(OBJECTIVES["kto"], clip, 0, CPU).look(0, own, ref, policy, alone).reference_point)
    assert points[0] == points[1] != 0


def windows(kind: str, ranks: int, noise: float, steps: int = 3, units: int = 9) -> list[LogprobsAhead]:
    """The windows of so many processes before step 1, of steps that cross the seams of epochs."""
    made = []
    for rank in range(ranks):
        options = {"batch_size": 6, "micro_batch_size": 1, "rank": rank, "ranks": ranks, "max_length": 12}
        batches = FixedBatches(stream_of(units_of(kind, units), KINDS[kind], **options), steps)
        made.append(LogprobsAhead(BeforeStep(every=steps), Policy(noise * (rank + 1)), batches, CPU, alone))
    return made


@pytest.mark.parametrize("kind", ["dpo", "kto", "grpo"])
def test_a_window_is_found_again_by_any_number_of_processes(kind):
    """From 1, 2 or 3 processes to 1, 2 or 3, each row has its log-probabilities, also one that is twice in a step."""
    batches = stream_of(units_of(kind, 9), KINDS[kind], batch_size=6).step(1)  # over the seam of two epochs
    names = [row.unit.id for micro in batches.micro_batches for row in micro.rows if row.member == 0]
    assert len(set(names)) < len(names)
    for before, now in product((1, 2, 3), repeat=2):
        old = windows(kind, before, 1e-3 if before == now else 0.0)
        for one in old:
            one.begin_step(0, lambda: None)
            one.after_update(0)
        states = [one.state() for one in old]
        assert not any(key.startswith("0/") for state in states for key in state)
        for rank, one in enumerate(windows(kind, now, 0.0)):
            one.load_states(states, rank)
            assert one.next_step == 3 and set(one.window) == {1, 2}
            for step in one.window:
                for index, micro in enumerate(one.batches.step(step).micro_batches):
                    rows, other = one.logprobs(step, index, micro)
                    scored_by = old[rank].logprobs_of if before == now else one.logprobs_of  # as many: its own, exactly
                    assert torch.equal(rows, scored_by(micro.block))
                    assert other is None or torch.equal(other, scored_by(micro.mismatched))


def test_rows_that_nobody_kept_are_named():
    """A window of other data, one with a gap, and states that do not say where they end are refused, with the rows."""
    (old,), (new,) = windows("dpo", 1, 0.0), windows("dpo", 1, 0.0, units=10)
    old.begin_step(0, lambda: None)
    state = old.state()
    with pytest.raises(DamagedError, match=r"lacks the log-probabilities of unit \d#\d, .* and \d+ more"):
        new.load_states([state], 0)
    with pytest.raises(DamagedError, match="ends before step 3 or has gaps"):
        new.load_states([{key: value for key, value in state.items() if not key.startswith("1/")}], 0)
    with pytest.raises(DamagedError, match="has no next_step"):
        new.load_states([{}], 0)


def test_random_numbers_go_on_by_the_number_of_a_process():
    """A process goes on with those of its own number; one that is new has numbers of its own, the same every time."""
    torch.manual_seed(1)
    state, goes_on = RandomState(CPU, 5).state(), torch.rand(3)
    drawn = []
    for rank in (0, 1, 2, 2):
        RandomState(CPU, 5).load_states([state], rank)
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], goes_on) and torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_held_out_log_probabilities_are_found_again_too(kind):
    """From three processes, one of which has a share less, to one and to two; nothing where nothing was computed."""

    def evaluators(ranks: int) -> list[Evaluator]:
        pairs = [Unit(f"pair {i}", (sequence(random.Random(i), 9), sequence(random.Random(-i), 7))) for i in range(5)]
        return [
            Evaluator(
                KINDS[kind],
                units_of(kind, 7),
                pairs if kind == "kto" else [],
                logprobs_of=Policy(),
                reduce=alone,
                batch_size=2,
                pad_id=0,
                max_length=40,
                device=CPU,
                rank=rank,
                ranks=ranks,
            )
            for rank in range(ranks)
        ]

    before = evaluators(3)
    states = [{key: value.clone() for key, value in one.state().items()} for one in before]
    for one in evaluators(2):
        one.load_states(states, 0)
        assert not one.started and not one.initial
    for one in before:
        one.start()
    states = [one.state() for one in before]
    for rank, one in enumerate([*evaluators(1), *evaluators(2)]):
        one.load_states(states, max(0, rank - 1))
        fresh = Policy()
        for batch, initial in ((one.batch, one.initial), (one.pairs, one.initial_pairs)):
            for micro, (rows, other) in zip(batch.micro_batches, initial, strict=True):
                assert torch.equal(rows, fresh(micro.block))
                assert other is None or torch.equal(other, fresh(micro.mismatched))
        assert one.started
