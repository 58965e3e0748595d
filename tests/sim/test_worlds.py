"""Worlds closer to training: what each dial changes, and where a claim turns."""

from __future__ import annotations

import csv
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from humanline.cli import main
from humanline.sim import worlds
from humanline.sim.report import Scale
from humanline.sim.run import Run
from humanline.sim.study import measure
from humanline.sim.variants import make_run
from humanline.sim.worlds import (
    DIALS,
    OBJECTIVES,
    OFF,
    Dial,
    Turn,
    judge_worlds,
    placed,
    study_worlds,
    worlds_markdown,
    worlds_runs,
)
from humanline.stats import Interval

SMALL = Scale(seeds=4, steps=4, rates=(0.1,))
PAIR = "online", "offline"
ONE = Dial("shift", "Nothing.", {"1": lambda run: run, "2": lambda run: run}, ("bandit",))


def changed(run: Run, plain: Run) -> dict[str, object]:
    """What of a run, or of its problem or source, differs from another's."""
    found = {}
    for field in fields(Run):
        mine, theirs = getattr(run, field.name), getattr(plain, field.name)
        if mine == theirs:
            continue
        if field.name == "learning_rate":
            found[field.name] = mine
            continue
        for part in fields(mine):
            if getattr(mine, part.name) != getattr(theirs, part.name):
                found[f"{field.name}.{part.name}"] = getattr(mine, part.name)
    return found


WANTED = {
    "wrong comparisons": [{"judge.wrong": 0.1}, {"judge.wrong": 0.2}, {"judge.wrong": 0.4}],
    "noisy scores": [{"judge.noise": 1.0}, {"judge.noise": 3.0}],
    "proxy": [{"task.proxy": 0.9}, {"task.proxy": 0.7}, {"task.proxy": 0.5}],
    "passes": [{"source.passes": 2}, {"source.passes": 5}, {"source.passes": 20}],
    "coverage": [{"source.coverage": 0.5}, {"source.coverage": 0.1}, {"source.coverage": 0.0}],
    "sharing": [{"task.features": 16}, {"task.features": 16, "task.hidden": 16}],
    "length": [{"task.length": 16, "task.enumerated": False}],
}


@pytest.mark.parametrize("dial", DIALS, ids=lambda dial: dial.name)
def test_a_dial_changes_what_it_says_and_nothing_else(dial):
    """Each level differs from the study's own run in the settings named; rollouts know no passes and no coverage."""
    runs = worlds_runs(Scale(seeds=2, steps=256, rates=(0.1, 0.3)), [dial])
    assert len(runs) == len(dial.tasks) * (1 + len(dial.levels)) * 3 * 2 * 3
    for task in dial.tasks:
        for rate in (0.1, 0.3):
            for variant in ("online", "offline", "offline+humanline"):
                plain = make_run(task, "kto", rate, variant)
                assert runs[task, "kto", rate, variant] == plain
                for level, wanted in zip(dial.levels, WANTED[dial.name], strict=True):
                    of_data = variant == "online" and dial.name in ("passes", "coverage")
                    found = changed(runs[placed(task, dial.name, level), "kto", rate, variant], plain)
                    assert found == ({} if of_data else wanted)


def test_levels_are_named_by_what_they_set():
    """The name of a level is the number that it sets, where it sets one."""
    for dial in DIALS[:5]:
        assert [float(level) for level in dial.levels] == [next(iter(want.values())) for want in WANTED[dial.name]]


def result(score: np.ndarray) -> dict[str, np.ndarray]:
    return {"start": np.zeros(len(score)), "best": np.ones(len(score)), "score": score, "outside": np.ones(len(score))}


def made_up(effects: dict[str, tuple[float, float]], seeds: int = 40) -> dict:
    """Results in which online and humanline lie above offline by these much at each level, but for noise of .01."""
    rng, found = np.random.default_rng(0), {}
    for level, (online, human) in effects.items():
        for objective in OBJECTIVES:
            offline = 0.5 + 0.1 * rng.standard_normal(seeds)
            for variant, gain in (("offline", 0.0), ("online", online), ("offline+humanline", human)):
                score = offline + gain + 0.01 * rng.standard_normal(seeds)
                found[placed("bandit", "shift", level), objective, 0.1, variant] = result(score)
    return found


def turns_of(effects: dict[str, tuple[float, float]], seeds: int = 40) -> dict[str, Turn]:
    """The turns of DPO in made-up results, by claim."""
    report = judge_worlds(made_up(effects, seeds), SMALL, [ONE])
    assert len(report.turns) == 9 and {turn.objective for turn in report.turns} == set(OBJECTIVES)
    return {turn.claim: turn for turn in report.turns if turn.objective == "dpo"}


def test_a_claim_turns_at_the_first_level_at_which_its_verdict_is_another():
    """Online above offline until the last level, humanline below from the first: each is told where, and into what."""
    found = turns_of({OFF: (0.3, 0.2), "1": (0.3, -0.2), "2": (-0.3, -0.2)})
    online, human = found["online-beats-offline"], found["humanline-beats-offline"]
    assert [step[0] for step in online.steps] == [OFF, "1", "2"]
    assert [step[2] for step in online.steps] == ["holds", "holds", "contrary"]
    assert (online.turns_at, online.words) == ("2", "turns at 2: holds -> contrary")
    assert (human.turns_at, human.words) == ("1", "turns at 1: holds -> contrary")
    effects, changes = ([step[i].mean for step in online.steps] for i in (1, 3))
    np.testing.assert_allclose(effects, [0.3, 0.3, -0.3], atol=0.01)
    np.testing.assert_allclose(changes, [0.0, 0.0, -0.6], atol=0.01)
    assert online.steps[0][3].half_width == 0.0 < online.steps[1][3].half_width < 0.01


def test_a_claim_that_no_level_moves_stays():
    """Equal effects at all levels turn nowhere; a gap that is closed is said to stay so."""
    found = turns_of({OFF: (0.3, 0.3), "1": (0.3, 0.3), "2": (0.3, 0.3)})
    assert {turn.words for turn in found.values()} == {"stays: holds"}
    gap = turns_of({OFF: (0.3, 0.3), "1": (0.3, 0.1), "2": (-0.3, 0.1)})["humanline-closes-gap"]
    assert [step[2] for step in gap.steps] == ["holds", "contrary", "not tested"]


def test_a_verdict_that_changes_without_the_effect_is_no_turn():
    """An effect near the margin may be small at one level and not at another; that it changed has to be seen, too."""
    steps = [(OFF, Interval(0.051, 0.01), "holds", Interval(0.0, 0.0))]
    steps += [("1", Interval(0.049, 0.01), "small", Interval(-0.002, 0.003))]
    near = Turn("claim", "dial", "bandit", "dpo", steps)
    assert (near.turns_at, near.words) == ("", "stays: holds (also small, with no clear change)")
    far = replace(near, steps=[*steps, ("2", Interval(0.02, 0.01), "small", Interval(-0.031, 0.003))])
    assert (far.turns_at, far.words) == ("2", "turns at 2: holds -> small")


def test_the_table_says_what_its_verdicts_mean_and_how_it_was_made():
    """Every verdict of a row is a word that the page explains, and the command is the one that made it."""
    report = judge_worlds(made_up({OFF: (0.3, 0.2), "1": (0.03, -0.02), "2": (0.0, -0.2)}), SMALL, [ONE])
    text = worlds_markdown(report, [ONE])
    explained = text[: text.index("## The dials")]
    used = {verdict for turn in report.turns for _, _, verdict, _ in turn.steps}
    assert used == {"holds", "small", "slightly contrary", "contrary", "undecided", "not tested"}
    assert all(f"*{word}*" in explained for word in used - {"slightly contrary"} | {"slightly", "turns"})
    assert "`humanline sim --worlds (a scale of its own)`" in text
    for scale, command in ((worlds.QUICK_WORLDS, "--worlds --quick`"), (worlds.FULL_WORLDS, "--worlds`")):
        assert command in worlds_markdown(replace(report, scale=scale), [ONE])
    rows = [line for line in text.splitlines() if line.startswith("| shift")]
    assert f"It turns in {sum('turns at' in row for row in rows[:3])} of 3 rows" in text


def test_where_nothing_is_there_nothing_is_found():
    """With effects of 0 at every level no claim of superiority holds anywhere."""
    for name in ("online-beats-offline", "humanline-beats-offline"):
        steps = turns_of({OFF: (0.0, 0.0), "1": (0.0, 0.0), "2": (0.0, 0.0)})[name].steps
        assert {step[2] for step in steps} == {"undecided"}


def test_with_several_rates_each_variant_has_its_best():
    """At two rates a variant is judged at the one that is better for it on the other half of the seeds."""
    results = made_up({OFF: (0.3, 0.2), "1": (0.3, 0.2), "2": (0.3, 0.2)})
    for (task, objective, rate, variant), found in list(results.items()):
        worse = {**found, "score": found["score"] - (0.4 if variant == "online" else -0.4)}
        results[task, objective, 0.3, variant] = worse if rate == 0.1 else found
    report = judge_worlds(results, replace(SMALL, rates=(0.1, 0.3)), [ONE])
    online = report.turns[0]
    assert abs(online.steps[0][1].mean - (0.3 - 0.4)) < 0.01  # online at .1, offline .4 better at .3


def test_a_study_of_worlds_writes_what_it_found_and_goes_on(tmp_path, monkeypatch):
    """Files hold every level of every claim; a second call measures nothing."""
    dials = [replace(DIALS[0], levels={"0.4": DIALS[0].levels["0.4"]}, tasks=("bandit",))]
    report = study_worlds(tmp_path, scale=SMALL, dials=dials)
    rows = list(csv.DictReader((tmp_path / "worlds.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 3 * 3 * 2  # claims, objectives, levels
    told = [(turn, step) for turn in report.turns for step in turn.steps]
    for row, (turn, step) in zip(rows, told, strict=True):
        assert (row["claim"], row["objective"], row["level"]) == (turn.claim, turn.objective, step[0])
        assert float(row["effect"]) == pytest.approx(step[1].mean, rel=1e-5)
        assert float(row["change"]) == pytest.approx(step[3].mean, rel=1e-5)
        assert row["verdict"] == step[2]
    text = (tmp_path / "worlds.md").read_text(encoding="utf-8")
    assert all(each.words in text for each in report.turns)
    settings = json.loads((tmp_path / "worlds.json").read_text(encoding="utf-8"))
    assert len(settings["runs"]) == 18 and settings["seeds"] == 4
    for level in ("off", "0.4"):  # each effect is that of its own runs
        runs = [worlds_runs(SMALL, dials)[placed("bandit", dials[0].name, level), "kto", 0.1, v] for v in PAIR]
        online, offline = (measure(run, range(4)) for run in runs)
        room = np.subtract(online["best"], online["start"])
        want = np.mean(np.subtract(online["score"], offline["score"]) / room)
        (row,) = (r for r in rows if (r["claim"], r["objective"], r["level"]) == ("online-beats-offline", "kto", level))
        assert float(row["effect"]) == pytest.approx(want, rel=1e-5)
    monkeypatch.setattr("humanline.sim.study.measure", lambda *_: pytest.fail("measured again"))
    again = study_worlds(tmp_path, scale=SMALL, dials=dials)
    assert [each.words for each in again.turns] == [each.words for each in report.turns]


def test_the_command_tells_where_each_claim_turns(tmp_path, monkeypatch, capsys):
    """`humanline sim --worlds` prints a line for each claim, dial, problem and objective; it takes no claims."""
    monkeypatch.setattr(worlds, "QUICK_WORLDS", SMALL)
    monkeypatch.setattr(worlds, "worlds_runs", lambda scale, dials: worlds_runs(scale, [DIALS[-1]]))
    monkeypatch.setattr(worlds, "judge_worlds", lambda results, scale, dials: judge_worlds(results, scale, [DIALS[-1]]))
    out = tmp_path / "out"
    assert main(["sim", "--worlds", "--quick", "--quiet", "--processes", "1", "--out", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 10 and told[-1].endswith("worlds.md")
    assert told[0].startswith("online-beats-offline, length, sequence, dpo: ")
    assert main(["sim", "--worlds", "clip-needed", "--out", str(tmp_path / "other")]) == 2
    assert "--worlds judges claims of its own" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
