"""The notebooks run from top to bottom, define nothing, and are committed as executed."""

from __future__ import annotations

import ast
import contextlib
import io
import re

import pytest

from tests.conftest import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = ROOT / "notebooks"
NAMES = (
    *("01_distortion_curves", "02_the_bound", "03_clipping_as_a_limit"),
    *("04_toy_bandit", "05_sequence_utility", "06_fitting_people"),
)


def load(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_these_are_the_notebooks():
    """No notebook goes untested."""
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)


def shown(output):
    """What an output says, and which kinds of it there are."""
    return output.get("text") or output.data.get("text/plain", ""), set(output.get("data", {}))


def run_cell(source, names):
    """Run a cell in this process; return what it prints and, as a notebook shows it, the value of its last line."""
    from IPython.lib.pretty import pretty

    tree = ast.parse(re.sub(r"^%.*$", "", source, flags=re.MULTILINE))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return printed.getvalue(), None if value is None else pretty(value)


@pytest.mark.parametrize("name", NAMES)
def test_the_cells_of_a_notebook_print_what_is_committed(name, monkeypatch):
    """In this process, from the committed numbers of its figure, each cell prints and shows the committed text.

    That the figure's numbers are those that are computed is a test of the figures.
    """
    from humanline.plots import FIGURES, _table

    monkeypatch.syspath_prepend(str(FOLDER))
    for figure in FIGURES:
        rows = _table.read(ROOT / "figures" / f"{figure}.csv")
        monkeypatch.setattr(f"humanline.plots.{figure}.rows", lambda rows=rows: rows)
    names, compared = {}, 0
    codes = [cell for cell in load(name).cells if cell.cell_type == "code"]
    for cell in codes[:-1]:  # the last one shows sliders
        printed, value = run_cell(cell.source, names)
        texts = [shown(output)[0] for output in cell.outputs if output.output_type == "stream"]
        values = [shown(output)[0] for output in cell.outputs if output.output_type != "stream"]
        assert printed == "".join(texts)
        assert values == ([] if value is None else [value])
        compared += len(printed) + len(value or "")
    assert compared > 500
    run_cell(codes[-1].source.partition("explore(")[0] or "0", names)


@pytest.mark.parametrize("name", [n if n == "02_the_bound" else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_a_notebook_runs_and_shows_what_is_committed(name):
    """Executing a notebook from the top gives no error, the committed text, and a picture where one is committed."""
    book = load(name)
    committed = [[shown(output) for output in cell.outputs] for cell in book.cells if cell.cell_type == "code"]
    where = {"metadata": {"path": str(FOLDER)}}
    # on a busy machine a cell's prints arrive in several pieces
    nbclient.NotebookClient(book, timeout=300, resources=where, coalesce_streams=True).execute()
    codes = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell, before in zip(codes[:-1], committed[:-1], strict=True):  # the last shows sliders
        now = [shown(output) for output in cell.outputs]
        assert [kinds for _, kinds in now] == [kinds for _, kinds in before]
        assert [text for text, _ in now] == [text for text, _ in before]
    assert "explore(" in codes[-1].source and codes[-1].outputs
    assert any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in codes[-1].outputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_thin_small_and_committed_with_its_picture(name):
    """No functions, classes or paths of a machine; every code cell was executed in order; small, with a picture."""
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    book = load(name)
    nbformat.validate(book)
    codes = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))
    assert any("image/png" in output.get("data", {}) for output in codes[0].outputs)
    for cell in codes:
        tree = ast.parse(re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE))
        assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in ast.walk(tree))
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|tmp|root|Users|work)/", text)
