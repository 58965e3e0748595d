"""What a study of people says, in words and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from humanline.sim.contrasts import MARGIN
from humanline.sim.findings import Judgement
from humanline.stats import mean_interval

Results = Mapping[tuple[str, str, float, str], Mapping[str, NDArray[np.float64]]]


def people_markdown(judgements: Sequence[Judgement], results: Results, *, made: str) -> str:
    """Return the claims with their verdicts in every setting, and what each variant came to."""
    lines = [
        "# Does it help to perceive as each person does?",
        "",
        made,
        "",
        "Each person values the trained policy as a lottery over true scores, by value function and decision weights "
        "of their own, exactly: 0 is the start policy, 1 the best response always. The rule of training is made from "
        "a gamma: of 1992 (shared), of the population, of the person (known exactly, so that estimates could only do "
        "worse), or of another person. *test*: the one-sided test of Prop. 4.1; *clip*: the nearest clip range "
        "without an upper end. Effects are means over people, in pairs, with 95 % Student intervals; verdicts are "
        "those of the study of claims (sign-flip tests, Holm over the settings of a claim; *small*: below "
        f"{MARGIN:g}).",
        "",
        "| claim | verdict | holds | small | undecided | contrary | effect, least to largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in judgements:
        count = Counter(finding.verdict for finding in one.findings)
        effects = sorted(one.findings, key=lambda finding: finding.effect.mean)
        ends = " to ".join(f"{f.effect.mean:+.4f} ± {f.effect.half_width:.4f}" for f in (effects[0], effects[-1]))
        contrary = count["contrary"] + count["slightly contrary"]
        lines.append(
            f"| {one.claim.name} | **{one.verdict}** | {count['holds']} | {count['small']} | {count['undecided']} "
            f"| {contrary} | {ends} |"
        )
    for one in judgements:
        lines += ["", f"## {one.claim.name}", "", f"{one.claim.words} Effect: {one.claim.effect}.", ""]
        lines += ["| setting | effect | p (Holm) | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {f.setting} | {f.effect.mean:+.4f} ± {f.effect.half_width:.4f} | {f.p:.4f} | {f.verdict} |"
            for f in one.findings
        ]
    lines += [
        "",
        "## What each came to",
        "",
        "Mean over people: worth to the person; true score gained; share of tokens ",
    ]
    lines[-1] += "that the rule acted on."
    lines += ["", "| setting | variant | worth | score | acted on |", "|---|---|---|---|---|"]
    for (task, objective, rate, variant), measures in results.items():
        worth, gained = (mean_interval(measures[name].tolist()) for name in ("felt", "gained"))
        lines.append(
            f"| {task}, {objective}, lr {rate:g} | {variant} | {worth.mean:.4f} ± {worth.half_width:.4f} "
            f"| {gained.mean:.4f} | {float(measures['outside'].mean()):.3f} |"
        )
    return "\n".join(lines) + "\n"
