"""What a study of people says, in words and tables, made from what its files hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.sim.claims import PERSONAL
from humanline.sim.contrasts import MARGIN
from humanline.sim.findings import (
    CONTRARY,
    HOLDS,
    LEVEL,
    SLIGHTLY_CONTRARY,
    SMALL,
    UNDECIDED,
    Judgement,
    overall,
)
from humanline.stats import mean_interval

Results = Mapping[tuple[str, str, float, str], Mapping[str, NDArray[np.float64]]]
#: Verdicts of settings, each with a column of its own and what it says.
_SAID = {
    HOLDS: f"the mean effect is above 0 and no less than {MARGIN:g}",
    SMALL: f"above 0, but less than {MARGIN:g}",
    UNDECIDED: "neither above nor below 0 can be shown",
    SLIGHTLY_CONTRARY: f"below 0, by less than {MARGIN:g}",
    CONTRARY: f"below 0, by {MARGIN:g} or more",
}


def finding_rows(judgements: Sequence[Judgement]) -> list[dict[str, str]]:
    """Return the rows of ``people.csv``: one of each claim and setting."""
    rows = []
    for judgement in judgements:
        for f in judgement.findings:
            row = {"claim": judgement.claim.name, "task": f.setting.task, "objective": f.setting.objective}
            numbers = {
                "rate": f.setting.rate or 0.0, "effect": f.effect.mean, "half_width": f.effect.half_width,
                "p_holm": f.p, "p_all_claims": f.p_jointly,
            }  # fmt: skip
            row |= {name: f"{x:.6g}" for name, x in numbers.items()}
            rows.append({**row, "verdict": f.verdict})
    return rows


def came_to(results: Results) -> list[dict[str, Any]]:
    """Return what each variant came to, as ``people.json`` holds it: means over people, rounded."""
    rows = []
    for (task, objective, rate, variant), measures in results.items():
        worth, gained = (mean_interval(measures[name].tolist()) for name in ("felt", "gained"))
        rows.append(
            {
                "task": task, "objective": objective, "rate": rate, "variant": variant,
                "worth": round(worth.mean, 4), "half_width": round(worth.half_width, 4),
                "score": round(gained.mean, 4), "acted_on": round(float(measures["outside"].mean()), 3),
            }
        )  # fmt: skip
    return rows


def people_markdown(rows: Sequence[Mapping[str, str]], variants: Sequence[Mapping[str, Any]], *, made: str) -> str:
    """Return the claims with their verdicts in every setting, and what each variant came to.

    Parameters
    ----------
    rows : sequence of mappings
        As `finding_rows` returns them, or ``people.csv`` holds them.
    variants : sequence of mappings
        As `came_to` returns them.
    made : str
        How the study was made.
    """
    by_claim = {name: [row for row in rows if row["claim"] == name] for name in dict.fromkeys(r["claim"] for r in rows)}
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
        "those of the study of claims.",
        "",
        f"Columns count settings. {_legend()} Above and below 0: by sign-flip tests, p < {LEVEL:g} after Holm's "
        f"correction over the settings of a claim. The verdict over all settings is *contrary somewhere* where one of "
        "them is contrary; *small at most* also where all that was found is small or slightly contrary.",
        "",
        f"| claim | verdict | {' | '.join(_SAID)} | effect, least to largest |",
        f"|---|---|{'---|' * len(_SAID)}---|",
    ]
    for name, mine in by_claim.items():
        count = Counter(row["verdict"] for row in mine)
        effects = sorted(mine, key=lambda row: float(row["effect"]))
        cells = [name, f"**{overall(row['verdict'] for row in mine)}**", *(str(count[verdict]) for verdict in _SAID)]
        lines.append(f"| {' | '.join([*cells, f'{_effect(effects[0])} to {_effect(effects[-1])}'])} |")
    for name, mine in by_claim.items():
        claim = PERSONAL[name]
        lines += ["", f"## {name}", "", f"{claim.words} Effect: {claim.effect}.", ""]
        lines += ["| setting | effect | p (Holm) | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {_setting(row)} | {_effect(row)} | {float(row['p_holm']):.4f} | {row['verdict']} |" for row in mine
        ]
    lines += ["", "## What each came to", ""]
    lines += ["Mean over people: worth to the person; true score gained; share of tokens that the rule acted on.", ""]
    lines += ["| setting | variant | worth | score | acted on |", "|---|---|---|---|---|"]
    lines += [
        f"| {_setting(row)} | {row['variant']} | {row['worth']:.4f} ± {row['half_width']:.4f} | {row['score']:.4f} "
        f"| {row['acted_on']:.3f} |"
        for row in variants
    ]
    return "\n".join(lines) + "\n"


def _legend() -> str:
    return "; ".join(f"*{verdict}*: {said}" for verdict, said in _SAID.items()) + "."


def _effect(row: Mapping[str, str]) -> str:
    return f"{float(row['effect']):+.4f} ± {float(row['half_width']):.4f}"


def _setting(row: Mapping[str, Any]) -> str:
    return f"{row['task']}, {row['objective']}, lr {float(row['rate']):g}"
