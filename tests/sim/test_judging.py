"""Verdicts on studies that are made up, so that what should be found is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from humanline.sim import judging
from humanline.sim.claims import CLAIMS, Claim
from humanline.sim.contrasts import Contrast, score
from humanline.sim.findings import LEVEL, OVERALL, VERDICTS, overall
from humanline.sim.judging import judge, judge_all
from humanline.sim.lookup import Setting, Study
from humanline.sim.report import FULL, settings_of
from humanline.sim.study import MEASURES

SEEDS = 64
RATES = (0.1, 0.3, 1.0)
FULL_FLIPS, FLIPS = judging.FLIPS, 1999
WORSE = Claim("worse", "", "", "", ("a", "b"), score("a", "b"))
NOISE = np.random.default_rng(0).standard_normal(SEEDS)
NOISE = (NOISE - NOISE.mean()) / NOISE.std(ddof=1)  # mean 0, standard deviation 1


@pytest.fixture(autouse=True)
def few_flips(monkeypatch):
    """Fewer signs, which are quicker to draw."""
    monkeypatch.setattr(judging, "FLIPS", FLIPS)


def result(value, **measures):
    """A run whose scores are already shares of what there is to gain."""
    zeros = {name: np.zeros(SEEDS) for name in MEASURES}
    return zeros | {"best": np.ones(SEEDS), "score": np.broadcast_to(np.asarray(value, float), SEEDS)} | measures


def study(make, rates=(0.1,), variants=("a", "b"), **measures):
    """The study of a bandit with DPO in which a function of (rate, variant) gives each score."""
    return Study({("bandit", "dpo", r, v): result(make(r, v), **measures) for r in rates for v in variants})


def settings(rates=(0.1,), *, tuned=False):
    return [Setting("bandit", "dpo", rate) for rate in [*rates, *[None] * tuned]]


def differing(effect, spread=0.01):
    """A study of one rate in which a is above b by a mean of `effect`."""
    return study(lambda r, v: (effect + spread * NOISE) * (v == "a"))


class TestSize:
    @pytest.mark.parametrize(
        ("effect", "verdict"),
        [
            (0.06, "holds"),
            (0.04, "small"),
            (0.0, "undecided"),
            (-0.04, "slightly contrary"),
            (-0.06, "contrary"),
        ],
    )
    def test_a_superiority_below_the_margin_is_small(self, effect, verdict):
        """Clear differences are small below .05 of what there is to gain, in both directions."""
        (finding,) = judge(WORSE, differing(effect), settings()).findings
        assert finding.verdict == verdict and finding.effect.mean == pytest.approx(effect, abs=1e-12)

    def test_as_good_as_has_no_size(self):
        """Of a claim to be as good within a margin the effect is not what should be positive: never small."""

        def contrast(get):
            difference = get("a", "score") - get("b", "score")
            return Contrast(difference, [difference + 0.05])

        for effect, verdict in ((0.01, "holds"), (-0.01, "holds"), (-0.06, "contrary")):
            claim = Claim("as-good", "", "", "", ("a", "b"), contrast)
            assert judge(claim, differing(effect), settings()).findings[0].verdict == verdict

    @pytest.mark.parametrize(
        ("effect", "other", "verdict"),
        [
            (0.2, 0.2, "holds"),
            (0.2, 0.02, "small"),
            (0.02, 0.2, "small"),
            (0.2, -0.02, "slightly contrary"),
            (-0.02, -0.2, "contrary"),
            (0.02, -0.2, "contrary"),
            (-0.2, 0.2, "contrary"),
        ],
    )
    def test_of_several_superiorities_the_least_has_the_size(self, effect, other, verdict):
        """A claim that two differences are positive is as large, and as contrary, as the lesser of them."""

        def contrast(get):
            difference = get("a", "score") - get("b", "score")
            return Contrast(difference, [difference, difference - effect + other])

        claim = Claim("both", "", "", "", ("a", "b"), contrast)
        assert judge(claim, differing(effect), settings()).findings[0].verdict == verdict

    def test_a_contrast_may_have_a_margin_of_its_own(self):
        """What is small is said by the contrast, in the unit of its effect."""

        def contrast(get):
            difference = get("a", "score") - get("b", "score")
            return Contrast(difference, [difference], margin=0.2)

        claim = Claim("own", "", "", "", ("a", "b"), contrast)
        got = [judge(claim, differing(effect), settings()).findings[0].verdict for effect in (0.19, 0.21, -0.19, -0.21)]
        assert got == ["small", "holds", "slightly contrary", "contrary"]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (["holds", "holds"], "holds everywhere"),
        (["holds", "undecided"], "depends"),
        (["holds", "small"], "depends"),
        (["holds", "contrary"], "depends"),
        (["small", "undecided"], "small at most"),
        (["small", "slightly contrary"], "small at most"),
        (["slightly contrary"], "small at most"),
        (["small", "contrary"], "contrary somewhere, holds nowhere"),
        (["undecided", "contrary"], "contrary somewhere, holds nowhere"),
        (["undecided", "undecided"], "undecided everywhere"),
        ([], "not tested"),
    ],
)
def test_no_evidence_is_told_from_evidence_against(found, verdict):
    """Contrary somewhere, undecided everywhere and not tested are three verdicts, and small differences a fourth."""
    assert overall(found) == verdict and verdict in OVERALL


def test_every_mix_of_settings_has_one_verdict():
    """Whatever the settings that test a claim say, one of the six kinds follows, whatever their order and number."""
    for count in range(len(VERDICTS) - 1):
        for mix in itertools.combinations(VERDICTS[:-2], count):
            assert overall(mix) == overall([*reversed(mix), *mix]) in OVERALL


class TestTuned:
    def make(self, best):
        """A study in which each variant is best at its own rate, and a is above b by .2 there and everywhere."""
        return study(lambda r, v: 0.3 + 0.2 * (v == "a") - 0.1 * (r != best[v]) + 0.01 * NOISE * (v == "a"), RATES)

    def test_one_that_repeats_a_fixed_rate_counts_once(self):
        """Where all variants are best at one rate the tuned setting is that of the rate: in no count, no correction."""
        judgement = judge(WORSE, self.make({"a": 0.3, "b": 0.3}), settings(RATES, tuned=True))
        *_, twin, _, tuned = judgement.findings
        assert (twin.setting.rate, tuned.same_as, tuned.p, tuned.verdict) == (0.3, 0.3, twin.p, "holds")
        assert tuned.effect == twin.effect and twin.same_as is None
        assert len(judgement.tested) == 3 and tuned not in judgement.tested and judgement.tuned == [tuned]
        without = judge(WORSE, self.make({"a": 0.3, "b": 0.3}), settings(RATES))
        assert [f.p for f in without.findings] == [f.p for f in judgement.fixed]
        assert twin.p == pytest.approx(3 / (1 + FLIPS), rel=1e-9)  # the least p-value, times the settings

    def test_one_that_mixes_rates_counts(self):
        """Where variants differ in their best rate the tuned setting is one of its own, and corrected for."""
        judgement = judge(WORSE, self.make({"a": 0.3, "b": 0.1}), settings(RATES, tuned=True))
        tuned = judgement.tuned[0]
        assert tuned.same_as is None and tuned in judgement.tested and len(judgement.tested) == 4
        assert tuned.p == pytest.approx(4 / (1 + FLIPS), rel=1e-9)

    def test_one_whose_halves_differ_repeats_nothing(self):
        """A variant with one rate on one half of the seeds and another on the other half has no fixed twin."""
        even = np.arange(SEEDS) % 2 == 0
        found = study(lambda r, v: np.where(even == (r == 0.3), 0.5, 0.4), RATES)
        assert judge(WORSE, found, settings(RATES, tuned=True)).tuned[0].same_as is None

    def test_a_rate_that_is_no_setting_is_repeated_by_none(self):
        """A best rate beyond those of the settings makes no twin."""
        found = self.make({"a": 0.3, "b": 0.3})
        assert judge(WORSE, found, settings((0.1, 1.0), tuned=True)).tuned[0].same_as is None

    @pytest.mark.parametrize(("best", "edges"), [(0.1, [0.1]), (0.3, []), (1.0, [1.0])])
    def test_a_best_rate_at_an_edge_is_flagged(self, best, edges):
        """The least and the largest rate that a variant was run with are edges, those between are none."""
        found = self.make({"a": best, "b": 0.3})
        assert found.edges(Setting("bandit", "dpo", None), "a") == edges
        judgement = judge(WORSE, found, settings(RATES, tuned=True))
        assert judgement.tuned[0].edges == tuple(f"a at {edge:g}" for edge in edges)
        assert not any(finding.edges for finding in judgement.fixed)

    def test_one_half_at_an_edge_is_enough(self):
        """Each half of the seeds has a best rate of its own; either may lie at an edge, or both at different ones."""
        even = np.arange(SEEDS) % 2 == 0
        one = study(lambda r, v: np.where(even, r == 1.0, r == 0.3), RATES)
        both = study(lambda r, v: np.where(even, r == 1.0, r == 0.1), RATES)
        tuned = Setting("bandit", "dpo", None)
        assert one.chosen(tuned, "a") == (0.3, 1.0)  # the even half has what is best on the odd one
        assert (one.edges(tuned, "a"), both.edges(tuned, "a")) == ([1.0], [0.1, 1.0])


class TestRounding:
    def judged(self, effect, move, spread=0.05):
        """The finding of a study whose effect another rounding changes by `move`."""
        disturbed = study(lambda r, v: (effect + spread * NOISE + move) * (v == "a"))
        return judge(WORSE, differing(effect, spread), settings(), disturbed=disturbed)

    def test_an_effect_that_moves_by_a_tenth_of_its_half_width_is_no_evidence(self):
        """Just above a tenth it is marked and says so, just below it stays as it is."""
        half = self.judged(0.2, 0.0).findings[0].effect.half_width
        below, above = self.judged(0.2, 0.09 * half), self.judged(0.2, 0.11 * half)
        assert (below.findings[0].verdict, below.verdict) == ("holds", "holds everywhere")
        assert below.findings[0].moved == pytest.approx(0.09 * half)
        assert (above.findings[0].verdict, above.findings[0].jointly) == ("rounding", "rounding")
        assert (above.verdict, above.jointly, above.tested) == ("not tested", "not tested", [])
        assert "moves by" in above.findings[0].why
        assert self.judged(0.2, -0.11 * half).findings[0].verdict == "rounding"

    def test_moves_that_cancel_over_seeds_are_seen(self):
        """Where half of the seeds move up and the others down by as much, the effect hangs on rounding all the same."""
        moves = 0.1 * np.where(np.arange(SEEDS) % 2, 1, -1)
        finding = self.judged(0.2, moves).findings[0]
        assert finding.verdict == "rounding" and finding.moved == pytest.approx(0.1 / math.sqrt(SEEDS))

    def test_a_verdict_that_flips_is_no_evidence(self):
        """An effect that moves little, but across the level, hangs on rounding; the finding says from what to what."""
        close = [judge(WORSE, differing(e, 1.0), settings()).findings[0].p for e in (0.0, 0.5)]
        assert close[0] > LEVEL > close[1]
        low, high = 0.0, 0.5  # bisect to where the p-value crosses the level
        for _ in range(14):
            middle = (low + high) / 2
            p = judge(WORSE, differing(middle, 1.0), settings()).findings[0].p
            low, high = (low, middle) if p < LEVEL else (middle, high)
        judgement = judge(WORSE, differing(high, 1.0), settings(), disturbed=differing(low, 1.0))
        finding = judgement.findings[0]
        assert finding.moved < 0.01 * finding.effect.half_width
        assert (finding.verdict, finding.why, judgement.tested) == ("rounding", "holds becomes undecided", [])

    def test_last_digits_of_an_effect_without_spread_do_not_count(self):
        """Runs that are equal but for the last digits are undecided, however narrow the interval."""
        finding = self.judged(0.0, 1e-13, spread=0.0).findings[0]
        assert finding.verdict == "undecided" and 0 < finding.moved < 1e-12

    def test_what_tests_nothing_hangs_on_nothing(self):
        """A setting that is not tested with either rounding stays so; tested with one of them, it is marked."""

        def contrast(get):
            difference = get("a", "score")
            return Contrast(difference, [difference], "too low" if difference.mean() < 0.2 else "")

        claim = Claim("guarded", "", "", "", ("a", "b"), contrast)
        never = judge(claim, differing(0.1), settings(), disturbed=differing(0.15))
        once = judge(claim, differing(0.2001), settings(), disturbed=differing(0.1999))
        assert (never.findings[0].verdict, never.findings[0].why) == ("not tested", "too low")
        assert once.findings[0].verdict == "rounding" and math.isfinite(once.findings[0].p)

    def test_without_a_second_run_nothing_is_measured(self):
        """The verdicts are the same, and how far the effect moves is not known."""
        finding = judge(WORSE, differing(0.2), settings()).findings[0]
        assert finding.verdict == "holds" and math.isnan(finding.moved)


class TestAllClaims:
    def test_settings_of_all_claims_are_corrected_for_together(self):
        """A setting at p = .02 holds alone, and no more among ten of another claim that shows nothing."""
        shown = 2.15 / math.sqrt(SEEDS) + NOISE
        found = study(lambda r, v: {"a": shown, "c": NOISE}.get(v, 0.0) + 0 * NOISE, range(1, 11), ("a", "b", "c"))
        none = Claim("none", "", "", "", ("c", "b"), score("c", "b"))
        alone, other = judge_all([(WORSE, settings((1,))), (none, settings(range(1, 11)))], found)
        finding = alone.findings[0]
        assert finding.p == judge(WORSE, found, settings((1,))).findings[0].p < LEVEL
        assert finding.p_jointly == pytest.approx(11 * finding.p)
        assert (finding.verdict, finding.jointly) == ("holds", "undecided")
        assert (alone.verdict, alone.jointly) == ("holds everywhere", "undecided everywhere")
        assert other.verdict == other.jointly == "undecided everywhere"

    def test_the_contrary_is_corrected_for_together_too(self):
        """A contrary setting that is clear among its own is undecided among those of all claims if it is not there."""
        shown = -2.15 / math.sqrt(SEEDS) - NOISE
        found = study(lambda r, v: {"a": shown, "c": NOISE}.get(v, 0.0) + 0 * NOISE, range(1, 11), ("a", "b", "c"))
        none = Claim("none", "", "", "", ("c", "b"), score("c", "b"))
        alone, _ = judge_all([(WORSE, settings((1,))), (none, settings(range(1, 11)))], found)
        assert (alone.findings[0].verdict, alone.findings[0].jointly) == ("contrary", "undecided")

    def test_there_are_enough_signs_for_it(self):
        """The least p-value stays below the level after a correction over every setting of every claim, twice over."""
        tests = sum(len(settings_of(claim, FULL)) for claim in CLAIMS.values())
        assert tests / (1 + FULL_FLIPS) < LEVEL / 2

    def test_claims_are_judged_together_as_each_alone(self):
        """Effects, verdicts and p-values of a claim do not depend on which others are judged."""
        found = study(lambda r, v: {"a": 0.3 * r + NOISE / 9, "b": 0.1}.get(v, 0.2) + 0 * NOISE, RATES, ("a", "b", "c"))
        other = Claim("other", "", "", "", ("b", "c"), score("b", "c"))
        asked = [(WORSE, settings(RATES, tuned=True)), (other, settings(RATES[:2]))]
        for (claim, where), judgement in zip(asked, judge_all(asked, found), strict=True):
            alone = judge(claim, found, where)
            for ours, theirs in zip(judgement.findings, alone.findings, strict=True):
                assert (ours.setting, ours.effect, ours.verdict, ours.p) == (
                    theirs.setting,
                    theirs.effect,
                    theirs.verdict,
                    theirs.p,
                )


def test_parts_are_combined_so_that_all_must_hold():
    """The p-value of a claim of two parts is that of the weaker one, and of its contrary twice the stronger one's."""
    weak, strong = 0.22 + NOISE, 1.0 + NOISE[::-1]

    def claim(*parts):
        return Claim("parts", "", "", "", (), lambda get: Contrast(np.zeros(SEEDS), list(parts)))

    p = [
        judge(claim(*parts), Study({}), settings()).findings[0].p
        for parts in ((strong,), (weak,), (weak, strong), (strong, weak))
    ]
    assert p[1] == p[2] == p[3] > 10 * p[0]
    verdicts = [
        judge(claim(*parts), Study({}), settings()).findings[0].verdict
        for parts in ((-strong, strong), (weak, -strong))
    ]
    assert verdicts == ["contrary", "contrary"]
    edge = 2.15 / math.sqrt(SEEDS) - NOISE  # about p = .02 in one direction
    alone, twice, thrice = (
        judge(claim(-edge, *more), Study({}), settings()).findings[0].verdict for more in ((), (strong,), (strong,) * 2)
    )
    assert (alone, twice, thrice) == ("contrary", "contrary", "undecided")


class TestIdle:
    CLAIM = CLAIMS["clip-needed-k16"]

    def judged(self, share):
        found = study(lambda r, v: 0.3 + 0.01 * NOISE, RATES, self.CLAIM.variants, outside=np.full(SEEDS, share))
        return judge(self.CLAIM, found, settings(RATES))

    def test_variants_that_clip_nothing_are_named(self):
        """A variant with a clip that touches 1 % of tokens or fewer is idle, one without a clip never is."""
        assert [f.idle for f in self.judged(0.01).findings] == [("offline+humanline k=16",)] * 3
        assert [f.idle for f in self.judged(0.011).findings] == [()] * 3
        found = study(lambda r, v: 0.3 + 0.01 * NOISE, RATES, ("online", "offline"))
        assert not any(f.idle for f in judge(CLAIMS["online-beats-offline"], found, settings(RATES)).findings)
