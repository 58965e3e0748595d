"""Whole runs against a slow run written from the paper: model logits, a copied reference, plain loops."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from humanline.train.data.batch import make_block
from humanline.train.data.render import Renderer
from humanline.train.data.sets import read_units
from humanline.train.data.stream import Stream
from humanline.train.policy.load import load_policy
from humanline.train.step.loss import beta_draws
from tests.helpers import oracle_run
from tests.helpers.support import CLIP, REJECT, config, run, steps, weights

STEPS, K = 6, 2
QUICK = 4  # steps, of which the last one has a reference that was synced
OBJECTIVES = {
    "dpo": {"kind": "dpo", "beta": 0.5},
    "dpo-conservative": {"kind": "dpo", "beta": 0.5, "label_smoothing": 0.2},
    "ipo": {"kind": "ipo", "beta": 0.5},
    "apo_zero": {"kind": "apo_zero", "beta": 0.5},
    "apo_down": {"kind": "apo_down", "beta": 0.5},
    "kto": {"kind": "kto", "beta": 0.5, "desirable_weight": 1.1, "undesirable_weight": 0.7},
    "bco": {"kind": "bco", "beta": 0.5},
    "grpo": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
    "grpo-local": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1, "normalise": "local"},
    "grpo-initial": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
}


def oracle_batches(toy, settings, steps_):
    """The ids, labels and verdict keys of every step, as plain data for the oracle."""
    tokenizer = load_policy(toy["model"], dropout=False, max_length=64)[1]
    units, _ = read_units(settings, toy["pairs"], Renderer(tokenizer, "chat", 64))
    micro_batch_size = settings.training.micro_batch_size
    stream = Stream(
        units, settings.objective, batch_size=10, micro_batch_size=micro_batch_size, seed=0, pad_id=0, max_length=64
    )
    rejection = settings.transform.build() if settings.transform.kind == "beta_rejection" else None

    def plain(step, row, mismatched):
        """One answer by itself; a group of two has advantages of 1 and -1, wherever its answers are."""
        kept = [None]
        if rejection is not None:
            name = row.unit.id if len(row.unit.sequences) == 1 else f"{row.unit.id}#{row.member}"
            both = beta_draws(rejection, settings.seed, step, make_block([row.sequence], [name], 0))
            kept = [[one[0, row.sequence.prompt_length - 1 :].double() for one in both]]
        return {
            "sequences": [(row.sequence.ids, row.sequence.prompt_length)],
            "desirable": row.unit.desirable,
            "advantages": ((1.0, -1.0)[row.member],),
            "mismatched": mismatched,
            "kept": kept,
        }

    def joined(chosen, rejected):
        return chosen | {name: [*chosen[name], *rejected[name]] for name in ("sequences", "advantages", "kept")}

    batches = []
    for step in range(steps_):
        micros = []
        for micro in stream.step(step).micro_batches:
            others = [None] * len(micro.rows)
            if micro.mismatched is not None:
                others = []
                for ids, mask in zip(micro.mismatched.input_ids, micro.mismatched.mask, strict=True):
                    places = mask.nonzero().squeeze(1)
                    others.append((tuple(ids[: int(places[-1]) + 2].tolist()), int(places[0]) + 1))
            rows = [plain(step, row, other) for row, other in zip(micro.rows, others, strict=True)]
            if settings.objective.unit == "pair":
                half = len(rows) // 2
                rows = [joined(*pair) for pair in zip(rows[:half], rows[half:], strict=True)]
            micros.append(rows)
        batches.append(micros)
    return batches


def clip(raw, _):
    return torch.clamp(raw, -0.01, 0.02)


def reject(raw, draws):
    """Definition 4.2 with M = 3: a rejected token keeps its value and loses its gradient."""
    if draws is None:
        return raw
    policy_draws, ref_draws = draws
    ratio = torch.exp(raw.detach())
    rejected = (ratio < 3.0 * policy_draws) | (1 / ratio < 3.0 * ref_draws)
    return torch.where(rejected, raw.detach(), raw)


def objectives_and_transforms() -> list:
    """Pair each objective with each transform; one of each is short, by turns, and all of them are slow.

    Slow are the short ones, too, of what is DPO with another constant and GRPO with another baseline.
    """
    pairs = list(product(enumerate(OBJECTIVES), enumerate(("clip", "reject"))))
    others = dict.fromkeys(("dpo-conservative", "grpo-initial"), pytest.mark.slow)
    short = [
        pytest.param(name, how, QUICK, id=f"{name}-{how}", marks=others.get(name, ()))
        for (i, name), (j, how) in pairs
        if not (i + j) % 2
    ]
    return short + [
        pytest.param(name, how, STEPS, id=f"{name}-{how}-whole", marks=pytest.mark.slow)
        for (_, name), (_, how) in pairs
    ]


@pytest.mark.parametrize("name,transform,count", objectives_and_transforms())
def test_a_run_is_the_run_the_paper_describes(toy, tmp_path, name, transform, count):
    """Losses and final weights of humanline runs (k = 2, warm-up, uneven micro-batches) are those of the oracle.

    GRPO's micro-batches are of three answers, which parts groups of two, and of four whole groups where each has a
    mean of its own.
    """
    micro_batch_size = {"grpo": 3, "grpo-initial": 3, "grpo-local": 8}.get(name, 4)
    baseline = "initial" if name == "grpo-initial" else "reference"
    changes = {
        "objective": OBJECTIVES[name],
        "transform": CLIP if transform == "clip" else REJECT,
        "training": {"steps": count, "batch_size": 10, "micro_batch_size": micro_batch_size},
        "optimizer": {"lr": 3e-3, "warmup_fraction": 0.3},
        "reference": {"schedule": {"kind": "before_step", "every": K}, "baseline": baseline},
    }
    result = run(toy, tmp_path / "run", **changes)
    losses, model = oracle_run.run(
        toy["model"],
        oracle_batches(toy, config(toy, tmp_path / "unused", **changes), count),
        OBJECTIVES[name],
        transform=clip if transform == "clip" else reject,
        k=K,
        steps=count,
        lr=3e-3,
        warmup=round(0.3 * count),
        baseline=baseline,
        local=name == "grpo-local",
    )
    assert [row["loss"] for row in steps(result)] == pytest.approx(losses, abs=2e-5)
    before = load_policy(toy["model"], dropout=False, max_length=64)[0].state_dict()
    expected, moved = model.state_dict(), 0.0
    for key, tensor in weights(result).items():
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=3e-4)
        moved = max(moved, (tensor - before[key]).abs().max().item())
    assert moved > 5e-3  # so that the tolerance above says something
