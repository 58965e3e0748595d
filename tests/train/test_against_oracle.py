"""Whole runs against a slow run written from the paper: model logits, a copied reference, plain loops."""

from __future__ import annotations

import pytest
import torch

from humanline.train.batch import make_block
from humanline.train.examples import read_units
from humanline.train.model import load_policy
from humanline.train.objective import beta_draws
from humanline.train.stream import Stream
from humanline.train.tokens import Renderer
from tests.train import oracle_run
from tests.train.support import CLIP, REJECT, config, run, steps, weights

STEPS, K = 6, 2
OBJECTIVES = {
    "dpo": {"kind": "dpo", "beta": 0.5},
    "kto": {"kind": "kto", "beta": 0.5, "desirable_weight": 1.1, "undesirable_weight": 0.7},
    "grpo": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
    "grpo-local": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1, "normalise": "local"},
    "grpo-initial": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
}


def oracle_batches(toy, settings):
    """The ids, labels and verdict keys of every step, as plain data for the oracle."""
    tokenizer = load_policy(toy["model"], dropout=False, max_length=64)[1]
    units, _ = read_units(settings, toy["pairs"], Renderer(tokenizer, "chat", 64))
    stream = Stream(units, settings.objective, batch_size=10, micro_batch_size=4, seed=0, pad_id=0, max_length=64)
    rejection = settings.transform.build() if settings.transform.kind == "beta_rejection" else None

    def draws(step, unit):
        members = len(unit.sequences)
        names = [unit.id if members == 1 else f"{unit.id}#{m}" for m in range(members)]
        rows = []
        for sequence, name in zip(unit.sequences, names, strict=True):
            both = beta_draws(rejection, settings.seed, step, make_block([sequence], [name], 0))
            rows.append([one[0, sequence.prompt_length - 1 :].double() for one in both])
        return rows

    def plain(step, unit, mismatched):
        return {
            "sequences": [(s.ids, s.prompt_length) for s in unit.sequences],
            "desirable": unit.desirable,
            "advantages": (1.0, -1.0),
            "mismatched": mismatched,
            "kept": [None] * len(unit.sequences) if rejection is None else draws(step, unit),
        }

    batches = []
    for step in range(STEPS):
        micros = []
        for micro in stream.step(step).micro_batches:
            others = [None] * len(micro.units)
            if micro.mismatched is not None:
                others = []
                for ids, mask in zip(micro.mismatched.input_ids, micro.mismatched.mask, strict=True):
                    places = mask.nonzero().squeeze(1)
                    others.append((tuple(ids[: int(places[-1]) + 2].tolist()), int(places[0]) + 1))
            micros.append([plain(step, unit, other) for unit, other in zip(micro.units, others, strict=True)])
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


@pytest.mark.parametrize("transform", ["clip", "reject"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_is_the_run_the_paper_describes(toy, tmp_path, name, transform):
    """Losses and final weights of humanline runs (k = 2, warm-up, uneven micro-batches) are those of the oracle."""
    baseline = "initial" if name == "grpo-initial" else "reference"
    changes = {
        "objective": OBJECTIVES[name],
        "transform": CLIP if transform == "clip" else REJECT,
        "training": {"steps": STEPS, "batch_size": 10, "micro_batch_size": 4},
        "optimizer": {"lr": 3e-3, "warmup_fraction": 0.3},
        "reference": {"schedule": {"kind": "before_step", "every": K}, "baseline": baseline},
    }
    result = run(toy, tmp_path / "run", **changes)
    losses, model = oracle_run.run(
        toy["model"],
        oracle_batches(toy, config(toy, tmp_path / "unused", **changes)),
        OBJECTIVES[name],
        transform=clip if transform == "clip" else reject,
        k=K,
        steps=STEPS,
        lr=3e-3,
        warmup=round(0.3 * STEPS),
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
