"""The plug-in inside verl itself: its loss functions, its registry and its loop of mini-batches.

verl's needs clash with those of training here, so it has an environment of its own (`scripts/tools.py verl` makes it).
"""

from __future__ import annotations

import math
import shlex
import subprocess
import sys

import pytest
import torch

from humanline.integrations import verl
from humanline.integrations.verl import loss, settings
from humanline.objectives import grpo_loss
from humanline.theory import ClipRange
from tests.conftest import ROOT
from tests.helpers.pages import commands

pytestmark = pytest.mark.filterwarnings("default")
EVERY_MODE = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.fixture(scope="module")
def core():
    """Return verl's module of losses."""
    return pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed here")


@pytest.fixture
def bounds(monkeypatch):
    """Set the clip bounds in the environment."""

    def set_to(low: float, high: float) -> ClipRange:
        monkeypatch.setenv(settings.LOW, repr(low))
        monkeypatch.setenv(settings.HIGH, repr(high))
        return ClipRange(low, high)

    return set_to


def actor(**more):
    """Return verl's own configuration of an actor."""
    from verl.workers.config import FSDPActorConfig

    policy_loss = more.pop("policy_loss", None)
    given = dict(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **more)
    return FSDPActorConfig(**given, **({} if policy_loss is None else {"policy_loss": policy_loss}))


def random_batch(seed: int) -> dict[str, torch.Tensor]:
    """Return a batch in float64 whose log-ratios reach beyond any of the ranges below."""
    draw = torch.Generator().manual_seed(seed)
    shape = (1 + seed % 5, 1 + seed % 11)
    reference = -3 * torch.rand(shape, generator=draw, dtype=torch.float64)
    mask = torch.rand(shape, generator=draw) < 0.8
    mask[0, 0] = True
    return {
        "old_log_prob": reference,
        "log_prob": reference + 2 * torch.randn(shape, generator=draw, dtype=torch.float64),
        "advantages": torch.randn(shape[0], generator=draw, dtype=torch.float64),
        "mask": mask,
        "settings": torch.rand(3, generator=draw, dtype=torch.float64),
    }


class TestLoss:
    """verl's own loss function, with the plug-in before it."""

    def test_it_is_grpo_of_clipped_log_ratios(self, core, bounds):
        """Value and gradient of 200 random batches equal those of `grpo_loss(ClipRange.clip(z))` to 1e-12."""
        apart, clipped, cut = [], 0, 0
        for seed in range(200):
            batch = random_batch(seed)
            low, high, eps = (batch["settings"] * torch.tensor([-2.0, 2.0, 0.8])).tolist()
            clip, eps = bounds(low, high), 0.05 + eps
            mask, policy = batch["mask"], batch["log_prob"].requires_grad_()
            config = actor(clip_ratio=eps, clip_ratio_low=eps, clip_ratio_high=eps, clip_ratio_c=math.exp(high) + 1.0)
            theirs, metrics = core.get_policy_loss_fn("humanline")(
                old_log_prob=batch["old_log_prob"],
                log_prob=policy,
                advantages=batch["advantages"][:, None].expand_as(policy),
                response_mask=mask,
                loss_agg_mode="token-mean",
                config=config,
            )
            (their_gradient,) = torch.autograd.grad(theirs, policy)
            z = policy - batch["old_log_prob"]
            ours, _ = grpo_loss(
                clip.clip(z), mask=mask, advantages=batch["advantages"], kl_log_ratio=None, clip_eps=eps, kl_coef=0.0
            )
            (our_gradient,) = torch.autograd.grad(ours, policy)
            apart.append(max(float((theirs - ours).detach().abs()), float((their_gradient - our_gradient).abs().max())))
            tokens = [
                value for value, counts in zip(z.flatten().tolist(), mask.flatten().tolist(), strict=True) if counts
            ]
            low_share = sum(value < low for value in tokens) / len(tokens)
            high_share = sum(value > high for value in tokens) / len(tokens)
            assert metrics["actor/humanline/clipped_low"] == pytest.approx(low_share, abs=1e-12)
            assert metrics["actor/humanline/clipped_high"] == pytest.approx(high_share, abs=1e-12)
            assert metrics["actor/ppo_kl"] == pytest.approx(-sum(tokens) / len(tokens), abs=1e-12)
            rms = math.sqrt(sum(value**2 for value in tokens) / len(tokens))
            assert metrics["actor/humanline/log_ratio_rms"] == pytest.approx(rms, abs=1e-12)
            assert (metrics["actor/humanline/log_eps_low"], metrics["actor/humanline/log_eps_high"]) == (low, high)
            clipped += (low_share + high_share) > 0
            cut += int((our_gradient[mask] == 0).sum())
        assert max(apart) < 1e-12
        assert clipped > 150 and cut > 1000  # most batches have clipped tokens, so the clip is what was compared

    @pytest.mark.parametrize("mode", EVERY_MODE)
    def test_what_it_does_beside_clipping_is_verls(self, core, bounds, mode):
        """With a range that no token leaves it is `vanilla`, in each aggregation and with weights of rollouts."""
        bounds(-20.0, 20.0)
        batch = random_batch(4)
        config, weights = actor(clip_ratio_c=1e9), torch.rand(batch["mask"].shape, dtype=torch.float64)
        given = {
            "old_log_prob": batch["old_log_prob"],
            "log_prob": batch["log_prob"],
            "advantages": batch["advantages"][:, None].expand_as(batch["mask"]),
            "response_mask": batch["mask"],
            "loss_agg_mode": mode,
            "config": config,
            "rollout_is_weights": weights,
        }
        ours, our_metrics = verl.policy_loss(**given)
        theirs, their_metrics = core.compute_policy_loss_vanilla(**given)
        assert float(ours) == pytest.approx(float(theirs), abs=1e-12)
        assert our_metrics.keys() > their_metrics.keys()
        assert our_metrics["actor/ppo_kl"] == pytest.approx(their_metrics["actor/ppo_kl"], abs=1e-7)  # they add 1e-8

    def test_the_dual_clip_of_verls_default_is_refused(self, core, bounds):
        """An actor of verl's defaults, with the paper's range, does not train; with a value that fits it does."""
        bounds(-1.5, 1.5)
        zeros = torch.zeros(1, 2)
        with pytest.raises(ValueError, match=r"clip_ratio_c=4\.49 or more"):
            verl.policy_loss(zeros, zeros, zeros, torch.ones(1, 2), config=actor())
        verl.policy_loss(zeros, zeros, zeros, torch.ones(1, 2), config=actor(clip_ratio_c=4.49))


class TestRegistry:
    """What an installation alone does."""

    @pytest.mark.parametrize(("policy", "there"), [("auto", True), ("humanline", True), ("none", False)])
    def test_the_name_is_there_after_nothing_but_an_installation(self, core, policy, there, tmp_path):
        """A fresh process that imports verl alone finds it, unless verl is told to load no plug-in."""
        code = "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as names; print('humanline' in names)"
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": "", "VERL_USE_EXTERNAL_PLUGINS": policy, "HOME": str(tmp_path)},
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.split()[-1] == str(there)

    def test_syncing_is_installed_while_verl_is_imported(self, core, tmp_path):
        """Named in the environment it finds verl's loop, and changes it once, however often the plug-in is loaded."""
        code = (
            "import verl; from humanline.integrations.verl import syncing, plugin; "
            "from verl.utils.tensordict_utils import make_iterator as made; "
            "print(syncing._failure, hasattr(made, '__wrapped__'), hasattr(made.__wrapped__, '__wrapped__'))"
        )
        environment = {"PATH": "", "HOME": str(tmp_path), settings.SYNC: "before_step"}
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.split()[-3:] == ["[]", "True", "False"]


class TestPage:
    """The commands of docs/inside-verl.md."""

    def test_verl_and_ray_take_the_commands_settings(self, core, bounds):
        """Each command composes into verl's configuration, its loss accepts the actor, and Ray its environment."""
        from hydra import compose, initialize_config_module
        from omegaconf import OmegaConf
        from ray.runtime_env import RuntimeEnv

        found = [line for line in commands(ROOT / "docs" / "inside-verl.md") if "main_ppo" in line[1]]
        assert len(found) == 2
        clip, passed_on = bounds(-1.5, 1.5), []
        for _, line in found:
            words = shlex.split(line)
            with initialize_config_module("verl.trainer.config", version_base=None):
                config = compose("ppo_trainer", overrides=words[words.index("verl.trainer.main_ppo") + 1 :])
            assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "humanline"
            loss._refuse_dual_clip(clip, config.actor_rollout_ref.actor)
            environment = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env)
            RuntimeEnv(**environment)  # raises where a value is no string
            passed_on.append(environment.get("env_vars", {}))
        assert passed_on[0] == {}
        assert passed_on[1] == {
            settings.LOW: "-1.5",
            settings.HIGH: "1.5",
            settings.SYNC: "before_step",
            settings.EVERY: "1",
        }

    def test_verls_clip_is_set_by_its_two_bounds(self, core):
        """`actor.clip_ratio` alone leaves both at 0.2, as the page warns."""
        from hydra import compose, initialize_config_module

        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=["actor_rollout_ref.actor.clip_ratio=0.5"])
        assert (config.actor_rollout_ref.actor.clip_ratio_low, config.actor_rollout_ref.actor.clip_ratio_high) == (
            0.2,
            0.2,
        )

    def test_how_many_mini_batches_a_round_has_by_default(self, core):
        """Four, of which k = 1 syncs the last two."""
        from hydra import compose, initialize_config_module

        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer")
        actor = config.actor_rollout_ref.actor
        assert config.data.train_batch_size // actor.ppo_mini_batch_size * actor.ppo_epochs == 4
