"""A figure as SVG that stands in a page: in the page's own ink, as wide as its column, and without a foreign name."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from humanline.plots import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is drawn in these colours takes those of the page, which may be light or dark.
INK = {"#000000": "currentColor", "#444444": "currentColor", "#e4e4e4": "var(--grid)"}


def inline(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element.

    Parameters
    ----------
    figure : Figure
    name : str
        Letters, digits and dashes, unlike that of any other figure of the page: ids begin with it.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
        raise ValueError(f"the name of a figure must be letters, digits and dashes; got {name!r}")
    out = io.BytesIO()
    with _style.style():
        import matplotlib

        matplotlib.rcParams["svg.fonttype"] = "none"
        figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = out.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"(?s)<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    for colour, ours in INK.items():
        text = text.replace(colour, ours)
    return text.strip()

