"""What the plug-in for verl does without verl: its settings, its refusals and the order of scoring.

With verl's own functions it is tested in `test_verl_installed.py`, in an environment that has verl.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from types import SimpleNamespace

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
        for high in (0.0, 0.3, 1.5, 4.0):
            said = math.ceil(math.exp(high) * 100) / 100
            loss._refuse_dual_clip(ClipRange(-1.0, high), {"clip_ratio_c": said})
            with pytest.raises(ValueError, match="clip_ratio_c"):
                loss._refuse_dual_clip(ClipRange(-1.0, high), {"clip_ratio_c": math.exp(high) - 1e-9})

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
