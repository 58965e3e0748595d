"""What runs of chosen cells on fresh draws leave: the runs, the tuned cells, the comparisons, and all of it to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from humanline.reproduce.chosen import Choice, ChosenRules, as_declared, chosen_rows, kind_rows, listed
from humanline.reproduce.edges import SAYS as EDGES
from humanline.reproduce.edges import edges_of_both
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import ALPHA, MARGIN_SHARE
from humanline.reproduce.rules import Rules
from humanline.reproduce.shown import markdown
from humanline.reproduce.tables import as_written, rows_csv, write_outcomes
from humanline.system.files import make_folder, write_text


def write_chosen_report(folder: Path, choice: Choice, outcomes: Sequence[Outcome], rules: ChosenRules) -> list[Path]:
    """Write what fresh draws of the chosen cells of one testbed say; return the files.

    Written are runs.csv (the fresh runs), best.csv (the chosen cells), chosen.csv (the comparisons) and chosen.md (all
    of it to read).

    Parameters
    ----------
    folder : Path
        Made if it is not there; files of these names in it are replaced.
    choice : Choice
    outcomes : sequence of Outcome
        Of its fresh draws.
    rules : ChosenRules
        As they were declared.

    Raises
    ------
    ValueError
        If a run is missing, before anything is written.
    OSError
        If something cannot be written.
    """
    outcomes = as_written(outcomes)
    compared, kinds = chosen_rows(choice, outcomes), kind_rows(choice, outcomes)
    make_folder(folder)
    write_outcomes(folder / "runs.csv", outcomes)
    write_text(folder / "best.csv", rows_csv(kinds))
    write_text(folder / "chosen.csv", rows_csv(compared))
    write_text(folder / "chosen.md", _words(choice, len(outcomes), compared, kinds, rules))
    return [folder / name for name in ("runs.csv", "best.csv", "chosen.csv", "chosen.md")]


def _words(
    choice: Choice,
    count: int,
    compared: Sequence[Mapping[str, Any]],
    kinds: Sequence[Mapping[str, Any]],
    rules: ChosenRules,
) -> str:
    """Return choice and comparisons as Markdown."""
    differs = as_declared(choice, rules)
    chose, fresh = listed(choice.choosing), listed(choice.draws)
    return "\n".join(
        [
            f"# Tuned cells on fresh draws: {choice.testbed}",
            "",
            *([f"**Not as declared** (studies/frontier/chosen.yaml): {differs}.", ""] if differs else []),
            f"{count} runs from {len(choice.starts)} start models; this testbed was {Rules().seen(choice.testbed)}. Of "
            "each objective's offline, humanline, online and online humanline cells of the grid the one is taken that "
            f"the *other* start models' draws {chose} of the pairs chose, and run on draws {fresh}, which chose "
            "nothing.",
            "",
            "## Comparisons, on fresh draws alone",
            "",
            "First less second is the mean over start models of the difference of means over draws, with its 95 % "
            "interval over start models, not corrected; a claim holds where its opposite has a p-value of at most "
            f"{ALPHA:g} by Holm's correction over its objectives, and does not where it has such a one itself. Alike "
            f"means within {MARGIN_SHARE:.0%} of what tuned online runs gain on the start models. On the draws that "
            "chose: the same difference of the same cells there, which decides nothing.",
            "",
            markdown([_shown(row) for row in compared]),
            "## The chosen cells, on fresh draws",
            "",
            "Score is the mean over start models of means over draws, with its 95 % interval over start models. "
            f"{EDGES}",
            "",
            markdown([dict(row) for row in kinds]),
        ]
    )


def _shown(row: Mapping[str, Any]) -> dict[str, object]:
    """Return a comparison as it is shown to people."""
    known = row["starts"] and not math.isinf(row["low"])
    return {
        "claim": row["says"],
        "objective": row["objective"],
        "first": row["first"],
        "second": row["second"],
        "first less second": row["difference"],
        "95 % interval": f"{row['low']:+.4f} .. {row['high']:+.4f}" if known else "",
        "margin": row["margin"],
        "p, corrected": row["adjusted"],
        "of the opposite": row["contrary_adjusted"],
        "sd between draws": row["sd_of_draws"],
        "on the draws that chose": row["choosing_difference"],
        "verdict": f"**{row['verdict']}**" + (f": {row['why']}" if row["why"] else ""),
        **edges_of_both(row["first_edges"], row["second_edges"]),
    }
