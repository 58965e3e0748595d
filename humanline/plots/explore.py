"""Figures with sliders, for notebooks."""

from __future__ import annotations

import importlib
import inspect
import io
from typing import Any

from humanline import _checks
from humanline.plots import FIGURES, _style


def explore(name: str, *, fixed: dict[str, Any] | None = None, **ranges: tuple[float, float, float]) -> Any:
    """Return a figure with a slider for each of some settings; the figure alone where ipywidgets is missing.

    Parameters
    ----------
    name : str
        One of `FIGURES`.
    fixed : dict, optional
        Other arguments of the figure's ``rows``, for example a coarser discretisation that answers at once.
    **ranges : (lowest, highest, step)
        For arguments of ``rows``, which start at their defaults. The figure is drawn again when a slider is let go.

    Returns
    -------
    widget or matplotlib Figure

    Raises
    ------
    ValueError
        If there is no such figure, or its ``rows`` has no such argument.
    """
    _checks.one_of("name", name, FIGURES)
    figure = importlib.import_module(f"humanline.plots.{name}")
    parameters = inspect.signature(figure.rows).parameters
    for each in (*(fixed or {}), *ranges):
        _checks.one_of("setting", each, tuple(parameters))

    def drawn(settings: dict[str, Any]) -> Any:
        return figure.draw(figure.rows(**(fixed or {}), **settings))

    try:
        import ipywidgets as widgets
    except ModuleNotFoundError:
        return drawn({})
    sliders = {}
    for each, (low, high, step) in ranges.items():
        kind = widgets.IntSlider if isinstance(step, int) else widgets.FloatSlider
        start = parameters[each].default
        sliders[each] = kind(start, min=low, max=high, step=step, description=each, continuous_update=False)
    picture = widgets.Image(format="png")

    def show(_: Any = None) -> None:
        buffer = io.BytesIO()
        with _style.style():
            drawn({each: slider.value for each, slider in sliders.items()}).savefig(buffer, format="png", dpi=90)
        picture.value = buffer.getvalue()

    for slider in sliders.values():
        slider.observe(show, names="value")
    show()
    return widgets.VBox([*sliders.values(), picture])
