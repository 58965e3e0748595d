"""What `map_to_rejection` finds, in numbers and in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from humanline.theory import BetaRejection, BetaShape, BetaTest, Capacity, CapacityDistances
from humanline.theory.clip_distances import ClipDistances

#: The distances that are looked at: `CapacityDistances` says what each is.
DISTANCES = ("sup", "area", "l1", "kl")
#: Ranges whose distance is within this of the least count as about as near.
NEAR = 0.005

CHOICES = (
    "outcomes are the log-ratios of tokens, all of them gains (capacity of gains), or all losses (that of losses)",
    "the log-ratio is normal: mean spread^2 / 2 under the policy, -spread^2 / 2 under the reference",
    "for tests with bounds the outcomes end {cut:g} standard deviations from the policy's mean, and the largest ratios "
    "there are the bounds",
    "near means the largest difference of the two curves of Figure 2; other distances stand beside it",
)
_SEPARABLE = (
    "the weights were fitted to single probabilities (separable); here they weigh cumulative ones, for which they were "
    "not fitted"
)
_IN_THE_LIMIT = (
    "Clipping is the limit of two tests as their concentration grows: no constant of the capacity is left in it, and "
    "what it drops are the tails, which capacities such as those of 1992 overweight."
)


@dataclass(frozen=True)
class OneTest:
    """The one-sided test of Prop. 4.1, ``Beta(gamma, 1)``, and how far its law is from the human one.

    Parameters
    ----------
    gamma : float
    source : str
        Where gamma comes from, in words: only some families have one.
    gamma_interval : (float, float) or None
        95 %, of a fit that has it.
    ratio_bound : float
        The largest ratio.
    accepted : float
        Share of the proposals.
    sup, kl : float
        Distances of the kept law, as in `CapacityDistances`.
    """

    gamma: float
    source: str
    gamma_interval: tuple[float, float] | None
    ratio_bound: float
    accepted: float
    sup: float
    kl: float

    @property
    def test(self) -> BetaTest:
        """The test."""
        return BetaTest(BetaShape(self.gamma, 1), self.ratio_bound)


@dataclass(frozen=True)
class TwoTests:
    """The rule of two tests (Def. 4.2) that was found nearest to the human curve.

    Parameters
    ----------
    rejection : BetaRejection
        Its bounds are the largest ratios.
    least_accepted, accepted : float
        Share of the proposals that has to be accepted, and that is.
    sup, kl : float
    searches : tuple of float
        The largest difference that each search ended at: where they differ, the rule is not the nearest there is.
    """

    rejection: BetaRejection
    least_accepted: float
    accepted: float
    sup: float
    kl: float
    searches: tuple[float, ...]


@dataclass(frozen=True)
class NearestRange:
    """The clip range whose kept law is nearest by one distance.

    Parameters
    ----------
    distance : str
        One of `DISTANCES`.
    low, high : float
        Nats; infinite where it has no end.
    at : float
        Its distance.
    without : float
        The distance without clipping.
    undistorted : (float, float)
        The range nearest to the policy itself, for comparison: what the capacity does not explain.
    as_near : ((float, float), (float, float))
        Least and largest low, and high, of all ranges that are as near up to `NEAR`.
    monotone : bool
        Whether the distance never rises as the range widens on either side.
    """

    distance: str
    low: float
    high: float
    at: float
    without: float
    undistorted: tuple[float, float]
    as_near: tuple[tuple[float, float], tuple[float, float]]
    monotone: bool

    @property
    def closer(self) -> bool:
        """Whether some range is closer than none."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def words(self) -> str:
        """What was found."""
        if not self.closer:
            wider = "; the wider the range, the closer" if self.monotone else ""
            if self.distance == "kl":
                wider = ", as any end drops outcomes that have weight: it makes the distance infinite"
            return f"no clip range is closer than none ({self.without:.3f}){wider}"
        (low, lows), (high, highs) = self.as_near
        less = 100 * (1 - self.at / self.without)
        return (
            f"nearest [{_end(self.low)}, {_end(self.high)}] at {self.at:.3f}, {less:.0f} % less than without clipping "
            f"({self.without:.3f}); as near up to {NEAR:g}: low {_end(low)} to {_end(lows)}, high {_end(high)} to "
            f"{_end(highs)}; undistorted [{_end(self.undistorted[0])}, {_end(self.undistorted[1])}]"
        )


@dataclass(frozen=True, eq=False)
class SideMap:
    """What one capacity means, as `map_to_rejection` has it.

    Parameters
    ----------
    side : str
        "gain" or "loss".
    capacity : Capacity
    on_policy, proposals : CapacityDistances
        Of samples of the policy itself, and of the proposals, all kept.
    one_test : OneTest
    two_tests : TwoTests or None
        None if it was not asked for.
    grid : ClipDistances
        Over all ranges tried.
    ranges : dict from distance to NearestRange
    """

    side: str
    capacity: Capacity
    on_policy: CapacityDistances
    proposals: CapacityDistances
    one_test: OneTest
    two_tests: TwoTests | None
    grid: ClipDistances
    ranges: Mapping[str, NearestRange]


@dataclass(frozen=True, eq=False)
class RejectionMap:
    """What fitted capacities mean for training; `map_to_rejection` makes it.

    Parameters
    ----------
    sides : dict from "gain" or "loss" to SideMap
    spread : float
        Standard deviation of the log-ratio, nats.
    proposal : str
        "ref" or "policy".
    cut : float
    seeds : tuple of int
    stays : tuple of (str, float, str)
        Parameters of the fit that do not travel from money to log-ratios: name, value and why.
    separable : bool
        Whether the capacities were fitted as weights of single probabilities, not of cumulative ones.
    confidence : float
        Of the intervals.
    """

    sides: Mapping[str, SideMap]
    spread: float
    proposal: str
    cut: float
    seeds: tuple[int, ...]
    stays: tuple[tuple[str, float, str], ...]
    separable: bool = False
    confidence: float = 0.95

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices of modelling that all of this rests on, in words."""
        whom = {"ref": "the reference", "policy": "the policy"}[self.proposal]
        proposed = f"tokens are proposed by {whom}; the spread of their log-ratios is {self.spread:g} nats"
        fitted = (_SEPARABLE,) if self.separable else ()
        return (proposed, *(choice.format(cut=self.cut) for choice in CHOICES), *fitted)

    def told(self) -> list[str]:
        """Return lines that say all of it."""
        lines = ["Choices of modelling:", *(f"  {choice}" for choice in self.choices)]
        for side in self.sides.values():
            lines += ["", *_told_side(side, self.confidence)]
        lines += ["", _IN_THE_LIMIT]
        if self.stays:
            lines.append("Only capacities travel from money to log-ratios, since they have no unit. What stays:")
        return [*lines, *(f"  {name} ({value:.4g}): {why}" for name, value, why in self.stays)]

    def clip_rows(self) -> list[tuple[Any, ...]]:
        """Return a row for each side and range tried: side, low, high, sup, area, l1, kl, share kept."""
        return [
            (side, float(low), float(high), *(float(getattr(each.grid.distances, name)[i, j]) for name in DISTANCES),
             float(each.grid.kept[i, j]))
            for side, each in self.sides.items()
            for i, low in enumerate(each.grid.low)
            for j, high in enumerate(each.grid.high)
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; an end or a distance that is infinite is None."""
        return {
            "spread": self.spread,
            "proposal": self.proposal,
            "cut": self.cut,
            "seeds": list(self.seeds),
            "separable": self.separable,
            "confidence": self.confidence,
            "choices": list(self.choices),
            "stays": [{"name": name, "value": value, "why": why} for name, value, why in self.stays],
            "sides": {side: _side_dict(each) for side, each in self.sides.items()},
        }


def _told_side(side: SideMap, confidence: float) -> list[str]:
    one, two = side.one_test, side.two_tests
    around = ""
    if one.gamma_interval is not None:
        around = f" ({100 * confidence:g} %: {one.gamma_interval[0]:.3f} to {one.gamma_interval[1]:.3f})"
    lines = [
        f"{side.side}: {_called(side.capacity)}",
        f"  largest difference from the human curve: on-policy {float(side.on_policy.sup):.3f}, the proposals "
        f"{float(side.proposals.sup):.3f}",
        f"  one test (Prop. 4.1): Beta({one.gamma:.4g}, 1){around}, {one.source}; bound {one.ratio_bound:.4g}, "
        f"accepts {100 * one.accepted:.2g} %, largest difference {one.sup:.3f}",
    ]
    if two is not None:
        rule, ends = two.rejection, ", ".join(f"{value:.3f}" for value in two.searches)
        lines.append(
            f"  two tests (Def. 4.2), the nearest found: Beta({rule.policy.a:.4g}, {rule.policy.b:.4g}) with bound "
            f"{rule.policy_ratio_bound:.4g}, Beta({rule.ref.a:.4g}, {rule.ref.b:.4g}) with bound "
            f"{rule.ref_ratio_bound:.4g}; accepts {100 * two.accepted:.2g} % (at least {100 * two.least_accepted:.2g} "
            f"%), largest difference {two.sup:.3f} (searches: {ends})"
        )
    return [*lines, *(f"  clip range by {name}: {nearest.words}" for name, nearest in side.ranges.items())]


def _side_dict(side: SideMap) -> dict[str, Any]:
    one, two = side.one_test, side.two_tests
    return {
        "capacity": repr(side.capacity),
        "on_policy": {name: _number(getattr(side.on_policy, name)) for name in DISTANCES},
        "proposals": {name: _number(getattr(side.proposals, name)) for name in DISTANCES},
        "one_test": {**vars(one), "gamma_interval": None if one.gamma_interval is None else list(one.gamma_interval)},
        "two_tests": None if two is None else {
            "policy": vars(two.rejection.policy), "ref": vars(two.rejection.ref),
            "policy_ratio_bound": two.rejection.policy_ratio_bound, "ref_ratio_bound": two.rejection.ref_ratio_bound,
            "least_accepted": two.least_accepted, "accepted": two.accepted, "sup": two.sup, "kl": two.kl,
            "searches": list(two.searches),
        },
        "clip": {
            name: {
                "low": _number(each.low), "high": _number(each.high), "distance": _number(each.at),
                "without": _number(each.without), "closer_than_none": each.closer, "monotone": each.monotone,
                "undistorted": [_number(end) for end in each.undistorted], "words": each.words,
            }
            for name, each in side.ranges.items()
        },
    }  # fmt: skip


def _called(capacity: Any) -> str:
    """Return the family and its parameters, with four digits."""
    if not dataclasses.is_dataclass(capacity):
        return str(getattr(capacity, "__name__", capacity))
    values = {field.name: getattr(capacity, field.name) for field in dataclasses.fields(capacity)}
    given = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())
    return f"{type(capacity).__name__}" + f" ({given})" * bool(given)


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _end(value: float) -> str:
    return f"{value + 0.0:+.2g}" if math.isfinite(value) else "none"
