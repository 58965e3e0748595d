"""`humanline fit`, as a person meets it."""

from __future__ import annotations

import csv
import json
import runpy
import shlex
import subprocess
import sys

import pytest

import humanline.cli.fit as command
from humanline.cli import main
from humanline.fit import NotConverged
from humanline.fit.job import INTERVALS
from humanline.fit.parameters import CAPACITIES, VALUES
from humanline.fit.uncertainty import KINDS
from tests.conftest import ROOT
from tests.helpers.pages import commands

EXAMPLE = ROOT / "examples" / "fitting"
LONG, GAMES = str(EXAMPLE / "choices.csv"), str(EXAMPLE / "games.csv")
QUICK = ["--starts", "2", "--quiet"]
FIGURES = [f"{name}.{kind}" for name in ("fit_check", "fit_curves") for kind in ("csv", "png", "svg")]


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_choices_of_the_command_line_are_those_of_the_fit():
    """What --help lists without loading numpy is what there is."""
    assert set(command.FAMILIES) == set(CAPACITIES) - {"identity"}
    assert set(command.VALUES) == set(VALUES) and set(command.INTERVALS) == set(INTERVALS)
    assert set(command.ERRORS) == {"auto", *KINDS}


def test_the_example_is_what_its_script_makes():
    """examples/fitting has the rows that its script makes."""
    made = runpy.run_path(str(EXAMPLE / "make.py"))
    for name in ("choices", "games"):
        with open(EXAMPLE / f"{name}.csv", encoding="utf-8", newline="") as file:
            assert list(csv.reader(file)) == [[str(cell) for cell in row] for row in made[name]()]


def test_a_fit_prints_its_table_and_leaves_its_files(tmp_path, capsys):
    """The table has every parameter; the folder has JSON, tables and figures, and nothing hidden beside it."""
    out = tmp_path / "out"
    assert main(["fit", LONG, "--out", str(out), *QUICK]) == 0
    said = capsys.readouterr().out
    for name in ("curvature", "loss_aversion", "gain.gamma", "loss.gamma", "sensitivity"):
        assert name in said
    assert "= curvature" in said and "2 of 2" in said and "clustered by problem" in said
    there = sorted(path.name for path in out.iterdir())
    assert there == sorted([*FIGURES, "fit.json", "manifest.json", "parameters.csv", "problems.csv"])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    found = json.loads((out / "fit.json").read_text())
    assert (found["version"], found["seed"], found["data"]["format"]) == (1, 0, "long")
    (part,) = found["parts"]
    assert part["fit"]["responses"] == 240 and part["fit"]["starts"]["agreeing"] == 2
    table = {row["parameter"]: row for row in rows(out / "parameters.csv")}
    assert float(table["gain.gamma"]["estimate"]) == pytest.approx(part["fit"]["parameters"]["gain.gamma"], rel=1e-11)
    assert table["loss_curvature"]["held"] == "equal" and table["lapse"]["held"] == "fixed"
    problems = rows(out / "problems.csv")
    assert len(problems) == 40 and sum(float(row["choices"]) for row in problems) == 240


def test_the_same_seed_gives_the_same_bytes(tmp_path, monkeypatch):
    """JSON, tables and the numbers of figures are the same again, with a comparison and a bootstrap too."""
    from humanline.fit import expected_utility, expected_value
    from humanline.fit.job import Asked

    monkeypatch.setattr(Asked, "models", lambda self: {"value": expected_value(), "utility": expected_utility()})
    found = []
    for name in ("one", "two"):
        words = ["--compare", "--folds", "2", "--intervals", "bootstrap", "--draws", "5", "--model", "expected-utility"]
        assert main(["fit", LONG, "--out", str(tmp_path / name), "--seed", "3", *words, *QUICK]) == 0
        kept = [path for path in sorted((tmp_path / name).iterdir()) if path.suffix in (".json", ".csv")]
        found.append({path.name: path.read_bytes() for path in kept if path.name != "manifest.json"})
    assert found[0] == found[1] and b'"seed": 3' in found[0]["fit.json"]


@pytest.mark.slow
def test_the_parts_of_a_cpc_file_are_fitted_apart(tmp_path, capsys):
    """Each part has a table and a folder of its own, and rows that are dropped are counted."""
    out = tmp_path / "deep" / "out"
    assert main(["fit", GAMES, "--per-rate", "25", "--out", str(out), *QUICK]) == 0
    said = capsys.readouterr().out
    assert "Dropped: 4 rows, ambiguous (Amb = 1)" in said and "Corr does not enter" in said
    assert "without feedback (block B.1), 25 choices behind each rate" in said
    assert "with feedback (the mean of B.2 to B.3), 25 choices behind each rate" in said
    assert (out / "without-feedback" / "fit_curves.png").stat().st_size > 10_000
    parts = json.loads((out / "fit.json").read_text())["parts"]
    assert [part["name"] for part in parts] == ["without-feedback", "with-feedback"]
    assert main(["fit", GAMES, "--part", "with-feedback", *QUICK]) == 0
    assert "without feedback" not in capsys.readouterr().out
    assert main(["fit", LONG, "--part", "with-feedback", *QUICK]) == 2
    assert "holds choices alone" in capsys.readouterr().err


def test_a_fit_needs_numpy_and_scipy_alone():
    """Without figures nothing of any extra is imported, and the standard output is the table alone."""
    code = (
        "import sys; from humanline.cli import main\n"
        f"code = main(['fit', {LONG!r}, '--model', 'expected-value', '--starts', '2'])\n"
        "extra = {'torch', 'transformers', 'pydantic', 'rich', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(extra) if extra else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.startswith("choices.csv: 804 rows"), done.stderr


def test_a_comparison_is_printed_and_written(tmp_path, capsys, monkeypatch):
    """Every model has a row in comparison.csv, the table says what cannot be told apart, and progress is shown."""
    from humanline.fit import Model, expected_utility, expected_value
    from humanline.fit.job import Asked

    few = {"expected value": expected_value(), "expected utility": expected_utility(), "prospect": Model()}
    monkeypatch.setattr(Asked, "models", lambda self: few)
    words = ["fit", LONG, "--compare", "--folds", "3", "--starts", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "expected utility" in told.out and "Holm" in told.out and "of 3 pairs" in told.out
    assert told.err.startswith("fits 0/12\n") and told.err.endswith("fits 12/12\n")
    table = rows(tmp_path / "out" / "comparison.csv")
    assert [row["model"] for row in table] == list(few) and table[0]["verdict"] == "baseline"
    assert {row["verdict"] for row in table[1:]} <= {"better", "worse", "not distinguishable"}
    (part,) = json.loads((tmp_path / "out" / "fit.json").read_text())["parts"]
    assert part["comparison"]["pairs"] == 3 and part["comparison"]["models"][0]["difference"] is None


def test_a_model_without_an_optimum_is_an_error_and_no_table(tmp_path, capsys, monkeypatch):
    """Nothing is printed or written, and the exit code is 3."""

    def failing(*_, **__):
        raise NotConverged("none of 10 starts came to an optimum")

    monkeypatch.setattr("humanline.fit.job.fit_prospect", failing)
    assert main(["fit", LONG, "--out", str(tmp_path / "out"), "--quiet"]) == 3
    told = capsys.readouterr()
    assert told.out == "" and "no fit, and nothing written: none of 10 starts" in told.err
    assert not list(tmp_path.iterdir())


def test_a_comparison_with_such_a_model_names_it_and_ends_in_error(capsys, monkeypatch):
    """The others are shown; what has no optimum is named in the table's notes, and the exit code is 3."""
    import humanline.fit.compare as compare
    from humanline.fit import expected_utility, expected_value
    from humanline.fit.job import Asked

    monkeypatch.setattr(Asked, "models", lambda self: {"value": expected_value(), "utility": expected_utility()})
    real = compare.fit_prospect

    def failing(data, model, **how):
        if model.title == "utility":
            raise NotConverged("none of 2 starts came to an optimum")
        return real(data, model, **how)

    monkeypatch.setattr(compare, "fit_prospect", failing)
    assert main(["fit", LONG, "--compare", "--folds", "2", *QUICK]) == 3
    told = capsys.readouterr()
    assert "Not in the table: utility did not converge" in told.out
    assert "models without an optimum, which the comparison leaves out: choices: utility" in told.err


def test_a_dry_run_fits_nothing(capsys, monkeypatch):
    """It says what is in the file and what it can tell, without a single fit."""
    monkeypatch.setattr("humanline.fit.job.fit_prospect", None)
    monkeypatch.setattr("humanline.fit.compare.fit_prospect", None)
    assert main(["fit", GAMES, "--dry-run", "--compare"]) == 0
    said = capsys.readouterr().out
    assert "56 rates of 56 problems" in said and "Dropped: 4 rows" in said and "with losses alone" in said
    assert "standard error" in said and "most correlated" in said


def gains(tmp_path):
    """Return a file without losses."""
    path = tmp_path / "gains.csv"
    lines = ["problem,option,outcome,probability,count"]
    for problem in range(12):
        lines += [f"{problem},A,{10 + problem},0.5,{problem}", f"{problem},A,0,0.5,{problem}"]
        lines += [f"{problem},B,{4 + problem % 5},1,{12 - problem}"]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_what_cannot_be_fitted_is_said_before(tmp_path, capsys):
    """Without losses, loss aversion and the capacity of losses are named with what to fix; a dry run says the same."""
    path = gains(tmp_path)
    for words in ([], ["--dry-run"]):
        assert main(["fit", path, *words, "--quiet"]) == 2
        told = capsys.readouterr()
        assert "loss_aversion must be fixed, as no outcome is a loss" in told.out + told.err
    held = ["--fix", "loss_aversion=1", "loss.gamma=1", "gain.gamma=1"]
    assert main(["fit", path, *held, *QUICK]) == 0
    assert "loss_aversion" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words,said",
    [
        (["--folds", "5"], "--folds is of --compare"),
        (["--dry-run"], "--dry-run writes nothing"),
        (["--seed", "-1"], "seed must be >= 0; got -1"),
        (["--per-rate", "9"], "holds choices, not rates"),
        (["--draws", "5"], "--draws is of --intervals bootstrap"),
        (["--fix", "gamma=1"], "gamma: no such parameter; did you mean loss.gamma?"),
        (["--fix", "loss_aversion"], "write NAME=..."),
        (["--fix", "loss_aversion=1", "--fix", "loss_aversion=2"], "--fix loss_aversion=1 and --fix loss_aversion=2"),
        (["--free", "loss_curvature", "--fix", "loss_curvature=1"], "--free loss_curvature and --fix loss_curvature=1"),
        (["--fix", "loss.gamma=1", "--equal", "loss=gain"], "--equal loss=gain contradict each other; give one"),
        (["--equal", "loss.gamma=gain.gamma", "--equal", "loss.gamma=curvature"], "contradict each other"),
        (["--lapse", "--fix", "lapse=.1"], "--lapse and --fix lapse=.1 contradict each other"),
        (["--fix", "loss_aversion=much"], "'much' is no number"),
        (["--free", "curvature"], "--free curvature: it is free, or no parameter"),
        (["--model", "expected-value", "--weights", "separable"], "of prospect theory, not of expected-value"),
        (["--model", "expected-value", "--value", "logistic"], "--value is not for expected-value"),
        (["--format", "cpc"], "Ha must be there"),
        (["--per-rate", "1"], "per_rate must be >= 2"),
        (["--starts", "0"], "starts must be a whole number >= 1"),
        (["--confidence", "1.5"], "confidence must lie strictly between 0 and 1"),
        (["--compare", "--held-out", "person"], "folds must be from 2 to the number of units, 6; got 10"),
        (["--compare", "--baseline", "nothing"], "baseline"),
    ],
)
def test_what_makes_no_sense_is_refused(words, said, tmp_path, capsys):
    """A mistake on the command line ends with exit code 2 and a message, and leaves nothing."""
    assert main(["fit", LONG, "--quiet", "--out", str(tmp_path / "out"), *words]) == 2
    told = capsys.readouterr()
    assert said in told.err and "Traceback" not in told.err and told.out == ""
    assert not (tmp_path / "out").exists()


def test_options_that_are_given_twice_add_up(capsys):
    """Several --fix, --equal and --free say what one of each says, and the same thing may be said again."""

    def told(*words):
        assert main(["fit", LONG, "--dry-run", *words]) == 0
        return capsys.readouterr().out

    model = ["--model", "prelec"]
    once = told(
        *model, "--fix", "curvature=1", "gain.beta=1", "--equal", "loss.alpha=gain.alpha", "loss.beta=gain.beta"
    )
    parts = ["--fix", "curvature=1", "--equal", "loss.alpha=gain.alpha", "--fix", "gain.beta=1"]
    twice = told(*model, *parts, "--equal", "loss.beta=gain.beta", "--fix", "gain.beta=1.0")
    assert once == twice and "  gain.alpha " in once and "beta" not in once and "loss.alpha" not in once
    plain = ["--model", "expected-value", "--free", "curvature", "loss_aversion"]
    assert told(*plain) == told(*plain[:4], "--free", "loss_aversion")


ALL_FIXED = ["--fix", "curvature=1", "loss_aversion=1", "gain.gamma=1", "loss.gamma=1", "sensitivity=.1"]


@pytest.mark.parametrize("words", [["--dry-run"], [], ["--intervals", "bootstrap", "--draws", "2"]])
def test_a_model_without_anything_free(words, capsys):
    """A dry run, a fit and the bootstrap say that all is fixed; nothing is told of errors or of what choices add."""
    assert main(["fit", LONG, *ALL_FIXED, *words, *QUICK]) == 0
    told = capsys.readouterr()
    assert "ll parameters are fixed" in told.out and told.err == ""
    assert "tandard error" not in told.out and "one more choice" not in told.out


def test_a_file_of_no_format_names_the_option(tmp_path, capsys):
    """The command speaks of --format, where Python speaks of the argument (`tests.fit.test_formats`)."""
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    assert main(["fit", str(path)]) == 2
    err = capsys.readouterr().err
    assert "or say which with --format; got 'a, b'" in err and "format=" not in err


@pytest.mark.parametrize(
    ("words", "units"),
    [pytest.param(["--errors", "robust"], "problems", marks=pytest.mark.slow), ([], "people")],
)
def test_the_table_says_what_the_bootstrap_drew(words, units, capsys, tmp_path):
    """Problems or people, as errors are clustered: in the table, and in fit.json."""
    model = ["--model", "expected-value", "--intervals", "bootstrap", "--draws", "4", "--out", str(tmp_path / "out")]
    assert main(["fit", LONG, *model, *words, *QUICK]) == 0
    assert f"intervals from 4 resamples of {units}" in " ".join(capsys.readouterr().out.split())
    (part,) = json.loads((tmp_path / "out" / "fit.json").read_text())["parts"]
    assert part["resampled"] == {"problems": "problem", "people": "person"}[units]


def test_people_that_cannot_be_pooled_are_refused_before_the_fit(tmp_path, capsys, monkeypatch):
    """Bare rates of people, and a model without a free parameter: nothing is fitted, nor said by a dry run."""
    monkeypatch.setattr("humanline.fit.job.fit_prospect", None)
    path = tmp_path / "rates.csv"
    lines = ["problem,option,outcome,probability,rate,person"]
    for person in ("ann", "bob"):
        for problem in range(12):
            lines += [f"{problem},A,{10 + problem},0.5,0.3,{person}", f"{problem},A,0,0.5,0.3,{person}"]
            lines += [f"{problem},B,{4 + problem % 5},1,0.7,{person}"]
    path.write_text("\n".join(lines) + "\n")
    for words in ([], ["--dry-run"]):
        assert main(["fit", str(path), "--by", "person", "--quiet", *words]) == 2
        told = capsys.readouterr()
        assert "bare rates have no likelihood to pool by; give counts; got 'rates'" in told.err and told.out == ""
    assert main(["fit", LONG, "--by", "person", *ALL_FIXED, "--quiet"]) == 2
    assert "model must have a free parameter" in capsys.readouterr().err


def test_a_faulty_file_is_told_by_line(tmp_path, capsys):
    """Faults come with file, line, column, rule and value, and the exit code is 2."""
    path = tmp_path / "bad.csv"
    path.write_text((EXAMPLE / "games.csv").read_text().replace("0.75", "75"))
    assert main(["fit", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"humanline fit: {path}: " in err and "line 2, pHa must lie in [0, 1] (divide percentages by 100)" in err
    assert len(err.splitlines()) == 14 and "more" in err.splitlines()[-1]
    assert main(["fit", str(tmp_path / "nowhere.csv")]) == 2


def test_an_output_that_is_there_is_left_alone(tmp_path, capsys):
    """A folder that holds something is refused before anything is fitted."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    assert main(["fit", LONG, "--out", str(tmp_path / "out"), *QUICK]) == 2
    assert "already exists" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_fault_while_writing_leaves_nothing(tmp_path, monkeypatch):
    """If a figure cannot be made, there is no folder, and nothing hidden."""

    def broken(*_):
        raise OSError("no")

    monkeypatch.setattr("humanline.cli.fit_files.write_figure", broken)
    assert main(["fit", LONG, "--model", "expected-value", "--out", str(tmp_path / "out"), *QUICK]) == 2
    assert not list(tmp_path.iterdir())


def test_models_of_the_command_line(capsys):
    """Families, value functions, weights, free and equal parameters are those that are asked for."""
    words = ["--model", "prelec", "--loss", "power", "--value", "exponential", "--weights", "separable", "--contextual"]
    words += ["--fix", "gain.beta=1", "--equal", "loss.exponent=gain.alpha", "--dry-run"]
    assert main(["fit", LONG, *words]) == 0
    said = capsys.readouterr().out
    assert "exponential prelec/power separable contextual" in said and "gain.alpha" in said
    assert "gain.beta" not in said and "loss.exponent" not in said
    assert main(["fit", LONG, "--free", "loss_curvature", "--dry-run"]) == 0
    assert "loss_curvature" in capsys.readouterr().out


def test_the_commands_of_the_page_can_be_given(capsys):
    """Every command of docs/fitting.md names files, models and options that are there: its dry run succeeds."""
    lines = [line for _, line in commands(ROOT / "docs" / "fitting.md")]
    assert len(lines) >= 10
    for line in lines:
        program, name, file, *words = shlex.split(line)
        assert (program, name) == ("humanline", "fit")
        path = ROOT / file if "/" in file else EXAMPLE / file
        if "--out" in words:
            del words[words.index("--out") : words.index("--out") + 2]
        assert main(["fit", str(path), *words, "--dry-run"]) == 0, line
    assert capsys.readouterr().err == ""


def test_each_person_is_fitted_alone_and_pooled(capsys, tmp_path, monkeypatch):
    """With --by person the table of people follows, and people.csv has a row for each person and parameter.

    What was found is turned into plain numbers once, and not for each of them.
    """
    from humanline.fit.people.result import PeopleFit

    turned, real = [], PeopleFit.to_dict
    monkeypatch.setattr(PeopleFit, "to_dict", lambda self: turned.append(1) or real(self))
    held = ["--fix", "curvature=1", "loss_aversion=1.6", "loss.gamma=0.7"]
    assert main(["fit", LONG, "--by", "person", *held, "--out", str(tmp_path / "out"), *QUICK]) == 0
    assert "own weight" in capsys.readouterr().out and turned == [1]
    people = rows(tmp_path / "out" / "people.csv")
    assert len(people) == 12 and {row["person"] for row in people} == {f"p{number}" for number in range(1, 7)}
    assert all(float(row["low"]) < float(row["pooled"]) < float(row["high"]) for row in people)
    (part,) = json.loads((tmp_path / "out" / "fit.json").read_text())["parts"]
    assert len(part["people"]["people"]) == 6
    assert main(["fit", GAMES, "--by", "person", *QUICK]) == 2
    assert "needs a column person" in capsys.readouterr().err
    assert main(["fit", LONG, "--by", "person", "--objective", "least-squares", *QUICK]) == 2


@pytest.mark.slow
def test_what_capacities_mean_for_training(capsys, tmp_path, monkeypatch):
    """With --map-to-rejection its lines follow, and clip_ranges.csv has every range that was tried."""
    import functools

    import humanline.fit.rejection as rejection

    quick = functools.partial(rejection.map_to_rejection, two_tests=False)
    monkeypatch.setattr(rejection, "map_to_rejection", quick)
    words = ["--map-to-rejection", "--spread", "0.5", "--proposal", "policy", "--out", str(tmp_path / "out")]
    assert main(["fit", LONG, *words, *QUICK]) == 0
    said = capsys.readouterr().out
    assert "Choices of modelling:" in said and "proposed by the policy" in said and "0.5 nats" in said
    ranges = rows(tmp_path / "out" / "clip_ranges.csv")
    assert {row["side"] for row in ranges} == {"gain", "loss"} and len(ranges) > 100
    (part,) = json.loads((tmp_path / "out" / "fit.json").read_text())["parts"]
    assert part["rejection"]["spread"] == 0.5
    assert main(["fit", LONG, "--spread", "2", *QUICK]) == 2
    assert "--spread is of --map-to-rejection" in capsys.readouterr().err


def test_the_model_that_is_asked_for_is_compared_too():
    """The usual 18 models, and one more where something is held that they leave free."""
    from humanline.fit import Model
    from humanline.fit.job import Asked

    assert len(Asked().models()) == 18 and "the model asked for" not in Asked(Model(gain="prelec")).models()
    held = Model(fixed={"loss_aversion": 1.0})
    assert Asked(held).models()["the model asked for"] is held
