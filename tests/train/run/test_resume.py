"""Runs that are killed, stopped, damaged or starved of disk end up with the same bits, or say why not."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import threading
from itertools import product
from pathlib import Path

import pytest
import torch

from humanline.system import files as system_files
from humanline.system import folders as system_folders
from humanline.system.files import DamagedError, OutputError
from humanline.system.hashing import facts_of
from humanline.system.lock import FolderLock, is_lock
from humanline.system.stop import StopRequested
from humanline.train.data.batch import Unit
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.units import units_hash
from humanline.train.loop import train
from humanline.train.run import checkpoint, checkpoints, saving
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.fingerprint import differences
from humanline.train.run.folder import RunFolder
from humanline.train.run.state import ModuleState, OptimizerState
from tests.helpers.cases import CASES, SOME, StopAt, case, moved, stopped_run
from tests.helpers.files import leftovers
from tests.helpers.kills import KILLED, result_of
from tests.helpers.support import OBJECTIVES


@pytest.fixture(scope="module")
def stopped_once(toy, tmp_path_factory):
    """A run that was stopped after 5 of 7 updates."""
    return stopped_run(toy, tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of such a run, to go on with."""
    shutil.copytree(stopped_once.output, tmp_path / "run")
    return moved(stopped_once, tmp_path / "run")


@pytest.fixture(scope="module")
def left_alone(stopped_once, tmp_path_factory):
    """The same run, left alone."""
    one = moved(stopped_once, tmp_path_factory.mktemp("whole") / "run")
    train(one, show_progress=False)
    return one


class TestKills:
    def test_a_kill_at_write_barriers_changes_nothing(self, toy, tmp_path, server):
        """Killed at every 83rd write barrier of three kinds of run, and resumed, a run ends with the same bits."""
        assert self.kill_at_barriers(toy, tmp_path, server, SOME[::2], 83) >= 3

    @pytest.mark.slow
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_a_kill_at_every_write_barrier_changes_nothing(self, toy, tmp_path, server, objective):
        """The same at every write barrier of every objective, schedule and storage."""
        cases = [one for one in CASES if one[0] == objective]
        assert self.kill_at_barriers(toy, tmp_path, server, cases, 1) >= 60 * len(cases)

    @staticmethod
    def kill_at_barriers(toy, tmp_path, server, cases, every) -> int:
        kills = 0
        for offset, one in enumerate(cases):
            whole = case(toy, tmp_path / "-".join(one), *one)
            alone = server.run(whole)
            assert alone["code"] == 0, alone["log"]
            expected = result_of(whole)
            for number in range(7 * offset % every, len(alone["barriers"]), every):
                killed = moved(whole, Path(f"{whole.output}-{number}"))
                where = f"{one}, barrier {number}: {alone['barriers'][number]}"
                assert server.run(killed, kill_at=number)["code"] == KILLED, where
                kills += 1
                resumed = server.run(killed, resume=True)
                assert resumed["code"] == 0, f"{where}\n{resumed['log']}"
                assert result_of(killed) == expected, where
                assert not leftovers(Path(killed.output)), where
                shutil.rmtree(killed.output)
        return kills

    @pytest.mark.parametrize(
        "cases,wanted",
        [
            pytest.param(SOME[1:2], 2, id="some"),
            pytest.param(CASES, 240, id="all", marks=pytest.mark.slow),
        ],
    )
    def test_kills_at_random_times_change_nothing(self, toy, tmp_path, server, cases, wanted):
        """Killed at random times, again and again, and resumed each time, a run ends with the same bits."""
        chance = random.Random(0)
        kills = 0
        while kills < wanted:
            for one in cases:
                whole = case(toy, tmp_path / "-".join(one), *one)
                if not (tmp_path / "-".join(one) / "final").exists():
                    server.run(whole)
                killed = moved(whole, tmp_path / f"killed-{kills}-{'-'.join(one)}")
                for attempt in range(5):  # the last one is left alone
                    when = {"kill_after": chance.uniform(0, 0.4)} if attempt < 4 else {}
                    outcome = server.run(killed, resume=True, **when)
                    assert outcome["code"] in (0, KILLED), outcome["log"]
                    kills += outcome["code"] == KILLED
                    if outcome["code"] == 0:
                        break
                assert result_of(killed) == result_of(whole), one
                shutil.rmtree(killed.output)


class TestStopping:
    @pytest.mark.parametrize(
        "one,every",
        [
            pytest.param(
                one, every, id="-".join((*one, str(every))), marks=pytest.mark.slow if every == 2 or also else ()
            )
            for one, also in zip(SOME, (False, True, False, False, True), strict=True)
            for every in (13, 2)
        ],
    )
    def test_a_stop_at_any_safe_point_changes_nothing(self, toy, tmp_path, one, every):
        """Stopped at every n-th safe point (evaluating, scoring, training), a run goes on to the same bits."""
        whole = case(toy, tmp_path / "whole", *one, checkpoint={"every": None, "minutes": None})
        count = StopAt(10**9)
        train(whole, stop=count, show_progress=False)
        expected, points = result_of(whole), count.asked
        assert points > 10
        for number in range(SOME.index(one) % every, points, every):
            stopped = moved(whole, tmp_path / str(number))
            with pytest.raises(StopRequested, match=r"stopped by SIGTERM after \d of 7 updates; all of it is in"):
                train(stopped, stop=StopAt(number), show_progress=False)
            assert not (tmp_path / str(number) / "final").exists()
            train(stopped, resume=True, show_progress=False)
            assert result_of(stopped) == expected, number

    def test_a_run_that_is_stopped_at_every_safe_point_still_ends(self, toy, tmp_path):
        """A run that gets no further than one safe point a time loses nothing of a long window."""
        whole = case(toy, tmp_path / "whole", "dpo", "never", "score_ahead", evaluation={}, data__eval=None)
        train(whole, show_progress=False)
        stopped, times = moved(whole, tmp_path / "stopped"), 0
        while True:
            try:
                train(stopped, resume=times > 0, stop=StopAt(1), show_progress=False)
                break
            except StopRequested:
                times += 1
            assert times < 40
        assert times > 10 and result_of(stopped) == result_of(whole)
        assert len(list((tmp_path / "stopped" / "checkpoints").iterdir())) == 2

    @pytest.mark.slow  # test_stop.py has each signal at a write
    def test_signals_at_random_times(self, toy, tmp_path, server):
        """SIGTERM at random times gives exit code 75, and in the end the same bits."""
        chance = random.Random(1)
        whole = case(toy, tmp_path / "whole", "kto", "before_3", "score_ahead")
        seconds = server.run(whole)["seconds"]
        stopped, codes = moved(whole, tmp_path / "stopped"), []
        for _ in range(40):
            outcome = server.run(stopped, resume=bool(codes), stop_after=chance.uniform(0, seconds))
            codes.append(outcome["code"])
            assert outcome["code"] in (0, 75), outcome["log"]
            if outcome["code"] == 0:
                break
        assert server.run(stopped, resume=True)["code"] == 0
        assert 75 in codes and result_of(stopped) == result_of(whole)

    def test_a_stop_while_loading_writes_nothing(self, toy, tmp_path, server):
        """A signal before the first step ends the run with code 75, and its folder is not made."""
        early = case(toy, tmp_path / "early", "dpo", "never", "score_ahead")
        outcome = server.run(early, stop_after=0.01)
        assert outcome["code"] == 75 and not (tmp_path / "early").exists()

    def test_a_second_signal_ends_at_once(self, toy, tmp_path, server):
        """While the first signal's save takes a minute, a second signal ends the process."""
        slow = case(toy, tmp_path / "slow", "dpo", "never", "score_ahead", training={"steps": 5000, "batch_size": 8})
        begun = str(tmp_path / "slow" / "metrics.jsonl")
        outcome = server.run(slow, slow_to_save=True, once_there=begun, stop_after=0.2, stop_again_after=0.5)
        assert outcome["code"] == -2 and outcome["seconds"] < 20  # by the signal itself


COMPONENTS = (
    "policy-0.safetensors",
    "optimizer-0.safetensors",
    "rank-0-reference-0-0.safetensors",
    "rank-0-held-out-0.safetensors",
    "rank-0-random-0.safetensors",
    "state.json",
    "metrics.jsonl",
    "manifest.json",
)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flip": (flip, r"has other bytes|cannot be trusted"),
    "truncate": (lambda path: path.write_bytes(path.read_bytes()[:-7]), r"bytes in place of|cannot be trusted"),
    "empty": (lambda path: path.write_bytes(b""), r"has 0 bytes|cannot be trusted"),
    "remove": (Path.unlink, r"is missing"),
}


class TestDamage:
    @pytest.mark.parametrize(
        "cases",
        [
            pytest.param(list(zip(COMPONENTS, 2 * list(DAMAGES), strict=True)), id="each component once"),
            pytest.param(list(product(COMPONENTS, DAMAGES)), id="all", marks=pytest.mark.slow),
        ],
    )
    def test_damage_to_any_component_falls_back_and_is_named(self, stopped, left_alone, tmp_path, capsys, cases):
        """A flipped byte, a cut or a missing file in any component is named, and the checkpoint before it is used."""
        expected = result_of(left_alone)
        names = sorted(path.name for path in (tmp_path / "run/checkpoints/step-00000005").iterdir())
        assert names == sorted(COMPONENTS)
        for name, damage in cases:
            act, message = DAMAGES[damage]
            copy = moved(stopped, tmp_path / f"{damage}-{name}")
            shutil.copytree(stopped.output, copy.output)
            act(Path(copy.output) / "checkpoints/step-00000005" / name)
            train(copy, resume=True)
            said = capsys.readouterr().err
            assert "step-00000005: " in said and name in said, said
            assert re.search(message, said), said
            assert "going on after 4 updates" in said
            assert result_of(copy) == expected
            assert (Path(copy.output) / "checkpoints/damaged-step-00000005").is_dir()
            shutil.rmtree(copy.output)

    def test_only_damaged_checkpoints_are_refused(self, stopped, tmp_path):
        """With every checkpoint damaged the run is refused, each is named, and nothing is started over."""
        before = (tmp_path / "run/metrics.jsonl").read_bytes()
        for folder in (tmp_path / "run/checkpoints").iterdir():
            flip(folder / "policy-0.safetensors")
        with pytest.raises(CheckpointError) as error:
            train(stopped, resume=True, show_progress=False)
        for number in (2, 4, 5):
            assert f"step-0000000{number}: policy-0.safetensors has other bytes" in str(error.value)
        assert (tmp_path / "run/metrics.jsonl").read_bytes() == before

    @pytest.mark.parametrize("name", [name for name in COMPONENTS if name != "manifest.json"])
    def test_a_checkpoint_that_lacks_a_component_is_refused(self, stopped, tmp_path, name):
        """A component that is absent from files and manifest alike is missed all the same."""
        for folder in (tmp_path / "run/checkpoints").iterdir():
            (folder / name).unlink()
            files = json.loads((folder / "manifest.json").read_text())["files"]
            del files[name]
            manifest = {"files": files, "digest": system_folders._digest(files)}
            (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match=f"it has no {name}"):
            train(stopped, resume=True, show_progress=False)

    def test_a_foreign_file_is_named(self, stopped, tmp_path, capsys):
        """A file that does not belong to a checkpoint makes it suspect."""
        (tmp_path / "run/checkpoints/step-00000005/notes.txt").write_text("mine")
        train(stopped, resume=True)
        assert "step-00000005: notes.txt does not belong to it" in capsys.readouterr().err

    def test_a_finished_run_is_left_alone(self, toy, tmp_path, capsys):
        """Resuming a finished run changes nothing and returns its result."""
        one = case(toy, tmp_path / "run", "dpo", "before_1", "score_ahead")
        first = train(one, show_progress=False)
        before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*") if path.is_file()}
        assert train(one, resume=True) == first
        assert "finished already, and its data were not read again" in capsys.readouterr().err
        del before[tmp_path / "run/run.lock.1"]
        assert all(path.read_bytes() == content for path, content in before.items())
        with pytest.raises(OutputError, match="holds a run already: add --resume"):
            train(one, show_progress=False)

    def test_files_put_beside_a_finished_model_are_left_alone(self, toy, tmp_path):
        """A file of the user's in final/ is no damage: it stays, and the run counts as finished."""
        one = case(toy, tmp_path / "run", "dpo", "before_1", "score_ahead")
        train(one, show_progress=False)
        (tmp_path / "run/final/README.md").write_text("mine")
        train(one, resume=True, show_progress=False)
        assert (tmp_path / "run/final/README.md").read_text() == "mine"

    def test_a_damaged_final_model_is_made_again(self, toy, tmp_path):
        """A finished model that does not match its manifest is replaced from a checkpoint, or refused without one."""
        one = case(toy, tmp_path / "run", "dpo", "before_1", "score_ahead")
        train(one, show_progress=False)
        expected = result_of(one)
        flip(tmp_path / "run/final/model.safetensors")
        train(one, resume=True, show_progress=False)
        assert result_of(one) == expected
        assert (tmp_path / "run/damaged-final/model.safetensors").exists()  # nothing is deleted
        flip(tmp_path / "run/final/model.safetensors")
        for folder in (tmp_path / "run/checkpoints").iterdir():
            flip(folder / "policy-0.safetensors")
        with pytest.raises(CheckpointError, match="is whole"):
            train(one, resume=True, show_progress=False)
        assert (tmp_path / "run/final/config.json").exists()
        shutil.rmtree(tmp_path / "run/checkpoints")
        with pytest.raises(OutputError, match=r"model.safetensors has other bytes.*no checkpoint to make it from"):
            train(one, resume=True, show_progress=False)


class TestOtherRuns:
    @pytest.mark.parametrize(
        "change,row",
        [
            ({"optimizer": {"lr": 1e-3, "warmup_fraction": 0.4}}, r"optimizer.lr +0.003 +0.001"),
            ({"seed": 5}, r"seed +0 +5"),
            ({"training": {"steps": 9, "batch_size": 8, "micro_batch_size": 4}}, r"training.steps +7 +9"),
            ({"transform": {"kind": "none"}}, r"transform.kind +clip +none"),
        ],
    )
    def test_changed_settings_are_refused_with_a_table(self, toy, stopped, tmp_path, change, row):
        """Other settings are refused, before anything is loaded, with a table of what changed."""
        changes = {"checkpoint": {"every": 2, "keep": 3}, **change}
        with pytest.raises(OutputError, match=row):
            train(
                case(toy, tmp_path / "run", "kto", "before_3", "score_ahead", **changes),
                resume=True,
                show_progress=False,
            )
        (tmp_path / "run/config.json").unlink()  # the checkpoint knows as well
        with pytest.raises(CheckpointError, match=row):
            train(
                case(toy, tmp_path / "run", "kto", "before_3", "score_ahead", **changes),
                resume=True,
                show_progress=False,
            )

    def test_other_software_is_said_as_far_as_the_checkpoint_told_of_its_own(self, toy, stopped, tmp_path, capsys):
        """Of numpy too, which draws the order of rows; what an earlier version did not tell of is no difference."""
        folder = max((tmp_path / "run/checkpoints").iterdir())
        state, manifest = (json.loads((folder / name).read_text()) for name in ("state.json", "manifest.json"))
        assert {"numpy", "tokenizers", "torch"} <= set(state["software"])
        state["software"] |= {"numpy": "0.9"}
        del state["software"]["tokenizers"]
        (folder / "state.json").write_text(json.dumps(state))
        files = manifest["files"] | {"state.json": facts_of(folder / "state.json")}
        (folder / "manifest.json").write_text(json.dumps({"files": files, "digest": system_folders._digest(files)}))
        changes = {"checkpoint": {"every": 2, "keep": 3}}
        capsys.readouterr()
        train(case(toy, tmp_path / "run", "kto", "before_3", "score_ahead", **changes), resume=True)
        said = "".join(capsys.readouterr())
        assert (
            re.search(r"other software than the checkpoint's.*\n.*\n? *numpy +0\.9", said) and "tokenizers" not in said
        )

    def test_a_checkpoint_of_micro_batches_of_groups_is_refused(self, toy, tmp_path):
        """What an earlier version saved of GRPO, whose micro-batches were of groups, is not gone on with by rows."""
        training = {"steps": 3, "batch_size": 8, "micro_batch_size": 4}
        one = case(toy, tmp_path / "run", "grpo", "before_1", "score_ahead", training=training)
        train(one, show_progress=False)
        shutil.rmtree(tmp_path / "run/final")
        (folder,) = (tmp_path / "run/checkpoints").iterdir()
        state, manifest = (json.loads((folder / name).read_text()) for name in ("state.json", "manifest.json"))
        del state["fingerprints"]["micro-batches of GRPO"]
        (folder / "state.json").write_text(json.dumps(state))
        files = manifest["files"] | {"state.json": facts_of(folder / "state.json")}
        (folder / "manifest.json").write_text(json.dumps({"files": files, "digest": system_folders._digest(files)}))
        with pytest.raises(CheckpointError, match=r"micro-batches of GRPO +\(absent\) +of rows \(formerly of groups\)"):
            train(one, resume=True, show_progress=False)

    @pytest.mark.parametrize(
        "which,name",
        [("pairs", "training data"), pytest.param("held_out", "held-out data", marks=pytest.mark.slow)],
    )
    def test_changed_data_are_refused(self, toy, tmp_path, which, name):
        """One changed letter in a data file is noticed."""
        files = {key: str(shutil.copy(toy[key], tmp_path / f"{key}.jsonl")) for key in ("pairs", "held_out")}
        data = {"data": {"train": files["pairs"], "eval": files["held_out"], "max_length": 64, "shape": "preference"}}
        one = stopped_run(toy, tmp_path, **data, data__eval=files["held_out"])
        path = Path(files[which])
        path.write_text(path.read_text().replace("!", "?", 1))
        with pytest.raises(CheckpointError, match=rf"{name} +\w+\.\.\.\w+ +\w+\.\.\."):
            train(one, resume=True, show_progress=False)

    @pytest.mark.parametrize(
        "what,row",
        [
            ("template", "template"),
            ("vocabulary", "tokenizer"),
            pytest.param("settings", "model settings", marks=pytest.mark.slow),
            ("weights", None),
        ],
    )
    def test_a_changed_model_folder(self, toy, tmp_path, what, row):
        """Another template or tokenizer is refused; other weights do not matter: the checkpoint has them."""
        model = shutil.copytree(toy["model"], tmp_path / "model")
        one = stopped_run({**toy, "model": str(model)}, tmp_path)
        if what == "template":
            path = model / "chat_template.jinja"
            path.write_text(path.read_text() + "{# another #}")
        elif what == "settings":
            path = model / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.1}))
        elif what == "vocabulary":
            path = model / "tokenizer.json"
            tree = json.loads(path.read_text())
            tree["model"]["merges"] = tree["model"]["merges"][:-1]
            path.write_text(json.dumps(tree))
        else:
            from safetensors.torch import load_file, save_file

            tensors = {name: 0 * tensor for name, tensor in load_file(model / "model.safetensors").items()}
            save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        if row is None:
            train(one, resume=True, show_progress=False)
            shutil.copytree(toy["model"], model, dirs_exist_ok=True)
            whole = moved(one, tmp_path / "whole")
            train(whole, show_progress=False)
            assert result_of(one) == result_of(whole)
        else:
            with pytest.raises(CheckpointError, match=rf"\n  {row} +"):
                train(one, resume=True, show_progress=False)

    def test_place_and_checkpoint_settings_may_change(self, stopped, left_alone, tmp_path):
        """A run's folder may be moved, and how often it saves may be changed, without changing its result."""
        shutil.move(tmp_path / "run", tmp_path / "elsewhere")
        other = moved(stopped, tmp_path / "elsewhere").model_copy(
            update={"checkpoint": stopped.checkpoint.model_copy(update={"every": 3, "keep": 2})}
        )
        train(other, resume=True, show_progress=False)
        assert result_of(other) == result_of(left_alone)

    def test_a_folder_in_use_is_refused(self, toy, tmp_path, server):
        """A second run, fresh or resumed, cannot enter a folder whose run is alive, and can when it was killed."""
        one = case(toy, tmp_path / "run", "dpo", "never", "score_ahead")
        first = RunFolder(one.output, resume=False)
        first.take()
        for resume in (True, False):
            outcome = server.run(one, resume=resume)
            assert outcome["code"] == 2 and "in use by another run (process" in outcome["log"]
        first.release()
        assert server.run(one, resume=True)["code"] == 0

    def test_a_finished_run_that_can_only_be_read_is_finished(self, tmp_path, monkeypatch):
        """Where no lock can be made a whole final model is enough; without one, or with a damaged one, it is not."""

        def refused(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        system_folders.publish_folder(tmp_path / "final", lambda partial: (partial / "a").write_text("a"))
        for name in ("config.json", "metrics.jsonl"):
            (tmp_path / name).write_text("")
        monkeypatch.setattr(FolderLock, "take", refused)
        folder = RunFolder(tmp_path, resume=True)
        before = sorted(tmp_path.rglob("*"))
        folder.take()
        assert folder.is_finished() and sorted(tmp_path.rglob("*")) == before
        folder.release()
        (tmp_path / "final/a").write_text("b")
        with pytest.raises(OutputError, match="is damaged"):
            RunFolder(tmp_path, resume=True).take()
        shutil.rmtree(tmp_path / "final")
        with pytest.raises(OutputError, match="cannot be used: Read-only file system"):
            RunFolder(tmp_path, resume=True).take()

    def test_resuming_something_else_is_refused(self, toy, tmp_path):
        """A folder that holds no run is not taken over; an absent or empty one starts a run."""
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/letter.txt").write_text("dear")
        with pytest.raises(OutputError, match="holds no run to resume, but something else"):
            train(case(toy, tmp_path / "mine", *SOME[0]), resume=True, show_progress=False)
        (tmp_path / "file").write_text("x")
        with pytest.raises(OutputError, match="holds no run to resume"):
            train(case(toy, tmp_path / "file", *SOME[0]), resume=True, show_progress=False)
        (tmp_path / "empty").mkdir()
        for name in ("empty", "absent"):
            train(case(toy, tmp_path / name, *SOME[0]), resume=True, show_progress=False)
        assert result_of(case(toy, tmp_path / "empty", *SOME[0])) == result_of(case(toy, tmp_path / "absent", *SOME[0]))

    def test_starting_over_is_said_and_loses_nothing(self, stopped, tmp_path, capsys):
        """Where checkpoints are gone, --resume says that it begins anew and keeps the earlier metrics."""
        shutil.rmtree(tmp_path / "run/checkpoints")
        earlier = (tmp_path / "run/metrics.jsonl").read_text()
        train(stopped, resume=True)
        said = capsys.readouterr().err
        assert "starting from the beginning; the earlier metrics are now" in said
        assert (tmp_path / "run/metrics-before.jsonl").read_text() == earlier

    def test_a_refused_resume_changes_nothing(self, toy, tmp_path):
        """A resume that is refused because of its data leaves every file as it was."""
        data = str(shutil.copy(toy["pairs"], tmp_path / "pairs.jsonl"))
        sets = {"train": data, "eval": toy["held_out"], "max_length": 64, "shape": "preference"}
        one = stopped_run(toy, tmp_path, data=sets, data__eval=toy["held_out"])
        before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and not is_lock(p.name)}
        Path(data).write_text(Path(data).read_text().replace("!", "?", 1))
        with pytest.raises(CheckpointError, match="training data"):
            train(one, resume=True, show_progress=False)
        assert all(path.read_bytes() == content for path, content in before.items())

    def test_a_call_that_was_refused_early_does_not_stand_in_the_way(self, toy, tmp_path):
        """After --resume on a new folder failed because of its data, the corrected command works without it."""
        wrong = case(toy, tmp_path / "run", *SOME[0], data__train=str(tmp_path / "absent.jsonl"))
        with pytest.raises(FileNotFoundError):
            train(wrong, resume=True, show_progress=False)
        train(case(toy, tmp_path / "run", *SOME[0]), show_progress=False)

    def test_the_table_shows_what_differs(self):
        """Differences are named with both values, long ones shortened; equal mappings give nothing."""
        assert differences({"a": 1, "b": "x"}, {"b": "x", "a": 1}) == ""
        table = differences({"a": 1, "h": "0" * 64}, {"a": 2.5, "h": "1" * 64, "new": None})
        assert [line.split() for line in table.splitlines()] == [
            ["what", "then", "now"],
            ["a", "1", "2.5"],
            ["h", "0" * 12 + "..." + "0" * 24, "1" * 12 + "..." + "1" * 24],
            ["new", "(absent)", "null"],
        ]

    def test_the_table_shows_that_values_differ(self):
        """Long ones that begin and end alike are shown from where they part; a text is told from a number."""
        run, reward = "experiments/2025/dpo-clip-seed{}/checkpoints/night/final", {"call": "a" * 40}
        then = {"a": run.format(0), "b": [{"weight": 1.0} | reward], "c": "a" * 60, "d": "0.5", "e": "(absent)"}
        now = {"a": run.format(1), "b": [{"weight": 0.5} | reward], "c": "a" * 61, "d": 0.5}
        assert [re.split("  +", line.strip()) for line in differences(then, now).splitlines()[1:]] == [
            ["a", "...po-clip-seed0/checkpoints/night/fi...", "...po-clip-seed1/checkpoints/night/fi..."],
            ["b", '[{"weight": 1.0, "call": "aaaaaaaa...', '[{"weight": 0.5, "call": "aaaaaaaa...'],
            ["c", f"...{'a' * 12}", f"...{'a' * 13}"],
            ["d", '"0.5"', "0.5"],
            ["e", '"(absent)"', "(absent)"],
        ]


class TestDisk:
    def test_a_full_disk_keeps_the_previous_checkpoint_and_the_run(self, toy, tmp_path, monkeypatch, capsys):
        """With no room for the second checkpoint the run warns, keeps the first and goes on to the same bits."""
        one = case(toy, tmp_path / "run", *SOME[1])
        train(moved(one, tmp_path / "whole"), show_progress=False)
        begin = saving.begin_folder

        def full(folder, *, room):
            if "step-00000002" in folder.name:
                return begin(folder, room=room)
            monkeypatch.setattr(
                system_files.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**3)
            )
            try:
                return begin(folder, room=room)
            finally:
                monkeypatch.undo()
                monkeypatch.setattr(saving, "begin_folder", full)

        monkeypatch.setattr(saving, "begin_folder", full)
        train(one)
        said = capsys.readouterr().err
        assert "warning: no checkpoint could be written after 4 updates" in said
        assert "1000 bytes are free; step-00000002 is kept" in said
        assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000002"]
        assert result_of(one) == result_of(moved(one, tmp_path / "whole"))

    def test_a_write_that_fails_half_way_leaves_nothing(self, toy, tmp_path, server):
        """Where the weights cannot be written, checkpoints and model fail with a sentence, and nothing is left."""
        one = case(toy, tmp_path / "run", *SOME[0])
        outcome = server.run(one, largest_file=30_000)
        assert outcome["code"] == 2, outcome["log"]
        assert "no checkpoint could be written after 2 updates: " in outcome["log"]
        assert "there is no earlier one" in outcome["log"]
        assert not leftovers(tmp_path / "run") and not list((tmp_path / "run/checkpoints").iterdir())
        assert not (tmp_path / "run/final").exists()
        assert server.run(one, resume=True)["code"] == 0
        whole = moved(one, tmp_path / "whole")
        server.run(whole)
        assert result_of(one) == result_of(whole)

    def test_a_model_that_cannot_be_written_is_not_lost(self, toy, tmp_path, monkeypatch):
        """Where only the export fails, the finished weights are in a checkpoint, and resuming exports them."""
        one = case(toy, tmp_path / "run", *SOME[0])
        from humanline.train import loop

        def refuse(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(loop, "save_together", refuse)
            with pytest.raises(OutputError, match=r"could not be written: .*No space.*step-00000007.*--resume"):
                train(one, show_progress=False)
        train(one, resume=True, show_progress=False)
        whole = moved(one, tmp_path / "whole")
        train(whole, show_progress=False)
        assert result_of(one) == result_of(whole)

    def test_a_run_that_cannot_fit_is_refused_at_the_start(self, toy, tmp_path, monkeypatch):
        """With less free space than checkpoints and model need, the run is refused: no weight is read."""
        monkeypatch.setattr("humanline.train.setup.build_policy", lambda *_: pytest.fail("weights were loaded"))
        size = (Path(toy["model"]) / "model.safetensors").stat().st_size

        def free(count: int) -> None:
            monkeypatch.setattr(
                system_files.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, count)
            )

        free(system_files.SPARE + 12 * size)  # enough for three checkpoints and the model, not with second models
        with pytest.raises(OutputError, match="does not fit on the disk"):
            train(case(toy, tmp_path / "run", *SOME[0], reference={"storage": "model"}), show_progress=False)
        free(10**6)
        with pytest.raises(OutputError, match=r"does not fit on the disk: it needs about .* has 976.6 KiB"):
            train(case(toy, tmp_path / "run", *SOME[0]), show_progress=False)
        assert not (tmp_path / "run").exists()


def test_dropout_goes_on_where_it_was(toy, tmp_path):
    """With dropout the random numbers of torch are part of the checkpoint: a resumed run has the same bits."""
    model = shutil.copytree(toy["model"], tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"attention_dropout": 0.3}))
    toy = {**toy, "model": str(model)}
    training = {"steps": 7, "batch_size": 8, "micro_batch_size": 4}
    one = stopped_run(toy, tmp_path, training=training | {"dropout": True})
    train(one, resume=True, show_progress=False)
    whole = moved(one, tmp_path / "whole")
    train(whole, show_progress=False)
    assert result_of(one) == result_of(whole)
    plain = stopped_run(toy, tmp_path / "plain", training=training)
    train(plain, resume=True, show_progress=False)
    assert result_of(plain) != result_of(whole)


def test_checkpoints_by_the_clock(toy, tmp_path):
    """With a thousandth of a second between saves every step is saved; with none and no stop, nothing is."""
    often = case(toy, tmp_path / "often", "dpo", "before_1", "model", checkpoint={"minutes": 1e-5, "keep": 3})
    train(often, show_progress=False)
    names = sorted(path.name for path in (tmp_path / "often/checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000005", "step-00000006"]
    scoring = case(toy, tmp_path / "scoring", "dpo", "never", "score_ahead", checkpoint={"minutes": 1e-5, "keep": 20})
    train(scoring, show_progress=False)  # a long window is saved while it is scored
    names = sorted(path.name for path in (tmp_path / "scoring/checkpoints").iterdir())
    assert names == [
        *(f"step-00000000{again}" for again in ["", *(f".{i:06d}" for i in range(1, 8))]),
        *(f"step-0000000{updates}" for updates in range(1, 7)),
    ]
    train(case(toy, tmp_path / "never", *SOME[0], checkpoint={"minutes": None}), show_progress=False)
    assert not (tmp_path / "never/checkpoints").exists()


def test_by_steps_the_beginning_is_not_saved(toy, tmp_path):
    """With every: 1 there is a checkpoint after each update but the last, and none before the first."""
    train(case(toy, tmp_path / "run", *SOME[0], checkpoint={"every": 1, "keep": 20}), show_progress=False)
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == [f"step-0000000{updates}" for updates in range(1, 7)]


def test_first_and_last_metrics_survive_a_resume(stopped, tmp_path):
    """The result of a resumed run names the same held-out metrics, first and last, as an uninterrupted one."""
    resumed = train(stopped, resume=True, show_progress=False)
    whole = train(moved(stopped, tmp_path / "whole"), show_progress=False)
    assert resumed.initial == whole.initial and resumed.final == whole.final and whole.initial != whole.final


def test_nothing_new_is_not_saved_again(stopped, tmp_path):
    """A run that is stopped right after it was resumed leaves its checkpoints as they are."""
    before = sorted((tmp_path / "run/checkpoints").iterdir())
    with pytest.raises(StopRequested, match=r"after 5 of 7 updates; all of it is in .*step-00000005"):
        train(stopped, resume=True, stop=StopAt(0), show_progress=False)
    assert sorted((tmp_path / "run/checkpoints").iterdir()) == before


def test_large_states_go_into_several_files(toy, left_alone, tmp_path, monkeypatch):
    """States larger than one part are written and read in parts, to the same bits."""
    monkeypatch.setattr(checkpoint, "_PART_BYTES", 1000)
    one = stopped_run(toy, tmp_path)
    assert (tmp_path / "run/checkpoints/step-00000005/policy-3.safetensors").exists()
    train(one, resume=True, show_progress=False)
    assert result_of(one) == result_of(left_alone)


def test_states_that_do_not_fit_are_refused(toy):
    """Weights and optimizer states that lack something, or are of another kind, are named."""
    module = torch.nn.Linear(2, 3)
    state = ModuleState(module)
    with pytest.raises(DamagedError, match="lacks bias"):
        state.load_state({"weight": torch.zeros(3, 2)})
    with pytest.raises(DamagedError, match=r"weight is float64 \(3, 2\) in place of float32 \(3, 2\)"):
        state.load_state({"weight": torch.zeros(3, 2, dtype=torch.float64), "bias": torch.zeros(3)})
    rows = dict(module.named_parameters())
    optimizer = OptimizerState(torch.optim.AdamW(rows.values()), rows, lambda _, state: state)
    with pytest.raises(DamagedError, match="covers a part of the parameters"):
        optimizer.load_state({"exp_avg/weight": torch.zeros(3, 2)})
    with pytest.raises(DamagedError, match="unknown parameter other"):
        optimizer.load_state({"exp_avg/other": torch.zeros(3, 2)})


def test_a_checkpoint_of_an_earlier_format_is_refused(tmp_path):
    """One whose log-probabilities stand by process and micro-batch is of format 2, which is said."""
    contents = checkpoint.Contents(
        shared={}, own={}, config={}, fingerprints={}, software={}, metrics=tmp_path / "metrics.jsonl"
    )
    with pytest.raises(CheckpointError, match="has format 2; this version of humanline reads 3"):
        contents.refuse_another_run(tmp_path, {"format": 2})


def test_labels_and_scores_are_part_of_the_fingerprint():
    """Data that differ in a label, a score, a name or a token have different fingerprints."""
    sequence = TokenSequence((1, 2, 3), 1)
    units = [
        Unit("a", (sequence,)),
        Unit("a", (sequence,), desirable=False),
        Unit("a", (sequence,), scores=(1.0,)),
        Unit("b", (sequence,)),
        Unit("a", (TokenSequence((1, 2, 4), 1),)),
        Unit("a", (TokenSequence((1, 2, 3), 2),)),
    ]
    assert len({units_hash([unit]) for unit in units}) == len(units)


def test_a_save_that_fails_at_its_end_keeps_all_earlier_ones(toy, tmp_path, monkeypatch, capsys):
    """Old checkpoints are removed only once the new one has its name, and one that resists removal is no fault."""
    seal = saving.seal_folder

    def fail_at_six(folder, known):
        if "step-00000006" in folder.name:
            raise OSError(5, "Input/output error")
        seal(folder, known)

    monkeypatch.setattr(saving, "seal_folder", fail_at_six)
    train(case(toy, tmp_path / "run", *SOME[0]))
    assert "no checkpoint could be written after 6 updates: Input/output error" in capsys.readouterr().err
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000004"]

    def resist(folder):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(saving, "seal_folder", seal)
    monkeypatch.setattr(checkpoints, "remove_folder", resist)
    train(case(toy, tmp_path / "other", *SOME[0]))
    assert "warning" not in capsys.readouterr().err
    assert len(list((tmp_path / "other/checkpoints").iterdir())) == 3


def test_checkpoints_hold_no_pickle(stopped, tmp_path):
    """A checkpoint is safetensors and JSON only."""
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file() and path.suffix not in (".json", ".jsonl", ".log") and not is_lock(path.name):
            assert path.suffix == ".safetensors" and path.read_bytes()[8:9] == b"{"


def test_a_resume_that_fails_ends_the_threads_that_it_has_begun(stopped, monkeypatch):
    """Reading the log-probabilities of a window has batches made; where the log then cannot be opened none is left."""
    monkeypatch.setattr(RunFolder, "open_log", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
    with pytest.raises(OSError, match="read-only") as caught:
        train(stopped, resume=True, show_progress=False)
    names = [thread.name for thread in threading.enumerate()]
    assert caught.tb is not None and not any(name.startswith("humanline-batches") for name in names), names
