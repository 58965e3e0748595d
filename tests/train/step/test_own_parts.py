"""Losses, transforms and schedules of the user's own, from files outside the package: docs/own-parts.md has them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from humanline.cli import main
from humanline.evaluate.inspect_run import inspect_data
from humanline.evaluate.inspection import describe
from humanline.system.files import OutputError
from humanline.system.own_code import OwnCodeError
from humanline.train.config import ConfigError, TrainConfig, load_config
from humanline.train.config.base import BESIDE
from humanline.train.config.describe import describe_config
from humanline.train.config.rounds import ScoringConfig
from humanline.train.config.secrets import written
from humanline.train.loop import train
from humanline.train.online.rewards.pool import make_pool
from humanline.train.preflight.validate import NotReadyError, validate
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.metrics import read_metrics
from humanline.train.step.own import TAKEN, OwnLoss
from humanline.train.step.own_check import check_own_parts, check_together
from tests.conftest import ROOT
from tests.helpers.cases import StopAt
from tests.helpers.kills import KILLED, result_of
from tests.helpers.rounds import online
from tests.helpers.support import CLIP, REJECT, config, run, same, steps, weights, without_timing

PAGE = (ROOT / "docs/own-parts.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
HINGE = {"kind": "function", "call": "hinge:hinge_loss", "options": {"beta": 0.5, "margin": 0.05}}
SOFT = {"kind": "function", "call": "soft_clip:soft_clip", "options": {"limit": 0.01}}
LAG = {"schedule": {"kind": "function", "call": "lag:snapshot", "options": {"behind": 3}}}
CPU = torch.device("cpu")


@pytest.fixture
def own(tmp_path) -> Path:
    """The folder of a recipe, with the files of the page beside it."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def beside(folder: Path, given: TrainConfig) -> TrainConfig:
    """Return a configuration as if it had been read from a recipe in a folder."""
    return TrainConfig.model_validate(given.model_dump(), context={BESIDE: str(folder)})


def parts(toy, own, output="run", **changes) -> TrainConfig:
    """A short run in which all three parts are from files."""
    changes = {"transform": SOFT, "reference": LAG, "checkpoint": {"every": 2, "overlap": "never"}} | changes
    return beside(own, config(toy, own.parent / output, changes.pop("objective", HINGE), **changes))


def write(own, name, text) -> dict[str, str]:
    (own / f"{name}.py").write_text(f"import torch\n{text}\n", encoding="utf-8")
    return {"kind": "function", "call": f"{name}:f"}


def test_a_recipe_with_parts_of_ones_own_trains(toy, own):
    """The page's recipe, with its files beside it, trains; metrics of the loss are in those of the run."""
    recipe = own / "recipe.yaml"
    sections = re.search(r"```yaml\n(objective:.*?)```", PAGE, re.DOTALL)[1]
    recipe.write_text(
        f"model: {toy['model']}\noutput: {own / 'run'}\n{sections}data: {{train: {toy['pairs']}, max_length: 64}}\n"
        "training: {steps: 6, batch_size: 8}\noptimizer: {lr: 3.0e-3}\n"
    )
    rows = steps(train(load_config(recipe), show_progress=False))
    assert len(rows) == 6 and rows[0]["gain"] == 0 and rows[-1]["gain"] > 0 and rows[-1]["transformed"] > 0
    assert rows[0]["loss"] == 1.0  # of pairs with a margin of 0


def test_the_command_line_trains_with_them_from_any_folder(toy, own, tmp_path, monkeypatch, capsys):
    """`humanline train` finds modules next to the recipe, from wherever it is called, and tells of a failure."""
    monkeypatch.chdir(tmp_path)
    late = "def f(chosen, rejected, *, chosen_mask, rejected_mask):\n    assert len(chosen) < 5, 'too many'\n"
    write(own, "late", late + "    return rejected.sum(1) - chosen.sum(1)")
    recipe = own / "recipe.yaml"
    recipe.write_text(
        f"model: {toy['model']}\noutput: {tmp_path / 'run'}\nobjective: {{kind: function, call: 'late:f'}}\n"
        f"data: {{train: {toy['pairs']}, max_length: 64}}\ntraining: {{steps: 2, batch_size: 4}}\n"
        "optimizer: {lr: 3.0e-3}\n"
    )
    assert main(["train", str(recipe), "--quiet"]) == 0
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()
    assert main(["train", str(recipe), "--quiet", f"output={tmp_path / 'other'}", "training.batch_size=8"]) == 2
    assert "objective: late:f raised AssertionError: too many (late.py, line 3)" in capsys.readouterr().err


def test_reading_a_recipe_imports_nothing_of_it(toy, own):
    """A recipe is read, described and written down without its functions; only what prepares a run imports them."""
    (own / "loud.py").write_text("raise RuntimeError('imported')\n")
    loud = {"kind": "function", "call": "loud:f"}
    made = parts(toy, own, objective=loud, transform=loud, reference={"schedule": loud})
    assert "loud:f" in describe_config(made) and "loud:f" in json.dumps(written(made))
    with pytest.raises(OwnCodeError, match="objective: loud:f cannot be imported: RuntimeError: imported"):
        check_own_parts(made, CPU)


def test_rewards_are_looked_for_in_the_same_places(own, tmp_path):
    """A function reward next to the recipe is found by worker processes, too."""
    (own / "mine.py").write_text("def f(prompt, completion): return 1.0\n")
    given = {"rewards": [{"kind": "function", "call": "mine:f"}], "workers": 1}
    for context, found in ((None, str), ({BESIDE: str(own)}, dict)):
        pool = make_pool(ScoringConfig.model_validate(given, context=context))
        try:
            assert isinstance(pool.functions()["mine:f"], found)
        finally:
            pool.close()


@pytest.mark.slow
def test_rounds_score_for_a_loss_and_a_schedule_of_ones_own(toy, prompts, own):
    """In rounds, labelled answers of either end of the scores reach a loss, and steps count from a round's start."""
    text = "def f(log_ratio, *, mask, desirable):\n"
    text += "    return torch.sigmoid(torch.where(desirable, -1.0, 1.0) * log_ratio.sum(1))"
    loss = write(own, "mine", text) | {"of": "examples"}
    schedule = {"schedule": {"kind": "function", "call": "lag:snapshot", "options": {"behind": 2}}}
    made = beside(own, online(toy, prompts, own / "run", loss, reference=schedule))
    assert len(steps(train(made, show_progress=False))) == 8
    with pytest.raises(ValueError, match="objective function has no use for scores"):
        online(toy, prompts, own / "run", loss | {"of": "sequences"})


def test_a_loss_of_ones_own_that_is_dpo_is_dpo(toy, own):
    """A function that computes DPO's loss trains as DPO does, in micro-batches of any size, clipped as it is."""
    text = """def f(chosen, rejected, *, chosen_mask, rejected_mask, beta):
    return -torch.nn.functional.logsigmoid(beta * (chosen.sum(1) - rejected.sum(1)))"""
    mine = write(own, "mine", text) | {"options": {"beta": 0.5}}
    schedule = {"schedule": {"kind": "before_step", "every": 2}}
    same_for_both = {"reference": schedule, "training__micro_batch_size": 3, "training__steps": 4, "transform": CLIP}
    house = run(toy, own / "house", "dpo", **same_for_both)
    made = beside(own, config(toy, own / "own", mine, **same_for_both))
    found = train(made, show_progress=False)
    for theirs, ours in zip(steps(house), steps(found), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["clipped_high"] == theirs["clipped_high"]
    assert all(torch.allclose(one, weights(house)[name], atol=1e-5) for name, one in weights(found).items())


def test_a_schedule_of_ones_own_is_the_same_under_other_names(toy, own):
    """`before_step` written as a function gives the same bits, scored ahead and with a second model."""
    text = "def f(step, *, every):\n    return every * (max(0, step - 1) // every)"
    mine = {"schedule": write(own, "mine", text) | {"options": {"every": 3}}}
    house = weights(
        run(toy, own / "house", transform=CLIP, reference={"schedule": {"kind": "before_step", "every": 3}})
    )
    for storage in ("score_ahead", "model"):
        made = beside(own, config(toy, own / storage, transform=CLIP, reference=mine | {"storage": storage}))
        assert same(weights(train(made, show_progress=False)), house)


@pytest.mark.parametrize("of", ["examples", "sequences", "groups"])
def test_losses_of_other_units_train_and_are_evaluated(toy, own, of):
    """A loss of answers with labels, alone or in groups gets what the page says, in micro-batches of any size."""
    text = {
        "examples": "def f(log_ratio, *, mask, desirable):\n"
        "    return torch.sigmoid(torch.where(desirable, -1.0, 1.0) * log_ratio.sum(1))",
        "sequences": "def f(log_ratio, *, mask):\n    return -log_ratio",
        "groups": "def f(log_ratio, *, mask, advantages):\n    return -log_ratio.exp() * advantages[:, None]",
    }[of]
    mine = write(own, "mine", text) | {"of": of}
    found = []
    for size in (3, 8):
        made = config(toy, own / str(size), mine, training__micro_batch_size=size, training__steps=2)
        made = made.model_copy(update={"data": made.data.model_copy(update={"eval": toy["held_out"]})})
        found.append(train(beside(own, made), show_progress=False))
    assert all(torch.allclose(one, weights(found[0])[name], atol=1e-5) for name, one in weights(found[1]).items())
    assert found[0].final["loss"] < found[0].initial["loss"]


@pytest.mark.parametrize("padding", ["right", pytest.param("free", marks=pytest.mark.slow)])
def test_a_probe_counts_what_a_transform_of_ones_own_changes(toy, own, padding):
    """`inspect-data --probe` tells the share of tokens that the transform changed, as the steps of the run do."""
    changes = {"training__padding": padding, "training__steps": 5, "training__micro_batch_size": 3}
    made = config(toy, own / "run", HINGE, transform=SOFT, reference=LAG, **changes)
    found = inspect_data(beside(own, made), out=str(own / "look"), say=lambda text: None, probe=4)
    rows = steps(train(beside(own, made), show_progress=False))
    for mine, theirs in zip(found.probe.by_step, rows, strict=False):
        assert round(theirs["transformed"] * mine["tokens"]) == mine["transformed"]
    told = " ".join("\n".join(describe(found)).split())
    assert sum(one["transformed"] for one in found.probe.by_step) > 0 and "absolute changed count tokens" in told


class TestResume:
    @pytest.mark.slow
    def test_a_killed_run_ends_with_the_same_bits(self, toy, own, server):
        """Killed at a write barrier and resumed, a run of one's own loss, transform and schedule is the same."""
        whole = parts(toy, own)
        alone = server.run(whole)
        assert alone["code"] == 0, alone["log"]
        killed = parts(toy, own, "killed")
        assert server.run(killed, kill_at=2 * len(alone["barriers"]) // 3)["code"] == KILLED
        assert server.run(killed, resume=True)["code"] == 0
        assert result_of(killed) == result_of(whole)

    @pytest.mark.parametrize(
        "name", ["helper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hinge", "soft_clip", "lag"))]
    )
    def test_a_changed_file_is_refused_by_name(self, toy, own, name):
        """`--resume` names the file that changed, also one that is imported; with the old text back it goes on."""
        (own / "helper.py").write_text("x = 1\n")
        with open(own / "hinge.py", "a") as file:
            file.write("\n\nimport helper\n")
        made = parts(toy, own)
        with pytest.raises(BaseException, match="stopped"):
            train(made, stop=StopAt(12), show_progress=False)
        text = (own / f"{name}.py").read_text()
        (own / f"{name}.py").write_text(text + "\n# another text\n")
        with pytest.raises(CheckpointError, match=rf"own code: {name} "):
            train(made, resume=True, show_progress=False)
        (own / f"{name}.py").write_text(text)
        resumed = train(made, resume=True, show_progress=False)
        whole = train(parts(toy, own, "whole"), show_progress=False)
        assert same(weights(resumed), weights(whole))
        assert without_timing(steps(resumed)) == without_timing(steps(whole))

    def test_a_finished_run_is_not_taken_for_one_of_other_code(self, toy, own, capsys):
        """`--resume` of a finished run whose file changed or is gone ends with code 2, and with the old text with 0."""
        recipe, path, text = own / "recipe.yaml", own / "hinge.py", (own / "hinge.py").read_text()
        recipe.write_text(
            f"model: {toy['model']}\noutput: {own / 'run'}\nobjective: {{kind: function, call: 'hinge:hinge_loss'}}\n"
            f"data: {{train: {toy['pairs']}, max_length: 64}}\ntraining: {{steps: 1, batch_size: 4}}\n"
            "optimizer: {lr: 3.0e-3}\n"
        )
        command = ["train", str(recipe), "--resume"]
        assert main([*command, "--quiet"]) == 0
        path.write_text(text + "\n# another text\n")
        assert main(command) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "is finished, and was made by other code" in said and "own code: hinge" in said
        path.unlink()
        assert main(command) == 2 and "(absent)" in capsys.readouterr().err
        path.write_text(text)
        assert main(command) == 0 and "finished already, and its data were not read again" in capsys.readouterr().err

    def test_other_options_are_refused_as_settings_are(self, toy, own):
        """Options are part of the settings that a resumed run must share."""
        with pytest.raises(BaseException, match="stopped"):
            train(parts(toy, own), stop=StopAt(12), show_progress=False)
        other = HINGE | {"options": {"beta": 0.5, "margin": 2.0}}
        with pytest.raises(OutputError, match=r"objective\.options\.margin +0\.05 +2\.0"):
            train(parts(toy, own, objective=other), resume=True, show_progress=False)


LOSS = (
    "def f(chosen, rejected, *, chosen_mask, rejected_mask):\n    gain = chosen.sum(1) - rejected.sum(1)\n    return "
)
WRONG_LOSSES = {
    "a mean": ("torch.relu(1 - gain).mean()", r"shape \(\).*one number a unit; the mean over them is taken for you"),
    "no tensor": ("1.0", r"returned float as its loss; expected a tensor of shape \(4,\)"),
    "not finite": ("torch.log(gain)", "not finite at log-ratios of about 0 nats"),
    "a gradient that is not": ("torch.where(gain > 0, torch.sqrt(gain), 0.0)", "a gradient that is not finite"),
    "no gradient": ("-gain.detach()", "let no gradient through"),
    "chance": ("-gain * torch.rand(())", "did not give the same twice"),
    "padding": ("-gain / chosen.shape[1]", "other numbers when rows were padded further; use the mask"),
    "neighbours": ("gain.mean() - gain", "other numbers for a row alone"),
    "in place": ("-chosen.mul_(2).sum(1)", "changed what it was given in place|raised RuntimeError"),
    "a gradient of 0 over 0": ("-torch.sign(gain) * gain.abs().sqrt()", "not finite at log-ratios of about 0 nats"),
    "an end of the program": ("exit(0)", r"raised SystemExit: 0 \(mine.py, line 4\)"),
    "the kind of a row": ("-gain, {'kind': gain}", "names a metric 'kind'"),
    "an error": ("1 / 0", r"raised ZeroDivisionError: division by zero \(mine.py, line 4\)"),
    "metrics of another shape": ("-gain, {'a': gain.mean()}", r"metric a of shape \(\)"),
    "a metric's name": ("-gain, {'loss': gain}", "names a metric 'loss'"),
    "the share of a clip": ("-gain, {'clipped_low': gain}", "names a metric 'clipped_low'"),
    "what a round says": ("-gain, {'staleness_rms': gain}", "names a metric 'staleness_rms'"),
}


@pytest.mark.parametrize("which", WRONG_LOSSES)
def test_a_loss_that_cannot_be_trained_with_is_refused(toy, own, which):
    """What would train nothing, or something that nobody asked for, is refused in a sentence, before any weight."""
    body, said = WRONG_LOSSES[which]
    made = beside(own, config(toy, own / "run", write(own, "mine", LOSS + body)))
    with pytest.raises(OwnCodeError, match=f"^objective: mine:f .*({said})"):
        check_own_parts(made, CPU)


def test_a_metric_that_is_not_finite_ends_no_run(toy, own, capsys):
    """An infinite metric, of a loss that is finite, had ended the run as a fault of humanline, with nothing saved."""
    odds = "torch.where((gain > 0.35) & (gain < 0.7), torch.inf, gain)"  # which the numbers that are tried do not reach
    mine = write(own, "mine", LOSS + f"torch.relu(1 - gain), {{'gain': gain, 'odds': {odds}}}")
    made = beside(own, config(toy, own / "run", mine, training__steps=4))
    rows = steps(train(made, show_progress=False))
    assert [row["step"] for row in rows] == [0, 1, 2, 3] and all("gain" in row for row in rows)
    assert "odds" in rows[0] and "odds" not in rows[1]
    assert capsys.readouterr().err.count("step 1: not finite: odds") == 1


def test_no_metric_of_a_run_can_be_taken(toy, own, tmp_path):
    """A loss that names a metric of the house had its own numbers replaced, or passed for those of a clip."""
    for number, transform in enumerate((CLIP, REJECT, SOFT)):
        made = beside(own, config(toy, tmp_path / str(number), HINGE, transform=transform, training__steps=1))
        (row,) = steps(train(made, show_progress=False))
        assert row.keys() - TAKEN == {"gain", "satisfied"}


class TestMetricsInEachProcess:
    """Processes add metrics up by their places: in another order, or under other names, they had added up others."""

    def names(self, toy, own, names) -> TrainConfig:
        body = f"-gain, {{name: gain * 0 + number for name, number in {names}}}"
        return beside(own, config(toy, own / "run", write(own, "mine", LOSS + body)))

    def test_metrics_have_the_order_of_their_names(self, toy, own):
        """A loss may list a set, which has another order in each process: metrics come as if it were sorted."""
        made = self.names(toy, own, "dict.fromkeys('bac', 1).items()").objective
        values = [torch.zeros(2, 3), torch.zeros(2, 3)]
        masks = dict.fromkeys(("chosen_mask", "rejected_mask"), torch.ones(2, 3, dtype=torch.bool))
        assert list(OwnLoss(made).each(*values, **masks)[1]) == ["a", "b", "c"]

    @pytest.mark.parametrize("elsewhere", [["a", "b"], ["a"], []])
    def test_other_names_in_another_process_are_refused(self, toy, own, elsewhere):
        """All names are compared before anything is read: two processes had waited for each other for an hour."""
        told: list[str] = []

        def texts(text: str) -> list[str]:
            told.append(text)
            return [text, text, json.dumps(elsewhere)]

        def now(act):
            return act()

        three = SimpleNamespace(ranks=3, device=CPU, alike=now, on_main=now, meeting=SimpleNamespace(texts=texts))
        made = self.names(toy, own, "[('b', 1), ('a', 2)]")
        if elsewhere == ["a", "b"]:
            check_together(made, three)
        else:
            with pytest.raises(OwnCodeError, match=r"\['a', 'b'\] in process 0 and \[.*\] in process 2"):
                check_together(made, three)
        assert told == ['["a", "b"]']

    def test_a_file_that_was_changed_may_name_others(self, toy, own):
        """One configuration, as of a notebook, is tried again after its file was edited: the names begin anew."""
        made = self.names(toy, own, "[('a', 1)]")
        check_own_parts(made, CPU)
        self.names(toy, own, "[('changed', 1)]")
        check_own_parts(made, CPU)
        assert made.objective.first_metrics() == ("changed",)

    def test_training_gets_the_metrics_that_were_tried(self, toy, own):
        """A loss whose names depend on what it is given is refused by the first process that sees others."""
        body = "-gain, {('a' if len(gain) < 5 else 'b'): gain}"
        made = beside(own, config(toy, own / "run", write(own, "mine", LOSS + body)))
        with pytest.raises(OwnCodeError, match=r"returned metrics \['b'\] after \['a'\]; expected the same each time"):
            train(made, show_progress=False)


SIGNATURES = {
    "def f(chosen, *, chosen_mask, rejected_mask): pass": "too many positional arguments.*expected def f\\(chosen, rej",
    "def f(chosen, rejected, *, chosen_mask, rejected_mask, reference_point): pass": "which is not given: .*z_0",
    "def f(chosen, rejected, *, chosen_mask, rejected_mask, kl_log_ratio): pass": "which is not given: a KL penalty",
    "def f(chosen, rejected, *, chosen_mask, rejected_mask, scale): pass": "missing a required argument: 'scale'",
    "f = 3": "is no callable, but int",
}


@pytest.mark.parametrize("text", SIGNATURES)
def test_a_function_with_another_signature_is_told_the_right_one(toy, own, text):
    """What it would be called with is said, and why a thing that it asks for is not given."""
    made = beside(own, config(toy, own / "run", write(own, "mine", text)))
    with pytest.raises(OwnCodeError, match=SIGNATURES[text]):
        check_own_parts(made, CPU)


SNAPSHOTS = {
    "step + 1": "returned 1 for step 0; expected a step that is not in the future",
    "max(0, 5 - step) if step > 4 else step": "never an earlier one than for the step before",
    "step / 2": "returned float; expected an int",
    "1 // 0": "raised ZeroDivisionError",
    "exit(0)": "raised SystemExit",
}


@pytest.mark.parametrize("body", SNAPSHOTS)
def test_a_schedule_that_is_none_is_refused(toy, own, body):
    """A schedule neither looks ahead nor goes back, and returns steps."""
    mine = {"schedule": write(own, "mine", f"def f(step):\n    return {body}")}
    with pytest.raises(OwnCodeError, match=SNAPSHOTS[body]):
        check_own_parts(beside(own, config(toy, own / "run", reference=mine)), CPU)


def test_a_table_for_a_second_model_has_an_entry_behind_the_last_step(toy, own):
    """What the last update would ask of a schedule is asked before the first one."""
    mine = {"schedule": write(own, "mine", "def f(step):\n    return list(range(8))[step]")}
    made = beside(own, config(toy, own / "run", reference=mine))
    assert check_own_parts(made, CPU)
    with pytest.raises(OwnCodeError, match=r"mine:f\(8\) raised IndexError"):
        check_own_parts(beside(own, config(toy, own / "run", reference=mine | {"storage": "model"})), CPU)


def test_what_a_second_model_lost_is_told_at_a_step_that_nobody_asked_for_ahead(toy, own, tmp_path, monkeypatch):
    """In a run by epochs, or a very long one, it had gone on against older weights than the schedule names."""
    monkeypatch.setattr("humanline.train.config.own_schedule._LOOKED_AT", 3)
    late = write(own, "mine", "def f(step):\n    return 0 if step < 5 else step - 3")
    made = beside(own, config(toy, tmp_path / "run", reference={"schedule": late, "storage": "model"}))
    with pytest.raises(OwnCodeError, match=r"mine:f goes from 0 to 2 at step 5, .* no longer has the weights of"):
        train(made, show_progress=False)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["random", "datasets", "torch"])
@pytest.mark.parametrize("imported", [False, True])
def test_a_file_with_the_name_of_a_library_is_refused(toy, own, name, imported):
    """A file of one's own takes nobody's place: neither the module that is named, nor one that it imports."""
    before = sys.modules.get(name)
    (own / f"{name}.py").write_text("def f(chosen, rejected, *, chosen_mask, rejected_mask):\n    return chosen\n")
    (own / "mine.py").write_text(f"import {name}\nf = {name}.f\n")
    call = {"kind": "function", "call": "mine:f" if imported else f"{name}:f"}
    with pytest.raises(OwnCodeError, match=rf"{name}\.py has the name of a library.*rename it"):
        check_own_parts(beside(own, config(toy, own / "run", call)), CPU)
    assert sys.modules.get(name) is before


def test_parts_that_share_a_helper_share_its_module(toy, own):
    """A helper that is imported by two parts is imported once: what it registers it registers once."""
    (own / "helper.py").write_text(
        "import pathlib\nwith open(pathlib.Path(__file__).parent / 'seen', 'a') as f: f.write('x')\n"
    )
    for name in ("hinge", "soft_clip"):
        with open(own / f"{name}.py", "a") as file:
            file.write("\n\nimport helper\n")
    check_own_parts(parts(toy, own), CPU)
    assert (own / "seen").read_text() == "x"


@pytest.mark.parametrize("behind", [0, 1, 3, 50])
@pytest.mark.parametrize("body", ["max(0, step - behind)", "(behind + 1) * (step // (behind + 1))"])
def test_the_longest_window_is_what_scoring_ahead_keeps(toy, own, behind, body):
    """A schedule's longest window is the most steps that wait at a time, counted one by one."""
    mine = write(own, "mine", f"def f(step, *, behind):\n    return {body}") | {"options": {"behind": behind}}
    schedule = beside(own, config(toy, own / "run", reference={"schedule": mine})).reference.schedule
    snapshots = [schedule.snapshot(step) for step in range(20)]
    waiting = [sum(snapshots[one] <= step <= one for one in range(20)) for step in range(20)]
    assert schedule.longest_window(20) == max(waiting)


def test_what_a_part_does_not_give_is_refused_by_name(toy, own):
    """z_0 with a transform of one's own, a second model with a schedule that it cannot follow, scores for sequences."""
    with pytest.raises(ValueError, match=r"transform\.kind: function cannot go with objective kto.*z_0"):
        config(toy, own / "run", "kto", transform=SOFT)
    with pytest.raises(OwnCodeError, match=r"goes from 0 to 1 at step 4.*storage: score_ahead"):
        check_own_parts(parts(toy, own, reference=LAG | {"storage": "model"}), CPU)
    flat = write(own, "mine", "def f(log_ratio, *, mask):\n    return log_ratio.detach()")
    with pytest.raises(OwnCodeError, match="transform: mine:f let no gradient through"):
        check_own_parts(beside(own, config(toy, own / "run", transform=flat)), CPU)
    recipe = own / "recipe.yaml"
    recipe.write_text("objective: {kind: function, call: hinge}\n")
    with pytest.raises(ConfigError, match=r"objective\.call: string should match pattern"):
        load_config(recipe)


def test_validate_shows_what_is_run_and_refuses_what_cannot_be(toy, own, capsys):
    """`validate` names each function with its files' digests, and where a missing one was looked for."""
    assert validate(parts(toy, own)).steps == 8
    shown = capsys.readouterr().out
    assert "own code     objective: hinge:hinge_loss; its files, by SHA-256: hinge " in shown
    assert "hinge:hinge_loss with beta=0.5, margin=0.05: a loss of your own, of pairs" in shown
    shutil.rmtree(own)
    with pytest.raises(NotReadyError, match=r"No module named 'hinge'; looked for in .*/own, .*, PYTHONPATH"):
        validate(parts(toy, own))
