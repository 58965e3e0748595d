"""The level of a run's own data, which a run tells after its first step from what that has computed anyway."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from humanline.evaluate.inspect_run import inspect_data
from humanline.evaluate.inspection import as_json
from humanline.system.stop import StopRequested
from humanline.train.data.batch import Unit, rows_of
from humanline.train.data.levels import RowScores
from humanline.train.data.sequences import TokenSequence
from humanline.train.loop import train
from humanline.train.run.folder import RunFolder
from humanline.train.step.data_level import DataLevel, data_level_of, described, level_tree
from tests.helpers.cases import SOME, StopAt, case, moved, stopped_run
from tests.helpers.kills import result_of
from tests.helpers.support import SCHEDULES, config, run, run_with

ROWS = 48  # of each of the toy's files
SHAPES = {"unpaired": "unpaired", "completions": "completion", "pairs": "preference"}


def data(toy, name: str) -> dict:
    return {"train": toy[name], "max_length": 64, "shape": SHAPES[name]}


def kept(folder) -> dict:
    return json.loads((folder / "levels.json").read_text())


@pytest.fixture(scope="module")
def inspected(toy, tmp_path_factory):
    """What `inspect-data` finds of each of the toy's files, all rows of them."""
    folder = tmp_path_factory.mktemp("inspected")

    def look(name: str, objective):
        given = config(toy, folder / "run", objective, data=data(toy, name))
        return inspect_data(given, out=str(folder / name), say=lambda text: None)

    kinds = {"pairs": "dpo", "unpaired": "kto", "completions": {"kind": "nll"}}
    return {name: look(name, objective) for name, objective in kinds.items()}


@pytest.mark.parametrize(
    ("name", "objective", "batch", "schedule", "changes", "rows"),
    [
        ("pairs", "dpo", 8, "never", {"training__steps": 8}, ROWS),  # over the seam of two epochs
        ("pairs", {"kind": "ipo", "beta": 0.5}, 11, "before_3", {"training__steps": 5}, 44),
        ("pairs", "grpo", 11, "after_2", {"reference__baseline": "initial", "training__steps": 4}, 44),
        ("pairs", "dpo", 44, "before_3", {"reference__storage": "model"}, 44),
        pytest.param("pairs", "dpo", 44, "never", {"adapter": {"rank": 4, "alpha": 8.0}}, 44, marks=pytest.mark.slow),
        ("unpaired", "kto", 20, "before_1", {"training__padding": "free"}, 40),
        ("completions", {"kind": "nll"}, 40, None, {}, 40),
    ],
    ids=["ahead", "a window", "groups, all of an anchor's", "a second model", "an adapter", "labels", "no reference"],
)
def test_numbers_are_those_of_inspect_data_on_the_same_rows(
    toy, inspected, tmp_path, name, objective, batch, schedule, changes, rows
):
    """Levels, intervals and quartiles, of the rows that a plain draw of the run's first steps gives."""
    steps = {"steps": 2, "batch_size": batch, "micro_batch_size": 4}
    given = {} if schedule is None else {"reference": {"schedule": SCHEDULES[schedule]}}
    run(toy, tmp_path / "run", objective, data=data(toy, name), training=steps, **given, **changes)
    tree = kept(tmp_path / "run")
    assert (tree["rows"], tree["of"]) == (rows, ROWS)
    drawn = np.zeros(ROWS, dtype=bool)
    drawn[np.random.default_rng([0, 0]).permutation(ROWS)[:rows]] = True
    found = inspected[name]
    labels = None if found.labels is None else found.labels[drawn]
    wanted = as_json(replace(found, scores=found.scores.take(drawn), labels=labels))
    assert tree["levels"].keys() == wanted["levels"].keys() and tree["decides"] == wanted["decides"]
    for part, level in tree["levels"].items():
        assert level["nats_per_token"] == pytest.approx(wanted["levels"][part]["nats_per_token"], abs=1e-6)
        assert (level["rows"], level["tokens"]) == tuple(wanted["levels"][part][n] for n in ("rows", "tokens"))
    assert len(tree["quartiles"]) == 4 and tree["no_quartiles"] is None
    for own, other in zip(tree["quartiles"], wanted["quartiles"], strict=True):
        assert own["nats_per_token"] == pytest.approx(other["nats_per_token"]["value"], abs=1e-6)
        assert (own["from"], own["to"]) == pytest.approx((other["from"], other["to"]), abs=1e-6)
        assert (own["rows"], own["tokens"]) == (other["rows"], other["tokens"])
    assert tree["paper"] == wanted["verdict"]["paper"]


def test_pairs_that_an_objective_takes_apart_are_answers(toy, inspected, tmp_path):
    """Under KTO every answer of a pair is drawn by itself, and levels are by label."""
    steps = {"steps": 1, "batch_size": 2 * ROWS, "micro_batch_size": 16}
    run(toy, tmp_path / "run", "kto", training=steps)
    tree, found = kept(tmp_path / "run"), inspected["pairs"].levels()
    names = {"desirable": "chosen", "undesirable": "rejected", "answer": "pair"}
    assert tree["rows"] == tree["of"] == 2 * ROWS
    for name, other in names.items():
        assert tree["levels"][name]["nats_per_token"]["value"] == pytest.approx(found[other].nats.mean, abs=1e-6)


def test_it_is_said_in_the_first_lines_and_again_by_a_resumed_run(toy, tmp_path, capsys):
    """Which rows, the paper's range, and where to go; a resumed run says what is kept, and computes nothing anew."""
    one = case(toy, tmp_path / "run", *SOME[0], checkpoint={"every": 2})

    class AfterTwo(StopAt):
        @property
        def requested(self) -> str | None:
            metrics = tmp_path / "run" / "metrics.jsonl"
            return "SIGTERM" if metrics.exists() and '"step": 1' in metrics.read_text() else None

    with pytest.raises(StopRequested):
        train(one, stop=AfterTwo(0))
    said = capsys.readouterr().err
    (begin,) = [place for place, line in enumerate(said.splitlines()) if line.startswith("level of the data: ")]
    lines = said.splitlines()[begin:][:5]
    assert "of 32 of 48 pairs, drawn at random: those of the first 4 steps" in lines[0]
    assert lines[1].startswith("  chosen -") and lines[2] == "  too few for quartiles: 40 pairs are wanted"
    assert "lies below [-1.03, -0.36], the paper's worst quartile" in lines[3]
    assert f"humanline inspect-data {tmp_path}/run/config.json --own-samples 50" in lines[4]
    first_step = next(place for place, line in enumerate(said.splitlines()) if line.startswith("step "))
    assert begin < first_step
    text = (tmp_path / "run" / "levels.json").read_text()
    marked = text.replace('"rows": 32', '"rows": 31', 1)  # by hand, for nothing else could tell it apart
    (tmp_path / "run" / "levels.json").write_text(marked)
    train(one, resume=True)
    said = capsys.readouterr().err
    assert said.count("level of the data") == 1 and "of 31 of 48 pairs" in said
    assert (tmp_path / "run" / "levels.json").read_text() == marked


def test_a_stop_in_the_middle_of_the_window_changes_nothing(toy, tmp_path):
    """Where a part of it is restored, what is told is the same to the last bit."""
    whole = case(toy, tmp_path / "whole", *SOME[0], evaluation={}, data__eval=None)
    train(whole, show_progress=False)
    stopped = moved(whole, tmp_path / "stopped")
    with pytest.raises(StopRequested, match="after 0 of"):
        train(stopped, stop=StopAt(3), show_progress=False)
    assert not (tmp_path / "stopped" / "levels.json").exists()
    train(stopped, resume=True, show_progress=False)
    assert result_of(stopped) == result_of(whole) and "levels.json" in result_of(whole)[0]


def test_a_folder_of_an_earlier_version_goes_on_without(toy, tmp_path):
    """A run that was begun before there was such a thing has no scores of step 0 any more, and says nothing."""
    stopped = stopped_run(toy, tmp_path)
    (tmp_path / "run" / "levels.json").unlink()
    train(stopped, resume=True, show_progress=False)
    assert (tmp_path / "run" / "final").is_dir() and not (tmp_path / "run" / "levels.json").exists()


def test_it_is_made_again_where_the_folder_is_gone(tmp_path):
    """What a run has told is written anew with the rest of its folder, also of a run that was taken up again."""
    folder = RunFolder(tmp_path / "run", resume=False)
    folder.take()
    folder.begin({"source": {"kind": "data"}}, {}, {}, print)
    folder.keep_levels({"format": 1})
    folder.levels.unlink()
    folder.remake()
    assert folder.kept_levels() == {"format": 1}
    folder.release()
    again = RunFolder(tmp_path / "run", resume=True)
    again.take()
    again.begin({"source": {"kind": "data"}}, {}, None, print)
    again.levels.unlink()
    again.remake()
    assert again.kept_levels() == {"format": 1}
    again.release()


@pytest.mark.parametrize("tree", ["", "[]", '{"format": 2}', '{"format": 1, "rows": 3}', '{"format": 1, "rows": "x"}'])
def test_a_file_that_nobody_can_read_is_not_told(tmp_path, tree):
    """Damaged, of another version, or changed by hand."""
    folder = RunFolder(tmp_path, resume=True)
    folder.levels.write_text(tree)
    assert described(folder.kept_levels() or {}, "recipe.yaml") == []


def test_under_dropout_nothing_is_known_without_scoring_ahead(toy, tmp_path, capsys):
    """The first step's own pass would be another model's; scores of a reference are made without dropout."""
    given = {"data": data(toy, "completions"), "training__steps": 1, "training__dropout": True}
    train(config(toy, tmp_path / "run", {"kind": "nll"}, **given))
    said = capsys.readouterr().err
    assert "level of the data: not known, since the pass of the first step has dropout in it" in said
    assert kept(tmp_path / "run") == {"format": 1, "rows": 0, "of": ROWS, "steps": 0}
    run(toy, tmp_path / "ahead", training__steps=1, training__dropout=True)
    assert kept(tmp_path / "ahead")["rows"] == 8


def test_in_rounds_nothing_is_told(toy, tmp_path):
    """Their answers are the policy's own."""
    rounds = {"kind": "rounds", "contexts_per_round": 8, "samples": 2, "count": 1}
    rounds |= {"sampling": {"max_tokens": 8, "engine": {"kind": "generate"}}}
    rounds |= {"scoring": {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}]}}
    files = {"train": toy["prompts"], "max_length": 64}
    reference = {"schedule": {"kind": "each_round"}}
    given = config(toy, tmp_path / "run", "grpo", data=files, source=rounds, reference=reference, training__steps=None)
    level = data_level_of(given, 8, folder=None, processes=None, say=None)
    level.hear(0, None, None)
    assert level.unread([None]) == [] and level.take([]) is None


def test_processes_put_together_what_each_has_scored():
    """Answers of one pair in two processes, one answer in both, and a process that has none."""
    units = [
        Unit(f"a:{n}", tuple(TokenSequence((n, 7, *range(9, 10 + n + m)), 2) for m in (0, 1))) for n in range(1, 6)
    ]
    rows = [row for unit in units for row in rows_of(unit, None)]
    shares = [rows[:3], rows[3:] + rows[:1], []]
    table, barrier, kept = [None] * len(shares), threading.Barrier(len(shares)), []

    def of_rank(rank: int) -> None:
        def reduce(value, how):
            table[rank] = value
            barrier.wait()
            result = torch.stack(table).sum(0)
            barrier.wait()
            return result

        meeting = SimpleNamespace(reduce=reduce)
        processes = SimpleNamespace(rank=rank, ranks=len(shares), device=torch.device("cpu"), meeting=meeting)
        folder = SimpleNamespace(keep_levels=kept.append, config="config.json")
        level = DataLevel(5, labelled=False, exact=True, folder=folder, processes=processes, say=lambda line: None)
        if shares[rank]:
            lengths = torch.tensor([float(row.sequence.completion_length) for row in shares[rank]])
            level.hear(0, SimpleNamespace(rows=shares[rank]), -lengths[:, None] * torch.ones(3))
        level.take([value for one in level.unread([]) for value in one.tolist()])

    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (tree,) = kept
    counts = [[one.completion_length for one in unit.sequences] for unit in units]
    assert (tree["rows"], tree["of"], tree["decides"]) == (5, 5, "pair")
    assert tree["levels"]["pair"]["nats_per_token"]["value"] == -3.0
    for member, part in enumerate(("chosen", "rejected")):
        assert tree["levels"][part]["tokens"] == sum(both[member] for both in counts)


def test_a_run_that_does_not_listen_is_the_same_run(toy, tmp_path):
    """Metrics and weights are equal to the bit without it."""
    changes = {"reference": {"schedule": SCHEDULES["before_3"]}}

    def deaf(ready):
        ready.data_level.close()
        return ready

    one = run(toy, tmp_path / "one", **changes)
    other = run_with(deaf, toy, tmp_path / "other", **changes)
    mine, theirs = result_of(config(toy, tmp_path / "one")), result_of(config(toy, tmp_path / "other"))
    assert mine[0].pop("levels.json") and mine == theirs and one.model != other.model


@pytest.mark.parametrize(
    ("rows", "units", "equal", "reason"),
    [(39, 1000, False, "few rows"), (40, 1000, False, None), (8, 8, False, None), (60, 1000, True, "equal levels")],
)
def test_quartiles_are_left_out_where_there_are_too_few_rows(rows, units, equal, reason):
    """Unless they are all rows of the data; and where too many are of one level, by less than rounding makes."""
    spread = np.full(rows, 1e-7) if equal else np.linspace(0.0, 1.0, rows)
    tokens = np.full((rows, 1), 5)
    scores = RowScores(("answer",), np.arange(rows), -1.0 - spread[:, None] * 5, tokens, np.zeros_like(tokens))
    tree = level_tree(scores, None, units=units, steps=2)
    assert tree["no_quartiles"] == reason and (tree["quartiles"] is None) == (reason is not None)
    (line,) = [one for one in described(tree, "recipe.yaml") if "quartiles" in one]
    begins = {"few rows": "  too few for", "equal levels": "  no quartiles", None: "  quartiles of these"}
    assert line.startswith(begins[reason])
