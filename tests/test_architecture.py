"""What may import what, and that importing costs little."""

from __future__ import annotations

import ast
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
    "humanline.objectives": {"transformers", "accelerate", "pydantic", "datasets", "jaxtyping", "beartype"},
    "humanline.train.step.loss": {"jaxtyping", "beartype"},
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


def uses_of_later_names(code: str) -> list[str]:
    """Return the names that functions within functions use and that are bound after them."""
    late = []
    for outer in [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]:
        inside = [node for node in ast.walk(outer) if node is not outer]
        bound: dict[str, int] = {}
        for node in inside:
            stores = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if stores else node.name if isinstance(node, ast.FunctionDef) else None
            if name is not None:
                bound[name] = min(node.lineno, bound.get(name, node.lineno))
        for inner in [node for node in inside if isinstance(node, ast.FunctionDef | ast.Lambda)]:
            used = {node.id for node in ast.walk(inner) if isinstance(node, ast.Name)}
            late += sorted(name for name in used if bound.get(name, 0) > (inner.end_lineno or 0))
    return late


@pytest.mark.parametrize("name", ["loop.py", "setup.py"])
def test_nothing_nested_waits_for_a_name_that_comes_later(name):
    """A function within a function of loop and set-up uses only what is bound before it, so both read downwards."""
    assert uses_of_later_names("def f():\n    def g():\n        return x\n    x = 1\n    return g") == ["x"]
    assert uses_of_later_names((ROOT / "humanline" / "train" / name).read_text()) == []
