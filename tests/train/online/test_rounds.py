"""Runs that make their own data: what is sampled, scored, kept and trained on, and that nothing of it is ever lost."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import types
from collections import Counter
from itertools import product
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from humanline.cli import main
from humanline.system import folders as system_folders
from humanline.system.files import OutputError
from humanline.system.hashing import facts_of
from humanline.system.stop import StopRequested
from humanline.train.config import TrainConfig
from humanline.train.data.prompts import Context, Draw
from humanline.train.loop import train
from humanline.train.online.ledger import STATES, LedgerError, read_lines
from humanline.train.online.make import Plan
from humanline.train.online.overlap import Ahead, _in_words
from humanline.train.online.types import SamplerError
from humanline.train.policy.precision import narrowed
from humanline.train.preflight.validate import NotReadyError, validate
from humanline.train.run.fingerprint import flat, same_settings
from humanline.train.run.folder import RunFolder
from humanline.train.run.metrics import read_metrics
from humanline.train.run.processes import NonFiniteError, RoundError
from tests.helpers.cases import AtStep
from tests.helpers.files import leftovers
from tests.helpers.kills import KILLED, result_of
from tests.helpers.rounds import DRAWN, ROUNDS, online, round_files
from tests.helpers.scripted_server import GIVEN, NO_TEXTS, Asked, Reply, serving
from tests.helpers.support import OBJECTIVES, same, steps, weights
from tests.helpers.support import config as plain_config

FEWER = ROUNDS | {"contexts_per_round": 8, "steps": 2}
HUMANLINE = {"kind": "clip", "log_eps_low": -0.05, "log_eps_high": 0.05}  # tight, so that toy steps reach it
ROUND_SCHEDULES = {
    "each_round": {"kind": "each_round"},
    "before_1": {"kind": "before_step", "every": 1},
    "before_3": {"kind": "before_step", "every": 3},
    "after_2": {"kind": "after_step", "every": 2},
}


def rounds_of(result) -> list[dict]:
    return [row for row in read_metrics(result.metrics_file) if "round" in row]


def test_rounds_whose_samples_fill_any_disk_are_refused_alike(toy, prompts, tmp_path):
    """What validate says of samples and scores that are kept, train says too, before anything is written."""
    many = {"contexts_per_round": 16, "samples": 4, "count": 10**9, "steps": 4, "score_margin": 0.001}
    given = online(toy, prompts, tmp_path / "run", rounds=many)
    fits = r"does not fit on the disk: (it needs about .* GiB of samples, scores and served weights .*and the model), "
    with pytest.raises(NotReadyError, match=fits) as foreseen:
        validate(given)
    with pytest.raises(OutputError, match=fits) as refused:
        train(given, show_progress=False)
    assert re.search(fits, str(foreseen.value))[1] == re.search(fits, str(refused.value))[1]
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def left_alone(toy, prompts, tmp_path_factory):
    """A run that nothing has disturbed, to hold others against, and its result."""
    one = online(toy, prompts, tmp_path_factory.mktemp("whole") / "run")
    return one, train(one, show_progress=False)


@pytest.mark.slow
def test_a_run_folder_that_vanishes_in_a_round_is_made_again_with_the_data_of_the_round(toy, prompts, tmp_path, capsys):
    """A checkpoint of a round whose files were removed with everything else can be gone on with, to the same bits."""
    one, whole = (online(toy, prompts, tmp_path / name) for name in ("run", "whole"))
    train(whole, show_progress=False)
    train(one, stop=AtStep(one.output, 1, lambda: shutil.rmtree(one.output)), show_progress=False)
    said = capsys.readouterr().err
    assert "00000 was gone while round 0 was trained on: it is made again" in said and "step-00000003" not in said
    assert result_of(one) == result_of(whole)
    for name in ("final", "checkpoints/step-00000006"):
        shutil.rmtree(tmp_path / "run" / name)
    train(one, resume=True)
    assert "going on after 3 updates" in capsys.readouterr().err
    assert result_of(one) == result_of(whole)


class TestReferences:
    @pytest.mark.parametrize(
        "objective,schedule",
        [
            ("grpo", "each_round"),
            ("kto", "before_3"),
            *[
                pytest.param(*one, marks=pytest.mark.slow)
                for one in product(OBJECTIVES, ROUND_SCHEDULES)
                if one not in (("grpo", "each_round"), ("kto", "before_3"))
            ],
        ],
    )
    def test_scores_ahead_equal_a_second_model(self, toy, prompts, tmp_path, objective, schedule):
        """In rounds, too, scoring ahead and a second model that is synced at round starts end with the same bits."""
        results = [
            train(
                online(
                    toy,
                    prompts,
                    tmp_path / storage,
                    objective,
                    transform=HUMANLINE,
                    reference={"schedule": ROUND_SCHEDULES[schedule], "storage": storage},
                ),
                show_progress=False,
            )
            for storage in ("score_ahead", "model")
        ]
        assert same(*map(weights, results))
        rms = [row["log_ratio_rms"] for row in steps(results[0])]
        assert len(rms) == 8 and rms[0] == rms[4] == 0.0 and min(rms[1], rms[5]) > 0.0

    def test_a_kept_reference_is_older_than_its_round(self, toy, prompts, tmp_path):
        """Under round_start: keep a round's first batch is compared with weights from the round before."""
        reference = {"schedule": {"kind": "before_step", "every": 3}, "round_start": "keep", "storage": "model"}
        result = train(online(toy, prompts, tmp_path / "keep", rounds=FEWER, reference=reference), show_progress=False)
        rms = [row["log_ratio_rms"] for row in steps(result)]
        assert len(rms) == 4 and rms[0] == 0.0 and rms[2] > 0.0

    def test_the_initial_policy_stays_the_baseline(self, toy, prompts, tmp_path):
        """The anchor of the KL penalty is no affair of rounds: at the second one's start the penalty is above zero."""
        reference = {"schedule": {"kind": "each_round"}, "baseline": "initial", "storage": "model"}
        result = train(online(toy, prompts, tmp_path / "kl", rounds=FEWER, reference=reference), show_progress=False)
        kl = [row["kl"] for row in steps(result)]
        assert len(kl) == 4 and kl[0] == 0.0 and kl[2] > 0.0


class TestRounds:
    def test_a_round_trains_on_what_the_policy_then_said(self, toy, prompts, tmp_path):
        """Every kept completion is in its round's samples, its scores are the reward's own, and states are in order."""
        from tests.helpers.toy_rewards import digits

        small = {"batch_size": 2}
        result = train(
            online(toy, prompts, tmp_path / "run", "dpo", source__steps=None, training=small), show_progress=False
        )
        folder = tmp_path / "run" / "rounds"
        seen: set[str] = set()
        versions = set()
        for number in (0, 1):
            samples = read_lines(folder / f"{number:05d}" / "samples.jsonl")
            assert len(samples) == 16 and all(len(row["completions"]) == 4 for row in samples)
            versions |= {row["policy"] for row in samples}
            assert not seen & {row["id"] for row in samples}
            seen |= {row["id"] for row in samples}
            kept = {row["id"]: row for row in read_lines(folder / f"{number:05d}" / "kept.jsonl")}
            for row in samples:
                values = [digits(row["prompt"], one["text"]) for one in row["completions"]]
                if max(values) - min(values) >= 0.001:
                    best, worst = values.index(max(values)), values.index(min(values))
                    assert kept[row["id"]] == {
                        "id": row["id"],
                        "completions": [best, worst],
                        "scores": [values[best], values[worst]],
                    }
                else:
                    assert row["id"] not in kept
        assert len(versions) == 2
        states = [row["state"] for row in read_lines(folder / "ledger.jsonl")]
        assert states == [*STATES, *STATES]
        logged = rounds_of(result)
        assert [row["round"] for row in logged] == [0, 1]
        assert logged[0]["kept_contexts"] + logged[0]["below_margin"] == 16

    def test_the_sampler_rounds_as_training_does(self, toy, prompts, tmp_path, monkeypatch):
        """Under bf16 the sampler has the same rounded weights, and differs from training by the rounding of its logits.

        Those of the toy model are below 4 in size, which bf16 rounds by at most 2^-7; its log-sum-exp is as far off.
        """
        made = []

        def watched(model, dtype):
            made.append(dtype)
            return narrowed(model, dtype)

        monkeypatch.setattr("humanline.train.online.samplers.narrowed", watched)
        precise = {"batch_size": 8, "micro_batch_size": 4, "precision": "bf16"}
        result = train(online(toy, prompts, tmp_path / "run", rounds=FEWER, training=precise), show_progress=False)
        found = [row["sampler_mismatch_rms"] for row in steps(result) if "sampler_mismatch_rms" in row]
        assert set(made) == {torch.bfloat16} and len(found) == 2 and 0 < max(found) < 2 * 2**-7

    def test_the_sampler_and_training_agree(self, left_alone):
        """Log-probabilities told by the sampler are those that training computes, up to rounding, once a round."""
        _, result = left_alone
        found = [row["sampler_mismatch_max"] for row in steps(result) if "sampler_mismatch_max" in row]
        assert len(found) == 2 and max(found) < 1e-4

    def test_training_at_another_temperature(self, toy, prompts, tmp_path, left_alone):
        """At training.temperature 0.7 the ratio of the first step is still 1, and the steps are other ones."""
        plain, result = left_alone
        assert plain.training.temperature == 1.0
        hot = train(online(toy, prompts, tmp_path / "hot", training__temperature=0.7), show_progress=False)
        assert steps(hot)[0]["log_ratio_rms"] == 0.0
        assert not same(weights(hot), weights(result))

    def test_steps_and_epochs_say_how_long(self, toy, prompts, tmp_path):
        """training.steps ends in the middle of a round; an epoch is as many rounds as the prompts fill."""
        rounds = {"contexts_per_round": 16, "samples": 2}
        short = train(online(toy, prompts, tmp_path / "steps", rounds=rounds, training__steps=3), show_progress=False)
        assert [row["steps"] for row in rounds_of(short)] == [2, 1] and len(steps(short)) == 3
        once = train(online(toy, prompts, tmp_path / "once", rounds=rounds, training__epochs=1.0), show_progress=False)
        assert [row["round"] for row in rounds_of(once)] == [0, 1, 2]

    def test_groups_that_lost_completions_are_trained_on(self, toy, prompts, tmp_path):
        """Groups of unequal size, left by completions without a score, make a batch of GRPO."""
        scoring = {
            "rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:fails_on_long"}],
            "failed": "drop",
            "failed_share": 1.0,
            "workers": 1,
        }
        sampling = {"max_tokens": 4, "engine": {"kind": "generate", "batch_size": 16}}
        result = train(
            online(
                toy,
                prompts,
                tmp_path / "run",
                scoring=scoring,
                sampling=sampling,
                rounds={"contexts_per_round": 48, "samples": 8, "count": 1},
                training={"batch_size": 8},
            ),
            show_progress=False,
        )
        kept = read_lines(tmp_path / "run" / "rounds" / "00000" / "kept.jsonl")
        assert len({len(row["completions"]) for row in kept}) > 1
        assert rounds_of(result)[0]["without_score"] > 0

    def test_held_out_prompts_are_answered_and_scored(self, toy, prompts, tmp_path):
        """Held-out metrics in rounds are mean scores of sampled answers, at the start, on the way and at the end."""
        result = train(
            online(toy, prompts, tmp_path / "run", rounds=FEWER, data__eval=prompts, evaluation={"every": 2}),
            show_progress=False,
        )
        looks = [row["held_out"] for row in read_metrics(result.metrics_file) if "held_out" in row]
        assert len(looks) == 3 and looks[0] == result.initial and looks[-1] == result.final
        assert all(0 <= look["score"] <= 1 and look["without_score"] == 0 for look in looks)
        assert not list((tmp_path / "run" / "rounds").glob("held-out*"))


class TestTooLittle:
    def test_equal_scores_leave_no_pair(self, toy, prompts, tmp_path):
        """A round without a pair ends the run with what was left out and by how much; samples and scores stay."""
        scoring = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:same"}], "workers": 1}
        with pytest.raises(RoundError, match=r"0 pairs.*16 prompts.*score_margin 0.001.*largest difference.* is 0"):
            train(online(toy, prompts, tmp_path / "run", "dpo", scoring=scoring), show_progress=False)
        states = [row["state"] for row in read_lines(tmp_path / "run" / "rounds" / "ledger.jsonl")]
        assert states == ["PLANNED", "SAMPLED", "SCORED", "PAIRED"]

    def test_a_round_that_failed_is_the_next_one_again(self, toy, prompts, tmp_path, monkeypatch):
        """After a round that left too little, --resume comes back to it, and too_few: skip then leaves it out."""
        rows = [json.loads(line)["prompt"] for line in Path(prompts).read_text().splitlines()]
        contexts = [Context(text, (), (1,)) for text in rows]
        drawn = {number: [one.id for one in Draw(contexts, 16, 0).round(number)] for number in range(3)}
        (tmp_path / "listed").write_text("\n".join(drawn[0] + drawn[2]))
        monkeypatch.setenv("LISTED", str(tmp_path / "listed"))
        call = "tests.helpers.toy_rewards:equal_unless_listed"
        scoring = {"rewards": [{"kind": "function", "call": call}], "workers": 1}
        rounds = {"contexts_per_round": 16, "samples": 4, "count": 3, "score_margin": 0.001}
        settings = online(
            toy, prompts, tmp_path / "run", "dpo", scoring=scoring, rounds=rounds, training={"batch_size": 2}
        )
        for resume in (False, True):
            with pytest.raises(RoundError, match="round 1 leaves 0 pairs"):
                train(settings, resume=resume, show_progress=False)
        skipping = online(
            toy,
            prompts,
            tmp_path / "run",
            "dpo",
            scoring=scoring,
            rounds=rounds | {"too_few": "skip"},
            training={"batch_size": 2},
        )
        rows = rounds_of(train(skipping, resume=True, show_progress=False))
        assert [(row["round"], row["steps"] > 0) for row in rows] == [(0, True), (1, False), (2, True)]
        done = [row["round"] for row in read_lines(tmp_path / "run/rounds/ledger.jsonl") if row["state"] == "DONE"]
        assert done == [0, 1, 2]

    def test_rounds_that_leave_too_little_can_be_skipped(self, toy, prompts, tmp_path):
        """Under too_few: skip a run goes on, with a row for each round, and ends where a whole pass left nothing."""
        scoring = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:same"}], "workers": 1}
        rounds = {"contexts_per_round": 16, "samples": 2, "count": 5, "too_few": "skip"}
        with pytest.raises(RoundError, match="whole pass"):
            train(online(toy, prompts, tmp_path / "run", "dpo", scoring=scoring, rounds=rounds), show_progress=False)
        for count in (2, 3):  # three are a pass
            rounds["count"] = count
            settings = online(toy, prompts, tmp_path / str(count), "dpo", scoring=scoring, rounds=rounds)
            result = train(settings, show_progress=False)
            assert steps(result) == []
            found = [(row["round"], row["steps"], row["kept_contexts"], "score" in row) for row in rounds_of(result)]
            assert found == [(number, 0, 0, True) for number in range(count)]

    def test_kto_begins_where_a_prompt_is_there_often_and_not_with_a_round_of_that_one(self, toy, tmp_path):
        """Data whose longest rows are one prompt are of two all the same; a round of one prompt is too small."""
        rows = [{"prompt": "0 abcabcabc", "answer": n} for n in range(14)] + [{"prompt": "1 a", "answer": 0}] * 2
        file = tmp_path / "often.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        call = {"kind": "function", "call": "tests.helpers.toy_rewards:scrambled", "columns": ["answer"]}
        rounds = {"contexts_per_round": 2, "samples": 2, "count": 1, "score_margin": 0.0}
        settings = online(
            toy,
            str(file),
            tmp_path / "run",
            "kto",
            rounds=rounds,
            sampling=DRAWN | {"max_tokens": 4},
            scoring={"rewards": [call], "workers": 1},
            training={"batch_size": 2},
            seed=1,
        )
        words = "round 0 leaves 4 examples, all to one prompt, and KTO takes z_0 from"
        with pytest.raises(RoundError, match=words) as caught:
            train(settings, show_progress=False)
        # A smaller batch is of no use here.
        assert "a lower source.score_margin, or more source.contexts_per_round" in str(caught.value)

    def test_kto_takes_no_rounds_of_one_prompt(self, toy, prompts, tmp_path):
        """Where such rounds were skipped the run ended well, and its model was the one that it had begun with."""
        rounds = {"contexts_per_round": 1, "samples": 2, "count": 2, "too_few": "skip"}
        settings = online(toy, prompts, tmp_path / "run", "kto", rounds=rounds, training={"batch_size": 2})
        with pytest.raises(ValueError, match=r"source\.contexts_per_round must be at least 2; got 1"):
            train(settings, show_progress=False)
        assert not (tmp_path / "run").exists()

    def test_equal_groups_have_no_advantage(self, toy, prompts, tmp_path):
        """A group of GRPO whose scores are equal teaches nothing: without a KL penalty no gradient is left."""
        scoring = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:same"}], "workers": 1}
        result = train(
            online(
                toy,
                prompts,
                tmp_path / "run",
                rounds=FEWER,
                scoring=scoring,
                objective={"kind": "grpo", "kl_coef": 0.0},
            ),
            show_progress=False,
        )
        assert all(row["grad_norm"] == 0.0 for row in steps(result))
        assert rounds_of(result)[0]["equal_scores"] == 8

    def test_a_score_that_is_missing_ends_the_run_unless_told_otherwise(self, toy, prompts, tmp_path, monkeypatch):
        """A reward that gives nan ends the run by name, and when it is mended the run goes on with the same samples."""
        monkeypatch.setenv("NAN_UNTIL", str(tmp_path / "mended"))
        scoring = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:nan_once"}], "workers": 1}
        settings = online(toy, prompts, tmp_path / "run", rounds=FEWER, scoring=scoring)
        with pytest.raises(RoundError, match=r"32 of 32 completions have no score \(32 not_finite\)"):
            train(settings, show_progress=False)
        before = (tmp_path / "run" / "rounds" / "00000" / "samples.jsonl").read_bytes()
        assert read_lines(tmp_path / "run" / "rounds" / "ledger.jsonl")[-1]["state"] == "SAMPLED"
        (tmp_path / "mended").touch()
        train(settings, resume=True, show_progress=False)
        assert (tmp_path / "run" / "rounds" / "00000" / "samples.jsonl").read_bytes() == before


def function(name: str) -> dict:
    return {"kind": "function", "call": f"tests.helpers.toy_rewards:{name}"}


def short(toy, prompts: str, output: Path, scoring: dict, **changes) -> TrainConfig:
    """One round of eight prompts with two completions each, of two steps; saved where it must be, and never else."""
    rounds = {"contexts_per_round": 8, "samples": 2, "count": 1, "steps": 2}
    checkpoint = {"minutes": None}
    return online(
        toy, prompts, output, scoring=scoring | {"workers": 1}, rounds=rounds, checkpoint=checkpoint, **changes
    )


class TestNothingScored:
    @pytest.fixture(autouse=True)
    def broken(self, tmp_path, monkeypatch):
        """Break the reward `nan_once` until `mended` is there, and note what `paid` is paid for."""
        monkeypatch.setenv("NAN_UNTIL", str(tmp_path / "mended"))
        monkeypatch.setenv("PAID_CALLS", str(tmp_path / "calls"))

    def test_a_round_that_nothing_could_score_ends_the_run(self, toy, prompts, tmp_path, capsys):
        """The command ends with 2, names the reward and saves no model; mended, it asks again for what failed alone."""
        scoring = {"rewards": [function("paid"), function("nan_once")], "failed": 0.0}
        settings = short(toy, prompts, tmp_path / "run", scoring)
        (tmp_path / "run.yaml").write_text(json.dumps(settings.model_dump(mode="json")))
        for _ in range(2):  # coming back to it without mending it ends in the same way
            assert main(["train", str(tmp_path / "run.yaml"), "--quiet", "--resume"]) == 2
            said = capsys.readouterr().err
            assert "round 0: 16 of 16 completions have no score (16 not_finite; by reward: 16 function_2)" in said
            assert "16 times not_finite: source.scoring.rewards[1] (function_2): it returned nan (first: " in said
            assert "--resume" in said and "source.scoring.failed_share=1" in said
        assert not (tmp_path / "run" / "final").exists() and not (tmp_path / "run" / "checkpoints").exists()
        paid = sorted((tmp_path / "calls").read_text().splitlines())
        assert len(paid) == len(set(paid)) == _distinct(settings.output)
        (tmp_path / "mended").touch()
        result = train(settings, resume=True, show_progress=False)
        assert rounds_of(result)[0]["without_score"] == 0 and len(steps(result)) == 2
        assert sorted((tmp_path / "calls").read_text().splitlines()) == paid
        whole = short(toy, prompts, tmp_path / "whole", scoring)
        assert same(weights(result), weights(train(whole, show_progress=False)))

    def test_the_share_can_be_switched_off(self, toy, prompts, tmp_path):
        """At failed_share 1 a run goes on with what `failed` says, and where it was refused before, too."""
        scoring = {"rewards": [function("nan_once")], "failed": 0.0}
        with pytest.raises(RoundError, match=r"source\.scoring\.failed_share 0\.5"):
            train(short(toy, prompts, tmp_path / "run", scoring), show_progress=False)
        allowed = short(toy, prompts, tmp_path / "run", scoring | {"failed_share": 1.0})
        result = train(allowed, resume=True, show_progress=False)
        assert [row["without_score"] for row in rounds_of(result)] == [16]

    def test_scores_that_were_allowed_to_lack_are_asked_for_again(self, toy, prompts, tmp_path):
        """A round scored when more was allowed is scored again before it is refused, and again when that is mended."""
        scoring = {"rewards": [function("nan_once")], "failed": 0.0}
        allowed = short(toy, prompts, tmp_path / "run", scoring | {"failed_share": 1.0})
        ledger = tmp_path / "run" / "rounds" / "ledger.jsonl"
        with pytest.raises(StopRequested):
            train(allowed, stop=_StopInTraining(ledger, '"PAIRED"'), show_progress=False)
        kept = tmp_path / "run" / "rounds" / "00000" / "kept.jsonl"
        kept.unlink()  # as if killed right after the scores
        settings = short(toy, prompts, tmp_path / "run", scoring)
        shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
        with pytest.raises(RoundError, match="16 of 16"):
            train(settings, resume=True, show_progress=False)
        assert not kept.exists() and not kept.with_name("scores.jsonl").exists()
        (tmp_path / "mended").touch()
        assert rounds_of(train(settings, resume=True, show_progress=False))[0]["without_score"] == 0

    def test_a_round_that_is_too_small_for_want_of_scores_is_scored_again(self, toy, prompts, tmp_path):
        """Where completions without a score leave too little for a batch, resuming asks for their scores again."""
        scoring = {"rewards": [function("nan_once")], "failed": "drop", "failed_share": 1.0}
        settings = short(toy, prompts, tmp_path / "run", scoring)
        for resume in (False, True):
            with pytest.raises(RoundError, match=r"round 0 leaves 0 groups.*16 of 16 completions have no score"):
                train(settings, resume=resume, show_progress=False)
        (tmp_path / "mended").touch()
        assert len(steps(train(settings, resume=True, show_progress=False))) == 2

    @pytest.mark.slow
    def test_a_second_process_that_can_score_nothing_ends_the_run(self, toy, prompts, tmp_path, monkeypatch):
        """Under overlap, too, the round is refused with its reasons, and made whole when that is mended."""
        from humanline.train.online.round_log import RoundLog

        (tmp_path / "mended").touch()
        made = RoundLog.made

        def breaks_behind_the_first(self, *told):
            (tmp_path / "mended").unlink(missing_ok=True)
            made(self, *told)

        monkeypatch.setattr(RoundLog, "made", breaks_behind_the_first)
        scoring = {"rewards": [function("nan_once")], "failed": 0.0}
        rounds = {"contexts_per_round": 8, "samples": 2, "count": 2, "steps": 2, "overlap": True}
        overlapping = online(toy, prompts, tmp_path / "run", rounds=rounds, scoring=scoring | {"workers": 1})
        settings = short(toy, prompts, tmp_path / "run", scoring).model_copy(update={"source": overlapping.source})
        with pytest.raises(RoundError, match=r"(?s)second process: round 1: 16 of 16.*it returned nan"):
            train(settings, show_progress=False)
        monkeypatch.undo()
        monkeypatch.setenv("NAN_UNTIL", str(tmp_path / "mended"))
        (tmp_path / "mended").touch()
        result = train(settings, resume=True, show_progress=False)
        assert len(steps(result)) == 4 and [row["without_score"] for row in rounds_of(result)] == [0, 0]

    def test_held_out_answers_that_nothing_could_score_end_the_run(self, toy, prompts, tmp_path, monkeypatch):
        """A held-out look without scores is no look: it ends the run, which keeps its steps and looks again later."""
        from humanline.train.online.held_out import RolloutEvaluator

        (tmp_path / "mended").touch()
        look, looks = RolloutEvaluator.__call__, []

        def breaks_at_the_last(self):
            looks.append(1)
            if len(looks) == 2:
                (tmp_path / "mended").unlink()
            return look(self)

        monkeypatch.setattr(RolloutEvaluator, "__call__", breaks_at_the_last)
        scoring = {"rewards": [function("nan_once")], "failed": 0.0}
        settings = short(toy, prompts, tmp_path / "run", scoring, data__eval=prompts)
        with pytest.raises(RoundError, match="held-out prompts: 48 of 48 completions have no score"):
            train(settings, show_progress=False)
        (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
        assert kept.name == "step-00000002" and not (tmp_path / "run" / "final").exists()
        (tmp_path / "mended").touch()
        result = train(settings, resume=True, show_progress=False)
        assert result.final["without_score"] == 0 and len(steps(result)) == 2


class TestFaults:
    def test_a_broken_policy_is_not_saved_by_its_sampling(self, toy, prompts, tmp_path, monkeypatch):
        """Where sampling finds the policy not finite, nothing is saved; after another fault, what was trained is."""
        from humanline.train.online.samplers.generate import GenerateSampler

        draw = GenerateSampler._generate
        calls = []

        def fails(error):
            def generate(self, rows, key):
                if key[1] == 1:
                    calls.append(key)
                    raise error
                return draw(self, rows, key)

            return generate

        for name, error in (("broken", NonFiniteError("nan")), ("gone", SamplerError("gone"))):
            monkeypatch.setattr(GenerateSampler, "_generate", fails(error))
            with pytest.raises(type(error)):
                train(online(toy, prompts, tmp_path / name, checkpoint={"minutes": None}), show_progress=False)
        assert len(calls) == 2
        assert not (tmp_path / "broken" / "checkpoints").exists()
        (kept,) = (tmp_path / "gone" / "checkpoints").iterdir()
        assert kept.name == "step-00000004"


class TestKills:
    @pytest.mark.parametrize(
        "every,rounds",
        [
            pytest.param(31, {"contexts_per_round": 8, "samples": 2, "count": 2, "score_margin": 0.001}, id="some"),
            pytest.param(1, ROUNDS, id="all", marks=pytest.mark.slow),
        ],
    )
    def test_a_kill_anywhere_changes_nothing(self, toy, prompts, tmp_path, server, every, rounds):
        """Killed at write barriers of every ledger state, and resumed, a run has the same bytes, and pays once."""
        calls = tmp_path / "calls.txt"
        scoring = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:paid"}], "workers": 1}
        training = {"batch_size": rounds["contexts_per_round"] // 2, "micro_batch_size": 4}
        rounds = rounds | {"steps": 2}
        whole = online(toy, prompts, tmp_path / "whole", scoring=scoring, rounds=rounds, training=training)
        alone = server.run(whole, env={"PAID_CALLS": str(calls)})
        assert alone["code"] == 0, alone["log"]
        files = round_files(whole.output)
        paid = sorted(calls.read_text().splitlines())
        assert len(paid) == len(set(paid)) == _distinct(whole.output)
        expected = result_of(whole)
        kinds = set(alone["barriers"])
        assert {"ledger.jsonl appended", "samples-rank-0.journal.jsonl appended", "scores.jsonl renamed"} <= kinds
        for number in range(2, len(alone["barriers"]), every):
            where = f"barrier {number}: {alone['barriers'][number]}"
            calls.unlink(missing_ok=True)
            killed = whole.model_copy(update={"output": str(tmp_path / f"killed-{number}")})
            env = {"PAID_CALLS": str(calls)}
            assert server.run(killed, kill_at=number, env=env)["code"] == KILLED, where
            resumed = server.run(killed, resume=True, env=env)
            assert resumed["code"] == 0, f"{where}\n{resumed['log']}"
            assert result_of(killed) == expected, where
            assert round_files(killed.output) == files, where
            assert sorted(calls.read_text().splitlines()) == paid, where
            assert not leftovers(Path(killed.output)), where

    def test_a_stop_while_sampling_loses_nothing(self, tmp_path, left_alone):
        """A request to stop in the middle of sampling saves and ends; resumed, the run ends with the same bytes."""
        whole, _ = left_alone

        class Stop:
            holding = False

            def __init__(self, asked: int) -> None:
                self.left = asked

            def hold(self) -> None:
                self.holding = True

            @property
            def requested(self) -> str | None:
                self.left -= 1
                return "SIGTERM" if self.left < 0 else None

        stopped = whole.model_copy(update={"output": str(tmp_path / "stopped")})
        resume, stops = False, 0
        for asked in (30, 60, 90, 120, 10**9):
            try:
                train(stopped, resume=resume, stop=Stop(asked), show_progress=False)
                break
            except StopRequested:
                stops += 1
            resume = True
        assert stops >= 2
        assert result_of(stopped) == result_of(whole)
        assert round_files(stopped.output) == round_files(whole.output)

    def test_what_failed_means_may_change_in_the_middle_of_a_round(self, toy, prompts, tmp_path):
        """A run that is resumed with another `failed` goes on with the completions that its round had kept."""
        scoring = {
            "rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:fails_on_long"}],
            "failed": 0.5,
            "failed_share": 1.0,
            "workers": 1,
        }
        settings = online(toy, prompts, tmp_path / "run", scoring=scoring, rounds=FEWER)
        with pytest.raises(StopRequested):
            train(settings, stop=_StopInTraining(tmp_path / "run" / "metrics.jsonl"), show_progress=False)
        kept = (tmp_path / "run/rounds/00000/kept.jsonl").read_bytes()
        other = online(toy, prompts, tmp_path / "run", scoring=scoring | {"failed": 0.0}, rounds=FEWER)
        train(other, resume=True, show_progress=False)
        assert (tmp_path / "run/rounds/00000/kept.jsonl").read_bytes() == kept

    def test_another_policy_begins_a_round_anew(self, toy, prompts, tmp_path, left_alone):
        """Samples of another policy than the plan's are put aside, and none of them is trained on."""
        settings = online(toy, prompts, tmp_path / "run")
        with pytest.raises(StopRequested):
            train(settings, stop=_StopAfterRound(40), show_progress=False)
        journal = next((tmp_path / "run/rounds/00000").glob("*.journal.jsonl"))
        rows = [row | {"policy": "another"} for row in read_lines(journal)]
        journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert rows
        result = train(settings, resume=True, show_progress=False)
        versions = {row["policy"] for row in read_lines(tmp_path / "run/rounds/00000/samples.jsonl")}
        assert len(versions) == 1 and "another" not in versions
        assert same(weights(result), weights(left_alone[1]))

    def test_damaged_files_are_made_again(self, toy, prompts, tmp_path):
        """A samples file that was changed after it was recorded is sampled again, to the same bytes."""
        whole = online(toy, prompts, tmp_path / "run")
        with pytest.raises(StopRequested):
            train(whole, stop=_StopAfterRound(), show_progress=False)
        file = tmp_path / "run" / "rounds" / "00001" / "samples.jsonl"
        if not file.exists():
            file = tmp_path / "run" / "rounds" / "00000" / "samples.jsonl"
        before = file.read_bytes()
        file.write_bytes(before[:-200] + b"x" * 199 + b"\n")
        (tmp_path / "run" / "checkpoints").rename(tmp_path / "aside")
        train(whole, resume=True, show_progress=False)
        assert file.read_bytes() == before


class _StopInTraining:
    """A StopSignal that is asked to stop once a step is in the log, or another word."""

    def __init__(self, metrics: Path, word: str = '"step"') -> None:
        self.metrics, self.word = metrics, word

    def hold(self) -> None:
        """Do nothing."""

    @property
    def requested(self) -> str | None:
        return "SIGTERM" if self.metrics.exists() and self.word in self.metrics.read_text() else None


class _StopAfterRound:
    """A StopSignal that is asked to stop after so many looks."""

    holding = False

    def __init__(self, looks: int = 80) -> None:
        self.looks, self.most = 0, looks

    def hold(self) -> None:
        self.holding = True

    @property
    def requested(self) -> str | None:
        self.looks += 1
        return "SIGTERM" if self.looks > self.most else None


def _distinct(output: str) -> int:
    """Count the different (prompt, completion) among all samples of a run."""
    found = set()
    for file in Path(output).glob("rounds/*/samples.jsonl"):
        for row in read_lines(file):
            found |= {(row["prompt"][-1]["content"], one["text"]) for one in row["completions"]}
    return len(found)


class TestOverlap:
    def test_the_next_round_is_one_policy_older(self, toy, prompts, tmp_path, monkeypatch):
        """With overlap a round's samples come from the policy of one round before.

        The second process does not run the program again that trains: it may have no `if __name__ == "__main__":`.
        """
        program = types.ModuleType("__main__")
        program.__file__ = str(tmp_path / "program.py")
        Path(program.__file__).write_text(f"open({str(tmp_path / 'run again')!r}, 'w')\n")
        monkeypatch.setitem(sys.modules, "__main__", program)
        rounds = {"contexts_per_round": 16, "samples": 2, "count": 3, "overlap": True}
        whole = online(toy, prompts, tmp_path / "whole", rounds=rounds)
        train(whole, show_progress=False)
        plans = [json.loads((tmp_path / f"whole/rounds/{n:05d}/plan.json").read_text())["policy"] for n in range(3)]
        assert plans[0] == plans[1] != plans[2]
        assert not list((tmp_path / "whole" / "rounds").rglob("weights.safetensors"))
        assert sys.modules["__main__"] is program and not (tmp_path / "run again").exists()

    @pytest.mark.parametrize(
        ("error", "says"),
        [
            (SamplerError("gone. What is finished is kept: add --resume"), "add --resume"),
            (RoundError("nothing scored. The samples are kept: add --resume"), "add --resume"),
            (LedgerError("damaged; remove the file"), "--resume goes on with it"),
            (OSError("no space"), "--resume goes on with it"),
            (ZeroDivisionError("fault"), "--resume goes on with it"),
        ],
    )
    def test_a_failure_of_the_second_process_says_once_how_it_is_gone_on_with(self, tmp_path, error, says):
        """Errors that say how they are gone on with are passed on as they are; to others it is added."""
        ahead = Ahead(lambda: False, print)
        ahead.pipe, theirs = Pipe()
        ahead.number = 3
        theirs.send((_in_words(error, tmp_path), ()))
        with pytest.raises(RoundError, match=r"^round 3, sampled and scored in a second process: ") as failed:
            ahead.wait_for(3)
        said = str(failed.value)
        assert str(error) in said and said.count("--resume") == 1 and said.count("kept") == 1 and says in said

    @pytest.mark.slow
    def test_a_stop_under_overlap_changes_nothing(self, toy, prompts, tmp_path):
        """A run that is stopped while a second process samples ends, resumed, with the same bytes."""
        rounds = {"contexts_per_round": 16, "samples": 2, "count": 3, "overlap": True}
        whole = online(toy, prompts, tmp_path / "whole", rounds=rounds)
        train(whole, show_progress=False)
        for where in ("training", "waiting"):
            output = tmp_path / f"stopped-{where}"
            stopped = whole.model_copy(update={"output": str(output)})
            stop = _StopInTraining(output / "metrics.jsonl") if where == "training" else _StopAfterRound(80)
            with pytest.raises(StopRequested):
                train(stopped, stop=stop, show_progress=False)
            train(stopped, resume=True, show_progress=False)
            assert result_of(stopped) == result_of(whole)
            files, expected = round_files(stopped.output), round_files(whole.output)
            for found in (files, expected):  # in which two processes append in any order
                found["ledger.jsonl"] = b"\n".join(sorted(found["ledger.jsonl"].splitlines()))
            assert files == expected


class TestServer:
    @staticmethod
    def answers(gone_after: int | None):
        """Answer as a server does whose text follows from model, prompt and seed; be gone after so many answers."""
        given = 0

        def answer(asked: Asked) -> Reply:
            nonlocal given
            if not asked.path.endswith("/completions"):
                return Reply({})
            if asked.path == GIVEN:
                return NO_TEXTS
            given += 1
            if gone_after is not None and given > gone_after:
                return Reply({"error": "out of order"}, status=503)
            key = json.dumps([asked.body["messages"][-1]["content"], asked.body["seed"]]).encode()
            text = hashlib.sha256(key).hexdigest()[:6]
            message = {"role": "assistant", "content": text}
            return Reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        return answer

    def test_finished_work_is_not_done_again(self, toy, prompts, tmp_path):
        """A server that goes away ends the run by name; with it back, only what is missing is asked for."""
        engine = {"kind": "server", "attempts": 1, "concurrency": 2, "new_weights": {"kind": "path"}}

        def settings(url: str) -> TrainConfig:
            sampling = {"max_tokens": 10, "engine": engine | {"url": url}}
            return online(toy, prompts, tmp_path / "run", "dpo", sampling=sampling, training={"batch_size": 4})

        with serving(self.answers(gone_after=30)) as server, pytest.raises(SamplerError, match=r"503.*add --resume"):
            train(settings(server.url), show_progress=False)
        (journal,) = (tmp_path / "run" / "rounds" / "00000").glob("samples-*.journal.jsonl")
        kept = {row["id"]: row for row in read_lines(journal)}
        assert 1 <= len(kept) < 16
        with serving(self.answers(gone_after=None)) as server:
            train(settings(server.url), resume=True, show_progress=False)
        samples = read_lines(tmp_path / "run" / "rounds" / "00000" / "samples.jsonl")
        plan = json.loads((tmp_path / "run" / "rounds" / "00000" / "plan.json").read_text())
        assert [row["id"] for row in samples] == plan["contexts"]
        assert [row for row in samples if row["id"] in kept] == [kept[i] for i in plan["contexts"] if i in kept]
        asked = Counter(one.body["messages"][-1]["content"] for one in server.chats())
        first = {row["prompt"][-1]["content"] for row in kept.values()}
        assert not first & set(asked) and set(asked.values()) == {4}
        names = {one.body["model"] for one in server.chats()}
        assert len(names) == 2 and all(Path(name).name.startswith("policy-") for name in names)  # one a round

    @pytest.mark.slow
    def test_a_server_sleeps_while_the_run_trains(self, toy, prompts, tmp_path):
        """It is woken with new weights for each sampling, held-out prompts too, and sleeps before any step is taken."""
        engine = {"kind": "server", "model": "policy", "new_weights": {"kind": "vllm", "sleep": True}}
        metrics = tmp_path / "run" / "metrics.jsonl"
        events: list[str] = []
        answers = self.answers(gone_after=None)

        def answer(asked: Asked) -> Reply:
            steps = metrics.read_text().count('"step"') if metrics.exists() else 0
            event = f"{asked.path.partition('?')[0]} after {steps} steps"
            if asked.path != "/health" and event not in events[-1:]:
                events.append(event)
            return answers(asked)

        with serving(answer) as server:
            sampling = {"max_tokens": 10, "engine": engine | {"url": server.url}}
            settings = online(
                toy, prompts, tmp_path / "run", sampling=sampling, data__eval=prompts, evaluation={"every": None}
            )
            train(settings, show_progress=False)
        assert events.pop(5) == f"{GIVEN} after 0 steps"  # what it has to say of texts, before it sleeps
        sampled = ["wake_up", "collective_rpc", "wake_up", "reset_prefix_cache", "v1/chat/completions", "sleep"]
        wanted = [(name, steps) for steps in (0, 0, 4, 8) for name in sampled]  # at the end, too, for held-out prompts
        assert events == [f"/{name} after {steps} steps" for name, steps in wanted]
        folders = {one.body["kwargs"]["weights_path"] for one in server.asked if one.path == "/collective_rpc"}
        assert len(folders) == 3  # of the start, of the second round, of the end

    def test_kills_ask_the_server_for_nothing_twice(self, toy, prompts, tmp_path, server):
        """Killed while a server samples, and resumed, a run has the same samples and asks for what is missing alone."""
        engine = {"kind": "server", "concurrency": 2, "new_weights": {"kind": "path"}}
        with serving(self.answers(gone_after=None)) as remote:
            sampling = {"max_tokens": 10, "engine": engine | {"url": remote.url}}
            whole = online(
                toy,
                prompts,
                tmp_path / "whole",
                "dpo",
                sampling=sampling,
                training={"batch_size": 4},
                rounds={"contexts_per_round": 6, "samples": 2, "count": 2, "score_margin": 0.0, "steps": 1},
            )
            alone = server.run(whole)
            assert alone["code"] == 0, alone["log"]
            files = {name: data for name, data in round_files(whole.output).items() if "served" not in name}
            asked = len(remote.chats())
            assert asked == 2 * 6 * 2
            moments = [i for i, what in enumerate(alone["barriers"]) if "journal.jsonl appended" in what]
            for number in moments[1::6]:
                remote.asked.clear()
                killed = whole.model_copy(update={"output": str(tmp_path / f"killed-{number}")})
                assert server.run(killed, kill_at=number)["code"] == KILLED
                resumed = server.run(killed, resume=True)
                assert resumed["code"] == 0, resumed["log"]
                found = {name: data for name, data in round_files(killed.output).items() if "served" not in name}
                assert {n: sorted(d.splitlines()) for n, d in found.items()} == {
                    n: sorted(d.splitlines()) for n, d in files.items()
                }
                # What was under way with the server at the moment of the kill, and no more, is asked for again.
                assert asked <= len(remote.chats()) <= asked + 2 * 2


# A server, and the rest of the section sampling, as runs wrote them down before servers had to prove their weights.
SERVER = {
    "kind": "server",
    "url": "http://127.0.0.1:8000",
    "model": None,
    "key_variable": None,
    "endpoint": None,
    "concurrency": 16,
    "samples_per_request": 1,
    "seconds": 600.0,
    "attempts": 6,
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "stop": [], "system_prompt": None}


def three_sections(tree: dict) -> dict:
    """Settings as they were written down while rounds, sampling and scoring were sections of their own."""
    now = dict(tree["source"])
    found = {name: now.pop(name, {"temperature": 1.0} if name == "sampling" else None) for name in SECTIONS}
    rounds = now if now.pop("kind") == "rounds" else None
    return {name: value for name, value in tree.items() if name != "source"} | found | {"rounds": rounds}


SECTIONS = ("sampling", "scoring")


def written_before(folder: Path) -> None:
    """Give a run that was stopped the names of that time, in its settings, its checkpoints and plans of its rounds."""
    config = three_sections(json.loads((folder / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(config))
    for checkpoint in (folder / "checkpoints").iterdir():
        state, manifest = (json.loads((checkpoint / name).read_text()) for name in ("state.json", "manifest.json"))
        (checkpoint / "state.json").write_text(json.dumps(state | {"config": config}))
        files = manifest["files"] | {"state.json": facts_of(checkpoint / "state.json")}
        (checkpoint / "manifest.json").write_text(json.dumps({"files": files, "digest": system_folders._digest(files)}))
    for file in folder.glob("rounds/*/plan.json"):
        plan = json.loads(file.read_text())
        plan["settings"] = {
            name.replace("source.samples", "rounds.samples").replace("source.", ""): value
            for name, value in plan["settings"].items()
        }
        file.write_text(json.dumps(plan))


class TestEarlierVersions:
    @pytest.mark.parametrize("kind", [pytest.param("rounds", marks=pytest.mark.slow), "fixed"])
    def test_runs_of_three_sections_go_on_to_the_same_bits(self, toy, prompts, tmp_path, kind):
        """A run is gone on with from before source was one section; with other settings it is refused, in new words."""
        if kind == "rounds":
            whole = online(toy, prompts, tmp_path / "whole", checkpoint={"every": 1, "minutes": None})
        else:
            whole = plain_config(toy, tmp_path / "whole", checkpoint={"every": 1, "minutes": None})
        train(whole, show_progress=False)
        one = whole.model_copy(update={"output": str(tmp_path / "one")})

        class AfterThree:
            def hold(self) -> None:
                pass

            @property
            def requested(self) -> str | None:
                metrics = tmp_path / "one" / "metrics.jsonl"
                return "SIGTERM" if metrics.exists() and '"step": 2,' in metrics.read_text() else None

        with pytest.raises(StopRequested):
            train(one, stop=AfterThree(), show_progress=False)
        written_before(tmp_path / "one")
        other = online(toy, prompts, tmp_path / "one", sampling=DRAWN | {"top_p": 0.5}).source
        changed = {"rounds": r"source.sampling.top_p +1.0 +0.5", "fixed": r"source.kind +fixed +rounds"}[kind]
        with pytest.raises(OutputError, match=changed):
            train(one.model_copy(update={"source": other}), resume=True, show_progress=False)
        train(one, resume=True, show_progress=False)
        assert result_of(one) == result_of(whole) and not list(tmp_path.glob("one/rounds/*.before-*"))

    @pytest.mark.parametrize(
        "engine",
        [
            {"kind": "generate", "batch_size": 64},
            SERVER | {"new_weights": {"kind": "path"}},
            SERVER | {"new_weights": {"kind": "command", "command": ["restart.sh", "{path}"], "seconds": 1800.0}},
            SERVER | {"new_weights": {"kind": "request", "path": "/update", "body": {"model_path": "{path}"}}},
        ],
    )
    def test_runs_from_before_later_settings_go_on(self, toy, prompts, tmp_path, engine):
        """A run and a round as they were written down before later settings are those of today, whatever only warns."""
        limits = {"mismatch_limit": 9.0, "engine": engine | ({"proof": None} if engine["kind"] == "server" else {})}
        before = SAMPLING | {"engine": engine}
        folder = RunFolder(str(tmp_path / "run"), resume=True)
        folder.path.mkdir()
        for sampling in ({"engine": engine}, limits):
            now = online(toy, prompts, tmp_path / "run", sampling=sampling).model_dump(mode="json")
            folder.config.write_text(json.dumps(three_sections(now) | {"sampling": before}))
            folder.refuse_other_settings(now)
            plan = Plan(1, "policy", ("a", "b"), same_settings({"source": {"sampling": now["source"]["sampling"]}}))
            for settings in (flat({"sampling": before}), flat({"sampling": now["source"]["sampling"]}), plan.settings):
                (tmp_path / "plan.json").write_text(Plan(1, "policy", ("a", "b"), settings).text())
                assert plan.is_in(tmp_path / "plan.json")
            other = Plan(1, "policy", ("a", "b"), flat({"sampling": before | {"temperature": 0.5}}))
            (tmp_path / "plan.json").write_text(other.text())
            assert not plan.is_in(tmp_path / "plan.json")
            folder.config.write_text(json.dumps(three_sections(now) | {"sampling": before | {"temperature": 0.5}}))
            with pytest.raises(OutputError, match=r"source.sampling.temperature +0.5 +1.0"):
                folder.refuse_other_settings(now)
