"""A study from its cells to its files, over results that are made up: which runs it asks for, and what it says."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from humanline.sim import judging, report
from humanline.sim.claims import CLAIMS, Claim
from humanline.sim.contrasts import Contrast, score
from humanline.sim.findings import VERDICTS, Finding, Judgement
from humanline.sim.lookup import Setting
from humanline.sim.report import FULL, QUICK, Scale, study
from humanline.sim.study import MEASURES
from humanline.sim.tables import markdown
from humanline.stats import Interval

SEEDS = 20
SCALE = Scale(SEEDS, 4, (0.1, 0.3, 1.0), beyond=(0.01, 0.03, 3.0, 10.0), disturbance=1e-13)
NOISE = np.random.default_rng(0).standard_normal(SEEDS)
NOISE = 0.01 * (NOISE - NOISE.mean())


@pytest.fixture
def asked(monkeypatch):
    """Runs by name, as the study asks for them, answered by a score that depends on rate and variant."""
    asked, best, moves = [], {}, {}

    def measured(runs, seeds, store, *, processes, progress):
        asked.append(runs)
        found = {}
        for name, run in runs.items():
            task, objective, rate, variant, *_ = name.split("/")
            value = 0.5 - 0.1 * abs(math.log10(float(rate) / best.get(variant, 0.3))) + NOISE * (variant == "online")
            value = value + moves.get((task, objective, variant), 0.0) * (run.disturbance > 0)
            zeros = {measure: np.zeros(len(seeds)) for measure in MEASURES}
            found[name] = zeros | {"best": np.ones(len(seeds)), "score": np.broadcast_to(value, len(seeds))}
        if progress is not None:
            progress(len(runs), len(runs))
        return found

    monkeypatch.setattr(report, "run_study", measured)
    monkeypatch.setattr(judging, "FLIPS", 1999)
    return asked, best, moves


def rates(runs, variant):
    return sorted({run.learning_rate for name, run in runs.items() if name.split("/")[3] == variant})


class TestRates:
    def test_a_best_rate_within_asks_for_no_more(self, asked, tmp_path):
        """One pass is enough where no variant is best at the least or the largest rate."""
        study(tmp_path, claims=["online-beats-offline"], scale=SCALE)
        (runs,) = asked[0]
        assert rates(runs, "online") == rates(runs, "offline") == [0.1, 0.3, 1.0]

    @pytest.mark.parametrize(
        ("best", "passes", "edge"),
        [
            (1.0, [[0.1, 0.3, 1.0], [0.1, 0.3, 1.0, 3.0]], ""),
            (3.0, [[0.1, 0.3, 1.0], [0.1, 0.3, 1.0, 3.0], [0.1, 0.3, 1.0, 3.0, 10.0]], ""),
            (10.0, [[0.1, 0.3, 1.0], [0.1, 0.3, 1.0, 3.0], [0.1, 0.3, 1.0, 3.0, 10.0]], "online at 10"),
            (0.1, [[0.1, 0.3, 1.0], [0.03, 0.1, 0.3, 1.0]], ""),
            (0.001, [[0.1, 0.3, 1.0], [0.03, 0.1, 0.3, 1.0], [0.01, 0.03, 0.1, 0.3, 1.0]], "online at 0.01"),
        ],
    )
    def test_a_best_rate_at_an_edge_is_followed(self, asked, tmp_path, best, passes, edge):
        """The next rate beyond the edge is run for that variant alone until the best lies within, or is flagged."""
        asked, bests, _ = asked
        bests["online"] = best
        told = []
        found = study(
            tmp_path, claims=["online-beats-offline"], scale=SCALE, progress=lambda *now: told.append(now)
        ).judgements[0]
        assert [rates(runs, "online") for runs in asked] == passes
        assert all(rates(runs, "offline") == [0.1, 0.3, 1.0] for runs in asked)
        assert {finding.edges for finding in found.tuned} == {(edge,) if edge else ()}
        assert {finding.setting.rate for finding in found.fixed} == {0.1, 0.3, 1.0}
        assert [done for done, _ in told] == [len(runs) for runs in asked]

    def test_without_tuned_settings_none_is_followed(self, asked, tmp_path):
        """A single learning rate is both edges of what is run, and stays alone."""
        study(tmp_path, claims=["online-beats-offline"], scale=replace(SCALE, rates=(0.1,)))
        (runs,) = asked[0]
        assert rates(runs, "online") == [0.1]


class TestDisturbance:
    def test_every_run_is_made_a_second_time(self, asked, tmp_path):
        """The second run differs from the first by its disturbance alone; rates beyond the edge have one too."""
        asked, bests, _ = asked
        bests["online"] = 10.0
        study(tmp_path, claims=["online-beats-offline"], scale=SCALE)
        for runs in asked:
            plain = {name: run for name, run in runs.items() if run.disturbance == 0}
            second = [run for run in runs.values() if run.disturbance]
            assert [replace(run, disturbance=0.0) for run in second] == list(plain.values())
            assert {run.disturbance for run in second} == {1e-13} and len(runs) == 2 * len(plain)

    def test_settings_that_move_are_marked_and_counted(self, asked, tmp_path):
        """The table says how many settings hang on rounding, and what is evidence leaves them out."""
        _, _, moves = asked
        moves["bandit", "dpo", "online"] = 0.2
        found = study(tmp_path, claims=["online-beats-offline"], scale=SCALE)
        marked = {str(f.setting) for f in found.judgements[0].findings if f.verdict == "rounding"}
        assert marked == {f"bandit, dpo, {rate}" for rate in ("lr 0.1", "lr 0.3", "lr 1", "tuned")}
        text = (tmp_path / "claims.md").read_text(encoding="utf-8")
        assert "marked *rounding* and is no evidence: 4 of 36" in text
        assert all(result["score"].max() < 0.6 for result in found.results.values())  # those without a disturbance

    def test_without_it_there_is_one_run(self, asked, tmp_path):
        """A scale without a disturbance asks for no second runs, and the table says nothing of rounding."""
        study(tmp_path, claims=["online-beats-offline"], scale=replace(SCALE, disturbance=0.0))
        assert not any(run.disturbance for run in asked[0][0].values())
        assert "disturbed" not in (tmp_path / "claims.md").read_text(encoding="utf-8")

    def test_both_scales_have_one(self):
        """The full and the quick study measure how their settings hang on rounding, and say so in the settings."""
        assert FULL.disturbance == QUICK.disturbance == 1e-13
        assert FULL.beyond[-2:] == (3.0, 10.0) and report.settings(FULL)["disturbance of the second run"] == 1e-13


def test_the_csv_has_all_that_the_findings_have(asked, tmp_path):
    """Every field of a finding can be read from its row."""
    _, bests, moves = asked
    bests["online"], bests["offline"] = 10.0, 0.3
    moves["sequence", "kto", "offline"] = 0.1
    found = study(tmp_path, claims=["online-beats-offline", "clip-needed"], scale=SCALE)
    with open(tmp_path / "claims.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    findings = [(j.claim.name, f) for j in found.judgements for f in j.findings]
    assert len(rows) == len(findings) == 2 * 9 * 4
    for row, (name, f) in zip(rows, findings, strict=True):
        where = f.setting.task, f.setting.objective, "tuned" if f.setting.rate is None else f"{f.setting.rate:g}"
        assert (row["claim"], row["task"], row["objective"], row["rate"]) == (name, *where)
        for column, value in (
            ("effect", f.effect.mean),
            ("half_width", f.effect.half_width),
            ("p_holm", f.p),
            ("p_all_claims", f.p_jointly),
            ("moved", f.moved),
        ):
            assert float(row[column]) == pytest.approx(value, rel=1e-5, nan_ok=True)
        assert (row["verdict"], row["verdict_all_claims"], row["why"]) == (f.verdict, f.jointly, f.why)
        assert row["same_as"] == ("" if f.same_as is None else f"{f.same_as:g}")
        assert (row["edges"], row["idle"]) == ("; ".join(f.edges), "; ".join(f.idle))
    assert {row["same_as"] for row in rows} == {"", "0.3"} and {row["edges"] for row in rows} == {"", "online at 10"}
    assert any(row["verdict"] == "rounding" for row in rows) and any(row["idle"] for row in rows)
    settings = json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))
    assert settings["learning rates beyond an edge"] == [0.01, 0.03, 3.0, 10.0]


def finding(verdict, rate=0.1, **others):
    """A finding whose verdict is given."""
    fields = {"jointly": verdict, "p": 0.01, "p_jointly": 0.02, "why": "", "moved": 0.0} | others
    return Finding(Setting("bandit", "dpo", rate), Interval(0.1, 0.05), verdict, **fields)


def claim(name="a-claim", **others):
    return Claim(name, "It holds.", "section 1", "score", (), lambda get: Contrast(get("", ""), []), **others)


class TestTable:
    def row(self, *findings):
        text = markdown([Judgement(claim(), list(findings))], made="Made up.")
        (line,) = [line for line in text.splitlines() if line.startswith("| [a-claim]")]
        (head,) = [line for line in text.splitlines() if line.startswith("| claim |")]
        cells = dict(zip(*([cell.strip() for cell in each.split("|")[1:-1]] for each in (head, line)), strict=True))
        return cells, text

    def test_every_verdict_has_its_column(self):
        """Fixed rates are counted by verdict, slightly contrary among the contrary, and tuned ones apart."""
        fixed = [finding(verdict, rate) for i, verdict in enumerate(VERDICTS) for rate in range(1, i + 2)]
        tuned = [finding("small", None, edges=("online at 10",)), finding("holds", None, same_as=1.0)]
        cells, _ = self.row(*fixed, *tuned)
        assert [cells[name] for name in ("holds", "small", "undecided", "rounding", "not tested")] == list("12367")
        assert cells["contrary"] == "9 (4 slightly)"
        assert cells["tuned"] == "holds 1, small 1; 1 as at a fixed rate; 1 at an edge"
        assert cells["verdict"] == "**depends**"

    def test_a_summary_says_how_few_settings_tested_the_claim(self):
        """Settings without evidence are counted beside those with it, and those that repeat a rate are not."""
        found = [finding("holds"), finding("not tested", 0.3), finding("rounding", 1.0), finding("small", 3.0)]
        judgement = Judgement(claim(), [*found, finding("not tested", None, same_as=0.3)])
        assert judgement.summary.startswith("holds in 1 of 2 tested settings (small in 1, no evidence in 2)")
        assert Judgement(claim(), found[1:2]).summary == "holds in 0 of 0 tested settings (no evidence in 1)"

    def test_idle_settings_are_counted(self):
        """The column says in how many settings of fixed rates a clip touches hardly anything."""
        cells, text = self.row(
            finding("holds", 0.1, idle=("clip only",)), finding("holds", 0.3), finding("holds", None)
        )
        assert cells["idle"] == "1" and text.count("idle: clip only") == 1

    def test_an_effect_without_evidence_is_in_no_span(self):
        """The range of effects is that of the tested settings: of tuned ones if there are any."""
        other = replace(finding("rounding", None), effect=Interval(9.0, 0.1))
        cells, _ = self.row(finding("holds", 0.1), other)
        assert cells["effect, least to largest"] == "+0.100 ± 0.050 (bandit, dpo, lr 0.1)"

    def test_it_says_what_a_correction_over_all_claims_changes(self):
        """Nothing, if so; otherwise how many settings of how many claims, and which claims over all settings."""
        _, text = self.row(finding("holds"), finding("undecided", 0.3))
        assert "over the 2 tested settings of all claims at once, every verdict stays as it is." in text
        _, text = self.row(finding("holds"), finding("holds", 0.3, jointly="undecided"))
        assert "1 of them have another verdict, in 1 of the claims; over all settings so have a-claim (depends)" in text
        _, text = self.row(finding("holds"), finding("contrary", 0.3, jointly="undecided"))
        assert "in 1 of the claims; over all settings none has." in text
        assert "undecided if corrected over all claims" in text

    def test_placebos_are_told_of(self):
        """How many settings of placebos help, and how many do harm, and which; without placebos nothing is said."""
        found = [finding(verdict, rate) for rate, verdict in enumerate(VERDICTS, 1)] + [finding("undecided", 9.0)]
        placebo = Judgement(claim("placebo", placebo=True), found)
        text = markdown([Judgement(claim(), [finding("holds")]), placebo], made="Made up.")
        assert (
            "Of 6 tested settings of 1 placebos it helps in 2: placebo (bandit, dpo, lr 1: +0.100, holds); placebo "
            "(bandit, dpo, lr 2: +0.100, small). It does harm in 2: placebo (bandit, dpo, lr 4: +0.100, slightly "
            "contrary); placebo (bandit, dpo, lr 5: +0.100, contrary). What"
        ) in text
        null = markdown([replace(placebo, findings=found[-1:])], made="Made up.")
        assert "it helps in 0. It does harm in 0. What" in null
        assert "Placebos" not in self.row(finding("holds"))[1]

    def test_every_margin_is_said(self):
        """Claims of nats and of correlations have margins of their own, which stand beside that of scores."""
        text = self.row(finding("holds"))[1]
        assert "less than 0.05 of what there is to gain (0.1 nats, 0.1 of a correlation)" in text

    def test_edges_are_counted_by_variant_and_by_setting(self):
        """A variant that is at an edge in two claims counts once, its settings twice."""
        both = replace(claim(), variants=("online", "offline"))
        at_edge = [
            Judgement(both, [finding("holds", None, edges=edges)])
            for edges in (("online at 10",), ("online at 0.01", "online at 10"))
        ]
        text = markdown(at_edge, made="Made up.")
        assert "of 1 of 2 tuned variants is the least or the largest that was run" in text
        assert "in 2 of 2 tuned settings" in text

    def test_it_names_what_the_verdict_depends_on(self):
        """The most telling factor comes with its counts and share; where only tuned settings differ, that is said."""
        found = [
            replace(
                finding("holds" if objective == "grpo" else "undecided", rate),
                setting=Setting("bandit", objective, rate),
            )
            for objective in ("dpo", "grpo")
            for rate in range(1, 7)
        ]
        assert self.row(*found)[0]["depends on"] == "objective: dpo 0/6, grpo 6/6 (100%)"
        with_tuned = self.row(*found, finding("holds", None))[0]["depends on"]  # which is counted apart
        assert with_tuned == "objective: dpo 0/6, grpo 6/6 (100%)"
        assert (
            self.row(finding("undecided"), finding("holds", None))[0]["depends on"]
            == "whether the learning rate is tuned"
        )
        mixed = [finding("holds"), finding("undecided", 0.3)]
        assert self.row(*mixed)[0]["depends on"] == "none of task, objective and learning rate tells more than chance"


def test_the_study_is_judged_against_its_second_runs(asked, tmp_path, monkeypatch):
    """A claim that holds by what rounding does alone is marked in every setting."""
    _, _, moves = asked
    tasks, objectives = CLAIMS["online-beats-offline"].tasks, CLAIMS["online-beats-offline"].objectives
    moves |= {(task, objective, "online"): -0.5 for task in tasks for objective in objectives}
    monkeypatch.setitem(
        CLAIMS, "online-beats-offline", replace(CLAIMS["online-beats-offline"], contrast=score("online", "offline"))
    )
    found = study(tmp_path, claims=["online-beats-offline"], scale=SCALE).judgements[0]
    assert {f.verdict for f in found.findings} == {"rounding"} and found.verdict == "not tested"


def test_a_real_study_measures_how_its_settings_move(tmp_path, monkeypatch):
    """Runs of a few steps move by the last digits, which are measured and change no verdict."""
    small = replace(CLAIMS["online-beats-offline"], tasks=("bandit",), objectives=("dpo", "kto"))
    monkeypatch.setitem(CLAIMS, small.name, small)
    scale = Scale(seeds=3, steps=2, rates=(0.1,), disturbance=1e-13)
    found = study(tmp_path, claims=[small.name], scale=scale).judgements[0]
    assert len(found.findings) == 2 and all(0 < finding.moved < 1e-11 for finding in found.findings)
    assert "rounding" not in {finding.verdict for finding in found.findings}
