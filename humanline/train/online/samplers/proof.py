"""Which weights does a server have? What it says of given texts is held against the policy, whenever it gets new ones.

A server that answers 200 to a request for new weights, or a command that ends with 0, proves nothing. So some texts of
the run are kept, and both policy and server compute their log-probabilities each time. With p and s the token
log-probabilities of the policy and of the server now, and p_0 and s_0 those of earlier weights,

    slope = sum (s - s_0) (p - p_0) / sum (p - p_0)^2

is 1 if the server has the new weights and 0 if it still has the earlier ones, whatever its rounding, as long as that
has nothing to do with the change. `s_0` stands for `p_0` in the numerator because most of a server's rounding is the
same for both and cancels. The standard error is no smaller than that of the slope of s - p_0, which counts the rounding
in full: where log-probabilities are told in bf16, a small change may be hidden altogether, and s - s_0 be 0 for a right
server. It is the jackknife's over texts, since tokens of one text are not independent; no token counts twice after the
same ones.

Rounding has to do with the change where a server keeps its weights in bf16 and the policy began with such weights, as
released models do: the first small updates are rounded away, and a right server does not move. So p is taken twice,
from the policy's weights and from the same rounded to bf16, and a server is stale only if it follows neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

ERROR = 1e-6  # probability that the interval of a slope misses it, were the texts' shares normal
SMALLEST_CHANGE = 1e-5  # nats (rms): below it the policy's own float32 rounding is part of the change
FEW_TOKENS, FEW_TEXTS = 2000, 16  # fewer than these cannot tell a small change from rounding
MANY_TEXTS = 64  # of which Student's quantile is near the normal one

Verdict = Literal["new", "old", "between", "unclear", "same"]
Values: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids, of which those from `start` on count."""

    ids: tuple[int, ...]
    start: int

    def __post_init__(self) -> None:
        if not 1 <= self.start < len(self.ids):
            raise ValueError(f"start must be in 1 .. {len(self.ids) - 1}; got {self.start}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What policy and server said of texts while the server was to have one version of the weights.

    Parameters
    ----------
    version : str
        Of the weights.
    texts : mapping of name to Text
    policy, server : mapping of name to array
        Log-probabilities of the tokens that count, nats.
    rounded : mapping of name to array, optional
        Those of the policy with its weights rounded to bf16; default: the policy's, as where they are narrow already.
    """

    version: str
    texts: Mapping[str, Text]
    policy: Mapping[str, Values]
    server: Mapping[str, Values]
    rounded: Mapping[str, Values] | None = None

    def by_policy(self, rounded: bool) -> Mapping[str, Values]:
        """Return the policy's log-probabilities, with its weights rounded or as they are."""
        return self.policy if not rounded or self.rounded is None else self.rounded

    @property
    def tokens(self) -> int:
        """Return how many tokens count."""
        return sum(map(len, self.policy.values()))

    def rms(self) -> float:
        """Return the root mean square difference between server and policy, nats: the smaller, rounded or not."""
        both = [self.by_policy(rounded) for rounded in (False, True)]
        squares = [sum(float(np.square(self.server[name] - own[name]).sum()) for name in own) for own in both]
        return math.sqrt(min(squares) / self.tokens) if all(map(math.isfinite, squares)) else math.nan

    def row(self) -> dict[str, Any]:
        """Return the reading as a JSON object."""
        sides = {"policy": self.policy, "server": self.server, "rounded": self.rounded}
        return {
            "version": self.version,
            "texts": {name: {"ids": list(text.ids), "start": text.start} for name, text in self.texts.items()},
        } | {
            side: None if own is None else {name: values.tolist() for name, values in own.items()}
            for side, own in sides.items()
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Reading:
        """Return the reading of a row that `row` made; raise KeyError, TypeError or ValueError if it is none."""
        texts = {name: Text(tuple(one["ids"]), one["start"]) for name, one in row["texts"].items()}
        policy, server, rounded = (
            None if row[side] is None else {name: np.asarray(row[side][name], dtype=np.float64) for name in texts}
            for side in ("policy", "server", "rounded")
        )
        if policy is None or server is None:
            raise ValueError("policy and server must both be there")
        for own in (policy, server, rounded or {}):
            if not all(len(values) == len(texts[name].ids) - texts[name].start for name, values in own.items()):
                raise ValueError("a text without one number for each token")
        return cls(str(row["version"]), texts, policy, server, rounded)


@dataclass(frozen=True, slots=True)
class Slope:
    """How much of the policy's change the server has made, with an interval that misses it once in a million times."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} .. {self.high:.2f})"


def slope_between(old: Reading, new: Reading, *, exact: bool, rounded: bool = False) -> Slope | None:
    """Return the slope of the server's change on the policy's.

    Parameters
    ----------
    old, new : Reading
        They are compared where their texts begin alike.
    exact : bool
        Whether the policy computes in float32. If not, its own rounding is in both p and p_0, `s_0` does not stand
        for `p_0`, and the slope is between 1/2 and 1 for new weights and between 0 and 1/2 for old ones.
    rounded : bool
        Whether p is that of weights rounded to bf16.

    Returns
    -------
    Slope or None
        None if the policy has not changed, or by less than its own rounding.
    """
    shares, change = [], 0.0
    count = 0
    now, then = new.by_policy(rounded), old.by_policy(rounded)
    for name in new.texts.keys() & old.texts.keys():
        size = _common(new.texts[name], old.texts[name])
        if size < 1:
            continue
        policy, server = now[name][:size], new.server[name][:size]
        before, told = then[name][:size], old.server[name][:size]
        moved = policy - before
        square = float(moved @ moved)
        level = float(moved @ (server - before))
        shares.append((square, level, float(moved @ (server - told)) if exact else level))
        change, count = change + square, count + size
    if not count or math.sqrt(change / count) <= (SMALLEST_CHANGE if exact else 0.0):
        return None
    squares, levels, changes = np.array(shares).T
    value = float(changes.sum() / squares.sum())
    width = max(_jackknife_width(levels, squares), _jackknife_width(changes, squares))
    return Slope(value, value - width, value + width)


def judge(slope: Slope | None, *, exact: bool) -> Verdict:
    """Return the verdict that a slope gives on the server's weights.

    Parameters
    ----------
    slope : Slope or None
    exact : bool
        As in `slope_between`.

    Returns
    -------
    {"new", "old", "between", "unclear", "same"}
        "old" where the interval lies below what new weights give and reaches what old ones give, "new" the other way
        round, "between" where it holds neither, "unclear" where it holds both, "same" where there is no slope.
    """
    if slope is None:
        return "same"
    new, old = (1.0, 0.0) if exact else (0.5, 0.5)
    if slope.high < new:
        return "old" if slope.low <= old else "between"
    return "new" if slope.low > old else "unclear"


def compare(old: Reading, new: Reading, *, exact: bool) -> tuple[Verdict, Slope | None]:
    """Return the verdict on a server's change, against the policy as it is and with its weights rounded to bf16.

    Returns
    -------
    (verdict, slope)
        "new" if the server follows either of the two, "old" if it follows neither though both have changed; else the
        less certain verdict. The slope is one that has this verdict.
    """
    kinds = (False,) if new.rounded is None or old.rounded is None else (False, True)
    slopes = [slope_between(old, new, exact=exact, rounded=rounded) for rounded in kinds]
    verdicts = [judge(slope, exact=exact) for slope in slopes]
    order: tuple[Verdict, ...] = ("new", "unclear", "same", "between", "old")
    verdict = min(verdicts, key=order.index)
    slope = slopes[verdicts.index(verdict)]
    if verdict == "same" and slopes[0] is not None:  # nothing has come through the rounding yet
        return "unclear", slopes[0]
    return verdict, slope


def _common(a: Text, b: Text) -> int:
    """Return how many tokens that count two texts have in common before they part."""
    if a.start != b.start:
        return 0
    size = min(len(a.ids), len(b.ids))
    alike = next((i for i in range(size) if a.ids[i] != b.ids[i]), size)
    return alike - a.start


def _jackknife_width(products: Values, squares: Values) -> float:
    """Return half the width of the interval of sum(products) / sum(squares), over independent texts."""
    count = len(products)
    rest = squares.sum() - squares
    if count < 2 or not rest.min() > 0:
        return math.inf
    without = (products.sum() - products) / rest
    error = math.sqrt((count - 1) / count * float(np.square(without - without.mean()).sum()))
    return error * float(stdtrit(count - 1, 1 - ERROR / 2))


def pick_texts(candidates: Sequence[Sequence[tuple[str, Text]]], tokens: int, longest: int) -> dict[str, Text]:
    """Return texts of about so many tokens that count, or all there are, from as many prompts as possible.

    Parameters
    ----------
    candidates : sequence of sequence of (name, Text)
        The answers of each prompt; a text's `start` is where the answer begins.
    tokens : int
        Each text gives at most its share of them: many short texts tell more than few long ones.
    longest : int
        Of a text, its prompt included.

    Returns
    -------
    dict of name to Text
        The first answer of each prompt, then the second, and so on; it counts from where a text differs from all before
        it, into the answer as far as its share reaches. Where answers are short, tokens of the prompt count too.
    """
    total = sum(map(len, candidates))
    share = max(MANY_TEXTS, tokens // MANY_TEXTS, -(-tokens // max(1, total)))
    picked: dict[str, Text] = {}
    seen: dict[int, Any] = {}  # a tree of all ids so far
    count = 0
    for number in range(max(map(len, candidates), default=0)):
        for own in candidates:
            if count >= tokens:
                return picked
            if number >= len(own):
                continue
            name, text = own[number]
            ids = text.ids[: min(text.start + share, longest)]
            start = max(1, len(ids) - share, _new_from(seen, ids))
            if start < len(ids):
                picked[name] = Text(ids, start)
                count += len(ids) - start
    return picked


def _new_from(seen: dict[int, Any], ids: Sequence[int]) -> int:
    """Return from which place on ids are in no branch of a tree, and put them into it."""
    first, node = len(ids), seen
    for place, one in enumerate(ids):
        if one not in node:
            first = min(first, place)
            node[one] = {}
        node = node[one]
    return first


def check_in_words(check: Mapping[str, Any]) -> str:
    """Return the result of a check of a server's weights in words, for the line of a round."""
    if "slope" not in check:
        return f"off by {check['rms']:.2g} nats (rms)"
    what = {
        "new": "has the new weights",
        "unclear": "cannot tell whether it has the new weights",
        "between": "has neither the new nor the old weights",
    }[check["verdict"]]
    ends = {"low": -math.inf, "high": math.inf}
    low, high = (end if check[name] is None else check[name] for name, end in ends.items())
    slope = Slope(check["slope"], low, high)
    return f"{what}, slope {slope}, off by {check['rms']:.2g} nats (rms)"
