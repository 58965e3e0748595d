"""What may import what, and that importing costs little."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings

import pytest

from tests.conftest import ROOT


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


FORKED = """
import os, sys
for module, forbidden in {rules!r}.items():
    if "torch" not in forbidden and "torch" not in sys.modules:
        import torch  # once, for all that may load it
    if os.fork() == 0:
        __import__(module)
        print(module, *(set(sys.modules) & forbidden), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, module
"""


def loaded(rules: dict[str, set[str]]) -> dict[str, set[str]]:
    """Import each module in a process of its own and return the forbidden packages that it loaded.

    Each is a fork of one fresh interpreter. Those that may load torch, which takes longest, find it loaded already.
    """
    rules = dict(sorted(rules.items(), key=lambda rule: "torch" not in rule[1]))
    result = run(FORKED.format(rules=rules))
    assert result.returncode == 0, result.stderr
    return {module: set(found) for module, *found in map(str.split, result.stdout.splitlines())}


RULES = {
    "humanline": {"numpy", "scipy", "torch", "transformers"},
    "humanline.cli": {"numpy", "scipy", "torch", "transformers", "pydantic"},
    "humanline.theory": {"torch", "matplotlib", "sympy", "scipy", "transformers", "pydantic"},
    "humanline.fit": {"torch", "pandas", "matplotlib", "scipy", "transformers", "pydantic", "jax", "numpyro"},
    "humanline.stats": {"torch", "scipy.stats", "scipy.optimize", "transformers"},
    "humanline.reproduce.shown": {"torch", "transformers"},
    "humanline.objectives": {"transformers", "accelerate", "pydantic", "datasets", "jaxtyping", "beartype"},
    "humanline.train.step.loss": {"jaxtyping", "beartype"},
    "humanline.schedule": {"numpy", "scipy", "torch", "transformers"},
    "humanline.sim": {"numpy", "torch", "pydantic"},
    "humanline.sim.report": {"transformers", "accelerate", "datasets", "matplotlib", "humanline.train", "scipy.stats"},
    "humanline.train": {"torch", "transformers"},
    "humanline.train.config.run": {"torch", "transformers"},
    "humanline.train.config.objective": {"torch", "transformers"},
    "humanline.train.data.rows": {"torch", "transformers", "numpy"},
}


def test_importing_loads_nothing_heavier_than_its_layer():
    """A module loads nothing that its layer must do without."""
    assert loaded(RULES) == {module: set() for module in RULES}


def test_the_check_itself_can_fail():
    """The check above sees a package that is loaded, beside torch too."""
    found = loaded({"humanline.theory": {"numpy", "torch"}, "humanline.objectives": {"json", "humanline"}})
    assert found == {"humanline.theory": {"numpy"}, "humanline.objectives": {"json", "humanline"}}


def test_importing_prints_and_warns_nothing():
    """Importing any module, those on transformers and the benchmarks too, writes nothing and raises no warning."""
    result = run(
        "import humanline.theory, humanline.objectives, humanline.sim.report, humanline.train.loop, "
        "humanline.reproduce.quick, humanline.train.policy.new_model, humanline.train.online.rewards.armorm, "
        "benchmarks.__main__"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning, ResourceWarning, RuntimeWarning])
def test_a_warning_fails_a_test(category):
    """What pyproject.toml does not name with a reason is raised where it is warned of."""
    with pytest.raises(category, match="something new"):
        warnings.warn("something new", category, stacklevel=1)


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


LONGEST_FUNCTION, LONGEST_CLASS, LONGEST_FILE = 80, 300, 500  # lines; of a function its body, without the docstring


def too_long(code: str, *, functions_alone: bool) -> list[str]:
    """Return the parts of a source that are too long: function bodies, and unless these alone, classes and itself."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            found += [f"{node.name}: {lines}"] if lines > LONGEST_FUNCTION else []
        elif isinstance(node, ast.ClassDef) and not functions_alone:
            lines = (node.end_lineno or 0) - node.lineno + 1
            found += [f"{node.name}: {lines}"] if lines > LONGEST_CLASS else []
    lines = len(code.splitlines())
    return found + ([f"the file: {lines}"] if lines > LONGEST_FILE and not functions_alone else [])


def test_functions_classes_and_files_fit_in_a_head():
    """No function body of the package is above 80 lines, and in training no class above 300 and no file above 500."""
    found = {}
    for path in (ROOT / "humanline").rglob("*.py"):
        alone = not path.is_relative_to(ROOT / "humanline" / "train")
        found[str(path)] = too_long(path.read_text(encoding="utf-8"), functions_alone=alone)
    assert len(found) > 150 and {path: lines for path, lines in found.items() if lines} == {}


def test_the_check_for_lengths_itself_can_fail():
    """It sees one line too many of each, in methods and functions within functions too, and counts no docstring."""
    body = "{0}x = [\n" + "{0}1,\n" * (LONGEST_FUNCTION - 2) + "{0}]\n"
    right = 'def f():\n    """Say.\n\n    More.\n    """\n' + body.format("    ")
    assert too_long(right, functions_alone=False) == []
    assert too_long(right + "    x = 2\n", functions_alone=True) == ["f: 81"]
    inner = "class A:\n    async def g(self):\n        def f():\n" + body.format(" " * 12) + " " * 12 + "x = 2\n"
    assert too_long(inner, functions_alone=True) == ["g: 82", "f: 81"]
    members = "class A:\n" + "    x = 1\n" * (LONGEST_CLASS - 1)
    assert too_long(members, functions_alone=False) == []
    assert too_long(members + "    x = 1\n", functions_alone=False) == ["A: 301"]
    assert too_long(members + "    x = 1\n", functions_alone=True) == []
    assert too_long("x = 1\n" * LONGEST_FILE, functions_alone=False) == []
    assert too_long("x = 1\n" * (LONGEST_FILE + 1), functions_alone=False) == ["the file: 501"]


_OF_ALL = {"_checks", "_shapes", "_workers"}  # modules that are for the whole package


def private_names(code: str) -> list[str]:
    """Return the names that begin with an underscore and that a source takes from other files of the package."""
    found, ours = [], set()
    nodes = list(ast.walk(ast.parse(code)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "humanline"):
            ours |= {name.asname or name.name for name in node.names}
            whole = _OF_ALL if node.module == "humanline" else set()
            found += [name.name for name in node.names if re.match("_(?!.*__$)", name.name) and name.name not in whole]
        if isinstance(node, ast.Import):
            ours |= {name.asname or name.name for name in node.names if name.name.split(".")[0] == "humanline"}
    for node in nodes:
        if isinstance(node, ast.Attribute) and re.match("_(?!.*__$)", node.attr):
            found += [ast.unparse(node)] if ast.unparse(node.value) in ours else []
    return found


def test_no_file_of_training_takes_a_private_name_of_another():
    """What one file of training or of its base tools takes from another one has a public name."""
    folders = [ROOT / "humanline" / name for name in ("train", "system")]
    found = {str(path): private_names(path.read_text("utf-8")) for folder in folders for path in folder.rglob("*.py")}
    assert len(found) > 90 and {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "from humanline.train.data.row import Row, _names",
        "def f():\n    from humanline.system.files import _facts as facts",
        "from humanline.system import files\nfiles._facts(path)",
        "from humanline.train.run.state import Judging\nJudging._renew",
        "import humanline.system.files\nhumanline.system.files._facts(path)",
        "from .row import _names",
        "from humanline import _check",
    ],
)
def test_the_check_for_private_names_itself_can_fail(code):
    """The check above sees each way to take a private name; the modules of the whole package are none."""
    assert private_names(code)
    assert private_names("from humanline import _checks\nfrom humanline._checks import fail\n_checks.fail") == []


OBJECTIVE_SECTIONS = ROOT / "humanline" / "train" / "config" / "objective.py"


def asks_for_a_kind(code: str, kinds: set[str], sections: set[str]) -> list[str]:
    """Return the lines of a source that tell objectives apart: by their kind, by their type or by a table of kinds."""
    found = []
    for node in ast.walk(ast.parse(code)):
        inside = list(ast.walk(node)) if isinstance(node, ast.Compare | ast.Match) else []
        named = {one.value for one in inside if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        asked = (isinstance(node, ast.Compare) and named & kinds) or (
            isinstance(node, ast.Dict)
            and any(isinstance(key, ast.Constant) and key.value in kinds for key in node.keys)
        )
        if isinstance(node, ast.Match):
            patterns = [one.value for one in inside if isinstance(one, ast.MatchValue)]
            asked = any(isinstance(one, ast.Constant) and one.value in kinds for one in patterns)
        if isinstance(node, ast.Name | ast.alias | ast.Attribute):
            name = getattr(node, "id", getattr(node, "name", getattr(node, "attr", "")))
            asked = name in sections
        if asked:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def objective_names() -> tuple[set[str], set[str]]:
    """Return the kinds of objectives, and the names of their sections.

    `function` is a kind of rewards, transforms and schedules too; which objective is one, its section alone may ask.
    """
    from humanline.train.config.objective import OBJECTIVES

    kinds = {one.model_fields["kind"].default for one in OBJECTIVES}
    return kinds - {"function"}, {one.__name__ for one in OBJECTIVES}


def test_no_file_but_their_sections_tells_objectives_apart():
    """Outside its section nothing knows an objective by its kind, so that a new one touches a single file of training.

    The simulator has objectives of its own, figures know their studies by name, and a declared grid names its cells.
    """
    own = [ROOT / "humanline" / name for name in ("sim", "plots", "reproduce")]
    files = [
        path
        for path in (ROOT / "humanline").rglob("*.py")
        if path != OBJECTIVE_SECTIONS and not any(path.is_relative_to(folder) for folder in own)
    ]
    names = objective_names()
    found = {str(path): asks_for_a_kind(path.read_text(encoding="utf-8"), *names) for path in files}
    assert len(files) > 90 and {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "x = config.objective.kind == 'kto'",
        "x = kind in ('dpo', 'grpo')",
        "x = 'nll' != objective",
        "UNITS = {'nll': 1, 'dpo': 2}",
        "match kind:\n    case 'kto': pass",
        "x = isinstance(objective, GrpoObjective)",
        "from humanline.train.config.objective import KtoObjective",
        "x = type(one) is objective_config.DpoObjective",
    ],
)
def test_the_check_for_kinds_itself_can_fail(code):
    """The check above sees each way to tell objectives apart."""
    assert asks_for_a_kind(code, *objective_names())
