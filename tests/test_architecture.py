"""What may import what, and that importing costs little."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


def loaded(module: str, forbidden: set[str]) -> set[str]:
    """Import `module` in a fresh interpreter and return the forbidden packages it loaded."""
    code = f"import sys, {module}; print(*({forbidden!r} & set(sys.modules)))"
    result = run(code)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


RULES = {
    "humanline": {"numpy", "scipy", "torch", "transformers"},
    "humanline.cli": {"numpy", "scipy", "torch", "transformers", "pydantic"},
    "humanline.theory": {"torch", "matplotlib", "sympy", "scipy", "transformers", "pydantic"},
    "humanline.stats": {"torch", "scipy.stats", "scipy.optimize", "transformers"},
    "humanline.objectives": {"transformers", "accelerate", "pydantic", "datasets"},
    "humanline.schedule": {"numpy", "scipy", "torch", "transformers"},
    "humanline.sim": {"numpy", "torch", "pydantic"},
    "humanline.sim.report": {"transformers", "accelerate", "datasets", "matplotlib", "humanline.train", "scipy.stats"},
    "humanline.train": {"torch", "transformers"},
    "humanline.train.config.run": {"torch", "transformers"},
    "humanline.train.data.rows": {"torch", "transformers", "numpy"},
}


@pytest.mark.parametrize("module", RULES)
def test_importing_loads_nothing_heavier_than_its_layer(module):
    """A module loads nothing that its layer must do without."""
    assert loaded(module, RULES[module]) == set()


def test_the_check_itself_can_fail():
    """The check above sees a package that is loaded."""
    assert loaded("humanline.theory", {"numpy", "torch"}) == {"numpy"}


def test_importing_prints_and_warns_nothing():
    """Importing any module, those on transformers and the benchmarks too, writes nothing and raises no warning."""
    result = run(
        "import humanline.theory, humanline.objectives, humanline.sim.report, humanline.train.loop, humanline.demo, "
        "humanline.train.policy.new_model, humanline.train.online.rewards.armorm, benchmarks.__main__"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_public_names():
    """The names that others rely on are where the documentation says."""
    import humanline.objectives
    import humanline.theory

    theory = "PowerValue TverskyKahneman Identity decision_weights subjective_utility certainty_equivalent"
    theory += " total_variation kl_divergence utility_gap_bound ClipRange BetaShape BetaRejection"
    objectives = "token_logprobs dpo_loss kto_loss grpo_loss group_advantages"
    assert set(theory.split()) <= set(humanline.theory.__all__)
    assert set(objectives.split()) <= set(humanline.objectives.__all__)
    for module in (humanline.theory, humanline.objectives):
        assert all(getattr(module, name).__doc__ for name in module.__all__)


def test_the_loop_fits_on_a_few_screens():
    """The training loop is one file of at most 200 lines."""
    assert len((ROOT / "humanline" / "train" / "loop.py").read_text().splitlines()) <= 200
