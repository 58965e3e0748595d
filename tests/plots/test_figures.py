"""The figures: committed numbers, files, and what every figure has to be."""

from __future__ import annotations

import errno
import importlib
import io
import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from humanline.cli import main
from humanline.plots import FIGURES, NEED_TORCH, _style, _table, write_figures
from humanline.system import files
from humanline.system.install import install
from tests.conftest import ROOT
from tests.helpers.optional import NEEDS_TORCH

FOLDER = ROOT / "figures"
#: The version of matplotlib that drew the committed pictures, as CI has it; another one writes the same otherwise.
(DRAWN_BY,) = re.findall(r"^matplotlib==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
USER_SETTINGS = {"font.size": 20, "axes.grid": False, "svg.hashsalt": None}


#: The first takes longer to compute than all others together, the second runs of the simulator, the third a search.
SLOW = ("rejection_training", "bandit_runs", "fitted_rejection")


def without_clip_names(svg):
    """An SVG without the names of its clip paths, which depend on the last bit of a coordinate; nothing drawn does."""
    return re.sub(rb"(?<=[#\"])p[0-9a-f]{10}", b"", svg)


def committed(name):
    return _table.read(FOLDER / f"{name}.csv")


def computed(name):
    return importlib.import_module(f"humanline.plots.{name}").rows()


def draw(name, rows):
    return importlib.import_module(f"humanline.plots.{name}").draw(rows)


def assert_same_numbers(made, before):
    """The same points, to nine digits."""
    assert [(row.panel, row.series) for row in before] == [(row.panel, row.series) for row in made]
    for column in (2, 3):
        now, then = (np.array([row[column] for row in rows]) for rows in (made, before))
        np.testing.assert_allclose(now, then, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NEEDS_TORCH if name in NEED_TORCH else ()) for name in FIGURES]
)
def test_the_committed_figure_is_the_one_that_is_computed_and_readable(name):
    """Computed numbers are the committed ones to nine digits, and drawn give the committed SVG, with all text readable.

    It does not matter what the user has set; texts lie within the picture, and none covers another.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    rows = committed(name)
    if name not in SLOW:
        assert_same_numbers(rows := computed(name), committed(name))
    svg = io.BytesIO()
    with matplotlib.rc_context(USER_SETTINGS):
        figure = draw(name, rows)
        with _style.style():
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    if matplotlib.__version__ == DRAWN_BY:
        assert without_clip_names(svg.getvalue()) == without_clip_names((FOLDER / f"{name}.svg").read_bytes())

    with _style.style():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        inside = figure.bbox.padded(1)
        boxes = []
        for axes in figure.axes:
            texts = [axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title, *axes.texts]
            boxes += [text.get_window_extent(renderer) for text in texts if text.get_text()]
            if axes.get_legend():
                boxes.append(axes.get_legend().get_window_extent(renderer))
        boxes += [each.get_window_extent(renderer) for each in (*figure.texts, *figure.legends)]
    assert len(boxes) >= 7
    for i, box in enumerate(boxes):
        assert inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1), boxes[i]
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_committed_numbers_of_a_slow_figure_are_those_that_are_computed(name):
    """Computing a CSV again that the test above takes as it is gives the committed one to nine digits."""
    assert_same_numbers(computed(name), committed(name))


@pytest.mark.parametrize("name", FIGURES)
def test_the_committed_pictures_are_not_blank(name):
    """Each SVG holds paths and each PNG ink in every quarter, at 150 dpi and without a date in either."""
    from matplotlib.image import imread

    svg = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert svg.count("<path") > 50 and "<dc:date>" not in svg
    data = (FOLDER / f"{name}.png").read_bytes()
    assert b"tIME" not in data and b"Software" not in data
    ink = imread(FOLDER / f"{name}.png")[..., :3].min(-1) < 0.5
    height, width = ink.shape
    assert width > 1000
    for quarter in (ink[: height // 2], ink[height // 2 :], ink[:, : width // 2], ink[:, width // 2 :]):
        assert quarter.mean() > 0.002


@pytest.mark.parametrize("name", [n if n == "bound" else pytest.param(n, marks=pytest.mark.slow) for n in FIGURES])
def test_drawing_again_gives_the_same_bytes(tmp_path, name):
    """The same rows give the same SVG and PNG byte for byte, whatever settings the user has."""
    import matplotlib

    first = [path.read_bytes() for path in _style.save(draw(name, committed(name)), tmp_path / "first")]
    with matplotlib.rc_context(USER_SETTINGS):
        second = [path.read_bytes() for path in _style.save(draw(name, committed(name)), tmp_path / "second")]
    assert list(map(without_clip_names, first)) == list(map(without_clip_names, second))


def test_csv_files_are_read_as_they_were_written(tmp_path):
    """Names with commas and numbers that are not finite survive a CSV."""
    rows = _table.points("a, b", 'say "c"', [0.1, np.nan], [1 / 3, np.inf])
    again = _table.read(_table.write(tmp_path / "t.csv", rows))
    np.testing.assert_allclose([r[2:] for r in again], [r[2:] for r in rows], rtol=1e-11)
    assert [r[:2] for r in again] == [r[:2] for r in rows]


def test_the_command_makes_the_figures_that_are_named(tmp_path, capsys):
    """`humanline figures NAME` writes three files of that figure, again if asked, and prints them."""
    out = tmp_path / "new" / "folder"
    for _ in range(2):
        assert main(["figures", "capacity_families", "capacity_families", "--out", str(out)]) == 0
        expected = [out / f"capacity_families.{kind}" for kind in ("csv", "svg", "png")]
        assert capsys.readouterr().out.splitlines() == [str(path) for path in expected]
        assert sorted(out.iterdir()) == sorted(expected)


def test_an_unknown_figure_is_a_mistake_with_a_hint(tmp_path, capsys):
    """An unknown name ends with exit code 2 and the nearest name, and nothing is written."""
    assert main(["figures", "bound", "cliping_limit", "--out", str(tmp_path / "out")]) == 2
    assert "cliping_limit: no such figure; did you mean clipping_limit?" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"there are {', '.join(FIGURES)}"):
        write_figures(tmp_path / "out", ["zzz"])
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_a_mistake(tmp_path, capsys):
    """A file where the folder should be ends with exit code 2 and its name."""
    (tmp_path / "file").touch()
    assert main(["figures", "bound", "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_without_matplotlib_the_message_names_the_extra(tmp_path, monkeypatch, capsys):
    """Where matplotlib is missing the command ends with exit code 2 and what to install, and writes nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["figures", "--out", str(tmp_path / "out")]) == 2
    said = f"the package 'matplotlib' is missing; install the plots extra: {install('plots')}"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_importing_the_figures_loads_no_matplotlib():
    """The modules of the figures, and their rows, do without matplotlib; the package itself also without numpy."""
    code = "import sys, humanline.plots; assert 'numpy' not in sys.modules\n"
    code += "".join(f"import humanline.plots.{name}\n" for name in (*FIGURES, "explore"))
    code += "humanline.plots.bound.rows(prospects=3)\nassert not {'matplotlib', 'torch'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_the_help_of_the_command_loads_nothing_heavy():
    """`humanline figures --help` names every figure and imports neither numpy nor matplotlib."""
    code = "import sys\nfrom humanline.cli import main\ntry: main(['figures', '--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'numpy', 'matplotlib', 'torch'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in FIGURES)


def test_every_figure_is_in_the_table():
    """figures/README.md names every figure with its command, and no file lies in the folder without one."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in FIGURES:
        assert f"[{name}]({name}.png) | `humanline figures {name}`" in text
    assert {path.stem for path in FOLDER.iterdir()} == {*FIGURES, "README"}


def test_explore_shows_a_figure_with_or_without_widgets(monkeypatch):
    """With ipywidgets a slider draws the figure again; without, the figure itself is shown."""
    from humanline.plots.explore import explore

    pytest.importorskip("ipywidgets")
    box = explore("bound", fixed={"prospects": 20}, seed=(0, 3, 1), spread=(0.1, 1.0, 0.1))
    seed, spread, picture = box.children
    assert (seed.description, seed.value, spread.value) == ("seed", 0, 0.6)
    before = bytes(picture.value)
    assert before.startswith(b"\x89PNG")
    seed.value = 2
    assert bytes(picture.value).startswith(b"\x89PNG") and bytes(picture.value) != before
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert type(explore("bound", fixed={"prospects": 20}, seed=(0, 3, 1))).__name__ == "Figure"
    with pytest.raises(ValueError, match="name must be one of 'distortion_curves'"):
        explore("nothing")
    with pytest.raises(ValueError, match="setting must be one of 'prospects', 'seed', 'spread'; got 'gamma'"):
        explore("bound", gamma=(0.0, 1.0, 0.1))


def test_a_full_disk_leaves_no_half_figure(tmp_path, monkeypatch):
    """The file is named; what was there before is as it was."""
    from matplotlib.figure import Figure

    figure = Figure()
    _style.save(figure, tmp_path / "a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(handle: int, data: bytes) -> None:
        os.write(handle, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_all", full)
    figure.suptitle("another one")
    for write in (lambda: _style.save(figure, tmp_path / "a"), lambda: _table.write(tmp_path / "a.csv", [])):
        with pytest.raises(OSError, match=r"/a\.(svg|csv) cannot be written: No space left on device"):
            write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_of_differences_are_text_and_leave_room_for_them():
    """Names of 45 characters, as models have, and of 900 stand in lines beside the differences; dollars are dollars."""
    model, baseline = "qwen3-0.6b-gsm8k-humanline-k1-lr1e-6-seed0-b8", "qwen3-0.6b-gsm8k-grpo-offline-lr1e-6-seed0-b8"
    rows = _table.settings(margin=np.nan, confidence=95, both_sides=0)
    for place, name in enumerate((f"{model} − {baseline}", f"{'x' * 900} − b", r"from $5 to $\q − b")):
        for panel, x in (("lower end", 0.1), ("difference", 0.2), ("upper end", 0.3)):
            rows += _table.points(panel, name, x, place)
    figure = draw("differences", rows)
    figure.draw_without_rendering()  # where a formula that is none would be an error
    (axis,) = figure.axes
    assert axis.get_window_extent().width > 0.4 * figure.bbox.width
    labels = axis.get_yticklabels()
    assert labels[0].get_text().replace("\n", "").replace(" ", "") == f"{model}−{baseline}"
    assert not any(label.get_parse_math() for label in labels)
    boxes = [label.get_window_extent() for label in labels]
    assert min(box.x0 for box in boxes) >= 0
    assert all(below.y1 < above.y0 for above, below in itertools.pairwise(boxes))
