"""A run that breaks is told of once, with what the paper advises; one that does not is told nothing."""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import sys
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.online.types import Completion, OwnTokens
from humanline.train.run.collapse import CollapseError, CollapseWatch
from humanline.train.run.metrics import read_metrics
from tests.conftest import ROOT
from tests.helpers.kills import result_of
from tests.helpers.support import config

TREE = {
    "model": "m",
    "output": "o",
    "objective": {"kind": "grpo"},
    "data": {"train": "t"},
    "training": {"steps": 100},
    "optimizer": {"lr": 1e-4},
}
SYNCED = {"reference": {"schedule": {"kind": "before_step", "every": 1}}}
BROKEN = {"steps": 3, "log_ratio": 1e-9}  # limits that every toy run passes at its third step


EXAMPLE = ROOT / "examples" / "collapse"


class Rows(list):
    def write(self, row):
        self.append(row)


def watch(**changes) -> tuple[CollapseWatch, Rows, list[str]]:
    rows, said = Rows(), []
    return CollapseWatch(TrainConfig.model_validate(TREE | changes), rows, said.append), rows, said


def round_row(number, **facts):
    sound = {"score": 0.5, "score_std": 0.4, "contexts": 64, "completion_tokens": 100, "truncated": 0.0}
    return {"round": number, "steps": 4, **sound, "completion_nll": 1.0, **facts}


def broke(rows):
    return [row for row in rows if "broke" in row]


class TestRules:
    @pytest.mark.parametrize(
        "what,facts",
        [
            ("score", {"score": 0.2}),
            ("length", {"completion_tokens": 450}),
            ("length", {"completion_tokens": 20}),
            ("truncated", {"truncated": 0.6}),
            ("entropy", {"completion_nll": 2.5}),
            ("entropy", {"completion_nll": 0.05}),
        ],
    )
    def test_rounds(self, what, facts):
        """Each number of a round has a limit; two rounds of three beyond it are a break, one is not."""
        alone, lone_rows, lone_said = watch()
        both, rows, said = watch()
        for number in range(12):
            alone.write(round_row(number, **(facts if number == 5 else {})))
            both.write(round_row(number, **(facts if number in (5, 6, 9, 10) else {})))
        assert lone_said == [] and not broke(lone_rows)
        assert len(said) == 1 and [row["broke"]["what"] for row in broke(rows)] == [what]
        assert rows.index(broke(rows)[0]) == 7  # right after the seventh round

    @pytest.mark.parametrize(
        "what,facts",
        [
            ("clipped", {"clipped_low": 0.3, "clipped_high": 0.3}),
            ("log_ratio", {"log_ratio_rms": 2.5}),
            ("loss", {"loss": 6.0}),
        ],
    )
    def test_steps(self, what, facts):
        """Each number of a step has a limit; more than half of the last ten beyond it are a break."""
        watched, rows, said = watch(**SYNCED)
        sound = {"loss": 0.1, "log_ratio_rms": 0.1, "clipped_low": 0.01, "clipped_high": 0.0}
        for step in range(40):
            watched.write({"step": step, **sound, **(facts if step % 4 == 1 or step >= 30 else {})})
        assert len(said) == 1 and broke(rows)[0]["broke"]["what"] == what
        assert 33 <= broke(rows)[0]["updates"] <= 36

    @pytest.mark.parametrize("beta", [0.01, 0.1, 1.0])
    def test_a_loss_in_squares_of_nats_has_a_limit_of_its_own(self, beta):
        """IPO starts at 1 / (4 beta^2): margins that are off by 0.6 are no break, those off by 2.4 are, at any beta."""
        for margin, is_break in ((-0.1, False), (1.2, False), (-1.9, True), (2.9, True)):
            watched, rows, _ = watch(objective={"kind": "ipo", "beta": beta})
            for step in range(12):
                watched.write({"step": step, "loss": ((margin if step else 0) - 0.5) ** 2 / beta**2})
            assert bool(broke(rows)) == is_break

    def test_rejected_answers_may_leave_a_fixed_reference(self):
        """What is a break against a reference one update old is learning against one that never moves."""
        for changes, is_break in ((SYNCED, True), ({}, False)):
            watched, rows, _ = watch(**changes)
            for step in range(12):
                watched.write({"step": step, "loss": 0.0, "log_ratio_rms": 3.0})
            assert bool(broke(rows)) == is_break
            for step in range(12, 24):
                watched.write({"step": step, "loss": 0.0, "log_ratio_rms": 6.5})
            assert len(broke(rows)) == 1

    def test_held_out(self):
        """A single look is enough where the set is always the same, if the fall is beyond luck and beyond half."""
        for scores, is_break in [
            ((0.5, 0.7, 0.65), False),
            ((0.5, 0.7, 0.55), True),
            ((0.5, 0.5, 0.44), False),  # four standard errors are 0.08
            ((0.5, 0.5, 0.41), True),
        ]:
            watched, rows, _ = watch()
            for look, score in enumerate(scores):
                watched.write({"updates": 10 * look, "held_out": {"score": score, "score_se": 0.02}})
            assert bool(broke(rows)) == is_break
        watched, rows, _ = watch(objective={"kind": "dpo"})
        for look, logprob in enumerate((-2.7, -4.6, -4.8)):
            watched.write({"updates": 10 * look, "held_out": {"loss": 0.7, "chosen_logprob": logprob}})
        assert [(row["updates"], row["broke"]["what"]) for row in broke(rows)] == [(20, "surprise")]

    @pytest.mark.parametrize(
        "what,facts",
        [
            ("length", {"completion_tokens": 500}),
            ("truncated", {"truncated": 0.4}),
            ("entropy", {"completion_nll": 2.1}),
        ],
    )
    def test_held_out_answers(self, what, facts):
        """What is looked at in the answers of rounds is in held-out ones, too."""
        watched, rows, _ = watch()
        sound = {"score": 0.5, "score_se": 0.02, "completion_tokens": 100, "truncated": 0.05, "completion_nll": 1.0}
        for look in range(3):
            watched.write({"updates": look, "held_out": sound | (facts if look == 2 else {})})
        assert [(row["broke"]["what"], row["broke"]["of"]) for row in broke(rows)] == [(what, "held_out")]

    @pytest.mark.parametrize("prompts", [1, 4, 16, 64])
    def test_luck_is_no_break(self, prompts):
        """A policy that never changes is told nothing of its answers, however few prompts a round has."""
        for seed in range(8):
            chance = random.Random(seed)
            watched, rows, _ = watch()
            for number in range(100):
                lengths = [chance.lognormvariate(4, 0.8) for _ in range(prompts)]
                facts = {"completion_tokens": statistics.mean(lengths), "truncated": 0.0, "contexts": prompts}
                cut = sum(chance.random() < 0.2 for _ in lengths) / prompts
                facts |= {"completion_tokens_std": statistics.pstdev(lengths), "truncated": cut}
                watched.write(round_row(number, **facts))
            assert not broke(rows)

    @pytest.mark.parametrize("prompts", [1, 4])
    def test_few_prompts_a_round_are_taken_together(self, prompts):
        """Where rounds are small a change of length is told of later, and is told of."""
        watched, rows, said = watch()
        for number in range(300):
            length = 100 if number < 100 else 600
            facts = {"completion_tokens": length, "completion_tokens_std": 0.0, "contexts": prompts}
            watched.write(round_row(number, **facts))
        assert [row["broke"]["what"] for row in broke(rows)] == ["length"]
        assert f"median of the last {96 // prompts} rounds" in said[0]

    @pytest.mark.parametrize("of", ["round", "held_out"])
    @pytest.mark.parametrize(
        "length,cut",
        [
            (lambda n: 100 + 16 * n, lambda n: 0.0),  # it learns to think longer
            (lambda n: 200 + 8 * n, lambda n: 0.01 * n),
            (lambda n: max(60, 512 - 30 * n), lambda n: max(0.0, 0.9 - 0.05 * n)),  # it learns to stop
        ],
    )
    def test_answers_may_change_where_the_score_rises(self, of, length, cut):
        """Length and share cut short are no break of a run that gets better; of one that does not they are."""
        for gain in (0.6, 0.0):
            watched, rows, _ = watch()
            for n in range(40):
                facts = {"score": 0.2 + gain * n / 40, "completion_tokens": length(n), "truncated": cut(n)}
                if of == "round":
                    watched.write(round_row(n, **facts))
                else:
                    facts |= {"score_se": 0.02, "completions": 64.0, "completion_tokens_std": 50.0}
                    watched.write({"updates": n, "held_out": facts})
            assert bool(broke(rows)) == (gain == 0.0 and cut(0) == 0.0)

    def test_two_rounds_have_different_prompts(self):
        """A round's score is held against another round's, and each has luck of its own."""
        for score, is_break in ((0.2, False), (0.03, True)):
            watched, rows, _ = watch()
            for number in range(9):
                watched.write(round_row(number, score=score if number else 0.75, score_std=0.5, contexts=16))
            assert bool(broke(rows)) == is_break

    def test_few_held_out_prompts_say_nothing_of_length(self):
        """A look at fewer than 32 prompts is luck; with 32, their spread says whether it is."""
        for count, deviation, is_break in ((4, 10.0, False), (32, 10.0, True), (32, 600.0, False)):
            watched, rows, _ = watch()
            for look, length in enumerate((100, 500)):
                facts = {"completions": float(count), "completion_tokens": length, "completion_tokens_std": deviation}
                watched.write({"updates": look, "held_out": facts})
            assert bool(broke(rows)) == is_break

    def test_a_solved_task_has_little_entropy_and_is_not_broken(self):
        """Entropy may go to nothing where the score has risen, and score and length may grow."""
        watched, rows, said = watch()
        for number in range(20):
            watched.write(
                round_row(number, score=0.5 + number / 50, completion_nll=0.8**number, completion_tokens=100 + number)
            )
        assert said == [] and not broke(rows)

    def test_null_switches_a_limit_off(self):
        """What a recipe sets to null is not looked at."""
        watched, rows, _ = watch(training={"steps": 100, "collapse": {"length": None}})
        for number in range(9):
            watched.write(round_row(number, completion_tokens=100 * 2**number))
        assert not broke(rows)

    def test_numbers_that_overflow_break_no_row(self):
        """Numbers whose median overflows leave rows that JSON can hold."""
        watched, rows, _ = watch(training={"steps": 100, "collapse": {"rounds": 2, "length": 3e38}})
        for number in range(9):
            watched.write(round_row(number, completion_tokens=1.7e308 if number > 3 else 1))
        assert [json.loads(json.dumps(row, allow_nan=False)) for row in rows] == rows

    def test_the_line_has_the_papers_advice_with_the_runs_numbers(self):
        """A larger k is advised where there is one, a lower rate or norm always."""
        for changes, has_k in ((SYNCED, True), ({}, False)):
            watched, _, said = watch(**changes)
            for step in range(12):
                watched.write({"step": step, "loss": 0.0 if step == 0 else 50.0})
            (line,) = said
            assert "\n" not in line and "loss is 50 (median of the last 10 steps" in line
            assert ("a larger k (reference.schedule.every, now 1" in line) == has_k
            assert "optimizer.lr (now 0.0001)" in line and "optimizer.max_grad_norm (now 1)" in line

    def test_own_tokens(self):
        """The estimate of entropy is the mean over tokens, of completions whose sampler told them."""
        own = OwnTokens()
        assert own.facts() == {}
        own.add(Completion("a", (1, 2, 3), "end", (-1.0, -2.0, -3.0)))
        own.add(Completion("b", (1,), "end", None))
        own.add(Completion("c", (1,), "end", (-4.0,)))
        assert own.facts() == {"completion_nll": 2.5}


class TestRuns:
    def test_a_break_is_a_row_and_a_line_once_also_after_a_resume(self, toy, tmp_path, capsys):
        """The run goes on to its end, and one that was stopped and resumed has the same rows and says it once."""
        from humanline.system.stop import StopRequested, StopSignal

        settings = SYNCED | {"training__collapse": BROKEN, "checkpoint": {"every": 3, "minutes": None}}
        whole = config(toy, tmp_path / "whole", **settings)
        train(whole)
        assert capsys.readouterr().err.count("seems to have broken") == 1
        rows = list(read_metrics(Path(whole.output) / "metrics.jsonl"))
        assert len(broke(rows)) == 1 and sum("step" in row for row in rows) == 8
        cut = config(toy, tmp_path / "cut", **settings)

        class AfterSix(StopSignal):
            holding, count = True, 0
            hold = lambda self: None  # noqa: E731

            @property
            def requested(self):
                file = Path(cut.output) / "metrics.jsonl"
                return "SIGTERM" if file.exists() and '"step": 5' in file.read_text() else None

            @requested.setter
            def requested(self, value):
                pass

        with pytest.raises(StopRequested):
            train(cut, stop=AfterSix())
        assert capsys.readouterr().err.count("seems to have broken") == 1
        train(cut, resume=True)
        assert "seems to have broken" not in capsys.readouterr().err
        assert result_of(cut) == result_of(whole)

    def test_a_stop_has_its_own_exit_code_and_a_resume_does_not_loop(self, toy, tmp_path, capsys):
        """Asked to stop, a run saves and ends with 4, also when resumed; action=warn lets it end."""
        settings = config(toy, tmp_path / "run", **SYNCED, training__collapse=BROKEN | {"action": "stop"})
        tree = settings.model_dump(mode="json")
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(json.dumps({k: v for k, v in tree.items() if v is not None}))
        assert main(["train", str(recipe), "--quiet"]) == 4
        said = capsys.readouterr().err
        assert "after 3 updates" in said and "step-00000003" in said and "training.collapse.action=warn" in said
        assert not (tmp_path / "run" / "final").exists()
        before = (tmp_path / "run" / "metrics.jsonl").read_text()
        assert main(["train", str(recipe), "--quiet", "--resume"]) == 4
        assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
        assert main(["train", str(recipe), "--quiet", "--resume", "training.collapse.action=warn"]) == 0
        never = config(toy, tmp_path / "never", **SYNCED, training__collapse=BROKEN)
        train(never, show_progress=False)
        assert result_of(never) == result_of(TrainConfig.model_validate(tree))

    def test_a_break_at_the_last_look_stops_too(self, toy, tmp_path):
        """Where the last evaluation shows the break no finished model is written: the end is not a success."""
        run = config(
            toy,
            tmp_path / "run",
            data__eval=toy["held_out"],
            optimizer={"lr": 1.0, "warmup_fraction": 0.0},
            training__collapse={"action": "stop"},
        )
        with pytest.raises(CollapseError, match="after 8 updates: minus the held-out log-prob"):
            train(run, show_progress=False)
        assert not (tmp_path / "run" / "final").exists()

    def test_rounds_tell_what_their_answers_are_like_and_can_be_stopped_in(self, toy, tmp_path):
        """A round has the entropy of its answers, from the sampler's numbers; stopped, it goes on to the same bits."""

        def online(name: str, action: str) -> TrainConfig:
            return config(
                toy,
                tmp_path / name,
                "grpo",
                data={"train": toy["pairs"], "eval": toy["held_out"], "max_length": 64},
                source={
                    "kind": "rounds",
                    "contexts_per_round": 8,
                    "samples": 4,
                    "count": 2,
                    "steps": 4,
                    "sampling": {"max_tokens": 8},
                    "scoring": {
                        "rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}],
                        "workers": 1,
                    },
                },
                reference={"schedule": {"kind": "before_step", "every": 1}},
                training={"batch_size": 8, "collapse": BROKEN | {"action": action}},
            )

        whole, stopped = online("whole", "warn"), online("stopped", "stop")
        train(whole, show_progress=False)
        rows = list(read_metrics(tmp_path / "whole" / "metrics.jsonl"))
        for row in (row for row in rows if "round" in row):
            samples = tmp_path / "whole" / "rounds" / f"{row['round']:05d}" / "samples.jsonl"
            answers = [one for line in samples.read_text().splitlines() for one in json.loads(line)["completions"]]
            drawn = [number for one in answers for number in one["logprobs"]]
            assert row["completion_nll"] == pytest.approx(-sum(drawn) / len(drawn))
        assert all(row["held_out"]["completion_nll"] > 0 for row in rows if "held_out" in row)
        with pytest.raises(CollapseError, match="after 3 updates"):
            train(stopped, show_progress=False)
        train(online("stopped", "warn"), resume=True, show_progress=False)
        files, metrics = result_of(stopped)
        assert files == result_of(whole)[0] and broke(metrics) == broke(rows) != []

    def test_ignore_writes_nothing(self, toy, tmp_path):
        """With action=ignore the rows are those of a run that nobody watches."""
        run = config(toy, tmp_path / "run", **SYNCED, training__collapse=BROKEN | {"action": "ignore"})
        train(run, show_progress=False)
        assert not broke(read_metrics(tmp_path / "run" / "metrics.jsonl"))


def test_the_committed_results_are_those_of_the_default_limits():
    """On runs that were not looked at when limits were chosen fewer than 1 sound run in 50 has a line."""
    spec = importlib.util.spec_from_file_location("collapse_run", EXAMPLE / "run.py")
    run = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    results = json.loads((EXAMPLE / "results.json").read_text())
    assert run.page(results) == (EXAMPLE / "results.md").read_text()
    sound = [one for one in results["second"] if not one["broken"]]
    broken = [one for one in results["second"] if one["broken"]]
    assert len(sound) >= 50 and sum(one["line"] is not None for one in sound) < len(sound) / 50
    assert len(broken) >= 10
    told = {one["name"].rsplit(", ", 1)[0] for one in run.gsm8k() if one["line"]}
    assert told == {"KTO, beta 0.1, lr 1e-3, offline", "KTO, beta 0.1, lr 1e-3, humanline, k = 1"}
