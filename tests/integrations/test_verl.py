"""What the plug-in for verl does without verl: its settings, its refusals and the order of scoring.

With verl's own functions it is tested in `test_verl_installed.py`, in an environment that has verl.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tomllib
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from humanline.integrations import verl
from humanline.integrations.verl import loss, settings
from humanline.integrations.verl.syncing import synced
from humanline.schedule import BeforeStep
from humanline.theory import ClipRange
from tests.conftest import ROOT

BOUNDS = {settings.LOW: "-1.5", settings.HIGH: "1.5"}


@pytest.fixture
def environment(monkeypatch):
    """Set the plug-in's variables to those given, and to no others."""

    def set_to(**variables: str) -> None:
        for name in (settings.LOW, settings.HIGH, settings.SYNC, settings.EVERY):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_to


class TestSettings:
    """What the environment may say."""

    def test_bounds_and_syncing_are_read(self, environment):
        """Numbers of nats, and mini-batches between syncs: none unless syncing is named, then 1 unless said."""
        environment(**BOUNDS)
        assert verl.plugin_settings() == verl.Settings(ClipRange(-1.5, 1.5), 0)
        environment(**BOUNDS, **{settings.SYNC: "before_step"})
        assert verl.plugin_settings().sync_every == 1
        environment(**BOUNDS, **{settings.SYNC: "before_step", settings.EVERY: "8"})
        assert verl.plugin_settings().sync_every == 8

    def test_an_environment_that_did_not_arrive_is_an_error(self, environment):
        """Both bounds are asked for, and the message says where it stands how they reach the workers."""
        environment()
        with pytest.raises(ValueError, match=r"docs/inside-verl\.md says how they reach all") as told:
            verl.plugin_settings()
        assert settings.LOW in str(told.value) and settings.HIGH in str(told.value)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            (settings.LOW, "0.5", "from -20 to 0"),
            (settings.LOW, "-21", "from -20 to 0"),
            (settings.HIGH, "-0.1", "from 0 to 20"),
            (settings.HIGH, "nan", "from 0 to 20"),
            (settings.HIGH, "inf", "from 0 to 20"),
            (settings.HIGH, "much", "got 'much'"),
            (settings.SYNC, "after_step", "unset or before_step"),
            (settings.EVERY, "0", "1 or more"),
            (settings.EVERY, "1.5", "1 or more"),
            (settings.EVERY, "3", "set that too"),
            ("HUMANLINE_VERL_LOG_EPS_HI", "1.5", "did you mean HUMANLINE_VERL_LOG_EPS_HIGH"),
        ],
    )
    def test_each_wrong_value_is_refused(self, environment, name, value, said):
        """A value out of range, of another kind or under a name that nothing reads ends the run."""
        environment(**{**BOUNDS, name: value})
        with pytest.raises(ValueError, match=said):
            verl.plugin_settings()

    def test_all_that_is_wrong_is_said_at_once(self, environment):
        """Three mistakes, one message."""
        environment(**{settings.LOW: "2", settings.SYNC: "often"})
        with pytest.raises(ValueError) as told:
            verl.plugin_settings()
        assert str(told.value).count("\n  - ") == 3


class TestRefusals:
    """What the loss refuses before it computes anything."""

    def test_a_dual_clip_that_would_cut_first(self, environment):
        """Verl's default of 3 is below exp(1.5) = 4.48; the message names the setting and a value that is enough."""
        environment(**BOUNDS)
        with pytest.raises(ValueError, match=r"actor\.clip_ratio_c=4\.49 or more"):
            verl.policy_loss(*[torch.zeros(1, 2)] * 4, config=SimpleNamespace(get=lambda name, default: 3.0))
        for high in (0.0, 0.3, 1.5, 4.0, 9.5, 20.0):
            below = math.nextafter(math.exp(high), 0)
            with pytest.raises(ValueError, match="clip_ratio_c") as told:
                loss._refuse_dual_clip(ClipRange(-1.0, high), {"clip_ratio_c": below})
            said = float(re.search(r"actor\.clip_ratio_c=(\S+) or more", str(told.value))[1])
            assert 0 <= said - math.exp(high) < 0.01 + 1e-6
            loss._refuse_dual_clip(ClipRange(-1.0, high), {"clip_ratio_c": said})

    def test_syncing_that_is_named_and_does_not_happen(self, environment):
        """Outside of a round of mini-batches the loss stops the run, and does not train on the round's start."""
        environment(**BOUNDS, **{settings.SYNC: "before_step"})
        with pytest.raises(ValueError, match="outside of the loop that syncs"):
            verl.policy_loss(*[torch.zeros(1, 2)] * 4, config={"clip_ratio_c": 10.0})

    def test_syncing_with_rollout_correction(self, environment):
        """Its weights belong to the log-probabilities that syncing replaces."""
        environment(**BOUNDS, **{settings.SYNC: "before_step"})
        zeros = torch.zeros(1, 2)
        with pytest.raises(ValueError, match="rollout_is=null"):
            verl.policy_loss(zeros, zeros, zeros, zeros, config={"clip_ratio_c": 10.0}, rollout_is_weights=zeros)


def vanilla(
    *,
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Stand in for verl's objective: GRPO's clip, the dual clip behind it, weights of rollouts, the mean of tokens."""
    assert loss_agg_mode == "token-mean"
    ratio = (log_prob - old_log_prob).exp()
    inner = ratio.clamp(1 - config["clip_ratio_low"], 1 + config["clip_ratio_high"])
    losses = torch.maximum(-advantages * ratio, -advantages * inner)
    losses = torch.where(advantages < 0, torch.minimum(losses, -advantages * config["clip_ratio_c"]), losses)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    kl = -(log_prob - old_log_prob)[response_mask].mean()
    return losses[response_mask].mean(), {"actor/ppo_kl": kl.item(), "actor/pg_clipfrac": 0.25}


def by_hand(given: dict[str, Any], clip: ClipRange) -> tuple[float, list[list[float]], dict[str, float]]:
    """Return loss, gradient and metrics, token by token in plain numbers from the formula."""
    config, weights = given["config"], given["rollout_is_weights"]
    count, loss, gradient = int(given["response_mask"].sum()), 0.0, []
    counted: list[float] = []
    for row, mask in enumerate(given["response_mask"].tolist()):
        gradient.append([0.0] * len(mask))
        for at, counts in enumerate(mask):
            if not counts:
                continue
            z = float(given["log_prob"].detach()[row, at]) - float(given["old_log_prob"][row, at])
            counted.append(z)
            gain = float(given["advantages"][row, at])
            weight = 1.0 if weights is None else float(weights[row, at])
            ratio = math.exp(clip.low if z < clip.low else clip.high if z > clip.high else z)
            inner = min(max(ratio, 1 - config["clip_ratio_low"]), 1 + config["clip_ratio_high"])
            own = min(ratio * gain, inner * gain)
            if gain < 0:
                own = max(own, config["clip_ratio_c"] * gain)
            loss -= weight * own / count
            if clip.low < z < clip.high and own == ratio * gain:
                gradient[row][at] = -weight * ratio * gain / count
    metrics = {
        "actor/ppo_kl": -sum(counted) / count,
        "actor/humanline/clipped_low": sum(z < clip.low for z in counted) / count,
        "actor/humanline/clipped_high": sum(z > clip.high for z in counted) / count,
        "actor/humanline/log_ratio_rms": math.sqrt(sum(z * z for z in counted) / count),
        "actor/humanline/log_eps_low": clip.low,
        "actor/humanline/log_eps_high": clip.high,
    }
    return loss, gradient, metrics


class TestClippedLoss:
    """The arithmetic of the loss, on a stand-in for verl's objective; with verl's own in `test_verl_installed.py`."""

    @pytest.fixture
    def verls(self, monkeypatch):
        """Put the stand-in where verl's objective is imported from; return what it was given."""
        seen: list[dict[str, Any]] = []

        def kept(**given: Any) -> tuple[torch.Tensor, dict[str, Any]]:
            seen.append(given)
            return vanilla(**given)

        for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.core_algos"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules["verl.trainer.ppo.core_algos"].compute_policy_loss_vanilla = kept
        return seen

    @pytest.mark.parametrize("weighted", [False, True])
    def test_value_gradient_and_metrics_are_those_of_the_formula(self, environment, verls, weighted):
        """Of 100 random batches in float64, clipped at either end, by GRPO's clip behind it, and masked."""
        clipped = cut = kept = 0
        for seed in range(100):
            draw = torch.Generator().manual_seed(seed)
            shape = (1 + seed % 4, 1 + seed % 7)
            low, high, eps = -2.0 * (seed % 9) / 8, 1.5 * (seed % 6) / 5, 0.05 + 0.2 * (seed % 4)
            environment(**{settings.LOW: repr(low), settings.HIGH: repr(high)})
            old = -3 * torch.rand(shape, generator=draw, dtype=torch.float64)
            mask = torch.rand(shape, generator=draw) < 0.8
            mask[0, 0] = True
            given = {
                "old_log_prob": old,
                "log_prob": (old + torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_(),
                "advantages": torch.randn(shape, generator=draw, dtype=torch.float64),
                "response_mask": mask,
                "loss_agg_mode": "token-mean",
                "config": {"clip_ratio_low": eps, "clip_ratio_high": 1.5 * eps, "clip_ratio_c": math.exp(high) + 0.5},
                "rollout_is_weights": torch.rand(shape, generator=draw, dtype=torch.float64) if weighted else None,
            }
            found, metrics = verl.policy_loss(**given)
            (gradient,) = torch.autograd.grad(found, given["log_prob"])
            loss_by_hand, gradient_by_hand, metrics_by_hand = by_hand(given, ClipRange(low, high))
            assert found.item() == pytest.approx(loss_by_hand, abs=1e-12)
            for row, expected in zip(gradient.tolist(), gradient_by_hand, strict=True):
                assert row == pytest.approx(expected, abs=1e-12)
            for name, value in metrics_by_hand.items():
                assert metrics[name] == pytest.approx(value, abs=1e-12), name
            assert (metrics["actor/pg_clipfrac"], metrics["actor/humanline/sync_every"]) == (0.25, 0.0)
            tokens = (given["log_prob"].detach() - old)[mask]
            clipped += int(((tokens < low) | (tokens > high)).sum())
            cut += sum(not one for one in torch.tensor(gradient_by_hand)[mask].tolist())
            kept += sum(one != 0 for row in gradient_by_hand for one in row)
        assert clipped > 300 and cut > clipped + 20 and kept > 100  # humanline's clip, GRPO's behind it, and neither

    def test_the_log_ratio_is_handed_on_without_a_rounding(self, environment, verls):
        """In float32, of log-probabilities of -30: verl's objective is given the clipped log-ratio against zeros."""
        environment(**{settings.LOW: "-0.3", settings.HIGH: "0.1"})
        old, config = torch.full((1, 3), -30.0), {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 9.0}
        policy = torch.tensor([[-30.0 + 2**-19, -25.0, -33.0]])
        verl.policy_loss(old, policy, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), config=config)
        expected = torch.tensor([[2**-19, 0.1, -0.3]])
        assert torch.equal(verls[0]["log_prob"] - verls[0]["old_log_prob"], expected)
        assert not torch.equal(old + expected - old, expected)  # what adding and subtracting it would leave


class TestOrderOfScoring:
    """`synced` with a stand-in for the engine: weights are the count of updates."""

    @pytest.mark.parametrize("every", [1, 2, 3, 7, 10])
    @pytest.mark.parametrize("length", [0, 1, 6, 7])
    def test_each_mini_batch_has_the_reference_of_its_step(self, every, length):
        """In every round the reference of step s is the policy before update `BeforeStep.snapshot(s)` of that round."""
        updates, scored = 0, []

        def score(batch: dict) -> dict:
            scored.append((batch["name"], updates))
            return {**batch, "reference": updates}

        for _ in range(2):
            first, seen = updates, []
            round_ = ({"name": name, "reference": first} for name in range(length))
            for batch, moved in synced(round_, every, score):
                seen.append((batch["name"], batch["reference"] - first))
                assert moved == (batch["reference"] > first)
                updates += 1
            assert seen == [(s, BeforeStep(every=every).snapshot(s)) for s in range(length)]
            assert seen == [(s, every * (max(0, s - 1) // every)) for s in range(length)]
        # Nothing is scored twice, nor what the start of a round has scored already.
        assert len(scored) == 2 * max(0, length - 1 - every)

    def test_no_more_is_held_than_the_next_k(self):
        """Mini-batches are taken from verl's iterator as they are needed."""
        left = iter(range(7))
        for position, _ in enumerate(synced(left, 2, lambda batch: batch), start=1):
            assert left.__length_hint__() == max(0, 7 - position - 2)


class TestInstallation:
    """How verl finds it."""

    def test_the_entry_point_leads_to_the_loss(self):
        """The group is verl's; its attribute is asked for, and only that registers."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["entry-points"]["verl.plugins"] == {"humanline": "humanline.integrations.verl:plugin"}

    def test_importing_it_loads_neither_transformers_nor_verl(self):
        """torch, numpy and the theory; the schedule, and with it pydantic, only where syncing is named."""
        heavy = {"verl", "transformers", "accelerate", "pydantic", "ray", "humanline.train", "humanline.schedule"}
        code = f"import sys, humanline.integrations.verl; print(*({heavy!r} & set(sys.modules)))"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert (result.returncode, result.stdout.split()) == (0, []), result.stderr

    def test_it_has_no_other_attribute(self):
        """Only `plugin` registers; any other name is an ordinary mistake."""
        with pytest.raises(AttributeError, match="no attribute 'plug'"):
            _ = verl.plug
