"""The paper's claims at every scale they were tried at: problems small enough to be exact, and each testbed."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from humanline.reproduce.paper_claims import CLAIMS, ELSEWHERE, FAMILY
from humanline.reproduce.sampling import CLAIMS as SAMPLING_CLAIMS
from humanline.reproduce.scales.plan import Scale
from humanline.reproduce.scales.registry import SCALES
from humanline.reproduce.scales.report import CHANGED
from humanline.reproduce.shown import markdown
from humanline.reproduce.testbeds.registry import OTHERS, TESTBEDS

#: Columns of a testbed's paper.csv that are read.
_NEEDED = ("where", "says", "objective", "verdict", "difference", "low", "high", "clipped", "why")
#: Figure 9: testbeds of growing and of other models, and the claim that is asked of each. On the last one settings are
#: those that letters chose, and on the others each start model's are chosen by the other start models.
TUNED = "offline + humanline, its own k, is better than offline"
FAMILIES = {
    "letters": ("a small Llama", TUNED),
    "letters-large": ("a larger one, longer words", TUNED),
    "letters-gemma2": ("a larger model, Gemma 2", FAMILY),
}
PERSISTS = {"kto": "drawn", "dpo": "67.45, 56.58 and 56.27, 48.59", "grpo": "drawn"}
_FIGURE_9 = (
    f"Figure 9, a gain that stays with a larger model and with another family: *{TUNED}*, on testbeds where that can "
    f"be asked; and of a Gemma 2 *{FAMILY}*, both at the settings that letters chose, at the better of two rates "
    "(`humanline reproduce letters-gemma2`)."
)
_EXACT = ("claim", "task", "objective", "rate", "effect", "half_width", "verdict")


_FIGURE_7 = (
    "Figure 7, GRPO that samples 64 times less often (the paper: humanline with k of 12 to 24 closes the gap, Pass@1 "
    ".593 for both, and k = 1 collapses): the figure holds on a testbed where all three claims do (`humanline "
    "reproduce TESTBED --sampling`; declared in [sampling.yaml](frontier/sampling.yaml)). Scores less those of "
    "sampling every step."
)
#: Columns of findings.csv of Figure 7 that are read.
_SAMPLED = ("claim", "estimate", "low", "high", "margin", "verdict")


def claims_table(
    exact: Path,
    testbeds: Mapping[str, Path],
    scales: Mapping[str, Path] | None = None,
    sampled: Mapping[str, Path] | None = None,
    chosen: Mapping[str, Path] | None = None,
) -> str:
    """Return a row for each claim and objective, with what every scale says of it, as Markdown.

    Testbeds that no hypothesis is about have a column under Figure 9 alone.
    Of the exact problems the settings are told in which every variant has its own best learning rate.

    Parameters
    ----------
    exact : Path
        claims.csv of `humanline sim`.
    testbeds : mapping of str to Path
        paper.csv of each testbed (`humanline reproduce`), by its name.
    scales : mapping of str to Path, optional
        The same of larger models (`humanline reproduce --scale`), where someone ran them. Of a scale without, the row
        says which runs would tell.
    sampled : mapping of str to Path, optional
        findings.csv of Figure 7, by testbed.
    chosen : mapping of str to Path, optional
        chosen.csv of tuned cells on draws that did not choose them (`humanline reproduce --chosen`), by testbed.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If it is no such table, or lacks a claim.
    """
    of_exact, of_testbeds = _read(exact, _EXACT), {name: _read(path, _NEEDED) for name, path in testbeds.items()}
    of_scales = {name: _read(path, _NEEDED) for name, path in (scales or {}).items()}
    of_chosen = {name: _read(path, _NEEDED) for name, path in (chosen or {}).items()}
    plans, rows = [make() for make in SCALES.values()], []
    for claim in CLAIMS:
        for objective, number in claim.numbers.items():
            row = {"where": claim.where, "claim": claim.says, "objective": objective, "paper": number}
            row["exact problems"] = _exact_words(of_exact, claim.exact, objective)
            for name, found in of_testbeds.items():
                told = _row_of(found, claim.says, objective, testbeds[name], f"humanline reproduce {name}")
                if name not in OTHERS:
                    asked = not claim.testbeds or name in claim.testbeds
                    row[name] = _words(told) + _anew(of_chosen.get(name, ()), told) if asked else ""
            larger = []
            for plan in plans:
                of_plan = None
                if plan.name in of_scales:
                    file, anew = (scales or {})[plan.name], f"humanline reproduce --scale {plan.name}"
                    of_plan = _row_of(of_scales[plan.name], claim.says, objective, file, anew)
                larger += _of_scale(plan, claim.says, objective, of_plan)
            row["larger models"] = "; ".join(larger)
            rows.append(row)
    elsewhere = "".join(f"- {where}: {why}.\n" for where, why in ELSEWHERE.items() if where != "Figure 7")
    figure_7 = markdown(list(_figure_7({name: _read(path, _SAMPLED) for name, path in (sampled or {}).items()})))
    figure_9 = markdown(list(_figure_9(of_testbeds)))
    figures = f"{_FIGURE_7}\n\n{figure_7}\n{_FIGURE_9}\n\n{figure_9}"
    return f"{markdown(rows)}\n{figures}\nWithout a row:\n\n{elsewhere}"


def _figure_7(of_testbeds: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[dict[str, str]]:
    """Yield, for each claim of Figure 7, what every testbed says of it."""
    for claim, says in SAMPLING_CLAIMS.items():
        row = {"claim": says}
        for name in TESTBEDS:
            mine = [one for one in of_testbeds.get(name, ()) if one["claim"] == claim]
            row[name] = _sampling_words(mine[0]) if mine else "not run"
        yield row


def _sampling_words(row: Mapping[str, str]) -> str:
    estimate, low, high, margin = (float(row[name]) for name in ("estimate", "low", "high", "margin"))
    said = {"holds": "holds here", "fails": "does not hold here"}.get(row["verdict"], "undecided here")
    return f"{said}, {estimate:+.3f} ({low:+.3f} .. {high:+.3f}), margin {margin:.3f}"


def _figure_9(of_testbeds: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[dict[str, str]]:
    """Yield, for each objective, what testbeds of growing and of other models say of humanline beside offline."""
    for objective, paper in PERSISTS.items():
        row = {"objective": objective, "paper: 27B over offline": paper}
        for name, (what, says) in FAMILIES.items():
            found = of_testbeds.get(name, ())
            mine = [one for one in found if (one["says"], one["objective"]) == (says, objective)]
            row[f"{name}: {what}"] = _words(mine[0]) if mine else "not run"
        yield row


def _row_of(
    rows: Sequence[Mapping[str, str]], says: str, objective: str, file: Path, command: str
) -> Mapping[str, str]:
    """Return the one row of a claim; raise ValueError if there is none, or several."""
    mine = [one for one in rows if (one["says"], one["objective"]) == (says, objective)]
    if len(mine) != 1:
        raise ValueError(f"{file}: {len(mine)} rows of {says!r} for {objective}, not 1: write it anew with `{command}`")
    return mine[0]


def _anew(chosen: Sequence[Mapping[str, str]], told: Mapping[str, str]) -> str:
    """Return what the draws say that chose no cell, of a claim whose cells were chosen; nothing of others."""
    same = ("says", "objective")
    mine = [one for one in chosen if all(one[name] == told[name] for name in same)]
    return "".join(f"; on draws that chose nothing: {_words(one)}" for one in mine)


def _of_scale(plan: Scale, says: str, objective: str, told: Mapping[str, str] | None) -> list[str]:
    """Return what a scale says of a claim, or which of its runs would; nothing where none does."""
    asked = [one for one in plan.asked if (one.says, one.objective) == (says, objective)]
    if not asked:
        return []
    if told is not None and told["verdict"] != "not run":
        notes = ["one seed"] if told.get("starts") == "1" else []
        notes += [CHANGED] if told.get("differs", "").startswith(CHANGED) else []
        said = f" ({', '.join(notes)})" if notes else ""
        return [f"{plan.name}: {_words(told)}{said}"]
    names = dict.fromkeys("/".join(name.split("/")[:2]) for name in (*asked[0].first, *asked[0].second))
    return [f"{plan.name}: not run (`--only {' '.join(names)}`)"]


def _exact_words(rows: Sequence[Mapping[str, str]], claim: str, objective: str) -> str:
    """Return the verdicts of the exact problems in words; empty where none asks the same."""
    mine = [row for row in rows if (row["claim"], row["objective"], row["rate"]) == (claim, objective, "tuned")]
    return "; ".join(f"{row['task']}: {row['verdict']}{_effect(row)}" for row in mine)


def _effect(row: Mapping[str, str]) -> str:
    return f", {float(row['effect']):+.3f} ± {float(row['half_width']):.3f}" if row["effect"] else ""


def _words(row: Mapping[str, str]) -> str:
    verdict = row["verdict"]
    if not row["difference"]:
        return verdict
    numbers = f"{float(row['difference']):+.3f} ({float(row['low']):+.3f} .. {float(row['high']):+.3f})"
    return f"{verdict}, {numbers}" + (f"; {row['why']}" if verdict.startswith("not") else "")


def _read(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if missing := [name for name in needed if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{path}: it has no column {missing[0]!r}")
        return list(reader)
