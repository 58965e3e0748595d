"""What was decided before the first result: the numbers by which the frontier is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from humanline.reproduce.cells import Cell

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Numbers = TypeVar("Numbers", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbers that the verdicts depend on.

    Parameters
    ----------
    alpha : float in (0, 1)
        Level of each test after Holm's correction, and one minus the confidence of intervals.
    margin_share : float > 0
        Margin as a share of (peak of the offline curve - score of the start).
    degrees : tuple of int
        Degrees of the curve among which the error of cells left out chooses.
    spare_cells : int >= 1
        A degree is allowed where the cells outnumber its coefficients by this.
    least_cells, least_rates : int
        Cells and learning rates that each side must have where the distances of both overlap.
    least_kl : float > 0, nats an answer
        A run nearer to its start has not moved, and its log KL says nothing.
    most_collapsed : float in [0, 1]
        Largest share of the compared runs without finite numbers with which a hypothesis may still hold.
    tuning_draw : int
        The draw on which GRPO's clips are chosen; it is used for nothing else in H3 and in GRPO's part of H4.
    offline_clips, other_clips : int >= 1
        How many of GRPO's clips offline runs keep, for a curve, and how many humanline runs keep.
    starts, draws : tuples of int
        Seeds of start models and of draws that are judged; further ones are not.
    look, held_out : tuples of str
        Testbeds that may be looked at while the procedure is made, and those on which it is run once.
    grid_cells : int
    grid_digest : str
        Of the names of the cells of the grid (`grid_digest`).
    """

    alpha: float = 0.05
    margin_share: float = 0.1
    degrees: tuple[int, ...] = (2, 3)
    spare_cells: int = 2
    least_cells: int = 3
    least_rates: int = 2
    least_kl: float = 0.01
    most_collapsed: float = 0.1
    tuning_draw: int = 0
    offline_clips: int = 2
    other_clips: int = 1
    starts: tuple[int, ...] = (0, 1, 2)
    draws: tuple[int, ...] = (0, 1, 2)
    look: tuple[str, ...] = ("letters", "instructions")
    held_out: tuple[str, ...] = ("arithmetic", "instructions-large", "letters-large")
    grid_cells: int = 152
    grid_digest: str = "da4b09353e09a47fff337e52da5bcbb5f53c31d00da51242a0f7d2f6303727b3"

    def seen(self, testbed: str) -> str:
        """Return whether a testbed was looked at beforehand, in words."""
        if testbed in self.look:
            return "looked at while the procedure was made"
        return "held out" if testbed in self.held_out else "none of those that the hypotheses are about"


def read_rules(path: Path) -> Rules:
    """Read the section `rules` of the frontier's file of hypotheses (`read_section`)."""
    return read_section(path, Rules)


def read_section(path: Path, kind: type[Numbers]) -> Numbers:
    """Read the section `rules` of a file of hypotheses.

    Parameters
    ----------
    path : Path
    kind : type
        A dataclass of these numbers.

    Raises
    ------
    ValueError
        If the file has no such section, or the section lacks a name of `kind` or has another one.
    """
    from ruamel.yaml import YAML

    content: Any = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    section = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ValueError(f"{path}: there is no section 'rules'; it is where the verdicts' numbers stand")
    names = {field.name for field in fields(kind)}
    if wrong := sorted(names ^ set(section)):
        raise ValueError(
            f"{path}: section 'rules' must have exactly the names of {kind.__name__}; lacking or unknown: {wrong}"
        )
    known: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}
    return kind(**known)


def as_section(rules: DataclassInstance) -> dict[str, Any]:
    """Return the section that `read_rules` reads."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(rules).items()}


def grid_digest(cells: Iterable[Cell]) -> str:
    """Return the SHA-256 of the cells' names, sorted, a line each."""
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(cell.name for cell in cells)).encode()).hexdigest()
