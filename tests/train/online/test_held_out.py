"""Held-out prompts of rounds: how they are asked, and what their answers are worth."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from humanline.system.files import write_text
from humanline.train.config.describe import describe_config
from humanline.train.data.messages import Message
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import read_data
from humanline.train.loop import train
from humanline.train.online.held_out import RolloutEvaluator, refuse_engine
from humanline.train.online.ledger import json_rows
from humanline.train.online.samplers.dialect import Weights
from humanline.train.online.samplers.server import OtherSettings
from humanline.train.online.stages import score_rows
from humanline.train.online.types import Completion, Rollout, Score
from humanline.train.policy.load import load_tokenizer
from humanline.train.run.fingerprint import same_settings
from humanline.train.run.metrics import read_metrics
from tests.helpers.rounds import DRAWN, online
from tests.helpers.scripted_server import script, serving
from tests.helpers.support import config as plain_config
from tests.helpers.support import same, weights
from tests.train.online.test_server import choices, context, draw, sampler

SERVER = {"kind": "server", "url": "http://127.0.0.1:1", "model": "m", "new_weights": {"kind": "vllm"}}


def looked_at(folder, scores: list[list[float | None]], parts: list[list[dict]] | None = None) -> dict[str, float]:
    """Return the metrics of answers with these scores."""
    table = [
        [
            Score(value, "ok" if value is not None else "timeout", parts[i][n] if parts else {})
            for n, value in enumerate(own)
        ]
        for i, own in enumerate(scores)
    ]
    rollouts = [
        Rollout(str(i), (Message("user", "?"),), tuple(Completion("a", (1,) * (n + 1), "end") for n in range(len(own))))
        for i, own in enumerate(scores)
    ]
    stages = SimpleNamespace(
        processes=SimpleNamespace(on_main=lambda act: act(), each=lambda act: act()),
        sample=lambda where, *_, samples: write_text(where / "samples.jsonl", json_rows([r.row() for r in rollouts])),
        score=lambda where, of: write_text(where / "scores.jsonl", json_rows(score_rows(rollouts, table))),
    )
    return RolloutEvaluator([None] * len(scores), stages, folder, lambda: "v", max(map(len, scores)))()


def test_one_answer_a_prompt_gives_the_metrics_it_always_gave(tmp_path):
    """To the last bit, as formulas of before have them, and under the same names."""
    values = [0.1, 0.7, 0.30000000000000004, 1.0, 0.9]
    parts = [[{"a": value, "b": 1.0}] for value in [*values, 0.0]]
    found = looked_at(tmp_path, [[value] for value in [*values, None]], parts)
    mean = math.fsum(values) / 5
    assert found == {
        "score": mean,
        "score_se": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / 4 / 5),
        "without_score": 1.0,
        "score/a": mean,
        "score/b": 1.0,
        "completions": 6.0,
        "completion_tokens": 1.0,
        "completion_tokens_std": 0.0,
        "truncated": 0.0,
    }
    assert "score_se" not in looked_at(tmp_path, [[0.5], [None]])  # it was 0: a score that is certain
    assert "pass@1" not in looked_at(tmp_path, [[1.0], [0.0]])


def test_errors_of_several_answers_are_over_prompts(tmp_path):
    """Each prompt counts once, by the mean of its scored answers; a count of answers without a score is kept."""
    scores = [[0.2, 0.4, None], [0.9, 0.8, 0.7], [None, None, None], [0.1, 0.3, 0.5]]
    found = looked_at(tmp_path, scores)
    means = np.array([0.3, 0.8, 0.3])
    assert found["score"] == pytest.approx(means.mean(), abs=1e-15)
    assert found["score_se"] == pytest.approx(means.std(ddof=1) / np.sqrt(3), rel=1e-12)
    assert (found["contexts"], found["completions"], found["without_score"]) == (4.0, 12.0, 4.0)
    assert not any(name.startswith("pass@") for name in found)
    assert "score_se" not in looked_at(tmp_path, [[0.2, 0.4]])


def test_pass_at_k_is_that_of_all_choices(tmp_path):
    """Of answers that are right or wrong, over the prompts that have k of them with a score."""
    scores = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, None], [0.0, 0.0, 0.0, 0.0], [1.0, None, None, None]]
    found = looked_at(tmp_path, scores)
    known = [[value for value in own if value is not None] for own in scores]
    for k in (2, 4):
        shares = [np.mean([max(drawn) for drawn in itertools.combinations(own, k)]) for own in known if len(own) >= k]
        assert found[f"pass@{k}"] == pytest.approx(np.mean(shares), abs=1e-15)
        assert found[f"pass@{k}_se"] == pytest.approx(np.std(shares, ddof=1) / np.sqrt(len(shares)), rel=1e-12)
    assert [name for name in found if name.startswith("pass@")] == ["pass@2", "pass@2_se", "pass@4", "pass@4_se"]


def test_a_run_asks_held_out_prompts_in_their_own_way(toy, prompts, tmp_path):
    """Several short answers each, of settings that the rounds have not; what is trained stays the same to the bit."""
    own = {"limit": 6, "samples": 3, "sampling": {"max_tokens": 2, "temperature": 0.5, "system_prompt": "Sort."}}
    short = {"contexts_per_round": 4, "samples": 4, "count": 1, "steps": 1, "score_margin": 0.001}
    given = [
        online(toy, prompts, tmp_path / name, rounds=short, training={"batch_size": 2}, **more)
        for name, more in (("plain", {}), ("asked", {"data__eval": prompts, "evaluation": own}))
    ]
    plain, asked = (train(one, show_progress=False) for one in given)
    assert same(weights(plain), weights(asked))
    looks = [row["held_out"] for row in read_metrics(asked.metrics_file) if "held_out" in row]
    assert len(looks) == 2
    for look in looks:
        assert (look["contexts"], look["completions"]) == (6.0, 18.0)
        assert look["completion_tokens"] <= 2 and 0 < look["score_se"] < 1
    assert "held-out answers: 3 a prompt, temperature 0.5, at most 2 tokens; by generate" in describe_config(given[1])


def test_a_server_is_asked_under_other_settings_for_the_weights_it_has_by_then(tokenizer):
    """Only what the request says differs; new weights of the rounds' sampler are those that answer."""
    renderer = Renderer(tokenizer, "chat", 128)
    with serving(script(choices("On"))) as server:
        rounds = sampler(renderer, server.url, temperature=1.0, engine__model="m")
        held_out = OtherSettings(rounds, rounds.config.model_copy(update={"temperature": 0.25, "max_tokens": 5}))
        rounds._weights = Weights("m", "newer")
        (first,), (second,) = draw(held_out, [context(renderer)]), draw(rounds, [context(renderer)])
    assert [(one.body["temperature"], one.body["max_tokens"]) for one in server.asked] == [(0.25, 5), (1.0, 16)]
    assert first.policy == second.policy == "newer"


class TestSettings:
    def test_the_engine_is_that_of_the_rounds_unless_one_is_named(self, toy, prompts, tmp_path):
        given = {"data__eval": prompts, "evaluation": {"sampling": {"temperature": 0.0}}}
        config = online(toy, prompts, tmp_path / "a", sampling={**DRAWN, "engine": SERVER}, **given)
        assert config.asking.engine == config.rounds.sampling.engine and config.asking.max_tokens == 512
        refuse_engine(config)
        given["evaluation"]["sampling"]["engine"] = {"kind": "generate"}
        config = online(toy, prompts, tmp_path / "a", sampling={**DRAWN, "engine": SERVER}, **given)
        assert config.asking.engine.kind == "generate"
        refuse_engine(config)
        assert online(toy, prompts, tmp_path / "a").asking == online(toy, prompts, tmp_path / "a").rounds.sampling

    def test_an_engine_that_would_have_other_weights_is_refused(self, toy, prompts, tmp_path):
        """A second server has nobody who gives it weights, and shared weights are no whole model."""
        other = {"data__eval": prompts, "evaluation": {"sampling": {"engine": SERVER}}}
        with pytest.raises(ValueError, match="another one, or the same with other settings"):
            refuse_engine(online(toy, prompts, tmp_path / "a", **other))
        own = {"data__eval": prompts, "evaluation": {"sampling": {"engine": {"kind": "generate"}}}}
        served = {"sampling": {**DRAWN, "engine": SERVER}, "training": {"batch_size": 8, "sharding": "full"}}
        with pytest.raises(ValueError, match="sharding: full leaves no process with a whole model"):
            refuse_engine(online(toy, prompts, tmp_path / "a", **served, **own))

    def test_overlap_with_a_server_can_have_held_out_prompts_answered_here(self, toy, prompts, tmp_path):
        rounds = {"contexts_per_round": 16, "samples": 4, "count": 2, "overlap": True}
        given = {"rounds": rounds, "sampling": {**DRAWN, "engine": SERVER}, "data__eval": prompts}
        with pytest.raises(ValidationError, match=r"overlap with a server and data\.eval"):
            online(toy, prompts, tmp_path / "a", **given)
        online(toy, prompts, tmp_path / "a", **given, evaluation={"sampling": {"engine": {"kind": "generate"}}})

    def test_a_resumed_run_shares_them_where_it_reads_them(self, toy, prompts, tmp_path):
        """In rounds they are part of the run, on fixed data not; runs from before them have their defaults."""

        def settings(make, **evaluation):
            return same_settings(make(evaluation).model_dump(mode="json"))

        def rounds(evaluation):
            return online(toy, prompts, tmp_path / "a", evaluation=evaluation)

        def fixed(evaluation):
            return plain_config(toy, tmp_path / "a", "dpo", evaluation=evaluation)

        for change in ({"samples": 2}, {"sampling": {"temperature": 0.5}}):
            assert settings(rounds, **change) != settings(rounds)
            assert settings(fixed, **change) == settings(fixed)
        assert not any(name.startswith(("evaluation.samp", "evaluation.scor")) for name in settings(rounds))
        engine = {"kind": "generate", "batch_size": 3}
        where = {**SERVER, "url": "http://127.0.0.1:2", "concurrency": 3}
        assert settings(rounds, sampling={"engine": SERVER}) == settings(rounds, sampling={"engine": where})
        assert settings(rounds, sampling={"engine": SERVER}) != settings(rounds, sampling={"engine": engine})

    def test_their_system_prompt_is_their_own(self, toy, prompts, tmp_path):
        """It stands before held-out prompts alone, which are still known to be among those of training."""
        config = online(
            toy, prompts, tmp_path / "a", data__eval=prompts, evaluation={"sampling": {"system_prompt": "Sort."}}
        )
        data = read_data(config, Renderer(load_tokenizer(toy["model"]), "chat", 64))
        assert {one.prompt[0] for one in data.held_out} == {Message("system", "Sort.")}
        assert {one.prompt[0].role for one in data.contexts} == {"user"}
        assert data.sets.reports["held_out"].prompts_in_training == 48
