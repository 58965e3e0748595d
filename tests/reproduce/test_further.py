"""Offline cells that may go further than the grid's, beside humanline: made-up runs whose answer is known."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import pytest
from scipy import stats

from humanline.cli import main
from humanline.reproduce.cells import OBJECTIVES, core, further
from humanline.reproduce.further import further_claims, write_further_report
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.plan import cells_of
from humanline.reproduce.recipe import recipe
from humanline.reproduce.start import Pairs
from humanline.reproduce.tables import outcomes_csv, read_outcomes
from humanline.reproduce.testbeds.registry import testbed as bed_of
from humanline.reproduce.versions import made_by
from humanline.train.config import TrainConfig

#: What each start model has of its own, which pairing takes out, and what it has with one kind of cell alone.
STARTS = (0.0, 0.1, 0.25)
NOISE = {"offline": (0.0, 0.0, 0.0), "humanline": (0.004, -0.002, 0.001), "online": (0.01, 0.0, -0.01)}
SCORES = {"offline": 0.5, "humanline": 0.6, "online": 0.7, "online humanline": 0.1}
#: What further offline cells score: for DPO all less than the grid's, for KTO those of a weaker anchor more than these
#: and less than humanline, for GRPO those of four passes more than both.
WEAKER = {"dpo": 0.4, "kto": 0.55, "grpo": 0.45}
PASSES = {"dpo": 0.45, "kto": 0.4, "grpo": 0.65}
WIDER, LONGER, ONCE, ITS_OWN, FOUR, FOUR_OF_FOUR, FOUR_OF_ONE, ONLINE = (claim.says for claim in further_claims())


def run_of(cell, score: float, start: int, draw: int = 0) -> Outcome:
    values = dict.fromkeys(Outcome.__dataclass_fields__, math.nan)
    values |= {"testbed": "letters", "cell": cell, "start": start, "draw": draw, "status": "done"}
    values |= {"start_score": 0.5 + STARTS[start], "score": score + STARTS[start], "kl_to_start": 1.0, "length": 5.0}
    values |= dict.fromkeys(("clipped", "judged", "greedy", "matched", "truncated", "entropy"), 0.5)
    values |= dict.fromkeys(("temperature", "kl_to_start_se", "kl_from_start", "kl_from_start_se", "saturation"), 0.5)
    return Outcome(**values | {"updates": 1, "scorer_calls": 1, "seconds": 1.0, "task": made_by(bed_of("letters"))})


def grid(draw: int = 0) -> list[Outcome]:
    """The grid: one cell of each objective and variant is good, all others are bad."""
    good = set({(cell.objective, cell.variant): cell for cell in reversed(core())}.values())

    def score(cell, start: int) -> float:
        return SCORES[cell.variant] + NOISE.get(cell.variant, STARTS)[start] if cell in good else 0.0

    return [run_of(cell, score(cell, start), start, draw) for start in range(3) for cell in core()]


def more() -> list[Outcome]:
    def score(cell, start: int) -> float:
        if cell.variant == "humanline":
            return 0.8 + NOISE["online"][start]
        return (WEAKER if cell.passes == 1 else PASSES)[cell.objective]

    return [run_of(cell, score(cell, start), start) for start in range(3) for cell in further()]


def rows_in(file) -> dict[tuple[str, str], dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as lines:
        return {(row["says"], row["objective"]): row for row in csv.DictReader(lines)}


def test_humanline_is_held_against_the_best_of_all_offline_cells(tmp_path):
    """Against a weaker anchor where it is best (KTO), four passes where these are (GRPO), else the grid's (DPO)."""
    write_further_report(tmp_path, grid(), more())
    rows = rows_in(tmp_path / "further.csv")
    for objective, offline in (("dpo", 0.5), ("kto", 0.55), ("grpo", 0.65)):
        row = rows[ITS_OWN, objective]
        differences = [0.6 + noise - offline for noise in NOISE["humanline"]]
        low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
        told = [float(row[name]) for name in ("first", "second", "difference", "low", "high")]
        wanted = [0.601 + sum(STARTS) / 3, offline + sum(STARTS) / 3, sum(differences) / 3, low, high]
        assert told == pytest.approx(wanted, abs=2e-6)
    verdicts = {key: row["verdict"] for key, row in rows.items()}
    assert [verdicts[ITS_OWN, one] for one in OBJECTIVES] == ["holds here", "holds here", "does not hold here"]
    assert [verdicts[WIDER, one] for one in OBJECTIVES] == ["does not hold here", "holds here", "does not hold here"]
    assert [verdicts[LONGER, one] for one in OBJECTIVES] == ["does not hold here", "does not hold here", "holds here"]
    for objective, gain in (("dpo", 0.3), ("kto", 0.25), ("grpo", 0.15)):
        row = rows[FOUR, objective]
        low, high = stats.ttest_1samp([gain + noise for noise in NOISE["online"]], 0.0).confidence_interval(0.95)
        assert [float(row[name]) for name in ("difference", "low", "high")] == pytest.approx(
            [gain, low, high], abs=2e-6
        )
    for objective, offline in PASSES.items():
        assert float(rows[FOUR_OF_FOUR, objective]["difference"]) == pytest.approx(0.8 - offline, abs=2e-6)
        assert float(rows[FOUR_OF_ONE, objective]["difference"]) == pytest.approx(0.8 - 0.601, abs=2e-6)
    for objective, gain in (("dpo", 0.101), ("kto", 0.051), ("grpo", 0.101)):  # of one pass: GRPO's four left out
        assert float(rows[ONCE, objective]["difference"]) == pytest.approx(gain, abs=2e-6)
    assert float(rows[WIDER, "dpo"]["difference"]) == pytest.approx(-0.1)
    assert float(rows[LONGER, "dpo"]["difference"]) == pytest.approx(-0.05)
    assert float(rows[ONLINE, "grpo"]["difference"]) == pytest.approx(0.05)


def test_draws_without_a_further_run_and_cells_beyond_the_grid_say_nothing(tmp_path):
    """Else luck of further draws would stand on one side of a difference alone."""
    other = replace(core()[0], data="far")
    spoilt = [replace(one, score=9.0) for one in grid(draw=1)] + [run_of(other, 9.0, start) for start in range(3)]
    plain, mixed = tmp_path / "plain", tmp_path / "mixed"
    write_further_report(plain, grid(), more())
    write_further_report(mixed, [*grid(), *spoilt], more())
    names = sorted(path.name for path in plain.iterdir())
    assert names == ["best.csv", "cells.csv", "further.csv", "further.md", "runs.csv"]
    assert all((plain / name).read_bytes() == (mixed / name).read_bytes() for name in names)
    assert read_outcomes(plain / "runs.csv") == more()  # none of the grid's, which have a table of their own


def test_a_cell_that_collapsed_is_not_chosen_and_is_counted(tmp_path):
    broken = [replace(one, status="not finite", score=math.nan) if not one.start else one for one in more()]
    write_further_report(tmp_path, grid(), broken)
    rows = [row for (says, _), row in rows_in(tmp_path / "further.csv").items() if says in (WIDER, LONGER)]
    assert {row["verdict"] for row in rows} == {"not run"}  # and why, for they were
    assert {row["why"] for row in rows} == {"every cell of a side has a collapsed run, or none from some start model"}
    with open(tmp_path / "cells.csv", encoding="utf-8", newline="") as lines:
        assert {(row["runs"], row["collapsed"]) for row in csv.DictReader(lines)} == {("3", "1")}


def test_the_cells_are_others_than_the_grids_and_can_be_run(tmp_path):
    assert len(further()) == len(set(further())) == 82
    also = set(further()) & set(cells_of("letters", everything=True))  # runs that `--all` has are taken over from there
    assert {(cell.objective, cell.variant, cell.passes) for cell in also} == {
        ("dpo", "offline", 4),
        ("kto", "offline", 4),
    }
    files = {name: tmp_path / name for name in ("model", "prompts", "distance", "output")}
    pairs, bed = Pairs(tmp_path / "pairs.jsonl", 2560, 20480, 0.5), bed_of("letters")
    for cell in further():
        config = TrainConfig.model_validate(recipe(cell, bed, pairs=pairs, seed=0, **files))
        kinds = ("never", "none") if cell.variant == "offline" else ("before_step", "clip")
        assert cell not in core() and (config.reference.schedule.kind, config.transform.kind) == kinds
        assert (config.optimizer.lr, config.training.steps) == (cell.lr, 160 * cell.passes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--further", "--all"], "--further has a table of its own; leave it out, or --all"),
        (["--further", "--sampling"], "--further has a table of its own; leave it out, or --sampling"),
        (["--further", "--chosen", "10"], "and --further of other runs; leave out one or the other"),
        (["--further", "--quick"], "leave it out, or with it --further"),
        (["--further", "--scale", "small"], "leave out --further"),
        (["letters-gemma2", "--further"], "letters-gemma2 has a few cells of it alone"),
    ],
)
def test_what_does_not_go_together_is_refused_and_nothing_is_made(words, said, tmp_path, capsys):
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_the_command_takes_the_grid_over_and_writes_the_tables(tmp_path, capsys):
    """With all runs known nothing is trained; the same tables come as from the function."""
    file, out = tmp_path / "known.csv", tmp_path / "out"
    file.write_text(outcomes_csv([*grid(), *more()]), encoding="utf-8")
    assert main(["reproduce", "--further", "--known", str(file), "--out", str(out), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "702 runs of " in told and str(out / "letters" / "further" / "further.md") in told
    write_further_report(tmp_path / "same", grid(), more())
    for path in (tmp_path / "same").iterdir():
        assert (out / "letters" / "further" / path.name).read_bytes() == path.read_bytes()
