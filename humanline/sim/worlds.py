"""The first three claims in worlds closer to training: each dial turned alone, away from the study's own problems.

A *dial* changes one thing: who labels, how much data there is, what they cover, what the policy shares between
contexts, how long a response is. Off, a dial leaves a problem of `variants` as it is.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from humanline.sim.claims import CLAIMS
from humanline.sim.contrasts import MARGIN
from humanline.sim.findings import Judgement
from humanline.sim.judging import judge
from humanline.sim.labels import Judge
from humanline.sim.lookup import Setting, Study
from humanline.sim.report import Scale
from humanline.sim.run import Fixed, Run
from humanline.sim.study import Result, run_study
from humanline.sim.variants import TASKS, make_run
from humanline.sim.world import whole
from humanline.stats import Interval, mean_interval

Change = Callable[[Run], Run]
OFF = "off"
OBJECTIVES = "dpo", "kto", "grpo"
JUDGED = "online-beats-offline", "humanline-beats-offline", "humanline-closes-gap"


@dataclass(frozen=True)
class Dial:
    """Describe one way in which the study's problems differ from training.

    Parameters
    ----------
    name, words : str
        How it is called, and what turning it means.
    levels : mapping from str to a function of a Run
        From the nearest to the study's problem to the farthest.
    tasks : tuple of str
        Names of `variants.TASKS`.
    """

    name: str
    words: str
    levels: Mapping[str, Change]
    tasks: tuple[str, ...] = ("bandit", "sequence")


def _judged(**settings: float) -> Change:
    return lambda run: replace(run, judge=Judge(**settings))


def _written(**settings: Any) -> Change:
    """Return what changes fixed data; rollouts stay as they are."""
    return lambda run: replace(run, source=replace(run.source, **settings)) if isinstance(run.source, Fixed) else run


def _posed(**settings: Any) -> Change:
    return lambda run: replace(run, task=replace(run.task, **settings))  # type: ignore[type-var]


DIALS = (
    Dial(
        "wrong comparisons",
        "Probability that the judge ranks a group the wrong way round, old data and fresh alike.",
        {f"{p:g}": _judged(wrong=p) for p in (0.1, 0.2, 0.4)},
    ),
    Dial(
        "noisy scores",
        "Standard deviation of the noise that the judge adds to a score, in those of the true score.",
        {f"{s:g}": _judged(noise=s) for s in (1.0, 3.0)},
    ),
    Dial(
        "proxy",
        "Correlation of the score that the judge looks at with the true one, which is measured.",
        {f"{c:g}": _posed(proxy=c) for c in (0.9, 0.7, 0.5)},
    ),
    Dial(
        "passes",
        "Passes of the run's steps over the offline data: so much fewer groups. Fresh data stay as many as they were, "
        "so that online alignment then has more labels.",
        {f"{n}": _written(passes=n) for n in (2, 5, 20)},
    ),
    Dial(
        "coverage",
        "Factor of the odds with which offline data show a good answer to a context: one of the best, as few as have a "
        "fifth of the start policy's probability together. At 0 the data show none of them.",
        {f"{c:g}": _written(coverage=c) for c in (0.5, 0.1, 0.0)},
    ),
    Dial(
        "sharing",
        "In place of a table: 16 features of each token, shared by all contexts and positions, read by a linear policy "
        "or by a network with 16 hidden units.",
        {"linear": _posed(features=16), "network": _posed(features=16, hidden=16)},
        ("sequence",),
    ),
    Dial(
        "length",
        "Tokens of a response, in place of 5; 4^16 sequences are sampled and never listed.",
        {"16": _posed(length=16, enumerated=False)},
        ("sequence",),
    ),
)
FULL_WORLDS = Scale(seeds=100, steps=256, rates=(0.1, 0.3))
QUICK_WORLDS = Scale(seeds=16, steps=64, rates=(0.1,))


@dataclass(frozen=True)
class Turn:
    """Hold what a claim comes to as one dial is turned, in a problem with an objective.

    Parameters
    ----------
    claim, dial, task, objective : str
    steps : list of (str, Interval, str, Interval)
        For each level, `OFF` first: its name, the effect, the verdict, and by how much the effect differs from that
        with the dial off, seed by seed.
    """

    claim: str
    dial: str
    task: str
    objective: str
    steps: list[tuple[str, Interval, str, Interval]]

    @property
    def turns_at(self) -> str:
        """Return the first level whose verdict and whose effect are others than with the dial off; empty if none is.

        The effect is another if the interval of its change excludes 0: a verdict that is another because an effect lies
        near a margin, or near the level of the test, is no turn.
        """
        off = self.steps[0][2]
        changed = (level for level, _, verdict, change in self.steps if verdict != off and change.excludes_zero)
        return next(changed, "")

    @property
    def words(self) -> str:
        """Return where the verdict turns, into what."""
        first = self.steps[0][2]
        if not self.turns_at:
            others = dict.fromkeys(verdict for _, _, verdict, _ in self.steps[1:] if verdict != first)
            return f"stays: {first}" + f" (also {', '.join(others)}, with no clear change)" * bool(others)
        verdict = next(step[2] for step in self.steps if step[0] == self.turns_at)
        return f"turns at {self.turns_at}: {first} -> {verdict}"


@dataclass(frozen=True)
class WorldsReport:
    """Hold a finished study of worlds."""

    scale: Scale
    judgements: list[Judgement]
    turns: list[Turn]


def placed(task: str, dial: str, level: str) -> str:
    """Return the name of a problem with a dial at a level; with the dial off it is the problem's own."""
    return task if level == OFF else f"{task}, {dial} {level}"


def worlds_runs(scale: Scale, dials: Sequence[Dial] = DIALS) -> dict[tuple[str, str, float, str], Run]:
    """Return the runs that the judged claims need: with every dial off, and with each at each of its levels."""
    variants = dict.fromkeys(variant for name in JUDGED for variant in CLAIMS[name].variants)
    found = {}
    for dial in dials:
        for task in dial.tasks:
            for level, change in {OFF: lambda run: run, **dial.levels}.items():
                for objective in OBJECTIVES:
                    for rate in scale.rates:
                        for variant in variants:
                            run = make_run(task, objective, rate, variant, steps=scale.steps)
                            found[placed(task, dial.name, level), objective, rate, variant] = change(run)
    return found


def study_worlds(
    out: str | Path,
    *,
    scale: Scale = FULL_WORLDS,
    dials: Sequence[Dial] = DIALS,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> WorldsReport:
    """Run the worlds, judge the claims in them, and write the results.

    Parameters
    ----------
    out : path
        Folder, made if need be. ``worlds.sqlite`` in it keeps every finished run: the same call goes on where it was
        stopped. ``worlds.md``, ``worlds.csv`` and ``worlds.json``, the settings, are written at the end.
    scale : Scale
    dials : sequence of Dial
    processes : int >= 1
    progress : callable, optional
        Called with (done, total) runs.

    Raises
    ------
    ValueError
        If `processes` < 1.
    OSError
        If the folder, or a file in it, cannot be written.
    """
    processes, runs, folder = whole("processes", processes, 1), worlds_runs(scale, dials), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    named = {"/".join(map(str, cell)): cell for cell in runs}
    found = run_study(
        {name: runs[cell] for name, cell in named.items()},
        range(scale.seeds),
        folder / "worlds.sqlite",
        processes=processes,
        progress=progress,
    )
    report = judge_worlds({named[name]: result for name, result in found.items()}, scale, dials)
    _write_csv(folder / "worlds.csv", report)
    settings = {"/".join(map(str, cell)): repr(run) for cell, run in runs.items() if cell[2] == scale.rates[0]}
    text = json.dumps({"seeds": scale.seeds, "steps": scale.steps, "rates": scale.rates, "runs": settings}, indent=1)
    (folder / "worlds.json").write_text(text + "\n", encoding="utf-8")
    (folder / "worlds.md").write_text(worlds_markdown(report, dials), encoding="utf-8")
    return report


def judge_worlds(
    results: Mapping[tuple[str, str, float, str], Result], scale: Scale, dials: Sequence[Dial] = DIALS
) -> WorldsReport:
    """Judge the claims in every world, at each variant's best rate (the only one if there is one), and set them apart.

    Holm's correction is over all worlds of a claim.
    """
    study, rate = Study(results), None if len(scale.rates) > 1 else scale.rates[0]
    settings = [
        Setting(*names, rate) for names in dict.fromkeys((task, objective) for task, objective, _, _ in results)
    ]
    judgements, turns = [], []
    for name in JUDGED:
        claim = CLAIMS[name]
        judgement = judge(claim, study, settings)
        judgements.append(judgement)
        by_setting = {finding.setting: finding for finding in judgement.findings}
        for dial in dials:
            for task in dial.tasks:
                for objective in OBJECTIVES:
                    steps, off = [], None
                    for level in (OFF, *dial.levels):
                        setting = Setting(placed(task, dial.name, level), objective, rate)
                        effect = claim.contrast(lambda v, m, s=setting: study.get(s, v, m)).effect  # type: ignore[misc]
                        off = effect if off is None else off
                        finding = by_setting[setting]
                        steps.append((level, finding.effect, finding.verdict, mean_interval((effect - off).tolist())))
                    turns.append(Turn(name, dial.name, task, objective, steps))
    return WorldsReport(scale, judgements, turns)


def _write_csv(path: Path, report: WorldsReport) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        names = ["claim", "dial", "level", "task", "objective"]
        rows.writerow([*names, "effect", "half_width", "verdict", "change", "change_half_width"])
        for turn in report.turns:
            for level, effect, verdict, change in turn.steps:
                numbers = [f"{x:.6g}" for x in (effect.mean, effect.half_width)]
                changes = [f"{x:.6g}" for x in (change.mean, change.half_width)]
                row = [turn.claim, turn.dial, level, turn.task, turn.objective]
                rows.writerow([*row, *numbers, verdict, *changes])


def worlds_markdown(report: WorldsReport, dials: Sequence[Dial] = DIALS) -> str:
    """Return where each claim turns as each dial is turned, with all effects."""
    scale = report.scale
    rates = ", ".join(f"{rate:g}" for rate in scale.rates)
    at = f"each variant at the best of the learning rates {rates} for it on the other half of the seeds"
    flags = {FULL_WORLDS: "", QUICK_WORLDS: " --quick"}.get(scale, " (a scale of its own)")
    problems = " and ".join(type(TASKS[task]).__name__ for task in ("bandit", "sequence"))
    lines = [
        "# Where the claims turn in worlds closer to training",
        "",
        f"Made by `humanline sim --worlds{flags}`. {scale.seeds} seeds, {scale.steps} optimizer steps, "
        f"{at if len(scale.rates) > 1 else f'learning rate {rates}'} (Adam). With so few rates a variant might do "
        "better at another, and how verdicts hang on rounding is not measured here. Each dial is turned alone, away "
        f"from the problems {problems} of the study. Training sees the labels; every score is the true one, as a share "
        "of what there is to gain. Effects are means over seeds with 95 % Student intervals.",
        "",
        "Verdicts are those of the study (`humanline sim`, claims.md), corrected over all worlds of a claim by Holm's "
        f"method: *holds*; *small*, if so by less than {MARGIN:g}; *contrary*, or *slightly* so if by less than that; "
        "*undecided* and *not tested* are no evidence. A claim *turns* at the first level whose verdict differs from "
        "that with the dial off and whose effect does too, seed by seed (the 95 % interval of the change, in "
        f"worlds.csv, excludes 0). As good as means within {MARGIN:g}.",
        "",
        "## The dials",
        "",
        *(f"- **{dial.name}** ({', '.join(dial.levels)}): {dial.words}" for dial in dials),
    ]
    for name in JUDGED:
        claim, turns = CLAIMS[name], [turn for turn in report.turns if turn.claim == name]
        turned = sum(bool(turn.turns_at) for turn in turns)
        lines += ["", f"## {name}", "", f"{claim.words} Effect: {claim.effect}. "]
        lines[-1] += f"It turns in {turned} of {len(turns)} rows."
        lines += ["", "| dial | problem | objective | where it turns | effect by level |", "|---|---|---|---|---|"]
        for turn in turns:
            effects = "; ".join(
                f"{level} {effect.mean:+.3f} ± {effect.half_width:.3f} {verdict}"
                for level, effect, verdict, _ in turn.steps
            )
            lines.append(f"| {turn.dial} | {turn.task} | {turn.objective} | {turn.words} | {effects} |")
    return "\n".join(lines) + "\n"
