"""People with perceptions of their own: what a policy is worth to them, their rules, and what a study keeps."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from humanline.sim import people as study  # noqa: E402
from humanline.sim.bandit import Bandit  # noqa: E402
from humanline.sim.claims import CLAIMS, PERSONAL  # noqa: E402
from humanline.sim.people_tables import people_markdown  # noqa: E402
from humanline.theory import ClipRange  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

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


def test_each_verdict_of_a_setting_has_a_column():
    """Settings that are slightly contrary are counted apart from contrary and from undecided ones, with a legend."""
    verdicts = ["holds", "small", "undecided", "undecided", *["slightly contrary"] * 3, *["contrary"] * 4]
    row = {"claim": "own-beats-none-test", "task": "bandit", "objective": "dpo", "rate": "0.1", "half_width": "0.01"}
    rows = [
        {**row, "effect": f"{place / 100}", "p_holm": "1", "p_all_claims": "1", "verdict": verdict}
        for place, verdict in enumerate(verdicts)
    ]
    lines = people_markdown(rows, [], made="Made.").splitlines()
    (head,) = [place for place, line in enumerate(lines) if line.startswith("| claim |")]
    columns, cells = ([cell.strip() for cell in lines[at].strip("|").split("|")] for at in (head, head + 2))
    found = dict(zip(columns, cells, strict=True))
    wanted = {"holds": "1", "small": "1", "undecided": "2", "slightly contrary": "3", "contrary": "4"}
    assert {name: found[name] for name in wanted} == wanted and lines[head + 1].count("---") == len(columns)
    assert found["verdict"] == "**depends**" and found["effect, least to largest"].startswith("+0.0000")
    legend = next(line for line in lines if line.startswith("Columns count settings."))
    assert "*slightly contrary*: below 0, by less than 0.05; *contrary*: below 0, by 0.05 or more" in legend


def test_a_study_of_a_few(tmp_path, monkeypatch):
    """It writes its three files, the same again; where two have one rule their difference is exactly 0.

    The page can be told again from the others, and one that cannot be written leaves the earlier one as it was.
    """
    scale = study.PeopleScale(people=3, steps=4, rates=(0.1,))
    one = study.study_people(tmp_path / "a", scale=scale)
    study.study_people(tmp_path / "b", scale=scale)
    for name in ("people.md", "people.csv", "people.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a" / "people.json").read_text("utf-8"))["scale"]["people"] == 3
    page = (tmp_path / "a" / "people.md").read_text("utf-8")
    assert study.told_again(tmp_path / "a") == page and page.count("\n| bandit, dpo, lr 0.1 | own test |") == 1
    for key, measures in one.results.items():
        told = f"| {key[0]}, {key[1]}, lr 0.1 | {key[3]} | {measures['felt'].mean():.4f} ± "
        assert told in page and f"| {measures['outside'].mean():.3f} |" in page

    def full(name):
        if name == "people.md written":
            raise OSError("no")

    monkeypatch.setattr("humanline.system.files.barrier", full)
    (tmp_path / "a" / "people.md").write_text("earlier")
    with pytest.raises(OSError):
        study.study_people(tmp_path / "a", scale=scale)
    assert (tmp_path / "a" / "people.md").read_text() == "earlier"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["people.csv", "people.json", "people.md"]
    assert len(one.judgements) == len(PERSONAL) and len(one.judgements[0].findings) == 6
    gammas = study.gammas_of(study.Population(), 3)
    same = gammas["own"] == gammas["shared"]
    for key, measures in one.results.items():
        if key[3] == "own test":
            shared = one.results[(*key[:3], "shared test")]
            assert (measures["felt"][same] == shared["felt"][same]).all()


def test_people_whose_policy_breaks_count_as_the_worst(tmp_path, monkeypatch):
    """A policy that is not finite at the end is worth -1 and has gained -1, and the study is told to its end."""
    monkeypatch.setattr(study, "TASKS", ("bandit",))
    monkeypatch.setattr(study, "OBJECTIVES", ("grpo",))
    monkeypatch.setattr(study, "RULES", ("test",))
    monkeypatch.setattr(study, "PERSONAL", {name: claim for name, claim in PERSONAL.items() if "clip" not in name})
    report = study.study_people(tmp_path, scale=study.PeopleScale(people=2, steps=8, rates=(1e3,)))
    broken = report.results["bandit", "grpo", 1e3, "no rule"]
    assert broken["felt"].tolist() == broken["gained"].tolist() == [-1.0, -1.0]
    assert "| bandit, grpo, lr 1000 | no rule | -1.0000" in (tmp_path / "people.md").read_text(encoding="utf-8")


def committed_rows():
    with open(ROOT / "studies" / "people" / "people.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check_effects(task, objective, found, claims):
    """Hold worth that was computed now against the committed effects of claims: mean and Student's half-width."""
    for row in committed_rows():
        if (row["task"], row["objective"]) == (task, objective) and row["claim"] in claims:
            one, other = PERSONAL[row["claim"]].variants
            difference = found[one] - found[other]
            half = 1.9842169515 * difference.std(ddof=1) / math.sqrt(len(difference))  # Student's t, 99 degrees
            told = float(row["effect"]), float(row["half_width"])
            assert told == pytest.approx((difference.mean(), half), rel=1e-4, abs=1e-6), row["claim"]


def test_the_committed_numbers_are_of_this_code():
    """Trained anew in one of the six settings, all steps and people: what one rule for everyone comes to."""
    population, scale = study.Population(), study.FULL_PEOPLE
    people = [population.draw(seed) for seed in range(scale.people)]
    gammas = study.gammas_of(population, scale.people)
    base = study.make_run("bandit", "dpo", 0.1, study.BASE, steps=scale.steps)
    world = base.task.draw(range(scale.people))
    at_start = study.worth(world, world.table(world.start), people)
    found = {}
    for kind in study.RULES:
        for whose in ("population", "shared"):
            run = replace(base, transform=study.rule_of(kind, float(gammas[whose][0])))
            found[f"{whose} {kind}"] = study._trained(run, range(scale.people), people, at_start)["felt"]
    check_effects("bandit", "dpo", found, ("population-beats-shared-test", "population-beats-shared-clip"))


@pytest.mark.slow  # fifty rules, a few people each
@pytest.mark.parametrize(("task", "objective"), [("bandit", "grpo"), ("sequence", "dpo")])
def test_the_committed_numbers_of_rules_of_ones_own_are_of_this_code(task, objective):
    """Every claim in a setting, trained anew as the study trains."""
    population, scale = study.Population(), study.FULL_PEOPLE
    people = [population.draw(seed) for seed in range(scale.people)]
    setting = study.Setting(task, objective, 0.1)
    measures = study._setting(setting, scale, study.gammas_of(population, scale.people), people)
    check_effects(task, objective, {name: one["felt"] for name, one in measures.items()}, PERSONAL)


def test_the_committed_page_says_what_the_committed_table_does():
    """Effect, interval, p-value and verdict of every setting, in the section of its claim, and in its order."""
    page = (ROOT / "studies" / "people" / "people.md").read_text(encoding="utf-8")
    line = re.compile(r"^\| (\w+, \w+, lr \S+) \| (\S+) ± (\S+) \| (\S+) \| ([\w ]+) \|$", re.MULTILINE)
    for name in PERSONAL:
        shown = line.findall(page.partition(f"\n## {name}\n")[2].partition("\n## ")[0])
        rows = [row for row in committed_rows() if row["claim"] == name]
        assert len(shown) == len(rows) == 6, name
        for (setting, *numbers, verdict), row in zip(shown, rows, strict=True):
            told = f"{row['task']}, {row['objective']}, lr {float(row['rate']):g}", row["verdict"]
            assert (setting, verdict) == told
            wanted = [float(row[column]) for column in ("effect", "half_width", "p_holm")]
            assert list(map(float, numbers)) == pytest.approx(wanted, abs=0.5001e-4), setting


def test_the_committed_study_is_of_this_code():
    """Its settings are those of the full study, and each claim's findings are there, one a setting."""
    folder = ROOT / "studies" / "people"
    told = json.loads((folder / "people.json").read_text("utf-8"))
    assert told["population"] == json.loads(json.dumps(asdict(study.Population())))
    assert told["scale"] == json.loads(json.dumps(asdict(study.FULL_PEOPLE)))
    gammas = study.gammas_of(study.Population(), study.FULL_PEOPLE.people)
    assert told["gammas"] == {whose: values.tolist() for whose, values in gammas.items()}
    assert [row["claim"] for row in committed_rows()] == [name for name in PERSONAL for _ in range(6)]
    assert study.told_again(folder) == (folder / "people.md").read_text("utf-8")


def test_what_the_pages_say_of_the_study_is_so():
    """One's own rule and somebody else's differ by -.009 to +.005 (test), .001 at most (clip); all undecided."""
    rows = committed_rows()
    for kind, low, high in (("test", -0.009, 0.005), ("clip", -0.0, 0.001)):
        mine = [row for row in rows if row["claim"] == f"own-beats-anothers-{kind}"]
        effects = [float(row["effect"]) for row in mine]
        assert (round(min(effects), 3), round(max(effects), 3)) == (low, high)
        assert {row["verdict"] for row in mine} == {"undecided"}
    shared = [float(row["effect"]) for row in rows if row["claim"] == "population-beats-shared-test"]
    assert len(shared) == 6 and max(shared) < 0
    assert not any(row["verdict"] == "holds" for row in rows)
    against = {"contrary", "slightly contrary"}
    for other in ("shared", "none"):  # CHANGELOG
        assert {row["verdict"] for row in rows if row["claim"] == f"own-beats-{other}-test"} == against
