"""Whole runs beside a server with a real model, which takes new weights, keeps its old ones, or serves another."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path

import pytest
import torch

from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.online.samplers.proof import Reading, Text, judge, slope_between
from humanline.train.online.samplers.prover import text_logprobs
from humanline.train.online.types import SamplerError
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.save import save_model
from humanline.train.run.metrics import read_metrics
from humanline.train.run.processes import RoundError
from tests.helpers.model_server import ModelServer, bf16
from tests.helpers.scripted_server import serving
from tests.helpers.support import config as plain_config


def online(toy, prompts, output: Path, url: str, engine=(), sampling=(), rounds=(), lr=1e-2, **changes) -> TrainConfig:
    """Three rounds of six prompts with four short answers each, of a step each."""
    new_weights = {"kind": "request", "path": "/update", "body": {"folder": "{path}"}}
    server = {"kind": "server", "url": url, "concurrency": 2, "attempts": 1, "new_weights": new_weights}
    return plain_config(
        toy,
        output,
        "grpo",
        **{
            "data": {"train": prompts, "max_length": 64},
            "source": {
                "kind": "rounds",
                "contexts_per_round": 6,
                "samples": 4,
                "count": 3,
                "steps": 1,
                **dict(rounds),
                "sampling": {"max_tokens": 6, "engine": server | dict(engine)} | dict(sampling),
                "scoring": {
                    "rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}],
                    "workers": 1,
                },
            },
            "training": {"batch_size": 4, "micro_batch_size": 4},
            "reference": {"schedule": {"kind": "each_round"}},
            "optimizer": {"lr": lr, "warmup_fraction": 0.0},
            "checkpoint": {"every": 1, "minutes": None},
            **changes,
        },
    )


def rounds_of(config: TrainConfig) -> list[dict]:
    return [row for row in read_metrics(Path(config.output) / "metrics.jsonl") if "round" in row]


def samples_of(config: TrainConfig) -> list[Path]:
    return sorted(Path(config.output).glob("rounds/*/samples*"))


@pytest.mark.parametrize("given", ["echo", pytest.param("prompt_logprobs", marks=pytest.mark.slow), None])
def test_a_server_that_takes_new_weights_is_proved_to(toy, prompts, tmp_path, capsys, given):
    """By texts that it is given, in either way, else by its most probable answers: slope 1, off by rounding alone."""
    with serving(ModelServer(toy["model"], given=given)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url)
        train(config)
    first, *later = rounds_of(config)
    assert "server_slope" not in first and first["server_rms"] < 1e-5
    for row in later:
        assert row["server_slope"] == pytest.approx(1.0, abs=1e-3) and row["server_rms"] < 1e-5
        assert 0.9 < row["server_low"] <= row["server_slope"] <= row["server_high"] < 1.1
    said = capsys.readouterr().err
    assert said.count("has the new weights, slope 1.00") == 2
    assert said.count("sampler off by") == 3
    assert "warning: a server's weights are proved by" in said  # fewer than 2000 tokens here


def test_the_distance_is_measured_by_answers_of_the_server(toy, prompts, tmp_path):
    """Drawn from the whole law whatever rounds are drawn with; the policy's at the end from weights it has by then."""
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"{i} hgf"}) + "\n" for i in range(100, 106)))
    far = {"every": 1, "distance": {"prompts": str(own), "samples": 4}}
    with serving(ModelServer(toy["model"])) as server:
        drawn = {"rounds": {"count": 2}, "sampling": {"temperature": 0.5}}
        config = online(toy, prompts, tmp_path / "run", server.url, **drawn, evaluation=far)
        train(config, show_progress=False)
        of_distance = [one for one in server.asked if "hgf" in json.dumps((one.body or {}).get("messages", ""))]
    looks = [row["held_out"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "held_out" in row]
    assert len(looks) == 3 and looks[0]["kl_from_start"] == 0
    assert [("kl_to_start" in one) for one in looks] == [False, False, True]
    assert looks[-1]["kl_to_start"] > 0 and looks[-1]["kl_to_start_answers"] == 24
    assert [one.body["temperature"] for one in of_distance] == [1.0] * 48


def test_a_server_that_draws_otherwise_than_it_is_asked_ends_the_run(toy, prompts, tmp_path):
    """One with a top-k of its own, whose weights are right: before the first update."""

    def top_3(logits: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill(logits < logits.topk(3).values[-1], -torch.inf)

    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"{i} hgf"}) + "\n" for i in range(100, 112)))
    far = {"distance": {"prompts": str(own), "samples": 4}}
    with serving(ModelServer(toy["model"], draws=top_3)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, evaluation=far)
        with pytest.raises(SamplerError, match=r"evaluation\.distance has drawn are not the policy's own .*--resume"):
            train(config, show_progress=False)
    assert not list(Path(config.output).glob("distance/*"))


@pytest.mark.slow
def test_the_weights_of_the_last_look_are_proved_too(toy, prompts, tmp_path):
    """A server that took every round's, and ignores those that no round but the distance wants, ends the run there."""
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"{i} hgf"}) + "\n" for i in range(100, 106)))
    far = {"distance": {"prompts": str(own), "samples": 4}}
    with serving(ModelServer(toy["model"], takes=lambda count: count < 3)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, evaluation=far)
        with pytest.raises(SamplerError, match=r"still has those of policy-"):
            train(config, show_progress=False)
        assert len(rounds_of(config)) == 3
    with serving(ModelServer(toy["model"]), server.port):
        train(config, resume=True, show_progress=False)
    looks = [row["held_out"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "held_out" in row]
    assert len(looks) == 2 and looks[-1]["kl_to_start"] > 0


@pytest.mark.parametrize(
    "given,told",
    [
        ("echo", None),
        pytest.param("echo", bf16, marks=pytest.mark.slow),
        pytest.param(None, None, marks=pytest.mark.slow),
    ],
)
def test_a_server_that_ignores_new_weights_ends_the_run(toy, prompts, tmp_path, given, told):
    """Before it is sampled from again; with a server that takes them, the run goes on to its end."""
    how = {"given": given} | ({} if told is None else {"told": told})
    with serving(ModelServer(toy["model"], takes=lambda count: False, **how)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, rounds={"count": 2})
        with pytest.raises(SamplerError, match=r"still has those of policy-\w+: .* change by -?0\.\d\d \(.*--resume"):
            train(config, show_progress=False)
        asked = len(server.completions())
        assert len(rounds_of(config)) == 1 and len(samples_of(config)) == 1
    with serving(ModelServer(toy["model"], **how), server.port) as healthy:
        train(config, resume=True, show_progress=False)
    assert asked > 0 and len(healthy.completions()) > 0
    assert len(rounds_of(config)) == 2
    assert (Path(config.output) / "final" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_server_that_falls_back_to_the_first_weights_is_found(toy, prompts, tmp_path):
    """One that took two publishes, and at the third has the model again that it was started with."""

    class Restarted(ModelServer):
        def load(self, folder):
            super().load(toy["model"] if getattr(self, "updates", 0) == 3 else folder)

    with serving(Restarted(toy["model"])) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, rounds={"count": 4})
        with pytest.raises(SamplerError, match="still has those of"):
            train(config, show_progress=False)
    assert len(rounds_of(config)) == 3


@pytest.mark.parametrize("given", ["echo", pytest.param(None, marks=pytest.mark.slow)])
def test_a_server_that_is_started_again_in_mid_round_is_found(toy, prompts, tmp_path, given):
    """Its weights are proved once more when it has sampled; what it gave is put aside, and sampled again."""

    class Restarted(ModelServer):
        answers = 0  # from the weights of the second round

        def answer(self, body):
            self.answers += self.updates == 2 and body["temperature"] > 0
            if self.answers == 12:
                self.load(toy["model"])
            return super().answer(body)

    with serving(Restarted(toy["model"], given=given)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url)
        with pytest.raises(SamplerError, match=r"has those of policy-\w+ now that it was sampled from.*--resume"):
            train(config, show_progress=False)
    assert len(rounds_of(config)) == 1
    assert [path.name for path in samples_of(config)][1:] == ["samples-rank-0.journal.jsonl.refused-1"]
    with serving(ModelServer(toy["model"], given=given), server.port) as healthy:
        train(config, resume=True, show_progress=False)
        sampled = [one for one in healthy.completions() if one.body.get("temperature") == 1 and "messages" in one.body]
    assert len(sampled) == 2 * 6 * 4 and [row["server_slope"] > 0.9 for row in rounds_of(config)[1:]] == [True, True]


@pytest.mark.slow
def test_another_model_is_found_at_the_first_round(toy, prompts, tokenizer, tmp_path):
    """Samples of a server that serves another model are put aside, and asked for again from the right one."""
    model = tiny_llama(tokenizer_of(toy), hidden_size=16, heads=2, max_length=128, seed=7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    save_model(tmp_path / "other", model, tokenizer_of(toy))
    with serving(ModelServer(tmp_path / "other", takes=lambda count: False)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url)
        with pytest.raises(
            SamplerError, match=r"differs from the policy by .*proof.tolerance: 0.2.*will be sampled again"
        ):
            train(config, show_progress=False)
    assert [path.name for path in samples_of(config)] == ["samples-rank-0.journal.jsonl.refused-1"]
    refused = samples_of(config)[0].read_bytes()
    with serving(ModelServer(toy["model"]), server.port):
        train(config, resume=True, show_progress=False)
    assert (Path(config.output) / "rounds" / "00000" / "samples.jsonl").read_bytes() != refused
    assert len(rounds_of(config)) == 3


def tokenizer_of(toy):
    from humanline.train.policy.load import load_tokenizer

    return copy.deepcopy(load_tokenizer(toy["model"]))


def test_a_server_without_log_probabilities_is_said_to_be_unprovable_once(toy, prompts, tmp_path, capsys):
    """Two rounds, one warning; the server is asked once a way for a text, and for no answer beyond the samples."""
    with serving(ModelServer(toy["model"], given=None, logprobs=False)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, rounds={"count": 2})
        train(config)
        asked = [one.path for one in server.completions()]
    assert capsys.readouterr().err.count("nothing proves which weights it samples from") == 1
    assert asked.count("/v1/completions") == 2 and asked.count("/v1/chat/completions") == 2 * 6 * 4


@pytest.mark.slow
def test_no_proof_where_none_is_wanted(toy, prompts, tmp_path):
    """proof: null asks for nothing beyond the samples."""
    with serving(ModelServer(toy["model"], takes=lambda count: False)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, engine={"proof": None})
        train(config, show_progress=False)
        assert {one.path for one in server.completions()} == {"/v1/chat/completions"}
    assert not list(Path(config.output).glob("rounds/proof*"))


def test_what_a_sampler_is_off_by_is_said_and_warned_of(toy, prompts, tmp_path, capsys):
    """Answers whose log-probabilities are not training's: each round's line says by how much, with a warning."""
    with serving(ModelServer(toy["model"], told=lambda values: values * 1.1)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, engine={"proof": None}, rounds={"count": 2})
        train(config)
    said = capsys.readouterr().err
    assert said.count("warning: round") == said.count("more than source.sampling.mismatch_limit: 0.1") == 2
    rms = [row["sampler_mismatch_rms"] for row in read_metrics(Path(config.output) / "metrics.jsonl") if "step" in row]
    for number, value in enumerate(rms):
        assert value > 0.1 and f"round {number}: score" in said and f"sampler off by {value:.2g} nats (rms)" in said


@pytest.mark.slow
def test_the_second_process_proves_too(toy, prompts, tmp_path, capsys):
    """Under overlap a stale server ends the run by name, and what the second process has to say is said."""
    with serving(ModelServer(toy["model"], takes=lambda count: count == 0)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, rounds={"overlap": True, "count": 4})
        with pytest.raises(RoundError, match=r"second process: .* still has those of policy-"):
            train(config)
    with serving(ModelServer(toy["model"], given=None, logprobs=False)) as server:
        config = online(toy, prompts, tmp_path / "silent", server.url, rounds={"overlap": True})
        train(config)
    assert capsys.readouterr().err.count("nothing proves which weights it samples from") == 2  # once a process


class _StopAfterStep:
    """A StopSignal that is asked to stop once so many steps are in the log."""

    def __init__(self, metrics: Path, steps: int) -> None:
        self.metrics, self.steps = metrics, steps

    def hold(self) -> None:
        """Do nothing."""

    @property
    def requested(self) -> str | None:
        done = self.metrics.read_text().count('"step":') if self.metrics.exists() else 0
        return "SIGTERM" if done >= self.steps else None


def test_the_proof_outlives_the_process(toy, prompts, tmp_path):
    """A run stopped after its second round finds by what is on the disk that its server has gone stale meanwhile."""
    healthy = ModelServer(toy["model"])
    with serving(healthy) as server:
        config = online(toy, prompts, tmp_path / "run", server.url)
        with pytest.raises(StopRequested):
            train(config, stop=_StopAfterStep(tmp_path / "run" / "metrics.jsonl", 2), show_progress=False)
    proof = json.loads((tmp_path / "run" / "rounds" / "proof.json").read_text())
    assert proof["given"] and proof["readings"]["first"]["version"] != proof["readings"]["last"]["version"]
    healthy.takes = lambda count: False
    with serving(healthy, server.port), pytest.raises(SamplerError) as error:
        train(config, resume=True, show_progress=False)
    assert f"still has those of {proof['readings']['last']['version']}" in str(error.value)


@pytest.mark.slow
def test_a_stop_while_the_server_is_asked_for_a_proof_is_a_stop(toy, prompts, tmp_path):
    """What was trained is saved, and the run goes on; it is no fault."""
    stop = StopSignal()

    def told(values: torch.Tensor) -> torch.Tensor:
        if healthy.updates == 2 and stop.requested is None:
            stop.requested = "SIGTERM"
            time.sleep(0.5)  # so that the run looks
        return values

    healthy = ModelServer(toy["model"], told=told)
    with serving(healthy) as server:
        config = online(toy, prompts, tmp_path / "run", server.url)
        with pytest.raises(StopRequested, match=r"stopped by SIGTERM after 1 of 3 updates.*step-00000001"):
            train(config, stop=stop, show_progress=False)
        assert train(config, resume=True, show_progress=False).model.is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("stale", [True, False])
def test_small_changes_are_told_from_rounding(toy, prompts, tmp_path, stale):
    """At a learning rate of 1e-5, from log-probabilities in bf16: a stale server is found, a right one is proved."""
    model = tiny_llama(tokenizer_of(toy), hidden_size=64, heads=2, max_length=128, seed=0)
    save_model(tmp_path / "model", model, tokenizer_of(toy))
    server = ModelServer(tmp_path / "model", takes=lambda count: not stale, told=bf16)
    with serving(server) as remote:
        config = online(
            toy | {"model": str(tmp_path / "model")},
            prompts,
            tmp_path / "run",
            remote.url,
            lr=1e-5,
            rounds={"contexts_per_round": 24, "samples": 8, "count": 4, "steps": 12},
            sampling={"max_tokens": 24},
            training={"batch_size": 2, "micro_batch_size": 4},
        )
        if stale:
            with pytest.raises(SamplerError, match="still has those of"):
                train(config, show_progress=False)
            return
        train(config, show_progress=False)
    assert all(row["server_low"] > 0 and row["server_high"] > 1 for row in rounds_of(config)[1:])


@pytest.mark.slow
def test_a_right_server_is_not_refused_in_200_publishes(tokenizer):
    """A real model, an update at a learning rate of 1e-5 before each, 8192 tokens told in bf16: never old, never both.

    An interval errs once in a million times: 400 of them with probability 4e-4.
    """
    torch.manual_seed(0)
    model = tiny_llama(tokenizer, hidden_size=64, heads=2, max_length=128, seed=0).eval()
    policy = LogprobModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(0, len(tokenizer), (64, 129))
    texts = {str(i): Text(tuple(row.tolist()), 1) for i, row in enumerate(ids)}

    def reading(version: str) -> Reading:
        with torch.no_grad():  # plain transformers, as the server
            rows = torch.log_softmax(model(ids).logits[:, :-1].float(), -1).gather(2, ids[:, 1:, None]).squeeze(2)
        told = {name: row.numpy() for name, row in zip(texts, bf16(rows).double(), strict=True)}
        return Reading(version, texts, text_logprobs(policy, texts), told)

    first = last = reading("0")
    stale, verdicts = first.server, []
    for publish in range(1, 201):
        batch = ids[torch.randperm(64)[:8]]
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        new = reading(str(publish))
        verdicts.append([judge(slope_between(old, new, exact=True), exact=True) for old in (last, first)])
        last = new if verdicts[-1][0] == "new" else last
    assert not {"old", "between"} & {verdict for both in verdicts for verdict in both}
    assert verdicts[-1][1] == "new"
    kept = Reading("stale", texts, new.policy, stale)
    assert judge(slope_between(first, kept, exact=True), exact=True) == "old"


def test_a_damaged_proof_says_what_to_do(toy, prompts, tmp_path):
    """proof.json that cannot be read ends the run with its place and the cure."""
    with serving(ModelServer(toy["model"], takes=lambda count: False)) as server:
        config = online(toy, prompts, tmp_path / "run", server.url, rounds={"count": 2})
        with pytest.raises(SamplerError):
            train(config, show_progress=False)
    file = tmp_path / "run" / "rounds" / "proof.json"
    file.write_text(file.read_text()[:-20])
    with serving(ModelServer(toy["model"]), server.port):
        with pytest.raises(ValueError, match=r"proof.json is damaged .*; remove it, and the proof .* begins anew"):
            train(config, resume=True, show_progress=False)
        file.unlink()
        train(config, resume=True, show_progress=False)
    assert len(rounds_of(config)) == 2 and file.is_file()
