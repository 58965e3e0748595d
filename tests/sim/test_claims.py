"""Claims: what counts as holding, what a study writes, and the command that runs it."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from humanline.cli import main
from humanline.sim.claims import CLAIMS, Claim, chosen
from humanline.sim.contrasts import Contrast
from humanline.sim.distances import POINTS
from humanline.sim.findings import overall
from humanline.sim.judging import judge
from humanline.sim.lookup import Setting, Study
from humanline.sim.report import FULL, QUICK, Scale, cells_of, settings_of, study
from humanline.sim.study import MEASURES, measure
from humanline.sim.variants import OBJECTIVES, RATES, TASKS, VARIANTS, make_run
from tests.conftest import ROOT

SEEDS = 64
TINY = Scale(seeds=4, steps=4, rates=(0.1, 0.3))


def result(score, **measures):
    """Results of one run whose start policy scores 1 and whose best possible score is 3."""
    score = np.broadcast_to(np.asarray(score, float), (SEEDS,)) if np.ndim(score) == 0 else np.asarray(score, float)
    base = {name: np.zeros(len(score)) for name in MEASURES}
    return base | {"start": np.ones(len(score)), "best": np.full(len(score), 3.0), "score": score} | measures


def table(variants, tasks=("bandit",), objectives=("dpo",), rates=(0.1,)):
    """A study in which a function of (task, objective, rate, variant) gives each result."""
    cells = [(t, o, r, v) for t in tasks for o in objectives for r in rates for v in CLAIMS_VARIANTS]
    return Study({cell: variants(*cell) for cell in cells})


CLAIMS_VARIANTS = ("online", "offline", "offline+humanline", "sync only", "beta rejection")
NOISE = np.random.default_rng(0).standard_normal(SEEDS) * 0.1


class TestLookingUp:
    def test_scores_are_shares_of_what_there_is_to_gain(self):
        """A score half-way from start to best is .5, a fall is in the same unit, a broken run counts as -1 and 1."""
        half = result(2.0, drop=np.full(SEEDS, 0.5), early=np.full(SEEDS, 1.0), outside=np.full(SEEDS, 0.3))
        broken = result(math.nan, drop=np.full(SEEDS, math.nan))
        study = Study({("bandit", "dpo", 0.1, "a"): half, ("bandit", "dpo", 0.1, "b"): broken})
        setting = Setting("bandit", "dpo", 0.1)
        got = [study.get(setting, "a", name)[0] for name in ("score", "drop", "early", "outside")]
        assert got == [0.5, 0.25, 0.0, 0.3]
        assert (study.get(setting, "b", "score")[0], study.get(setting, "b", "drop")[0]) == (-1.0, 1.0)

    def test_the_tuned_rate_is_chosen_on_the_other_half(self):
        """Each half of the seeds is judged at the rate that is best on the other half, never on itself."""
        even, odd = np.arange(SEEDS) % 2 == 0, np.arange(SEEDS) % 2 == 1
        study = Study(
            {
                ("bandit", "dpo", 0.1, "a"): result(np.where(even, 3.0, 1.0)),  # best on the even half
                ("bandit", "dpo", 0.3, "a"): result(np.where(odd, 2.0, 1.0)),  # best on the odd half
            }
        )
        tuned = study.get(Setting("bandit", "dpo", None), "a", "score")
        assert set(tuned[even]) == {0.0} and set(tuned[odd]) == {0.0}


class TestJudging:
    def judge(self, claim, make, settings=None, **axes):
        rates = axes.get("rates", (0.1,))
        tasks, objectives = axes.get("tasks", ("bandit",)), axes.get("objectives", ("dpo",))
        settings = settings or [Setting(t, o, r) for t in tasks for o in objectives for r in rates]
        return judge(CLAIMS[claim], table(make, **axes), settings)

    def test_a_clear_effect_holds_and_its_reverse_is_contrary(self):
        """A difference far above its spread holds, the opposite one is contrary, and the effect is its mean."""
        for sign, verdict, everywhere in (
            (1, "holds", "holds everywhere"),
            (-1, "contrary", "contrary somewhere, holds nowhere"),
        ):
            judgement = self.judge(
                "online-beats-offline",
                lambda t, o, r, v, sign=sign: result(2.0 + (sign * 0.4 + NOISE) * (v == "online")),
            )
            assert (judgement.verdict, judgement.findings[0].verdict) == (everywhere, verdict)
            assert judgement.findings[0].effect.mean == pytest.approx((sign * 0.4 + NOISE.mean()) / 2)

    def test_no_effect_is_undecided_and_never_holds(self):
        """Equal runs, and noise around no difference, are undecided."""
        equal = self.judge("online-beats-offline", lambda t, o, r, v: result(2.0))
        centred = NOISE - NOISE.mean()
        noisy = self.judge("online-beats-offline", lambda t, o, r, v: result(2.0 + centred * (v == "online")))
        assert [equal.findings[0].verdict, noisy.findings[0].verdict] == ["undecided", "undecided"]
        assert equal.verdict == noisy.verdict == "undecided everywhere"

    def test_settings_are_corrected_for_their_number(self):
        """A difference at p = .02 holds alone and is undecided among many of its kind that show nothing."""
        rng = np.random.default_rng(3)
        wobble = rng.standard_normal(SEEDS)
        wobble = (wobble - wobble.mean()) / wobble.std(ddof=1) + 2.15 / math.sqrt(SEEDS)

        def make(task, objective, rate, variant):
            shift = wobble if rate == 0.1 else wobble - wobble.mean()
            return result(2.0 + shift * (variant == "online"))

        alone = self.judge("online-beats-offline", make)
        many = self.judge("online-beats-offline", make, rates=tuple(0.1 * i for i in range(1, 11)))
        assert alone.findings[0].verdict == "holds" and 0.005 < alone.findings[0].p < 0.03
        assert many.findings[0].verdict == "undecided" and many.findings[0].p == pytest.approx(
            10 * alone.findings[0].p, rel=0.01
        )

    def test_of_several_parts_all_must_be_positive_and_one_reversed_is_contrary(self):
        """Closing the gap needs to beat offline and to come within the margin of online."""

        def scores(offline, human, online):
            values = {"offline": offline, "offline+humanline": human, "online": online}
            return lambda t, o, r, v: result(1 + 2 * (values.get(v, 0.0) + NOISE * 0.05 * (v != "offline")))

        for values, verdict in (
            ((0.2, 0.78, 0.8), "holds"),
            ((0.2, 0.5, 0.8), "contrary"),
            ((0.2, 0.1, 0.12), "not tested"),
            ((0.2, 0.25, 0.5), "contrary"),
        ):
            assert self.judge("humanline-closes-gap", scores(*values)).findings[0].verdict == verdict

    def test_a_claim_about_clipping_needs_clipped_tokens(self):
        """At 1 % of tokens or fewer a claim about clipping is not tested, and the finding says how few there were."""

        def make(share):
            return lambda t, o, r, v: result(2.0 + NOISE * (v == "beta rejection"), outside=np.full(SEEDS, share))

        few, enough = (self.judge("clip-matches-sampling", make(share)) for share in (0.01, 0.011))
        assert (few.verdict, few.findings[0].why) == (
            "not tested",
            "offline+humanline: 1.00% of tokens clipped; beta rejection: 1.00% of tokens clipped",
        )
        assert math.isnan(few.findings[0].p) and enough.verdict == "holds everywhere"

    def test_it_depends_on_the_factor_that_tells_most(self):
        """Where a claim holds for one objective only, the objective comes first, with counts of each level."""
        make = lambda t, o, r, v: result(2.0 + (0.4 + NOISE) * (v == "online") * (o == "grpo"))  # noqa: E731
        axes = {"tasks": ("bandit", "sequence"), "objectives": ("dpo", "grpo"), "rates": (0.1, 0.3, 1.0)}
        judgement = self.judge("online-beats-offline", make, **axes)
        assert judgement.verdict == "depends"
        assert [str(each) for each in judgement.depends_on] == ["objective: dpo 0/6, grpo 6/6"]
        assert judgement.summary == "holds in 6 of 12 tested settings (undecided in 6); objective: dpo 0/6, grpo 6/6"

    def test_without_an_effect_a_claim_holds_somewhere_in_at_most_a_twentieth_of_studies(self):
        """Over 400 studies of ten settings without an effect the share of false verdicts is within Hoeffding of .05."""
        studies, settings, rng = 400, 10, np.random.default_rng(1)
        claim = Claim("none", "", "", "", (), lambda get: Contrast(get("", ""), [get("", "")]))
        wrong = 0
        for _ in range(studies):
            draws = iter(rng.standard_normal((settings, 10)))
            lookup = type("Fake", (), {"get": lambda self, s, v, m, draws=draws: self.kept.setdefault(s, None)})()
            lookup.kept = {Setting("bandit", "dpo", float(i)): next(draws) for i in range(settings)}
            judgement = judge(claim, lookup, list(lookup.kept))
            wrong += any(finding.verdict == "holds" for finding in judgement.findings)
        assert wrong / studies <= 0.05 + math.sqrt(math.log(1e6) / (2 * studies))


class TestCatalogue:
    @pytest.mark.parametrize("name", CLAIMS)
    def test_a_claim_asks_for_the_variants_it_names_and_no_others(self, name):
        """Every look-up of a contrast is of a variant that the claim declares, and each declared one is used."""
        claim, asked = CLAIMS[name], set()

        def get(variant, measure):
            assert measure in {*MEASURES, *(name for point in POINTS for name in point)}
            asked.add(variant)
            return np.linspace(0.2, 0.4, 8) + (measure == "best")

        claim.contrast(get)
        assert asked == set(claim.variants) <= set(VARIANTS)
        assert set(claim.tasks) <= set(TASKS) and set(claim.objectives) <= set(OBJECTIVES)
        assert re.search(r"section|Figure|Table|ours", claim.source) and claim.words.endswith(".")
        assert not re.match("the same|this|it ", claim.words.lower())  # its words are read alone

    def test_the_study_covers_what_the_issue_lists(self):
        """All three objectives and problems, k from 1 to 64, 1 to 64 steps between samplings, at least 200 seeds."""
        cells = cells_of(chosen([]), FULL)
        variants = {variant for *_, variant in cells}
        assert {(task, objective) for task, objective, *_ in cells} >= {
            (task, objective) for task in TASKS for objective in ("dpo", "kto", "grpo")
        }
        assert {f"offline+humanline k={k}" for k in (1, 2, 4, 8, 16, 32, 64)} <= variants
        assert {f"online every={every}" for every in (1, 4, 16, 64)} <= variants
        assert {"sync only", "clip only", "beta rejection", "trust region", "online+humanline"} <= variants
        assert {"offline worse data", "offline better data"} <= variants and FULL.seeds >= 200

    def test_variants_are_what_the_design_says(self):
        """Names of the design's table map to their data source, schedule and transform."""
        run = make_run("bandit", "dpo", 0.1, "offline+humanline")
        assert (run.schedule.kind, run.schedule.every, run.transform.low, run.transform.high) == (
            "before_step",
            1,
            -1.5,
            1.5,
        )
        assert make_run("bandit", "dpo", 0.1, "offline").schedule.kind == "never"
        assert make_run("bandit", "dpo", 0.1, "trust region").schedule.kind == "after_step"
        assert make_run("bandit", "grpo", 0.1, "offline").objective.clip_eps == 0.5
        assert make_run("bandit", "grpo", 0.1, "sync only").objective.clip_eps == 0.15

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (("bandits", "dpo", "offline"), "bandits: no such task; did you mean bandit?"),
            (("bandit", "dp", "offline"), "dp: no such objective; did you mean dpo?"),
            (("bandit", "dpo", "ofline"), "ofline: no such variant; did you mean offline?"),
        ],
    )
    def test_unknown_names_are_refused_with_the_nearest(self, names, message):
        """An unknown task, objective or variant is named with the nearest known one."""
        task, objective, variant = names
        with pytest.raises(ValueError, match=re.escape(message)):
            make_run(task, objective, 0.1, variant)

    def test_settings_have_a_tuned_one_where_there_is_a_choice(self):
        """Several learning rates are judged one by one and tuned; a single one is judged as it is."""
        claim = CLAIMS["k1-collapses"]
        assert [s.rate for s in settings_of(claim, FULL)] == [*RATES, None]
        assert [s.rate for s in settings_of(claim, QUICK)] == list(QUICK.rates)


class TestStudy:
    def test_a_study_writes_its_table_and_goes_on_where_it_stopped(self, tmp_path):
        """Every file is written, numbers agree between them, and a second call runs nothing again."""
        claims, seen = ["online-beats-offline", "k1-collapses"], []
        report = study(tmp_path, claims=claims, scale=TINY, progress=lambda done, total: seen.append((done, total)))
        assert seen[0] == (0, seen[0][1]) and seen[-1][0] == seen[-1][1] == len(report.results)
        with open(tmp_path / "claims.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 9 * 3 + 3
        for row, finding in zip(rows, report.judgements[0].findings, strict=False):
            assert float(row["effect"]) == pytest.approx(finding.effect.mean, rel=1e-5)
            assert row["verdict"] == finding.verdict
        text = (tmp_path / "claims.md").read_text(encoding="utf-8")
        assert "| [online-beats-offline](#online-beats-offline) |" in text and "## k1-collapses" in text
        settings = json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))
        assert settings["seeds"] == "0 to 3" and settings["learning rates"] == [0.1, 0.3]
        again = []
        study(tmp_path, claims=claims, scale=TINY, progress=lambda done, total: again.append((done, total)))
        assert again == [seen[-1]]
        with open(tmp_path / "runs.csv", encoding="utf-8") as file:
            assert {row["measure"] for row in csv.DictReader(file)} >= set(MEASURES) - {"saturation"}

    def test_an_unknown_claim_runs_and_writes_nothing(self, tmp_path):
        """The nearest name is suggested and the folder is not made."""
        with pytest.raises(
            ValueError, match=r"onlin-beats-offline: no such claim; did you mean online-beats-offline\?"
        ):
            study(tmp_path / "new", claims=["onlin-beats-offline"], scale=TINY)
        assert not (tmp_path / "new").exists()

    def test_other_settings_are_other_results(self, tmp_path):
        """A study of more seeds in the same folder takes nothing from one of fewer."""
        study(tmp_path, claims=["k1-collapses"], scale=TINY)
        counts = []
        report = study(
            tmp_path,
            claims=["k1-collapses"],
            scale=replace(TINY, seeds=5),
            progress=lambda done, total: counts.append((done, total)),
        )
        assert counts[0] == (0, 2) and all(len(r["score"]) == 5 for r in report.results.values())


class TestCommand:
    def test_unknown_claims_and_process_counts_are_refused(self, tmp_path, capsys, monkeypatch):
        """Exit code 2 and one line that says what is wrong; nothing is written."""
        monkeypatch.chdir(tmp_path)
        assert main(["sim", "--quick", "clip-neded"]) == 2
        assert capsys.readouterr().err == "humanline sim: clip-neded: no such claim; did you mean clip-needed?\n"
        assert main(["sim", "--quick", "--processes", "0", "k1-collapses"]) == 2
        assert "processes must be >= 1; got 0" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_store_is_named(self, tmp_path, capsys):
        """A damaged store is an error that names the file and says what to do; the file stays as it was."""
        (tmp_path / "study.sqlite").write_bytes(b"not a database at all" * 100)
        assert main(["sim", "--quick", "--out", str(tmp_path), "--quiet", "k1-collapses"]) == 2
        error = capsys.readouterr().err
        assert "study.sqlite" in error and "take another folder" in error
        assert (tmp_path / "study.sqlite").read_bytes() == b"not a database at all" * 100

    @pytest.mark.slow
    def test_it_stops_on_request_and_goes_on(self, tmp_path):
        """SIGTERM ends a study with code 75 and says how many runs are kept; the same command does the others."""
        command = [sys.executable, "-m", "humanline.cli", "sim", "--quick", "--processes", "1", "--out", str(tmp_path)]
        command += ["humanline-tolerates-stale"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert first.stderr is not None
        while (line := first.stderr.readline()).startswith("runs 0/"):
            pass
        assert re.match(r"runs [1-9]\d*/12  about", line), line
        time.sleep(0.2)
        first.send_signal(signal.SIGTERM)
        _, error = first.communicate(timeout=60)
        assert first.returncode == 75 and "Traceback" not in error
        kept = int(re.search(r"SIGTERM: (\d+) of 12 runs are kept", error)[1])
        assert 2 <= kept < 12
        second = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert second.returncode == 0 and f"runs {kept}/12" in second.stderr
        assert "humanline-tolerates-stale" in second.stdout and str(tmp_path / "claims.md") in second.stdout


class TestCommitted:
    FOLDER = ROOT / "studies" / "simulator"
    PAGE = ROOT / "docs" / "when-does-it-help.md"

    def test_the_committed_tables_agree(self):
        """The verdicts of the committed table are those that its rows add up to, over at least 200 seeds."""
        with open(self.FOLDER / "claims.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        text = (self.FOLDER / "claims.md").read_text(encoding="utf-8")
        settings = json.loads((self.FOLDER / "settings.json").read_text(encoding="utf-8"))
        assert int(settings["seeds"].split()[-1]) + 1 >= 200
        assert list(dict.fromkeys(row["claim"] for row in rows)) == list(CLAIMS)
        for claim in CLAIMS:
            mine = [row for row in rows if row["claim"] == claim]
            evidence = [
                r["verdict"] for r in mine if r["verdict"] not in ("rounding", "not tested") and not r["same_as"]
            ]
            fixed = [row["verdict"] for row in mine if row["rate"] != "tuned"]
            counts = f"{fixed.count('holds')} | {fixed.count('small')} |"
            assert f"| [{claim}](#{claim}) | **{overall(evidence)}** | {counts}" in text

    def test_the_committed_settings_are_those_of_the_code(self):
        """Problems, objectives and variants of the committed study are the ones that the code would run."""
        from humanline.sim.report import settings

        committed = json.loads((self.FOLDER / "settings.json").read_text(encoding="utf-8"))
        now = json.loads(json.dumps(settings(FULL)))
        for name in now.keys() - {"humanline", "python", "numpy", "torch"}:
            assert committed[name] == now[name], name

    def test_the_page_counts_what_the_table_does(self):
        """What the page says of a claim are the settings of the table: with evidence, and each once."""
        lines = self.PAGE.read_text(encoding="utf-8").splitlines()
        with open(self.FOLDER / "claims.csv", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if r["verdict"] not in ("rounding", "not tested")]

        fixed = tuple(map("{:g}".format, RATES))

        def of(claim, objectives="dpo kto grpo", rates=(*fixed, "tuned")):
            mine = [r for r in rows if r["claim"] == claim and r["objective"] in objectives.split()]
            return Counter(r["verdict"] for r in mine if r["rate"] in rates and not r["same_as"])

        def holds(*found):
            counts = of(*found)
            return f"{counts['holds']} of {counts.total()}"

        beats, better, half = "online-beats-offline", "humanline-beats-offline", "sync-closes-half-the-gap"
        at_distance = "humanline-ahead-at-distance"
        behind = of(at_distance)["slightly contrary"]
        said = {
            "online beats offline": f"{holds(beats)} settings, small in {of(beats)['small']}: GRPO always, KTO "
            f"{holds(beats, 'kto', fixed)} fixed rates, DPO {holds(beats, 'dpo', fixed)}",
            "humanline beats offline on the same data": f"GRPO {holds(better, 'grpo', fixed)} fixed rates "
            f"(+.14 to +.45), KTO {holds(better, 'kto', fixed)} (small in "
            f"{of(better, 'kto', fixed)['small']}), DPO at beta 0.1 none",
            "... and closes the gap to online": holds("humanline-closes-gap").replace("of", "of the"),
            "syncing alone closes half of that gap": f"GRPO {holds(half, 'grpo', fixed)} fixed rates",
            "clipping is still needed": f"small in {of('clip-needed')['small']}, harmful in "
            f"{of('clip-needed', 'dpo', ('tuned',)).total()} tuned ones. k = 16: GRPO "
            f"{holds('clip-needed-k16', 'grpo', fixed)}, KTO and DPO {holds('clip-needed-k16', 'dpo kto', fixed)}",
            "clipping does as well as sampling": f"{holds('clip-matches-sampling')} (k = 1), "
            f"{holds('clip-matches-sampling-k16')} (k = 16)",
            "a larger k is slower": f"{holds('larger-k-slower')}, small in {of('larger-k-slower')['small']}",
            "... but stabler; k = 1 collapses on verifiable rewards": f"{holds('larger-k-stabler')}, and "
            f"{holds('k1-collapses')}",
            "with humanline, samples may be 64 steps old": holds("humanline-tolerates-stale"),
            "trust-region syncing is worse": f"GRPO {holds('trust-region-worse', 'grpo', fixed)} fixed rates, KTO "
            f"{holds('trust-region-worse', 'kto', fixed)}, DPO {holds('trust-region-worse', 'dpo', fixed)}",
            "low-probability data are worse": f"{holds('low-probability-worse')}, the contrary in ",
            "the clip range hardly matters": f"all {of('clip-range-hardly-matters')['holds']} settings",
            "on-policy data are closer to what people perceive": f"({holds('perceived-distance-predicts')}), but the "
            f"perceived law tells no more of it than the policy itself ({holds('perceived-predicts-better')})",
            "at equal divergence from the start": f"ahead of offline in {holds(at_distance)}, behind in "
            f"{behind + of(at_distance)['contrary']} ({behind} of them slightly)",
        }
        for claim, words in said.items():
            (line,) = [line for line in lines if line.startswith(f"| {claim} |")]
            assert words in line, claim
        effects = [float(r["effect"]) for r in rows if (r["claim"], r["objective"]) == (better, "grpo")]
        assert (round(min(effects), 2), round(max(effects), 2)) == (0.14, 0.45)

    def test_the_page_counts_what_the_table_of_worlds_does(self):
        """Where online beats offline with a dial turned, and where it does not."""
        text = " ".join(self.PAGE.read_text(encoding="utf-8").split())
        with open(ROOT / "studies" / "worlds" / "worlds.csv", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if r["claim"] == "online-beats-offline" and r["level"] != "off"]
        others = [r for r in rows if r["verdict"] != "holds"]
        proxied = [r for r in rows if r["dial"] == "proxy" and r["objective"] != "grpo"]
        assert f"in {len(rows) - len(others)} of the {len(rows)} settings so made" in text
        assert f"not in {sum(r in others for r in proxied)} of the {len(proxied)} with a proxy for DPO and KTO" in text
        (noisy,) = [r for r in others if r not in proxied]
        assert f"only by {float(noisy['effect']):+.3f} for DPO on bandits".replace("+0.", "+.") in text
        assert (noisy["dial"], noisy["level"], noisy["task"]) == ("noisy scores", "1", "bandit")

    def test_what_the_own_clip_does_to_ages_can_be_had_again(self):
        """At the study's clip the script's differences are the study's, seed by seed; another clip gives others."""
        own, claim = runpy.run_path(str(self.FOLDER / "own_clip.py")), CLAIMS["placebo-same-ages"]
        assert (own["SYNCED"], own["NEVER_SYNCED"]) == claim.variants
        assert own["CLIPS"][0] == OBJECTIVES["grpo"].clip_eps
        for task, rate in own["SETTINGS"]:
            runs = {variant: make_run(task, "grpo", rate, variant, steps=12) for variant in claim.variants}
            measured = {
                (task, "grpo", rate, variant): {name: np.array(values) for name, values in measure(run, [0, 1]).items()}
                for variant, run in runs.items()
            }
            study, setting = Study(measured), Setting(task, "grpo", rate)
            contrast = claim.contrast(functools.partial(study.get, setting))
            found = own["difference"](task, rate, own["CLIPS"][0], range(2), steps=12)
            assert found == contrast.effect.tolist() and any(found)
            assert own["difference"](task, rate, own["CLIPS"][1], range(2), steps=12) != found
