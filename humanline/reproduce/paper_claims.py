"""What the paper says of two kinds of runs, with the cells that it is asked of here; and what has no row, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from humanline.reproduce.cells import (
    CHOSEN_SYNC,
    CLIPS,
    FEW_LRS,
    FEW_SCALE,
    FEW_SYNC,
    OBJECTIVES,
    Cell,
    Objective,
    Variant,
    around,
    core,
    figure_9,
    paper,
)
from humanline.reproduce.testbeds.registry import OTHERS

#: What Figure 9 asks, here of the one testbed that has such a model.
FAMILY = "a model of another family: offline + humanline is better than offline"
_Pick = Callable[[Objective], list[Cell]]


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """Something that the paper says of two kinds of runs.

    Parameters
    ----------
    where : str
        Figure or table of arXiv 2509.24207.
    says : str
    kind : "more", "less" or "alike"
        What the first kind's runs have, beside the second's.
    first, second : callable
        The cells of each kind for an objective; of several the best is chosen on the other start models.
    numbers : mapping of objective to str
        The paper's own, first and second; its objectives are those that are compared.
    of : "score" or "length"
    clips : "first", "second" or ""
        Whose clipping it is about, if anyone's: it counts only where these runs clip tokens.
    exact : str
        The simulator's claim (`humanline.sim.claims`) that asks the same of problems small enough to be exact.
    differs : str
        What is not as in the paper.
    testbeds : tuple of str
        Those of which it is asked; empty: all.
    """

    where: str
    says: str
    kind: Literal["more", "less", "alike"]
    first: _Pick
    second: _Pick
    numbers: Mapping[Objective, str]
    of: Literal["score", "length"] = "score"
    clips: Literal["first", "second", ""] = ""
    exact: str = ""
    differs: str = ""
    testbeds: tuple[str, ...] = ()


def _of(cells: Iterable[Cell], variant: Variant, *every: int, **settings: Any) -> _Pick:
    """Return what picks an objective's cells of a variant, with one of these k, and with these settings."""
    usual: dict[str, Any] = {"passes": 1, "data": "near", "quartile": None, "desirable": None, "log_eps_low": None}
    wanted, found = usual | settings, list(dict.fromkeys(cells))

    def pick(objective: Objective) -> list[Cell]:
        mine = [one for one in found if one.objective == objective and one.variant == variant]
        mine = [one for one in mine if not every or one.every in every]
        return [one for one in mine if all(getattr(one, name) == value for name, value in wanted.items())]

    return pick


def _few(variant: Variant, *every: int) -> _Pick:
    """Return what picks the cells of the grid with the scale and rates at which parts of it are looked at."""
    whole = _of([*core(), *around(), *paper()], variant, *every)

    def pick(objective: Objective) -> list[Cell]:
        scale = FEW_SCALE[objective]
        mine = (one for one in whole(objective) if one.lr in FEW_LRS)
        return [one for one in mine if all(getattr(one, name) == value for name, value in scale.items())]

    return pick


_OFFLINE, ONLINE = _of(core(), "offline"), _of(core(), "online")
_FIRST, _TUNED = _of(core(), "humanline", 1), _of(core(), "humanline")
_DRAWN: dict[Objective, str] = dict.fromkeys(OBJECTIVES, "drawn")
_EIGHT = f"k = {FEW_SYNC}, not 1"
_BOTH: tuple[Variant, ...] = ("offline", "humanline")


def _main_claims() -> Iterator[PaperClaim]:
    of_paper: dict[Objective, str] = {"kto": "22.19, 17.40", "dpo": "24.82, 18.07", "grpo": "25.24, 15.52"}
    yield PaperClaim(
        "Figure 1, Table 3",
        "offline + humanline, k = 1, is better than offline",
        "more",
        _FIRST,
        _OFFLINE,
        of_paper,
        exact="humanline-beats-offline",
    )
    yield PaperClaim(
        "Figure 1, Table 3",
        "offline + humanline, its own k, is better than offline",
        "more",
        _TUNED,
        _OFFLINE,
        of_paper,
        differs="k is chosen among 1, 8 and 32 for each start model by the others",
    )
    yield PaperClaim(
        "Figure 1, Table 3",
        "offline + humanline is on par with online",
        "alike",
        _TUNED,
        ONLINE,
        {"kto": "22.19, 22.45", "dpo": "24.82, 24.96", "grpo": "25.24, 25.05"},
        exact="humanline-closes-gap",
    )
    yield PaperClaim(
        "Figure 1, Table 3",
        "online is better than offline",
        "more",
        ONLINE,
        _OFFLINE,
        {"kto": "22.45, 17.40", "dpo": "24.96, 18.07", "grpo": "25.05, 15.52"},
        exact="online-beats-offline",
    )
    yield PaperClaim(
        "Table 3",
        "online + humanline is slightly better than online",
        "more",
        _of(core(), "online humanline"),
        ONLINE,
        {"kto": "22.79, 22.45", "dpo": "26.84, 24.96", "grpo": "26.10, 25.05"},
        differs=f"k = {FEW_SYNC}, not 1",
    )


def _claims_of_parts() -> Iterator[PaperClaim]:
    yield PaperClaim(
        "Figure 5, left",
        "clipping without syncing is as bad as offline",
        "alike",
        _few("clip only"),
        _few("offline"),
        _DRAWN,
        clips="first",
    )
    yield PaperClaim(
        "Figure 5, left",
        "syncing without clipping falls short of humanline",
        "less",
        _few("sync only", FEW_SYNC),
        _few("humanline", FEW_SYNC),
        _DRAWN,
        clips="second",
        exact="clip-needed-k16",
        differs=_EIGHT,
    )
    yield PaperClaim(
        "Figure 5, right",
        "humanline clipping does as well as humanline sampling",
        "alike",
        _few("humanline", FEW_SYNC),
        _few("rejection"),
        _DRAWN,
        clips="first",
        exact="clip-matches-sampling-k16",
        differs=_EIGHT,
    )


def _claims_of_data() -> Iterator[PaperClaim]:
    for other in (2, 3, 4):
        for variant in _BOTH:
            yield PaperClaim(
                "Figure 6",
                f"{variant}: the quarter of the data that is least likely is worse than quarter {other}",
                "less",
                _of(paper(), variant, passes=4, quartile=1),
                _of(paper(), variant, passes=4, quartile=other),
                {"dpo": "drawn"},
                differs=f"each quarter four times, for as many steps; {_EIGHT}",
            )
    yield PaperClaim(
        "Figure 8",
        "humanline with a larger k, here 8, is as good as with k = 1",
        "alike",
        _of(core(), "humanline", 8),
        _FIRST,
        {"grpo": "drawn, to k = 4"},
    )
    yield PaperClaim(
        "Figure 8",
        "past that point a larger k, here 32, is worse",
        "less",
        _of(core(), "humanline", 32),
        _of(core(), "humanline", 8),
        {"grpo": "drawn, from k = 4"},
    )
    yield PaperClaim(
        "Figure 9",
        FAMILY,
        "more",
        _of(figure_9(), "humanline"),
        _of(figure_9(), "offline"),
        {"kto": "drawn", "dpo": "67.45, 56.58 and 56.27, 48.59", "grpo": "drawn"},
        differs=f"k = {CHOSEN_SYNC} and both scales are those that letters chose; of two rates the better is taken",
        testbeds=tuple(OTHERS),
    )
    yield PaperClaim(
        "Figure 10",
        "trust region syncing, after the update, is worse than humanline",
        "less",
        _few("trust region", FEW_SYNC),
        _few("humanline", FEW_SYNC),
        _DRAWN,
        exact="trust-region-worse",
        differs=f"both every {FEW_SYNC} steps; the paper's syncs after the update every 1024",
    )
    yield PaperClaim(
        "Table 4",
        "offline + humanline gives shorter answers than offline",
        "less",
        _TUNED,
        _OFFLINE,
        {"kto": "1407, 1658", "dpo": "1637, 1767", "grpo": "1488, 1648"},
        of="length",
        differs="answers here are about as long as the task asks for",
    )
    for variant in _BOTH:
        yield PaperClaim(
            "Tables 4 and 5",
            f"{variant}: answers of a better model make better data",
            "more",
            _of(around(), variant, data="better"),
            _few(variant, *((FEW_SYNC,) if variant == "humanline" else ())),
            {"kto": "drawn", "dpo": "56.58, 48.59" if variant == "offline" else "67.45, 56.27", "grpo": "drawn"},
        )
    yield PaperClaim(
        "Table 5",
        "offline + humanline reaches online with the better data",
        "alike",
        _of(around(), "humanline", data="better"),
        ONLINE,
        {"dpo": "67.45, 66.49"},
    )


def _claims_of_settings() -> Iterator[PaperClaim]:
    for low, high in CLIPS:
        yield PaperClaim(
            "Table 6",
            f"a clip of {low:g} .. {high:g} does as well as one of -1.5 .. 1.5",
            "alike",
            _of(paper(), "humanline", 1, log_eps_low=low, log_eps_high=high),
            _few("humanline", 1),
            {"dpo": _CLIPPED[low, high]},
            clips="first",
        )
    yield PaperClaim(
        "KTO (arXiv 2402.01306)",
        "a quarter of the better answers does as well as all",
        "alike",
        _of(paper(), "offline", desirable=0.25),
        _few("offline"),
        {"kto": "not in this paper"},
    )


_CLIPPED = {
    (-2.0, 1.5): "23.33, 24.82",
    (-1.0, 1.5): "24.37, 24.82",
    (-1.0, 2.0): "22.55, 24.82",
    (-1.0, 3.0): "23.98, 24.82",
}
CLAIMS = (*_main_claims(), *_claims_of_parts(), *_claims_of_data(), *_claims_of_settings())
#: What has no row of its own, and why.
ELSEWHERE = {
    "Figure 6, second half": "whether what `humanline inspect-data` says of data foretells the outcome: `--all` writes "
    "foretold.md beside a testbed's tables",
    "Figure 7": "`humanline reproduce --sampling`, which has declared claims and a table of its own",
    "Figure 11": "wall-clock: not testable here, where a run's time is mostly Python's; benchmarks/ has what a step of "
    "each method costs beside the others",
    "Table 7": "answers side by side: `humanline report` of training runs",
    "KTO without next-token tuning before": "not testable here: a model of random weights has no answers to prefer",
}
