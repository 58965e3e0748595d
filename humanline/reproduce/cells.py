"""The declared grid: which settings are run on every testbed, fixed before the first result, losing ones included.

A cell is one setting. It is run from several start models, and from each of these on several draws of the pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from humanline.reproduce.testbeds.base import Source

Objective = Literal["dpo", "kto", "grpo"]
Variant = Literal[
    "offline",  # the reference is the start model
    "humanline",  # log-ratios are clipped, and the reference is synced every k steps before the update
    "sync only",
    "clip only",
    "trust region",  # the reference is synced after the update, and nothing is clipped
    "rejection",  # humanline with tokens detached at random (Def. 4.2) in place of clipped ones
    "online",  # pairs are drawn anew in every round, whose policy is the reference
    "online humanline",
]
OBJECTIVES: tuple[Objective, ...] = ("dpo", "kto", "grpo")
VARIANTS: tuple[Variant, ...] = (
    "offline",
    "humanline",
    "sync only",
    "clip only",
    "trust region",
    "rejection",
    "online",
    "online humanline",
)
#: Settings that came after the first results: they are part of what a result is kept by where they are given.
LATER = ("round_steps", "log_eps_low", "log_eps_high", "quartile", "desirable")


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the grid.

    Parameters
    ----------
    objective : "dpo", "kto" or "grpo"
    variant : str
        One of `VARIANTS`.
    lr : float
        Learning rate.
    beta : float or None
        Of DPO and KTO.
    clip_eps : float or None
        GRPO's own clip.
    every : int or None
        Steps between syncs (k), where the reference is synced.
    passes : int
        Over the pairs; over the prompts, where `round_steps` is given.
    data : Source
        Who wrote the answers of the pairs; rounds sample from the policy, whatever this says.
    round_steps : int or None
        Online: optimizer steps whose answers are sampled together, just before the first of them. All answers to a
        prompt are then kept, as a group. None: rounds of a fifth of the prompts each, of which pairs are kept.
    log_eps_low, log_eps_high : float or None
        Of the clip, nats; None: -1.5 and 1.5, as everywhere in the paper.
    quartile : int or None
        Only pairs of this quarter, by log-probability a token under the start model (1: the lowest), as
        `humanline inspect-data` divides them.
    desirable : float in (0, 1) or None
        KTO: the share of the better answers that is kept, beside all the worse; their weight is 1 over it.
    """

    objective: Objective
    variant: Variant
    lr: float
    beta: float | None = None
    clip_eps: float | None = None
    every: int | None = None
    passes: int = 1
    data: Source = "near"
    round_steps: int | None = None
    log_eps_low: float | None = None
    log_eps_high: float | None = None
    quartile: int | None = None
    desirable: float | None = None

    @property
    def settings(self) -> str:
        """Return all settings as the text by which results are kept; what came later is in it where it is given."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        said = (f"{name}={value!r}" for name, value in given.items() if name not in LATER or value is not None)
        return f"Cell({', '.join(said)})"

    @property
    def is_online(self) -> bool:
        """Return whether pairs are drawn from the policy in rounds."""
        return self.variant in ("online", "online humanline")

    @property
    def name(self) -> str:
        """Return what tells this cell from every other, for people and for files."""
        parts = [self.objective, self.variant.replace(" ", "-"), f"lr{self.lr:g}"]
        parts += [f"beta{self.beta:g}"] if self.beta is not None else []
        parts += [f"eps{self.clip_eps:g}"] if self.clip_eps is not None else []
        parts += [f"k{self.every}"] if self.every is not None else []
        parts += [f"{self.passes}passes"] if self.passes != 1 else []
        parts += [self.data] if self.data != "near" else []
        parts += [f"every{self.round_steps}"] if self.round_steps is not None else []
        ends = (self.log_eps_low, self.log_eps_high)
        parts += [f"clip{ends[0]:g}..{ends[1]:g}"] if None not in ends else []
        parts += [f"q{self.quartile}"] if self.quartile is not None else []
        parts += [f"desirable{self.desirable:g}"] if self.desirable is not None else []
        return "-".join(parts)


#: What each objective is run with, in every combination.
LRS = (3e-5, 1e-4, 3e-4, 1e-3)
SCALES: dict[Objective, tuple[dict[str, float], ...]] = {
    "dpo": ({"beta": 0.1}, {"beta": 1.0}, {"beta": 5.0}),
    "kto": ({"beta": 0.25}, {"beta": 1.0}),
    "grpo": ({"clip_eps": 0.15}, {"clip_eps": 0.5}, {"clip_eps": 1.0}),
}
SYNCS = (1, 8, 32)
#: Where the other variants, several passes and other data are looked at: two rates, one k, one scale.
FEW_LRS = (1e-4, 3e-4)
FEW_SCALE: dict[Objective, dict[str, float]] = {"dpo": {"beta": 1.0}, "kto": {"beta": 0.25}, "grpo": {"clip_eps": 0.5}}
FEW_SYNC = 8
#: Scales of online runs, with `FEW_LRS`.
ONLINE_SCALES: dict[Objective, tuple[dict[str, float], ...]] = {
    "dpo": ({"beta": 0.1}, {"beta": 1.0}),
    "kto": ({"beta": 0.25}, {"beta": 1.0}),
    "grpo": ({"clip_eps": 0.15}, {"clip_eps": 0.5}),
}
#: What the paper's own figures vary besides (`paper`): its Table 6's clip ranges, and few desirable answers for KTO.
CLIPS = ((-2.0, 1.5), (-1.0, 1.5), (-1.0, 2.0), (-1.0, 3.0))
FEW_DESIRABLE = 0.25
#: Offline runs that a weaker anchor may let go further than the grid's (`further`): a smaller beta; for GRPO a higher
#: rate at the grid's widest clip, and a wider one, whose highest ratio, 5, is about that of humanline's (exp 1.5).
FURTHER_LRS = (1e-4, 3e-4, 1e-3)
FURTHER_BETAS: dict[Objective, tuple[float, ...]] = {"dpo": (0.01, 0.03), "kto": (0.05, 0.1)}
WIDEST_CLIP, WIDER_CLIP = 1.0, 4.0
FURTHER_GRPO_LRS = (2e-3, 3e-3)
#: Runs of four passes over the pairs, offline and humanline at the k that was best with one: rates, and scales of each.
#: Some lie beyond edges (a beta, a clip, a rate) at which DPO's, KTO's and offline GRPO's were chosen; which edges are
#: left is told in studies/frontier/further.md.
PASSES = 4
PASSES_CELLS: tuple[tuple[Objective, Variant, tuple[float, ...], tuple[dict[str, float], ...]], ...] = (
    ("dpo", "offline", LRS, ({"beta": 0.1}, {"beta": 1.0}, {"beta": 5.0})),
    ("dpo", "humanline", LRS[:3], ({"beta": 1.0}, {"beta": 5.0})),
    ("dpo", "humanline", LRS[1:], ({"beta": 25.0},)),
    ("kto", "offline", LRS, ({"beta": 0.25}, {"beta": 1.0})),
    ("kto", "offline", LRS[1:], ({"beta": 0.05}, {"beta": 0.1})),
    ("kto", "humanline", LRS, ({"beta": 0.25}, {"beta": 1.0})),
    ("kto", "humanline", LRS[1:], ({"beta": 5.0}, {"beta": 25.0})),
    ("grpo", "offline", LRS, ({"clip_eps": WIDEST_CLIP}, {"clip_eps": WIDER_CLIP})),
    ("grpo", "humanline", LRS, ({"clip_eps": 0.15}, {"clip_eps": 0.5})),
)
#: How often is sampled (`sampling`). Two passes over 2560 prompts, 16 a step, are 320 steps: five whole rounds of 64,
#: where one pass has two and a half. k and GRPO's own clip are those of the paper's mathematics and of its recipes.
STALE_STEPS = 64
SAMPLING_LRS = (1e-4, 3e-4, 1e-3)
SAMPLING_SYNCS = (1, 12, 20)
SAMPLING_CLIP = 0.2
SAMPLING_PASSES = 2
#: Where a larger model of another family is looked at (`figure_9`): the scales that letters chose, offline and with
#: humanline, and the k that it chose for every objective (studies/frontier/letters/best.csv), with `FEW_LRS`.
CHOSEN_SYNC = 32
CHOSEN_SCALES: dict[Objective, tuple[dict[str, float], dict[str, float]]] = {
    "dpo": ({"beta": 1.0}, {"beta": 5.0}),
    "kto": ({"beta": 1.0}, {"beta": 1.0}),
    "grpo": ({"clip_eps": 1.0}, {"clip_eps": 0.5}),
}


def core() -> list[Cell]:
    """Return the cells that the hypotheses are about: offline, humanline and online runs of one pass over near data."""
    return [*_main(), *_online()]


def around() -> list[Cell]:
    """Return the other cells: sync or clip alone, the trust region, several passes, far and better data."""
    return [*_parts(), *_more()]


def sampling() -> list[Cell]:
    """Return the cells of the paper's Figure 7: GRPO sampled every step, every 64, and every 64 with humanline."""
    shared: dict[str, Any] = {"clip_eps": SAMPLING_CLIP, "passes": SAMPLING_PASSES}
    cells = []
    for lr in SAMPLING_LRS:
        cells.append(Cell("grpo", "online", lr, round_steps=1, **shared))
        cells.append(Cell("grpo", "online", lr, round_steps=STALE_STEPS, **shared))
        for every in SAMPLING_SYNCS:
            cells.append(Cell("grpo", "online humanline", lr, every=every, round_steps=STALE_STEPS, **shared))
    return cells


def further() -> list[Cell]:
    """Return offline cells of a weaker anchor or more passes than the grid's, and humanline cells of as many passes.

    So what distance or more steps alone do can be told from humanline.
    """
    cells = [
        Cell(objective, "offline", lr, beta=beta)
        for objective, betas in FURTHER_BETAS.items()
        for beta in betas
        for lr in FURTHER_LRS
    ]
    cells += [Cell("grpo", "offline", lr, clip_eps=WIDEST_CLIP) for lr in FURTHER_GRPO_LRS]
    cells += [Cell("grpo", "offline", lr, clip_eps=WIDER_CLIP) for lr in FURTHER_LRS]
    return cells + _several_passes(PASSES_CELLS)


def _several_passes(
    declared: Iterable[tuple[Objective, Variant, tuple[float, ...], tuple[dict[str, float], ...]]],
) -> list[Cell]:
    return [
        Cell(objective, variant, lr, every=CHOSEN_SYNC if variant == "humanline" else None, passes=PASSES, **scale)  # type: ignore[arg-type]
        for objective, variant, lrs, scales in declared
        for scale in scales
        for lr in lrs
    ]


def paper() -> list[Cell]:
    """Return what the paper's figures need besides the grid: rejection, clip ranges, quarters of the data, few labels.

    Ranges are those of its Table 6, with k = 1 as there; quarters are gone over four times, for as many steps.
    """
    cells = []
    for lr in FEW_LRS:
        for objective in OBJECTIVES:
            cells.append(Cell(objective, "rejection", lr, every=FEW_SYNC, **FEW_SCALE[objective]))  # type: ignore[arg-type]
        for low, high in CLIPS:
            ends: dict[str, Any] = {"log_eps_low": low, "log_eps_high": high}
            cells.append(Cell("dpo", "humanline", lr, every=1, **FEW_SCALE["dpo"], **ends))  # type: ignore[arg-type]
        for quartile in (1, 2, 3, 4):
            some: dict[str, Any] = {"quartile": quartile, "passes": 4, **FEW_SCALE["dpo"]}
            cells += [Cell("dpo", "offline", lr, **some), Cell("dpo", "humanline", lr, every=FEW_SYNC, **some)]
        few: dict[str, Any] = {"desirable": FEW_DESIRABLE, **FEW_SCALE["kto"]}
        cells += [Cell("kto", "offline", lr, **few), Cell("kto", "humanline", lr, every=FEW_SYNC, **few)]
    return cells


def figure_9() -> list[Cell]:
    """Return the few cells of the grid that letters chose, offline and humanline, each at two rates."""
    cells = []
    for objective in OBJECTIVES:
        offline, humanline = CHOSEN_SCALES[objective]
        for lr in FEW_LRS:
            cells.append(Cell(objective, "offline", lr, **offline))  # type: ignore[arg-type]
            cells.append(Cell(objective, "humanline", lr, every=CHOSEN_SYNC, **humanline))  # type: ignore[arg-type]
    return cells


def _main() -> Iterator[Cell]:
    for objective in OBJECTIVES:
        for scale in SCALES[objective]:
            for lr in LRS:
                yield Cell(objective, "offline", lr, **scale)  # type: ignore[arg-type]
                for every in SYNCS:
                    yield Cell(objective, "humanline", lr, every=every, **scale)  # type: ignore[arg-type]


def _online() -> Iterator[Cell]:
    for objective in OBJECTIVES:
        for scale in ONLINE_SCALES[objective]:
            for lr in FEW_LRS:
                yield Cell(objective, "online", lr, **scale)  # type: ignore[arg-type]
                yield Cell(objective, "online humanline", lr, every=FEW_SYNC, **scale)  # type: ignore[arg-type]


def _parts() -> Iterator[Cell]:
    for objective in OBJECTIVES:
        scale = FEW_SCALE[objective]
        for lr in FEW_LRS:
            yield Cell(objective, "sync only", lr, every=FEW_SYNC, **scale)  # type: ignore[arg-type]
            yield Cell(objective, "clip only", lr, **scale)  # type: ignore[arg-type]
            yield Cell(objective, "trust region", lr, every=FEW_SYNC, **scale)  # type: ignore[arg-type]


def _more() -> Iterator[Cell]:
    kinds: tuple[tuple[int, Source], ...] = ((4, "near"), (1, "far"), (1, "better"))
    for objective in OBJECTIVES:
        scale = FEW_SCALE[objective]
        for passes, data in kinds:
            for lr in FEW_LRS:
                yield Cell(objective, "offline", lr, passes=passes, data=data, **scale)  # type: ignore[arg-type]
                yield Cell(objective, "humanline", lr, every=FEW_SYNC, passes=passes, data=data, **scale)  # type: ignore[arg-type]
