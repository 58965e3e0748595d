"""People with perceptions of their own: what a policy is worth to them, their rules, and what a study keeps."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from humanline.sim import people as study  # noqa: E402
from humanline.sim.bandit import Bandit  # noqa: E402
from humanline.sim.claims import CLAIMS, PERSONAL  # noqa: E402
from humanline.theory import ClipRange  # noqa: E402

ANN = {"curvature": 0.7, "loss_aversion": 1.8, "gain_gamma": 0.5, "loss_gamma": 0.9}


def omega(p, gamma):
    return 0.0 if p <= 0 else p**gamma / (p**gamma + max(1 - p, 0.0) ** gamma) ** (1 / gamma)


def worth_by_hand(scores, probs, middle, person):
    """Cumulative prospect theory of one lottery, outcome by outcome."""
    order = np.argsort(scores)
    z, p = scores[order] - middle, probs[order]
    total = 0.0
    for i, outcome in enumerate(z):
        if outcome >= 0:
            weight = omega(min(p[i:].sum(), 1), person["gain_gamma"]) - omega(p[i + 1 :].sum(), person["gain_gamma"])
            total += weight * outcome ** person["curvature"]
        else:
            weight = omega(p[: i + 1].sum(), person["loss_gamma"]) - omega(p[:i].sum(), person["loss_gamma"])
            total -= weight * person["loss_aversion"] * (-outcome) ** person["curvature"]
    return total


def test_worth_is_the_utility_of_the_policys_lottery_to_the_person():
    """It is that of plain loops; 0 for the start policy, and 1 for always the best response."""
    world = Bandit(contexts=3, arms=4).draw([0, 1])
    start = world.table(world.start)
    best = torch.where(world.scores == world.scores.amax(-1, keepdim=True), 0.0, -math.inf).double()
    other = (2 * start).log_softmax(-1)
    np.testing.assert_allclose(study.felt(world, start, [ANN] * 2), 0, atol=1e-12)
    np.testing.assert_allclose(study.felt(world, best, [ANN] * 2), 1, atol=1e-12)
    found = study.felt(world, other, [ANN] * 2)
    for seed in (0, 1):
        rows = []
        for context in range(3):
            scores = world.scores[seed, context].numpy()
            before, after = (table[seed, context].exp().numpy() for table in (start, other))
            middle = float(before @ scores)
            utilities = [worth_by_hand(scores, probs, middle, ANN) for probs in (before, after)]
            rows.append([*utilities, (scores.max() - middle) ** ANN["curvature"]])
        u0, u, top = np.mean(rows, 0)
        assert found[seed] == pytest.approx((u - u0) / (top - u0), abs=1e-8)


def test_people_are_drawn_from_the_population():
    """Logs have the median and the spread that are said, within Chebyshev's bound; the same seed is the same person."""
    population = study.Population(loss_gamma=(0.73, 0.01))
    drawn = [population.draw(seed) for seed in range(2000)]
    for name in ("curvature", "loss_aversion"):
        median, spread = getattr(population, name)
        logs = np.log([one[name] for one in drawn])
        assert abs(logs.mean() - math.log(median)) < spread / math.sqrt(2000 * 1e-3)
        assert abs(logs.var() - spread**2) < spread**2 * math.sqrt(2 / (2000 * 1e-3))
    assert drawn[7] == population.draw(7) != drawn[8]
    assert all(study.LEAST <= one["gain_gamma"] <= study.MOST for one in drawn)


def test_whose_gamma_is_whose():
    """One for all, the middle one, each one's own, and the next one's; all in steps of .05."""
    gammas = study.gammas_of(study.Population(), 30)
    own = [study.Population().draw(seed)["gain_gamma"] for seed in range(30)]
    np.testing.assert_allclose(gammas["own"], own, atol=study.STEP / 2 + 1e-12)
    np.testing.assert_array_equal(gammas["another's"], np.roll(gammas["own"], -1))
    assert set(gammas["shared"]) == {0.6} and len(set(gammas["population"])) == 1
    assert abs(gammas["population"][0] - np.exp(np.log(own).mean())) <= study.STEP / 2


def test_rules_are_those_of_the_map():
    """The test is Prop. 4.1's but for one token in 1e8; the clip range is the nearest of `map_to_rejection`."""
    from humanline.fit import map_to_rejection
    from humanline.theory import TverskyKahneman

    test = study.rule_of("test", 0.6)
    for log_ratio in (-3.0, 0.0, 1.0):
        assert test.acceptance_probability(log_ratio) == pytest.approx((math.exp(log_ratio) / 6) ** 0.6, rel=1e-7)
    nearest = map_to_rejection(TverskyKahneman(0.6), two_tests=False).sides["gain"].ranges["sup"]
    assert study.rule_of("clip", 0.6) == ClipRange(nearest.low, math.inf)
    assert study.rule_of("clip", 0.3) == ClipRange(-math.inf, math.inf)


def test_the_claims_are_their_own():
    """The claims on people are not among those of the paper, and name variants that the study trains."""
    assert not set(PERSONAL) & set(CLAIMS)
    trained = {"no rule", *(f"{whose} {kind}" for whose in study.WHOSE for kind in study.RULES)}
    assert {variant for claim in PERSONAL.values() for variant in claim.variants} == trained


def test_a_study_of_a_few(tmp_path):
    """It writes its three files, the same again; where two have one rule their difference is exactly 0."""
    scale = study.PeopleScale(people=3, steps=4, rates=(0.1,))
    one = study.study_people(tmp_path / "a", scale=scale)
    study.study_people(tmp_path / "b", scale=scale)
    for name in ("people.md", "people.csv", "people.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a" / "people.json").read_text("utf-8"))["scale"]["people"] == 3
    assert len(one.judgements) == len(PERSONAL) and len(one.judgements[0].findings) == 6
    gammas = study.gammas_of(study.Population(), 3)
    same = gammas["own"] == gammas["shared"]
    for key, measures in one.results.items():
        if key[3] == "own test":
            shared = one.results[(*key[:3], "shared test")]
            assert (measures["felt"][same] == shared["felt"][same]).all()
