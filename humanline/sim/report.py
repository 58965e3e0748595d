"""A study from the names of its runs to the table of claims, and the files that it leaves."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import humanline
from humanline.sim.claims import Claim, chosen
from humanline.sim.contrasts import CLIPPED, MARGIN
from humanline.sim.judging import CONTRARY, HOLDS, LEVEL, NOT_TESTED, UNDECIDED, Finding, Judgement, judge
from humanline.sim.lookup import Setting, Study
from humanline.sim.run import Run
from humanline.sim.study import MEASURES, Result, run_study
from humanline.sim.variants import GROUPS, OBJECTIVES, RATES, SYNC_EVERY, TASKS, VARIANTS, make_run
from humanline.sim.world import whole
from humanline.stats import mean_interval

Cell = tuple[str, str, float, str]  # task, objective, rate, variant


@dataclass(frozen=True)
class Scale:
    """Say how large a study is."""

    seeds: int
    steps: int
    rates: tuple[float, ...]


FULL = Scale(seeds=200, steps=256, rates=RATES)
#: Small enough to wait for; its intervals are wide and its runs short.
QUICK = Scale(seeds=24, steps=80, rates=(0.1,))
#: What the figures need beyond the claims: (tasks, objectives, variants).
DIAGRAMS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("verifiable",), ("grpo",), tuple(f"online+humanline every=64 k={k}" for k in SYNC_EVERY)),
    (("verifiable",), ("grpo",), ("online every=1", "online every=4", "online every=16", "online every=64")),
    (("sequence",), ("dpo", "grpo"), ("offline", *(f"offline+humanline k={k}" for k in SYNC_EVERY))),
    (("bandit", "sequence"), ("dpo", "dpo beta 1", "dpo beta 10"), ("offline", "offline+humanline", "online")),
)


def cells_of(claims: Sequence[Claim], scale: Scale, *, diagrams: bool = True) -> dict[Cell, Run]:
    """Return the runs that these claims, and the figures if asked for, need."""
    wanted = [(claim.tasks, claim.objectives, claim.variants) for claim in claims]
    wanted += DIAGRAMS if diagrams else ()
    names = dict.fromkeys(
        (task, objective, rate, variant)
        for tasks, objectives, variants in wanted
        for task in tasks
        for objective in objectives
        for rate in scale.rates
        for variant in variants
    )
    return {name: make_run(*name, steps=scale.steps) for name in names}


def settings_of(claim: Claim, scale: Scale) -> list[Setting]:
    """Return the settings that a claim is judged in: every learning rate, and each variant's best."""
    rates = [*scale.rates, None] if len(scale.rates) > 1 else [*scale.rates]
    return [Setting(task, objective, rate) for task in claim.tasks for objective in claim.objectives for rate in rates]


@dataclass(frozen=True)
class Report:
    """Hold a finished study."""

    scale: Scale
    results: dict[Cell, Result]
    judgements: list[Judgement]


def study(
    out: str | Path,
    *,
    claims: Sequence[str] = (),
    scale: Scale = FULL,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run what some claims need, judge them, and write the results.

    Parameters
    ----------
    out : path
        Folder, made if need be. ``study.sqlite`` in it keeps every finished run: the same call goes on where it was
        stopped. ``claims.md``, ``claims.csv``, ``runs.csv`` and ``settings.json`` are written at the end.
    claims : sequence of str
        Names of `CLAIMS`; all, and what the figures need beyond them, if empty.
    scale : Scale
    processes : int >= 1
    progress : callable, optional
        Called with (done, total) runs.

    Raises
    ------
    ValueError
        If a claim is unknown (the nearest is suggested) or `processes` < 1; nothing is then run or written.
    OSError
        If the folder, or the file in it, cannot be written.
    """
    wanted, processes = chosen(claims), whole("processes", processes, 1)
    cells = cells_of(wanted, scale, diagrams=not claims)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {"/".join(map(str, cell)): cell for cell in cells}
    found = run_study(
        {name: cells[cell] for name, cell in by_name.items()},
        range(scale.seeds),
        folder / "study.sqlite",
        processes=processes,
        progress=progress,
    )
    results = {by_name[name]: result for name, result in found.items()}
    lookup = Study(results)
    report = Report(scale, results, [judge(claim, lookup, settings_of(claim, scale)) for claim in wanted])
    write_csv(folder, report)
    (folder / "settings.json").write_text(json.dumps(settings(scale), indent=1) + "\n", encoding="utf-8")
    (folder / "claims.md").write_text(markdown(report), encoding="utf-8")
    return report


def settings(scale: Scale) -> dict[str, object]:
    """Return everything that the numbers depend on."""
    return {
        "humanline": humanline.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "seeds": f"0 to {scale.seeds - 1}",
        "steps": scale.steps,
        "learning rates": list(scale.rates),
        "tasks": {name: repr(task) for name, task in TASKS.items()},
        "groups a step, responses a group": {
            name: list(GROUPS.get(name, (Run.groups, Run.group_size))) for name in TASKS
        },
        "objectives": {name: repr(objective) for name, objective in OBJECTIVES.items()},
        "variants": {name: repr(variant) for name, variant in VARIANTS.items()},
    }


def write_csv(folder: Path, report: Report) -> None:
    """Write ``claims.csv``, a row for each claim and setting, and ``runs.csv``, a row for each run and measure."""
    with open(folder / "claims.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["claim", "task", "objective", "rate", "effect", "half_width", "p_holm", "verdict", "why"])
        for judgement in report.judgements:
            for f in judgement.findings:
                rate = "tuned" if f.setting.rate is None else f"{f.setting.rate:g}"
                numbers = [f"{x:.6g}" for x in (f.effect.mean, f.effect.half_width, f.p)]
                names = [judgement.claim.name, f.setting.task, f.setting.objective, rate]
                rows.writerow([*names, *numbers, f.verdict, f.why])
    with open(folder / "runs.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["task", "objective", "rate", "variant", "measure", "mean", "half_width", "seeds"])
        for cell, result in sorted(report.results.items()):
            for measure in [*MEASURES, *(name for name in result if name.startswith("curve"))]:
                finite = result[measure][np.isfinite(result[measure])]
                if len(finite):
                    interval = mean_interval(finite.tolist())
                    numbers = [f"{interval.mean:.6g}", f"{interval.half_width:.6g}", str(len(finite))]
                    rows.writerow([cell[0], cell[1], f"{cell[2]:g}", cell[3], measure, *numbers])


def markdown(report: Report) -> str:
    """Return the table of claims, and below it every setting of every claim."""
    scale = report.scale
    flags = {FULL: "", QUICK: " --quick"}.get(scale, " (a part or a scale of its own)")
    rates = ", ".join(f"{rate:g}" for rate in scale.rates)
    lines = [
        "# The paper's claims on problems small enough to be exact",
        "",
        f"Made by `humanline sim{flags}`. {scale.seeds} seeds, {scale.steps} optimizer steps, learning rates {rates} "
        "(Adam), on contextual bandits, sequences of tokens with a graded score, and sequences that are right or "
        "wrong. Every seed has a problem, data and draws of its own, shared by all variants, and is compared with "
        "itself. Effects are means over seeds with 95 % Student intervals, in shares of what there is to gain (0 the "
        "start policy, 1 the best response everywhere) unless the claim says otherwise. *Tuned*: each variant at the "
        "learning rate that is best for it on the other half of the seeds.",
        "",
        f"In a setting a claim *holds* if sign-flip tests say so at p < {LEVEL:g}, corrected over the settings of the "
        "claim by Holm's method, and is *contrary* if they say the opposite. Over all settings it *holds* if it holds "
        "in every tested one, *does not hold* if in none, and *depends* otherwise. A claim about clipping is tested "
        f"only where more than {CLIPPED:.0%} of tokens are clipped. As good as means within {MARGIN:g}.",
        "",
        "| claim | verdict | holds / contrary / undecided / not tested | effect, least to largest | depends on |",
        "|---|---|---|---|---|",
    ]
    for judgement in report.judgements:
        count = _counts(judgement)
        span = _span(judgement.tested)
        on = _dependence(judgement) if judgement.verdict == "depends" else ""
        lines.append(
            f"| [{judgement.claim.name}](#{judgement.claim.name}) | **{judgement.verdict}** | {count} | {span} | {on} |"
        )
    for judgement in report.judgements:
        claim = judgement.claim
        lines += ["", f"## {claim.name}", "", f"{claim.words} ({claim.source}.) Effect: {claim.effect}.", ""]
        lines += ["| setting | effect | p (Holm) | verdict |", "|---|---|---|---|"]
        for f in judgement.findings:
            p = "" if f.verdict == NOT_TESTED else f"{f.p:.4f}" if f.p >= 1e-4 else "< 0.0001"
            verdict = f"{f.verdict}: {f.why}" if f.why else f"**{f.verdict}**" if f.verdict == HOLDS else f.verdict
            lines.append(f"| {f.setting} | {f.effect.mean:+.3f} ± {f.effect.half_width:.3f} | {p} | {verdict} |")
    return "\n".join(lines) + "\n"


def _counts(judgement: Judgement) -> str:
    verdicts = [finding.verdict for finding in judgement.findings]
    return " / ".join(str(verdicts.count(kind)) for kind in (HOLDS, CONTRARY, UNDECIDED, NOT_TESTED))


def _span(findings: Sequence[Finding]) -> str:
    """Return the least and the largest effect; at tuned learning rates if there are any."""
    shown = [f for f in findings if f.setting.rate is None] or list(findings)
    ordered = sorted(shown, key=lambda finding: finding.effect.mean)
    ends = dict.fromkeys(ordered[:1] + ordered[-1:])
    return " to ".join(f"{f.effect.mean:+.3f} ± {f.effect.half_width:.3f} ({f.setting})" for f in ends)


def _dependence(judgement: Judgement) -> str:
    name, levels = judgement.depends_on[0]
    return f"{name}: " + ", ".join(f"{level} {held}/{total}" for level, (held, total) in levels.items())
