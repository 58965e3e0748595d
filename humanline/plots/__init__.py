"""The figures: one module each, which computes the rows of its CSV and draws from nothing but those rows.

matplotlib is imported inside the functions that draw. Figures are made without pyplot, so that nothing depends on a
display, and the same rows give the same bytes of SVG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline import _checks

if TYPE_CHECKING:
    from humanline.evaluate.compare import Comparison
    from humanline.evaluate.inspection import Inspection
    from humanline.fit.curves import Shown
    from humanline.plots.frontier import Picture
    from humanline.plots.theory_curves import plot_capacity, plot_prospects, plot_value
    from humanline.sim.report import Report

#: Every figure, and the module of this package that makes it: of the theory and of fits, then of the simulator (which
#: needs torch).
FIGURES = (
    *("distortion_curves", "bound", "clipping_limit", "capacity_families", "fitted_people", "fitted_rejection"),
    *("rejection_training", "bandit_runs", "sequence_utility"),
)
#: Those of them that are made of runs of the simulator, and need torch: the extra `train`.
NEED_TORCH = ("rejection_training", "bandit_runs", "sequence_utility")
#: The same for the figures of a study of the simulator, which are made from its results.
STUDY_FIGURES = ("sim_claims", "sim_curves", "sim_stability")


_CURVES = ("plot_capacity", "plot_prospects", "plot_value")
__all__ = [
    "FIGURES",
    "NEED_TORCH",
    "STUDY_FIGURES",
    "check",
    "plot_capacity",
    "plot_prospects",
    "plot_value",
    "write_figure",
    "write_figures",
    "write_study_figures",
]


def __getattr__(name: str) -> Any:
    """Import what draws curves of one's own when it is asked for: the command line needs no numpy for its help."""
    if name not in _CURVES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.theory_curves"), name)


def check() -> None:
    """Raise ModuleNotFoundError if no figure can be drawn, since matplotlib is missing."""
    from humanline.plots import _style

    _style.check_matplotlib()


def write_figures(out: str | Path, names: list[str] | None = None) -> list[Path]:
    """Write NAME.csv, NAME.svg and NAME.png of each figure.

    Parameters
    ----------
    out : path
        Folder; made if it does not exist. Files of these names in it are replaced.
    names : list of str, optional
        Which of `FIGURES`; all by default.

    Returns
    -------
    list of Path
        The files, in the order they were written.

    Raises
    ------
    ValueError
        If a name is not one of `FIGURES`; nothing is then written.
    ModuleNotFoundError
        If matplotlib is missing; nothing is then written. If torch is and figures of the simulator (`NEED_TORCH`) are
        wanted; all others are then written.
    """
    import importlib.util

    wanted = list(dict.fromkeys(names or FIGURES))
    for name in wanted:
        if name not in FIGURES:
            raise _checks.unknown("figure", name, FIGURES)
    from humanline.plots import _style

    _style.check_matplotlib()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    lacking = [name for name in wanted if name in NEED_TORCH] if importlib.util.find_spec("torch") is None else []
    for name in wanted:
        if name not in lacking:
            written += _write(folder, name)
    if lacking:
        others = f" (the other {len(wanted) - len(lacking)} are in {folder})" if len(wanted) > len(lacking) else ""
        words = f"no figure of the simulator can be made: {', '.join(lacking)} need torch{others}"
        raise ModuleNotFoundError(words, name="torch")
    return written


def write_study_figures(out: str | Path, report: Report) -> list[Path]:
    """Write each of `STUDY_FIGURES` as `write_figure` does, of a study with all the runs that they need."""
    return [path for name in STUDY_FIGURES for path in write_figure(out, name, report)]


def write_figure(out: str | Path, name: str, result: Report | Comparison | Inspection | Picture | Shown) -> list[Path]:
    """Write NAME.csv, NAME.svg and NAME.png of a figure that is made from a result.

    Parameters
    ----------
    out : path
        Folder that exists. Files of these names in it are replaced.
    name : str
        One of `STUDY_FIGURES` for a study, "differences" for a comparison, "levels" for an inspection of data,
        "frontier" for scores and distances, "fit_curves" or "fit_check" for a fit to choices.
    result : Report, Comparison, Inspection, Picture or Shown

    Returns
    -------
    list of Path

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing; nothing is then written.
    """
    from humanline.plots import _style

    _style.check_matplotlib()
    return _write(Path(out), name, result)


def _write(folder: Path, name: str, *source: Any) -> list[Path]:
    import importlib

    from humanline.plots import _style, _table

    module = importlib.import_module(f"humanline.plots.{name}")
    rows = module.rows(*source)
    return [_table.write(folder / f"{name}.csv", rows), *_style.save(module.draw(rows), folder / name)]
