"""What a study writes: every claim in every setting as CSV, every run as CSV, and the table of claims in words."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from humanline.sim.contrasts import CLIPPED, MARGIN
from humanline.sim.distances import MARGIN_NATS, MARGIN_RANKS
from humanline.sim.findings import (
    CONTRARY,
    DEPENDS,
    HOLDS,
    LEVEL,
    NOT_TESTED,
    OVERALL,
    ROUNDING,
    SLIGHTLY_CONTRARY,
    SMALL,
    UNDECIDED,
    VERDICTS,
    Finding,
    Judgement,
)
from humanline.sim.judging import FLIPS, MOVED
from humanline.sim.study import MEASURES, Result
from humanline.stats import mean_interval

#: Columns of the table of claims that count settings of fixed learning rates.
_COUNTED = (HOLDS, SMALL, CONTRARY, UNDECIDED, ROUNDING, NOT_TESTED)


def write_findings(path: Path, judgements: Iterable[Judgement]) -> None:
    """Write a row for each claim and setting as CSV."""
    columns = ["claim", "task", "objective", "rate", "effect", "half_width", "p_holm", "p_all_claims", "moved"]
    columns += ["verdict", "verdict_all_claims", "same_as", "edges", "idle", "why"]
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        for judgement in judgements:
            for f in judgement.findings:
                names = [judgement.claim.name, f.setting.task, f.setting.objective, _rate(f.setting.rate)]
                numbers = [f"{x:.6g}" for x in (f.effect.mean, f.effect.half_width, f.p, f.p_jointly, f.moved)]
                same = "" if f.same_as is None else f"{f.same_as:g}"
                rows.writerow(
                    [*names, *numbers, f.verdict, f.jointly, same, "; ".join(f.edges), "; ".join(f.idle), f.why]
                )


def write_runs(path: Path, results: Mapping[tuple[str, str, float, str], Result]) -> None:
    """Write a row for each run and measure as CSV."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["task", "objective", "rate", "variant", "measure", "mean", "half_width", "seeds"])
        for cell, result in sorted(results.items()):
            for measure in [*MEASURES, *(name for name in result if name not in MEASURES)]:
                finite = result[measure][np.isfinite(result[measure])]
                if len(finite):
                    interval = mean_interval(finite.tolist())
                    numbers = [f"{interval.mean:.6g}", f"{interval.half_width:.6g}", str(len(finite))]
                    rows.writerow([cell[0], cell[1], f"{cell[2]:g}", cell[3], measure, *numbers])


def markdown(judgements: Sequence[Judgement], *, made: str) -> str:
    """Return the table of claims, and below it every setting of every claim.

    Parameters
    ----------
    judgements : sequence of Judgement
    made : str
        How the study was made, a sentence.
    """
    verdicts = "; ".join(f"*{verdict}*: {words}" for verdict, words in OVERALL.items())
    lines = [
        "# The paper's claims on problems small enough to be exact",
        "",
        f"{made} Every seed has a problem, data and draws of its own, shared by all variants, and is compared with "
        "itself. Effects are means over seeds with 95 % Student intervals, in shares of what there is to gain (0 the "
        "start policy, 1 the best response everywhere) unless the claim says otherwise. *Tuned*: each variant at the "
        "learning rate that is best for it on the other half of the seeds.",
        "",
        f"In a setting a claim *holds* if sign-flip tests ({FLIPS:,} random signs) say so at p < {LEVEL:g}, corrected "
        "over the settings of the claim by Holm's method, and is *contrary* if they say the opposite. A difference "
        f"that is to be positive is *small* if it is, by less than {MARGIN:g} of what there is to gain "
        f"({MARGIN_NATS:g} nats, {MARGIN_RANKS:g} of a correlation), and *slightly* contrary if it is negative by "
        f"less. As good as means within {MARGIN:g}. *Idle*: a variant of the claim that clips or rejects does so to no "
        f"more than {CLIPPED:.0%} of its tokens, and is then hardly another variant; a claim about clipping is not "
        "tested there.",
        "",
        f"Over all settings: {verdicts}.",
        "",
        *_joint(judgements),
        *_rounding(judgements),
        *_edges(judgements),
        *_placebos(judgements),
        "*Depends on*: each of task, objective and learning rate that tells more than chance (over random orders of "
        f"the settings, p < {LEVEL:g} after Holm's correction) where a claim holds, with the share of the entropy that "
        "it takes away beyond chance, so that a factor of more levels gains nothing by that.",
        "",
        "Columns of numbers count settings of fixed learning rates. Tuned settings are counted apart; those in which "
        "every variant has the same rate repeat the setting of that rate, and count nowhere else.",
        "",
        f"| claim | verdict | {' | '.join(_COUNTED)} | idle | tuned | effect, least to largest | depends on |",
        "|---|---|" + "---|" * (len(_COUNTED) + 4),
    ]
    lines += [_line(judgement) for judgement in judgements]
    for judgement in judgements:
        claim = judgement.claim
        lines += ["", f"## {claim.name}", "", f"{claim.words} ({claim.source}.) Effect: {claim.effect}.", ""]
        lines += ["| setting | effect | p (Holm) | verdict | notes |", "|---|---|---|---|---|"]
        lines += [_setting(finding) for finding in judgement.findings]
    return "\n".join(lines) + "\n"


def _line(judgement: Judgement) -> str:
    """Return the row of a claim in the table of all."""
    count = Counter(finding.verdict for finding in judgement.fixed)
    cells = [_of(count, verdict) for verdict in _COUNTED]
    idle = str(sum(bool(f.idle) for f in judgement.fixed)) if judgement.fixed else ""
    name = judgement.claim.name
    on = _dependence(judgement) if judgement.verdict == DEPENDS else ""
    columns = [f"[{name}](#{name})", f"**{judgement.verdict}**", *cells, idle, _tuned(judgement), _span(judgement), on]
    return f"| {' | '.join(columns)} |"


def _of(count: Mapping[str, int], verdict: str) -> str:
    slightly = count.get(SLIGHTLY_CONTRARY, 0) if verdict == CONTRARY else 0
    return f"{count.get(verdict, 0) + slightly}" + (f" ({slightly} slightly)" if slightly else "")


def _tuned(judgement: Judgement) -> str:
    tuned = judgement.tuned
    count = Counter(finding.verdict for finding in tuned)
    parts = [", ".join(f"{verdict} {count[verdict]}" for verdict in VERDICTS if count[verdict])]
    repeated, edges = sum(f.same_as is not None for f in tuned), sum(bool(f.edges) for f in tuned)
    parts += [f"{repeated} as at a fixed rate"] * bool(repeated) + [f"{edges} at an edge"] * bool(edges)
    return "; ".join(parts)


def _span(judgement: Judgement) -> str:
    """Return the least and the largest effect of the tested settings; at tuned learning rates if there are any."""
    tested = [f for f in judgement.findings if f.tested]
    ordered = sorted([f for f in tested if f.setting.rate is None] or tested, key=lambda finding: finding.effect.mean)
    ends = dict.fromkeys(ordered[:1] + ordered[-1:])
    return " to ".join(f"{f.effect.mean:+.3f} ± {f.effect.half_width:.3f} ({f.setting})" for f in ends)


def _dependence(judgement: Judgement) -> str:
    if len({f.verdict == HOLDS for f in judgement.fixed if f.tested}) == 1:
        return "whether the learning rate is tuned"
    if not judgement.depends_on:
        return "none of task, objective and learning rate tells more than chance"
    first, *others = judgement.depends_on
    return "; ".join([f"{first} ({first.share:.0%})", *(f"{each.name} ({each.share:.0%})" for each in others)])


def _setting(f: Finding) -> str:
    p = "" if f.verdict == NOT_TESTED else f"{f.p:.4f}" if f.p >= 1e-4 else "< 0.0001"
    notes = [f.why] * bool(f.why) + ([] if f.same_as is None else [f"the same runs as lr {f.same_as:g}"])
    notes += [f"at the edge of what was run: {', '.join(f.edges)}"] * bool(f.edges)
    notes += [f"idle: {', '.join(f.idle)}"] * bool(f.idle)
    notes += [f"{f.jointly} if corrected over all claims"] * (f.jointly != f.verdict)
    verdict = f"**{f.verdict}**" if f.verdict == HOLDS else f.verdict
    return f"| {f.setting} | {f.effect.mean:+.3f} ± {f.effect.half_width:.3f} | {p} | {verdict} | {'; '.join(notes)} |"


def _joint(judgements: Sequence[Judgement]) -> list[str]:
    """Say what a correction over the settings of all claims changes."""
    tested = [(j, f) for j in judgements for f in j.tested]
    changed = [(j, f) for j, f in tested if f.jointly != f.verdict]
    others = [f"{j.claim.name} ({j.jointly})" for j in judgements if j.jointly != j.verdict]
    text = f"Corrected over the {len(tested)} tested settings of all claims at once, "
    if not changed:
        return [text + "every verdict stays as it is.", ""]
    text += f"{len(changed)} of them have another verdict, in {len({j.claim.name for j, _ in changed})} of the claims; "
    return [text + (f"over all settings so have {', '.join(others)}." if others else "over all settings none has."), ""]


def _rounding(judgements: Sequence[Judgement]) -> list[str]:
    """Say how many settings hang on rounding."""
    findings = [f for j in judgements for f in j.findings if np.isfinite(f.moved)]
    hang = sum(f.verdict == ROUNDING for f in findings)
    if not findings:
        return []
    return [
        "Every run was made a second time with start parameters disturbed in the last digits. A setting whose verdict "
        f"then changes, or whose effect moves by more than {MOVED:g} of its half-width, is marked *rounding* and is "
        f"no evidence: {hang} of {len(findings)}.",
        "",
    ]


def _edges(judgements: Sequence[Judgement]) -> list[str]:
    """Say how often the best learning rate of a variant is the least or the largest that was run."""
    tuned = [(j.claim, f) for j in judgements for f in j.tuned]
    variants = {(f.setting.task, f.setting.objective, name) for claim, f in tuned for name in claim.variants}
    at_edge = {(f.setting.task, f.setting.objective, name.rpartition(" at ")[0]) for _, f in tuned for name in f.edges}
    settings = sum(bool(f.edges) for _, f in tuned)
    if not tuned:
        return []
    return [
        f"The best learning rate of {len(at_edge)} of {len(variants)} tuned variants is the least or the largest that "
        f"was run, so that a wider range might say something else: in {settings} of {len(tuned)} tuned settings.",
        "",
    ]


def _placebos(judgements: Sequence[Judgement]) -> list[str]:
    """Say in how many settings a placebo, which should hold nowhere, holds, and in how many the contrary does."""
    placebos = [j for j in judgements if j.claim.placebo]
    tested = [(j, f) for j in placebos for f in j.tested]
    if not placebos:
        return []
    better, worse = (
        [f"{j.claim.name} ({f.setting}: {f.effect.mean:+.3f}, {f.verdict})" for j, f in tested if f.verdict in kinds]
        for kinds in ((HOLDS, SMALL), (SLIGHTLY_CONTRARY, CONTRARY))
    )
    said = [f"{len(some)}{': ' * bool(some)}{'; '.join(some)}" for some in (better, worse)]
    return [
        "Placebos say that something helps which should not, and are corrected as the claims are, so that each has a "
        f"chance of {LEVEL:g} to hold anywhere by accident, and as much to be contrary. Of {len(tested)} tested "
        f"settings of {len(placebos)} placebos it helps in {said[0]}. It does harm in {said[1]}. What else a placebo "
        "may do stands with its words.",
        "",
    ]


def _rate(rate: float | None) -> str:
    return "tuned" if rate is None else f"{rate:g}"
