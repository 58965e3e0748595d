"""The figures: one module each, which computes the rows of its CSV and draws from nothing but those rows.

matplotlib is imported inside the functions that draw. Figures are made without pyplot, so that nothing depends on a
display, and the same rows give the same bytes of SVG.
"""

from __future__ import annotations

from pathlib import Path

#: Every figure, and the module of this package that makes it.
FIGURES = ("distortion_curves", "bound", "clipping_limit", "capacity_families")


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
        If matplotlib is missing; nothing is then written.
    """
    import importlib

    wanted = list(dict.fromkeys(names or FIGURES))
    for name in wanted:
        if name not in FIGURES:
            import difflib

            near = difflib.get_close_matches(name, FIGURES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FIGURES)}"
            raise ValueError(f"{name}: no such figure; {hint}")
    from humanline.plots import _style, _table

    _style.check_matplotlib()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in wanted:
        module = importlib.import_module(f"humanline.plots.{name}")
        rows = module.rows()
        written.append(_table.write(folder / f"{name}.csv", rows))
        written += _style.save(module.draw(rows), folder / name)
    return written
