"""Scales by their names."""

from __future__ import annotations

from collections.abc import Callable

from humanline.reproduce.scales.paper import paper_scale
from humanline.reproduce.scales.plan import Scale
from humanline.reproduce.scales.small import small_scale

SCALES: dict[str, Callable[[], Scale]] = {"small": small_scale, "paper": paper_scale}
