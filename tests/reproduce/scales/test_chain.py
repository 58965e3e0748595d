"""A plan from its files to its claims, on a tiny model: made, run, evaluated, read, and refused where it is another."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from humanline.cli import main
from humanline.reproduce.scales.claims import scale_rows
from humanline.reproduce.scales.plan import Asked, PlannedRun, Scale
from humanline.reproduce.scales.read import read_found, summary_of
from humanline.reproduce.scales.report import write_scale_report
from humanline.reproduce.scales.write import prepare, write_plan
from humanline.system.files import OutputError

SAYS = "offline + humanline, k = 1, is better than offline"
SCALE = Scale(
    name="tiny",
    title="a tiny model",
    runs=(
        PlannedRun("dpo/offline", "llama3-8b-dpo-offline", differs="all"),
        PlannedRun("dpo/k1", "llama3-8b-dpo-humanline", ("optimizer.lr=3e-3",), "all", 0.1),
    ),
    asked=(Asked(SAYS, "dpo", ("dpo/k1",), ("dpo/offline",)),),
    evaluation="scored",
    hardware="a CPU",
    starts={"start": "dpo/offline"},
)
REWARD = "{kind: function, call: 'humanline.reproduce.testbeds.letters:letters_in_place'}"


def changes(toy: dict[str, str]) -> list[str]:
    return [
        f"model={toy['model']}",
        f"data.train={toy['pairs']}",
        f"data.eval={toy['held_out']}",
        "data.max_length=64",
        "training={steps: 2, batch_size: 4}",
        "evaluation={batch_size: 4, sampling: {max_tokens: 6, engine: {kind: generate, batch_size: 8}}, "
        f"scoring: {{rewards: [{REWARD}], workers: 1}}}}",
    ]


@pytest.fixture(scope="module")
def done(toy, tmp_path_factory):
    """The folder of a plan, all of whose commands have been run, from plan.json, and run again."""
    folder = tmp_path_factory.mktemp("scale") / "out"
    plan = prepare(SCALE, folder, (), changes(toy))
    write_plan(plan)
    assert {one.state for one in read_found(plan).values()} == {"not begun"}
    tree = json.loads((folder / "plan.json").read_text())
    commands = [*tree["starts"]["start"], *(words for run in tree["runs"] for words in run["commands"])]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in commands:
            assert words[0] == "humanline" and main([*words[1:], "--quiet"]) == 0
        metrics = folder / "runs/dpo/k1/metrics.jsonl"
        before = metrics.read_bytes(), (folder / "runs/dpo/k1/final/model.safetensors").stat().st_mtime_ns
        assert main([*tree["runs"][1]["commands"][0][1:], "--quiet"]) == 0  # running twice does nothing
        after = metrics.read_bytes(), (folder / "runs/dpo/k1/final/model.safetensors").stat().st_mtime_ns
        assert before == after
    return folder


@pytest.fixture
def copy(done, tmp_path):
    return shutil.copytree(done, tmp_path / "copy")


def row_of(plan):
    (row,) = [one for one in scale_rows(SCALE, read_found(plan)) if (one.says, one.objective) == (SAYS, "dpo")]
    return row


def test_a_plan_that_was_run_becomes_a_row_of_the_claims(done):
    """The difference is that of the evaluations' items, paired, with Student's interval of scipy."""
    plan = prepare(SCALE, done)
    values = []
    for name in ("dpo/k1", "dpo/offline"):
        tree = json.loads((done / "evaluations" / name / "evaluation.json").read_text())
        values.append({item["id"]: sum(item["values"]) / len(item["values"]) for item in tree["items"]})
    differences = [values[0][item] - values[1][item] for item in sorted(values[0])]
    row = row_of(plan)
    assert row.difference == pytest.approx(sum(differences) / len(differences)) and row.starts == 1
    if len(set(differences)) > 1:
        low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
        assert (row.low, row.high) == pytest.approx((low, high))
    assert row.verdict in ("holds here", "does not hold here", "undecided here") and row.testbed == "tiny"
    others = [one for one in scale_rows(SCALE, read_found(plan)) if one.says != SAYS]
    assert {(one.verdict, one.why) for one in others} == {("not run", "not in this plan")}


def test_the_tables_of_a_plan_are_read_into_the_table_of_all_scales(done, tmp_path, monkeypatch):
    from humanline.reproduce import across
    from tests.reproduce.test_across import tables

    plan = prepare(SCALE, done)
    files = write_scale_report(plan, read_found(plan))
    assert [file.name for file in files] == ["runs.csv", "paper.csv", "paper.md"]
    assert "3 evaluated" not in files[2].read_text() and "Runs: 2 evaluated" in files[2].read_text()
    monkeypatch.setattr(across, "SCALES", {"tiny": lambda: SCALE})
    exact, bed = tables(tmp_path)
    told = across.claims_table(exact, {"letters": bed}, {"tiny": files[1]}).splitlines()
    (line,) = [one for one in told if f"{SAYS} | dpo" in one]
    assert "tiny: " in line and "(one seed, not as declared)" in line and "not run" not in line
    assert (
        "Reckoned, of the plan as declared, and not measured: 0 hours of a CPU, for training; of 1 runs"
        in files[2].read_text()
    )
    with open(files[1], encoding="utf-8", newline="") as rows:
        assert all(one["differs"].startswith("not as declared (--set model=") for one in csv.DictReader(rows))
    told = across.claims_table(exact, {"letters": bed}).splitlines()
    (line,) = [one for one in told if f"{SAYS} | dpo" in one]
    assert "tiny: not run (`--only dpo/k1 dpo/offline`)" in line


def test_a_run_with_other_settings_is_refused_with_what_differs(copy):
    file = copy / "runs/dpo/k1/config.json"
    tree = json.loads(file.read_text())
    tree["optimizer"]["lr"] = 1.0
    file.write_text(json.dumps(tree))
    found = read_found(prepare(SCALE, copy))["dpo/k1"]
    assert found.state == "refused" and "optimizer.lr 1.0 0.003" in found.note
    row = row_of(prepare(SCALE, copy))
    assert row.verdict == "not run" and "1 of them refused" in row.why


def test_a_run_of_an_earlier_version_is_read(copy):
    """Settings that came later and were not there then stand for what held before; the version is no setting."""
    file = copy / "runs/dpo/k1/config.json"
    tree = json.loads(file.read_text())
    for name in ("distance", "limit", "samples", "sampling"):
        del tree["evaluation"][name]
    del tree["optimizer"]["schedule"]
    file.write_text(json.dumps(tree))
    assert read_found(prepare(SCALE, copy))["dpo/k1"].state == "evaluated"


@pytest.mark.parametrize(
    ("damage", "state", "said"),
    [
        (lambda run: shutil.rmtree(run / "final"), "refused", "the run is not finished"),
        (lambda run: (run / "config.json").write_text("{"), "refused", "config.json is damaged"),
        (lambda run: shutil.rmtree(run), "refused", "the run is not begun"),
        (lambda run: (run / "final/config.json").write_text("{}"), "refused", "is not the one in"),
    ],
)
def test_what_is_not_the_plans_run_is_no_result(copy, damage, state, said):
    damage(copy / "runs/dpo/k1")
    found = read_found(prepare(SCALE, copy))["dpo/k1"]
    assert found.state == state and said in found.note and found.values is None


def test_an_unfinished_run_says_how_far_it_is(copy):
    shutil.rmtree(copy / "evaluations/dpo/k1")
    found = read_found(prepare(SCALE, copy))["dpo/k1"]
    assert (found.state, found.note) == ("finished", "not evaluated yet")
    shutil.rmtree(copy / "runs/dpo/k1/final")
    found = read_found(prepare(SCALE, copy))["dpo/k1"]
    assert found.state == "not finished" and "2 of 2 steps" in found.note
    assert summary_of("dpo/k1", found)["score"] is None
    row = row_of(prepare(SCALE, copy))
    assert row.verdict == "not run" and row.why == "1 of its 2 runs have no result: dpo/k1"


def test_answers_that_were_asked_in_another_way_are_refused(copy):
    file = copy / "evaluations/dpo/k1/evaluation.json"
    tree = json.loads(file.read_text())
    tree["settings"]["sampling"]["temperature"] = 0.1
    file.write_text(json.dumps(tree))
    found = read_found(prepare(SCALE, copy))["dpo/k1"]
    assert found.state == "refused" and "not asked as the plan asks" in found.note


def edit(file: Path, change) -> None:
    tree = json.loads(file.read_text())
    change(tree)
    file.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree["settings"].update(model="hub:some/other"), "begin with.*\n.*model +hub:some/other"),
        (lambda tree: tree["settings"].update({"model files.config.json": "1 2 abc"}), r"files\.config\.json +1 abc"),
        (lambda tree: tree["settings"].pop("model files.config.json"), r"files\.config\.json +\(absent\)"),
        (lambda tree: tree.pop("settings"), "plan.json, which says what model was asked, cannot be read"),
    ],
    ids=["name", "contents", "one more", "unreadable"],
)
@pytest.mark.parametrize("evaluation", ["scored", "alpaca"])
def test_an_evaluation_of_another_start_is_refused(copy, toy, change, said, evaluation):
    """What a start reached is that of the model that runs begin with, or "alike" is measured by another's gain."""
    scale, place = replace(SCALE, evaluation=evaluation), copy / "evaluations/start"
    if evaluation == "alpaca":
        place = judged(copy, "start")
    found = read_found(prepare(scale, copy))["start"]
    assert found.state == "evaluated" and found.values
    edit(place / "plan.json", lambda tree: tree["settings"].update({"model files.config.json": touched(tree)}))
    assert read_found(prepare(scale, copy))["start"].state == "evaluated"  # a copy of the same files
    edit(place / "plan.json", change)
    found = read_found(prepare(scale, copy))["start"]
    assert found.state == "refused" and re.search(f"(?s){said}", found.note) and found.values is None
    assert ("begin with, " + toy["model"] in found.note) == ("cannot be read" not in found.note)


def touched(tree) -> str:
    """A file's facts with another time."""
    size, _, sha = tree["settings"]["model files.config.json"].split(" ")
    return f"{size} 1 {sha}"


def test_a_start_whose_files_are_elsewhere_is_known_by_its_name(copy, toy, tmp_path, monkeypatch):
    """A report made where the model is not cannot look at its files; of one on the hub it sees those it has."""
    from humanline.reproduce.scales import read

    monkeypatch.setattr(read, "files_of", lambda model: {})
    assert read._other_start(prepare(SCALE, copy), toy["model"], copy / "evaluations/start") == ""
    edit(copy / "evaluations/start/plan.json", lambda tree: tree["settings"].update(model="hub:a/b"))
    config = json.loads((copy / "evaluations/start/plan.json").read_text())["settings"]["model files.config.json"]
    seen = []
    for facts, same in (({"config.json": config, "new": "1 2 c"}, True), ({"config.json": "1 2 c"}, False)):
        monkeypatch.setattr(read, "files_of", lambda model, facts=facts: seen.append(model) or facts)
        assert (read._other_start(prepare(SCALE, copy), "hub:a/b", copy / "evaluations/start") == "") == same
    assert seen == ["hub:a/b"] * 2
    assert "model +hub:a/b" in re.sub(
        " +", " +", read._other_start(prepare(SCALE, copy), "x", copy / "evaluations/start")
    )


def judged(copy: Path, name: str) -> Path:
    """Make of a scored evaluation the answers of AlpacaEval's instructions, as the plan asks, and of these its result.

    Returns the folder of the answers.
    """
    place = copy / "evaluations" / name
    shutil.move(place, copy / "answers")
    place.mkdir()
    shutil.move(copy / "answers", place / "answers")
    paper = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 2048, "samples": 1}  # its Table 1
    edit(place / "answers/evaluation.json", lambda tree: tree["settings"]["sampling"].update(paper))
    edit(place / "answers/evaluation.json", lambda tree: tree["settings"]["limits"].update(max_length=4096))
    rows = [
        {"instruction": f"say {n}", "preference": 1 + n / 4, "generator_1": "base", "generator_2": name}
        | {"annotator": "judge", "output_2": "x"}
        for n in range(4)
    ]
    (copy / "annotations.json").write_text(json.dumps(rows))
    words = ["alpaca", "annotations", str(copy / "annotations.json"), "--out", str(place / "evaluation.json")]
    assert main([*words, "--name", name, "--quiet"]) == 0
    return place / "answers"


OTHERWISE = [("temperature", 0.1), ("top_p", 1.0), ("max_tokens", 64), ("samples", 2), ("top_k", 5)]


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        pytest.param(name, *how, marks=pytest.mark.slow if name == "start" and i else ())
        for name in ("dpo/k1", "start")
        for i, how in enumerate(OTHERWISE)
    ],
)
def test_alpacaevals_answers_that_were_drawn_in_another_way_are_refused(copy, name, setting, value):
    """A win rate of answers at another temperature, or cut shorter, is none of the paper's."""
    scale, place = replace(SCALE, evaluation="alpaca"), judged(copy, name)
    assert read_found(prepare(scale, copy))[name].state == "evaluated"
    edit(place / "evaluation.json", lambda tree: tree["settings"]["limits"].update(max_length=2048))
    assert re.search(r"limits\.max_length +2048 +4096", read_found(prepare(scale, copy))[name].note)
    edit(place / "evaluation.json", lambda tree: tree["settings"]["limits"].update(max_length=4096))
    edit(place / "evaluation.json", lambda tree: tree["settings"]["sampling"].update({setting: value}))
    found = read_found(prepare(scale, copy))[name]
    assert found.state == "refused" and "it was not asked as the plan asks" in found.note and found.values is None
    edit(place / "evaluation.json", lambda tree: tree["settings"].update(sampling="given"))
    assert "not asked as the plan asks" in read_found(prepare(scale, copy))[name].note
    (place / "evaluation.json").unlink()
    assert read_found(prepare(scale, copy))[name].state == "refused"


def test_configurations_that_were_edited_and_other_plans_are_refused_before_anything_is_written(copy, toy):
    with pytest.raises(OutputError, match="holds a plan with other changes"):
        prepare(SCALE, copy, (), ["seed=3"])
    with pytest.raises(OutputError, match="plan of the scale 'tiny', not 'other'"):
        prepare(replace(SCALE, name="other"), copy)
    file = copy / "configs/dpo/k1.yaml"
    file.write_text(file.read_text().replace("seed: 0", "seed: 5"))
    with pytest.raises(OutputError, match=r"(?s)1 configurations are not those.*k1\.yaml:.*seed +5 +0"):
        prepare(SCALE, copy)
    (copy / "plan.json").write_text('{"format": 99, "scale": "tiny", "changes": []}')
    with pytest.raises(OutputError, match="has format 99, and this version"):
        prepare(SCALE, copy)
    (copy / "plan.json").write_text("[]")
    with pytest.raises(OutputError, match="damaged, or of another version"):
        prepare(SCALE, copy)
    (copy / "plan.json").unlink()
    with pytest.raises(OutputError, match="not an empty folder"):
        prepare(SCALE, copy)


def test_the_configurations_of_a_plan_are_checked_together(tmp_path, toy):
    from humanline.train.config import ConfigError

    with pytest.raises(ConfigError, match=r"^dpo/offline, dpo/k1: 1 problem"):
        prepare(SCALE, tmp_path / "none", (), ["optimizer.lr=-1"])
    assert not (tmp_path / "none").exists()
    assert math.isnan(row_of(prepare(SCALE, tmp_path / "none")).difference)


def test_annotations_of_alpacaeval_are_read_where_they_are_of_this_runs_answers(copy):
    """Preferences less one are the values; annotations of another name, or of another model's answers, are refused."""
    scale = replace(SCALE, evaluation="alpaca")
    place = copy / "evaluations/dpo/k1"
    found = read_found(prepare(scale, copy))["dpo/k1"]
    assert found.state == "refused" and "not AlpacaEval's of 'dpo/k1'" in found.note
    judged(copy, "dpo/k1")
    told = {"generator_1": "base", "annotator": "judge", "output_2": "x"}
    rows = [{"instruction": f"say {n}", "preference": 1 + n / 4, **told} for n in range(4)]
    for name in ("dpo/k1", "other"):
        (copy / "annotations.json").write_text(json.dumps([{**one, "generator_2": name} for one in rows]))
        (place / "evaluation.json").unlink(missing_ok=True)
        words = ["alpaca", "annotations", str(copy / "annotations.json"), "--out", str(place / "evaluation.json")]
        assert main([*words, "--name", name, "--quiet"]) == 0
        found = read_found(prepare(scale, copy))["dpo/k1"]
        if name == "dpo/k1":
            assert found.state == "evaluated" and sorted(found.values.values()) == [0.0, 0.25, 0.5, 0.75]
            assert summary_of(name, found)["score"] == 0.375 and not found.lengths
        else:
            assert found.state == "refused"
    (place / "evaluation.json").unlink()
    (copy / "annotations.json").write_text(json.dumps([{**one, "generator_2": "dpo/k1"} for one in rows]))
    assert main([*words, "--name", "dpo/k1", "--quiet"]) == 0
    (copy / "runs/dpo/k1/final/config.json").write_text("{}")
    assert "is not the one in" in read_found(prepare(scale, copy))["dpo/k1"].note
