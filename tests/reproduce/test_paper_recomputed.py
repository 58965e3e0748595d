"""The committed rows of the paper's claims, computed again from the runs: numpy and scipy, and none of our code."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.reproduce.edges_again import told

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "frontier" / "letters"
LATER = ("log_eps_low", "log_eps_high", "quartile", "desirable")
CELL = ("objective", "variant", "lr", "beta", "clip_eps", "every", "passes", "data", *LATER)
SCALE = {"dpo": ("beta", 1.0), "kto": ("beta", 0.25), "grpo": ("clip_eps", 0.5)}
RATES = (1e-4, 3e-4)


def rows_of(name: str) -> list[dict[str, str]]:
    with open(FOLDER / name, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


RUNS = [run for run in rows_of("runs.csv") if not run.get("round_steps")]
STARTS = sorted({run["start"] for run in RUNS})


def of(objective, variant, few=False, **wanted):
    """Runs of one pass over near data, unless another is wanted; `few`: at the one scale and the two rates."""
    wanted = {"passes": 1, "data": "near", **dict.fromkeys(LATER)} | wanted | {"variant": variant}
    if few:
        wanted[SCALE[objective][0]] = SCALE[objective][1]

    def fits(run):
        for name, value in wanted.items():
            if value is None or isinstance(value, str):
                if run[name] != (value or ""):
                    return False
            elif not run[name] or float(run[name]) != value:
                return False
        return run["objective"] == objective and (not few or float(run["lr"]) in RATES)

    return [run for run in RUNS if fits(run)]


def sides(says, objective):
    """The runs of both sides of a claim."""
    whole, part = says.partition(": ")[::2]
    quarter = {"passes": 4}
    eight = {"every": 8} if whole == "humanline" else {}
    found = {
        "offline + humanline, k = 1, is better than offline": (("humanline", False, {"every": 1}), ("offline",)),
        "offline + humanline, its own k, is better than offline": (("humanline",), ("offline",)),
        "offline + humanline is on par with online": (("humanline",), ("online",)),
        "online is better than offline": (("online",), ("offline",)),
        "online + humanline is slightly better than online": (("online humanline",), ("online",)),
        "clipping without syncing is as bad as offline": (("clip only", True), ("offline", True)),
        "syncing without clipping falls short of humanline": (
            ("sync only", True, {"every": 8}),
            ("humanline", True, {"every": 8}),
        ),
        "humanline clipping does as well as humanline sampling": (
            ("humanline", True, {"every": 8}),
            ("rejection", True),
        ),
        "humanline with a larger k, here 8, is as good as with k = 1": (
            ("humanline", False, {"every": 8}),
            ("humanline", False, {"every": 1}),
        ),
        "past that point a larger k, here 32, is worse": (
            ("humanline", False, {"every": 32}),
            ("humanline", False, {"every": 8}),
        ),
        "trust region syncing, after the update, is worse than humanline": (
            ("trust region", True, {"every": 8}),
            ("humanline", True, {"every": 8}),
        ),
        "offline + humanline gives shorter answers than offline": (("humanline",), ("offline",)),
        "offline + humanline reaches online with the better data": (
            ("humanline", False, {"data": "better"}),
            ("online",),
        ),
        "a quarter of the better answers does as well as all": (
            ("offline", False, {"desirable": 0.25}),
            ("offline", True),
        ),
    }.get(says)
    if part.startswith("the quarter of the data that is least likely"):
        found = tuple((whole, False, quarter | {"quartile": number}) for number in (1.0, float(part[-1])))
    elif part.startswith("answers of a better model"):
        found = (whole, False, {"data": "better"}), (whole, True, eight)
    elif says.startswith("a clip of"):
        low, high = (float(says.split()[place]) for place in (3, 5))
        ends = {"every": 1, "log_eps_low": low, "log_eps_high": high}
        found = ("humanline", False, ends), ("humanline", True, {"every": 1})
    assert found is not None, f"write down here what {says!r} compares"
    return [of(objective, one[0], *one[1:2], **(one[2] if len(one) > 2 else {})) for one in found]


def mean(runs, name):
    return np.mean([float(run[name] or "nan") for run in runs])


def tuned(runs):
    """The runs from each start of the cell that is best by the other starts; cells with a failed run are none."""
    cells = defaultdict(list)
    for run in runs:
        cells[tuple(run[name] for name in CELL)].append(run)
    whole = [
        {start: [run for run in some if run["start"] == start] for start in STARTS}
        for some in cells.values()
        if {run["start"] for run in some} == set(STARTS) and all(run["status"] == "done" for run in some)
    ]
    found = {}
    for start in STARTS:
        others = [one for one in STARTS if one != start]
        found[start] = max(whole, key=lambda cell: np.mean([mean(cell[one], "score") for one in others]))[start]
    return found


def p_above(values, bound, sign=1.0):
    return stats.ttest_1samp(sign * np.asarray(values), bound, alternative="greater").pvalue


def margin_of(objective):
    before = {run["start"]: float(run["start_score"]) for run in RUNS}
    gains = [mean(some, "score") - before[start] for start, some in tuned(of(objective, "online")).items()]
    assert stats.ttest_1samp(gains, 0.0).confidence_interval(0.95).low > 0
    return 0.1 * np.mean(gains)


def recomputed(row):
    first, second = map(tuned, sides(row["says"], row["objective"]))
    differences = [mean(first[start], row["of"]) - mean(second[start], row["of"]) for start in STARTS]
    low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    margin = margin_of(row["objective"]) if row["kind"] == "alike" else math.nan
    if row["kind"] == "alike":
        p = max(p_above(differences, -margin), p_above(differences, -margin, -1))
        contrary = min(1.0, 2 * min(p_above(differences, margin), p_above(differences, margin, -1)))
    else:
        sign = 1.0 if row["kind"] == "more" else -1.0
        p, contrary = p_above(differences, 0.0, sign), p_above(differences, 0.0, -sign)
    clipping = second if row["says"].startswith("syncing without clipping") else first
    clipped = np.nan_to_num(np.mean([mean(clipping[start], "clipped") for start in STARTS]))
    told = {"first": np.mean([mean(first[start], row["of"]) for start in STARTS]), "difference": np.mean(differences)}
    return told | {"low": low, "high": high, "margin": margin, "p": p, "contrary": contrary, "clipped": clipped}


def holms(values):
    """Each p-value times the number of those that are not smaller, and no less than a smaller one's."""
    order, found, most = np.argsort(values), {}, 0.0
    for place, which in enumerate(order):
        most = max(most, min(1.0, (len(values) - place) * values[which]))
        found[int(which)] = most
    return [found[which] for which in range(len(values))]


CLAIMS = defaultdict(list)
for committed in rows_of("paper.csv"):
    if committed["where"] != "Figure 9":  # of another testbed
        CLAIMS[committed["where"], committed["says"]].append(committed)


@pytest.mark.parametrize(("where", "says"), CLAIMS)
def test_numbers_and_verdict_of_a_claim_are_those_of_the_runs(where, says):
    """Every number of the committed table, and what it comes to."""
    rows = CLAIMS[where, says]
    found = [recomputed(row) for row in rows]
    for one, p, contrary in zip(
        found, holms([x["p"] for x in found]), holms([x["contrary"] for x in found]), strict=True
    ):
        one |= {"adjusted": p, "contrary_adjusted": contrary}
    about_clips = where in ("Figure 5, left", "Figure 5, right", "Table 6")
    for row, one in zip(rows, found, strict=True):
        for name, value in one.items():
            written = float(row[name]) if row[name] else math.nan
            assert written == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), (row["objective"], name)
        if about_clips and one["clipped"] < 0.01:
            verdict = "not testable here"
        else:
            sure = {"holds here": one["adjusted"] <= 0.05, "does not hold here": one["contrary_adjusted"] <= 0.05}
            verdict = next((name for name, is_sure in sure.items() if is_sure), "undecided here")
        assert row["verdict"] == verdict, row["objective"]
        for name, side in zip(("first_edges", "second_edges"), sides(row["says"], row["objective"]), strict=True):
            chosen = [some[0] for some in tuned(side).values()]
            assert set(row[name].split(", ")) == told(chosen, side, RUNS), (row["objective"], name)
