"""Trackers get the numbers, never a secret, and never cost a run."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from accelerate import tracking as theirs

from humanline.train.loop import train
from humanline.train.run import tracking
from humanline.train.run.processes import start_accelerator
from humanline.train.run.tracking import TrackerError, check_trackers, start_trackers
from tests.helpers.support import config

MAIN, OTHER = SimpleNamespace(is_main_process=True), SimpleNamespace(is_main_process=False)
NAMES = ("tensorboard", "trackio", "wandb")


class Fake(theirs.GeneralTracker):
    """Remember everything; `fail` maps a method to what it does in place of working."""

    requires_logging_directory = False
    name = "fake"
    made: dict[str, Fake]
    fail: dict[tuple[str, str], object]

    def __init__(self, project, folder=None, **given):
        self.project, self.given, self.logged, self.finished, self.threads = project, given, [], 0, set()
        self.made[self.name] = self

    @property
    def tracker(self):
        return self

    def _act(self, method):
        self.threads.add(threading.current_thread().name)
        act = self.fail.get((self.name, method))
        if isinstance(act, BaseException):
            raise act
        if act is not None:
            act()

    def start(self):
        self._act("start")

    def log(self, values, step=None, **_):
        self._act("log")
        self.logged.append((step, dict(values)))

    def finish(self):
        self._act("finish")
        self.finished += 1


@pytest.fixture
def fakes(monkeypatch):
    """Put a fake in the place of each tracker; fakes.made holds those made, fakes.fail says which fail and how."""
    made, fail = {}, {}
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    for name in NAMES:
        fake = type(name, (Fake,), {"name": name, "made": made, "fail": fail})
        monkeypatch.setitem(theirs.LOGGER_TYPE_TO_CLASS, name, fake)
    return SimpleNamespace(made=made, fail=fail)


def settings(toy, path, *names, **changes):
    return config(toy, path, tracking={"trackers": names, "project": "p"}, **changes)


def use(toy, path, said, *names):
    """Start trackers, log three steps, close; return the trackers."""
    with start_trackers(settings(toy, path, *names), path, MAIN, said.append) as trackers:
        for step in range(3):
            trackers.log({"loss": 1.0 / (step + 1), "broken": float("nan")}, step)
    return trackers


def test_nothing_is_tracked_unless_named(toy, tmp_path):
    """A run without tracking.trackers has no tracker, no thread and no file."""
    before = set(threading.enumerate())
    trackers = start_trackers(config(toy, tmp_path), tmp_path, MAIN)
    trackers.log({"loss": 1.0}, 0)
    assert trackers.names == () and set(threading.enumerate()) <= before
    trackers.close()
    assert not list(tmp_path.iterdir())


def test_only_the_main_process_tracks(toy, tmp_path, fakes):
    """On every other process nothing is started."""
    assert start_trackers(settings(toy, tmp_path, *NAMES), tmp_path, OTHER).names == () and not fakes.made


def test_a_tracker_that_is_not_installed_is_refused_with_the_command(toy, tmp_path, monkeypatch):
    """All missing trackers are named with the command that installs them, and a run does not begin."""
    monkeypatch.setattr(tracking, "find_spec", lambda name: None if name in ("wandb", "trackio") else True)
    with pytest.raises(TrackerError, match="names trackio and wandb, which are not installed: pip install trackio wan"):
        check_trackers(settings(toy, tmp_path, *NAMES).tracking)


def test_every_tracker_gets_every_number_in_order(toy, tmp_path, fakes):
    """Working trackers get all steps, finite numbers only, and are finished once; a second close does nothing."""
    said = []
    use(toy, tmp_path, said, *NAMES).close()
    assert not said and set(fakes.made) == set(NAMES)
    for name, fake in fakes.made.items():
        assert fake.logged == [(0, {"loss": 1.0}), (1, {"loss": 0.5}), (2, {"loss": 1.0 / 3})]
        assert fake.finished == 1 and fake.threads == {f"tracker {name}"}


@pytest.mark.parametrize("method", ["start", "log", "finish"])
@pytest.mark.parametrize("error", [RuntimeError("no\nnetwork \x1b[2J"), SystemExit(3), KeyboardInterrupt()])
def test_a_tracker_that_raises_is_reported_once_and_dropped(toy, tmp_path, fakes, method, error):
    """Whatever a tracker raises, wherever: one line, and the others get everything."""
    fakes.fail["trackio", method] = error
    said = []
    use(toy, tmp_path, said, *NAMES)
    doing = {"start": "starting", "log": "logging", "finish": "finishing"}[method]
    assert len(said) == 1
    assert said[0].startswith(f"tracker trackio failed while {doing}: {type(error).__name__}")
    assert "\n" not in said[0] and "\x1b" not in said[0] and said[0].endswith("training goes on without it")
    assert all(len(fakes.made[name].logged) == 3 and fakes.made[name].finished for name in ("tensorboard", "wandb"))


@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_a_tracker_that_hangs_is_left_behind(toy, tmp_path, fakes, monkeypatch, method):
    """A call that does not come back costs the run a bounded wait; the tracker is reported and dropped."""
    monkeypatch.setattr(tracking, "PATIENCE", 0.3)
    release = threading.Event()
    fakes.fail["wandb", method] = release.wait
    said = []
    use(toy, tmp_path, said, *NAMES)
    release.set()
    assert len(said) == 1 and said[0].startswith("tracker wandb has not ")
    assert all(len(fakes.made[name].logged) == 3 and fakes.made[name].finished for name in ("tensorboard", "trackio"))


def test_a_tracker_that_falls_behind_is_dropped(toy, tmp_path, fakes, monkeypatch):
    """A tracker slower than training does not fill the memory with what waits for it."""
    monkeypatch.setattr(tracking, "BACKLOG", 5)
    release = threading.Event()
    fakes.fail["wandb", "log"] = release.wait
    said = []
    with start_trackers(settings(toy, tmp_path, "wandb"), tmp_path, MAIN, said.append) as trackers:
        for step in range(20):
            trackers.log({"loss": 1.0}, step)
        release.set()
    assert said == ["tracker wandb is 5 steps behind; training goes on without it"]


def test_no_secret_reaches_a_tracker(toy, tmp_path, fakes, monkeypatch):
    """The configuration that a tracker is given, its project and errors hold no value of a secret variable."""
    monkeypatch.setenv("MY_SECRET", "sesame-open")
    fakes.fail["wandb", "log"] = RuntimeError("refused sesame-open")
    said = []
    run = tmp_path / "sesame-open"
    run.mkdir()
    given = settings(toy, run, *NAMES, data__train="https://me:sesame-open@host/x")
    given = given.model_copy(update={"tracking": given.tracking.model_copy(update={"project": "p sesame-open"})})
    with start_trackers(given, run, MAIN, said.append) as trackers:
        trackers.log({"loss": 1.0}, 0)
    assert fakes.made["wandb"].project == "p ***" and fakes.made["wandb"].given["name"] == "***"
    assert fakes.made["trackio"].given["config"]["data.train"] == "https://***@host/x"
    assert fakes.made["trackio"].given["config"]["optimizer.lr"] == 3e-3
    assert "config" not in fakes.made["tensorboard"].given
    told = {name: {**fake.given, "dir": ""} for name, fake in fakes.made.items()}  # a folder of this machine, not sent
    assert "sesame" not in f"{told} {said}" and len(said) == 1


@pytest.fixture
def events():
    """Read the scalars of a folder of tensorboard files."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        reader = accumulator.EventAccumulator(str(folder))
        reader.Reload()
        return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}

    return read


def test_tensorboard_writes_numbers_below_the_run(toy, tmp_path, events, monkeypatch):
    """The real tensorboard writes one file of numbers into tracking/, read back equal, and no configuration."""
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    said = []
    given = settings(toy, tmp_path, "tensorboard", data__train="sesame-open.jsonl")
    accelerator = start_accelerator()
    with start_trackers(given, tmp_path, accelerator, said.append) as trackers:
        for step in range(5):
            trackers.log({"loss": 2.0**-step, "held_out/loss": 0.5}, step)
    assert not said and [path.name for path in tmp_path.iterdir()] == ["tracking"]
    assert events(tmp_path / "tracking") == {
        "loss": [(step, 2.0**-step) for step in range(5)],
        "held_out/loss": [(step, 0.5) for step in range(5)],
    }
    files = list((tmp_path / "tracking").iterdir())
    assert len(files) == 1 and not {b"sesame", b"jsonl"} & {
        word for word in (b"sesame", b"jsonl") if word in files[0].read_bytes()
    }

    # A run that goes on after step 3 takes back what its earlier life logged later than that.
    with start_trackers(given, tmp_path, accelerator, said.append, first_step=3) as trackers:
        trackers.log({"loss": 9.0}, 4)
    assert events(tmp_path / "tracking")["loss"] == [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125), (4, 9.0)]

    # One that was saved before its first update keeps what it measured by then, and one that was never saved nothing.
    for first_step, kept in ((0, [(0, 0.5), (1, 8.0)]), (None, [(1, 8.0)])):
        with start_trackers(given, tmp_path, accelerator, said.append, first_step=first_step) as trackers:
            trackers.log({"held_out/loss": 8.0}, 1)
        assert events(tmp_path / "tracking")["held_out/loss"] == kept


def test_a_run_is_tracked_and_a_broken_tracker_changes_nothing(toy, tmp_path, events, fakes, monkeypatch, capsys):
    """A run with tensorboard and a tracker that breaks is trained to its end, with one line about the broken one."""
    monkeypatch.setitem(theirs.LOGGER_TYPE_TO_CLASS, "tensorboard", theirs.TensorBoardTracker)
    fakes.fail["wandb", "log"] = OSError("unreachable")
    given = settings(toy, tmp_path / "run", "tensorboard", "wandb", training__steps=3)
    result = train(given)
    logged = events(tmp_path / "run" / "tracking")["loss"]
    assert [step for step, _ in logged] == [0, 1, 2] and result.model.is_dir()
    assert capsys.readouterr().err.count("tracker wandb failed while logging: OSError: unreachable") == 1
