"""The paper's claims at every scale: what the table says is what its sources say, and the committed one is current."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from humanline.reproduce.across import FAMILIES, TUNED, claims_table
from humanline.reproduce.paper_claims import CLAIMS, FAMILY
from humanline.reproduce.sampling import CLAIMS as SAMPLING_CLAIMS
from humanline.reproduce.tables import rows_csv
from humanline.reproduce.testbeds.registry import OTHERS, TESTBEDS

ROOT = Path(__file__).resolve().parents[2]


def tables(folder: Path, **changes) -> tuple[Path, Path]:
    """Return files of a simulator that knows one claim, and of a testbed whose rows are all alike."""
    exact = {"claim": "online-beats-offline", "task": "bandit", "objective": "dpo", "rate": "tuned"}
    exact |= {"effect": 0.125, "half_width": 0.01, "verdict": "holds"}
    (folder / "claims.csv").write_text(rows_csv([exact, {**exact, "rate": "0.1", "verdict": "contrary"}]))
    row = {"verdict": "holds here", "difference": 0.25, "low": 0.125, "high": 0.375, "clipped": 0.0, "why": ""}
    rows = [
        {"where": claim.where, "says": claim.says, "objective": objective, **row, **changes}
        for claim in CLAIMS
        for objective in claim.numbers
    ]
    (folder / "paper.csv").write_text(rows_csv(rows))
    return folder / "claims.csv", folder / "paper.csv"


def test_every_scale_is_told_beside_the_papers_numbers(tmp_path):
    exact, bed = tables(tmp_path)
    lines = claims_table(exact, {"letters": bed}).splitlines()
    (line,) = [one for one in lines if "online is better than offline | dpo" in one]
    assert "24.96, 18.07" in line and "bandit: holds, +0.125 ± 0.010" in line and "contrary" not in line
    assert "holds here, +0.250 (+0.125 .. +0.375)" in line
    of_claims = lines[: lines.index("")]
    assert sum(line.count("holds here") for line in of_claims) == sum(
        len(claim.numbers) for claim in CLAIMS if not claim.testbeds
    )


def test_figure_9_stands_beside_models_of_other_sizes_and_families(tmp_path):
    exact, bed = tables(tmp_path)
    lines = claims_table(exact, {"letters": bed, "letters-gemma2": bed}).splitlines()
    (line,) = [one for one in lines if one.startswith("| dpo | 67.45, 56.58 and 56.27, 48.59")]
    assert line.count("holds here, +0.250") == 2 and line.count("not run") == 1
    (heads,) = {one for one in lines if one.startswith("| where")}
    assert "letters |" in heads and "letters-gemma2" not in heads  # of which one claim alone is asked, below
    assert set(FAMILIES) <= set(TESTBEDS | OTHERS)
    assert {says for _, says in FAMILIES.values()} == {TUNED, FAMILY} <= {claim.says for claim in CLAIMS}


def test_figure_7_has_a_row_for_each_of_its_claims(tmp_path):
    exact, bed = tables(tmp_path)
    found = [{"claim": name, "estimate": -0.08, "low": -0.1, "high": -0.06, "margin": 0.04, "verdict": verdict}
             for name, verdict in (("S1", "holds"), ("S2", "fails"), ("S3", "undecided"))]  # fmt: skip
    (tmp_path / "findings.csv").write_text(rows_csv(found))
    told = claims_table(exact, {"letters": bed}, sampled={"arithmetic": tmp_path / "findings.csv"})
    (heads,) = [one for one in told.splitlines() if one.startswith("| claim |")]
    place = heads.split(" | ").index("arithmetic")
    words = ("holds here", "does not hold here", "undecided here")
    for (_, says), said in zip(SAMPLING_CLAIMS.items(), words, strict=True):
        (row,) = [one for one in told.splitlines() if says in one]
        assert row.split(" | ")[place] == f"{said}, -0.080 (-0.100 .. -0.060), margin 0.040"
        assert row.count("not run") == len(TESTBEDS) - 1
    assert "- Figure 7" not in told


def test_what_draws_say_that_chose_no_cell_stands_beside_what_all_draws_say(tmp_path):
    exact, bed = tables(tmp_path)
    row = {"where": "Figure 1, Table 3", "says": TUNED, "objective": "dpo", "verdict": "undecided here"}
    row |= {"difference": 0.0625, "low": -0.125, "high": 0.25, "clipped": 0.0, "why": ""}
    (tmp_path / "chosen.csv").write_text(rows_csv([row]))
    lines = claims_table(exact, {"letters": bed}, chosen={"letters": tmp_path / "chosen.csv"}).splitlines()
    (line,) = [one for one in lines if "draws that chose nothing" in one]
    assert f"| {TUNED} | dpo |" in line
    assert "+0.375); on draws that chose nothing: undecided here, +0.062 (-0.125 .. +0.250) |" in line


def test_what_was_not_run_has_no_numbers(tmp_path):
    exact, bed = tables(tmp_path, verdict="not run", difference="", low="", high="")
    assert "not run |" in claims_table(exact, {"letters": bed})


def test_a_table_that_lacks_a_claim_or_a_column_is_refused(tmp_path):
    exact, bed = tables(tmp_path)
    text = bed.read_text()
    bed.write_text("".join(text.splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="0 rows of 'a quarter of the better answers"):
        claims_table(exact, {"letters": bed})
    bed.write_text(text.replace("verdict", "judgement", 1))
    with pytest.raises(ValueError, match="it has no column 'verdict'"):
        claims_table(exact, {"letters": bed})


def test_the_committed_table_is_what_its_sources_make(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_claims.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / "make_claims.py"), run_name="__main__")
    assert ended.value.code == 0
