"""Configurations of rounds that make no sense are refused before anything is read, with what to do about it."""

from __future__ import annotations

import datetime
import json

import pytest

from humanline.train.config import TrainConfig
from humanline.train.config.describe import describe_config, describe_reference
from humanline.train.data.prompts import read_contexts
from humanline.train.data.render import Renderer
from humanline.train.data.source import DataError
from humanline.train.preflight.validate import validate
from humanline.train.run.fingerprint import same_settings
from tests.helpers.support import config as tiny_run

SCORING = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}]}
SERVER = {"kind": "server", "url": "http://127.0.0.1:9", "new_weights": {"kind": "path"}}
SHARDED = {"batch_size": 8, "sharding": "full"}
BEFORE = {"schedule": {"kind": "before_step", "every": 4}}


ROUNDS = {"contexts_per_round": 16, "samples": 4, "count": 2}


def source(rounds=ROUNDS, scoring=SCORING, **sampling) -> dict:
    return {"kind": "rounds", **rounds, "sampling": sampling, "scoring": scoring}


def tree(**changes) -> dict:
    base = {
        "model": "m",
        "output": "o",
        "objective": {"kind": "grpo"},
        "data": {"train": "prompts.jsonl", "max_length": 64},
        "source": source(),
        "reference": {"schedule": {"kind": "each_round"}},
        "training": {"batch_size": 8},
        "optimizer": {"lr": 1e-5},
    }
    return {name: value for name, value in (base | changes).items() if value is not None}


WRONG = {
    "no scoring": ({"source": {"kind": "rounds", **ROUNDS}}, r"source.rounds.scoring\n +Field required"),
    "scoring without rounds": (
        {"source": {"kind": "fixed", "scoring": SCORING}, "training": {"steps": 1}, "reference": {}},
        "scoring: for kind: rounds alone",
    ),
    "no rewards' weight": (
        {"source": source(scoring={"rewards": [{"kind": "format", "weight": 0}]})},
        "every weight in source.scoring.rewards is 0",
    ),
    "nll": ({"objective": {"kind": "nll"}, "reference": {}}, "objective nll has no use for scores"),
    "groups for pairs": (
        {"objective": {"kind": "dpo"}, "source": source({"select": "all", "count": 1})},
        "makes groups, which dpo cannot read",
    ),
    "a shape": ({"data": {"train": "p", "shape": "preference"}}, "data.shape: rounds read prompts"),
    "no length": ({"source": source({"samples": 4})}, "give exactly one of steps, epochs and source.count"),
    "two lengths": ({"training": {"steps": 3}}, "give exactly one of steps, epochs and source.count"),
    "a round's steps twice": (
        {"reference": {"schedule": {"kind": "each_round", "round_steps": 4}}},
        "the section source says how long rounds are",
    ),
    "never, ahead": ({"reference": {"schedule": {"kind": "never"}}}, "set reference.storage: model"),
    "kept, ahead": ({"reference": BEFORE | {"round_start": "keep"}}, "set reference.storage: model"),
    "kept, under a schedule that begins anew": (
        {"reference": {"schedule": {"kind": "each_round"}, "round_start": "keep", "storage": "model"}},
        "is the policy at the start of each: leave it out",
    ),
    "an initial baseline, ahead": (
        {"reference": {"schedule": {"kind": "each_round"}, "baseline": "initial"}},
        "reference.storage: model, or train an adapter",
    ),
    "one step, by name": (
        {"reference": BEFORE, "source": source({"contexts_per_round": 64, "count": 1, "steps": 1})},
        "make every ratio 1",
    ),
    "one step, by size": (
        {"reference": BEFORE, "source": source({"contexts_per_round": 8, "count": 1})},
        "make every ratio 1",
    ),
    "greedy": ({"source": source(temperature=0)}, "all completions of a prompt the same"),
    "a server's adapter without one": (
        {"source": source(engine=SERVER | {"new_weights": {"kind": "adapter"}})},
        "take another kind",
    ),
    "an adapter by path": ({"source": source(engine=SERVER), "adapter": {"rank": 2}}, "set it, or take engine"),
    "overlap and a server that sleeps": (
        {
            "source": source(
                ROUNDS | {"overlap": True}, engine=SERVER | {"new_weights": {"kind": "vllm", "sleep": True}}
            ),
        },
        "source.overlap with a server that sleeps",
    ),
    **{
        f"requests: {name}": ({"source": source(engine=SERVER | {"new_weights": {"kind": "request"} | how})}, message)
        for name, how, message in (
            ("none", {}, "takes a path, or a list of requests, and not both"),
            ("both", {"path": "/a", "requests": [{"path": "/b"}]}, "takes a path, or a list of requests, and not both"),
            ("a body of its own", {"body": {}, "requests": [{"path": "/{path}"}]}, "each of the requests has its own"),
            ("no folder", {"path": "/a", "body": {"model": "{name}"}}, "no request says where the weights are"),
            ("no folder in a list", {"requests": [{"path": "/a"}]}, "no request says where the weights are"),
            (
                "an unknown word",
                {"path": "/a", "body": [{"m": ["{path}", "{weights}"]}]},
                "{weights} stands for nothing",
            ),
            ("in a list", {"requests": [{"path": "/a", "body": "{dir}/{path}"}]}, "{dir} stands for nothing"),
            ("not finite", {"path": "/{path}", "body": [float("inf")]}, "a number that JSON has not"),
            ("asleep, with a folder", {"path": "/{path}", "sleep": [{"path": "/{path}"}]}, "is told of no weights"),
        )
    },
    "overlap, a server and held-out prompts": (
        {
            "source": source({"overlap": True, "count": 2}, engine=SERVER),
            "data": {"train": "p", "eval": "e", "max_length": 64},
        },
        "leave out data.eval, or source.overlap",
    ),
    **{
        f"shared out, {engine['kind']}": (
            {"source": source(engine=engine), "training": SHARDED},
            f"source.sampling.engine.kind: {engine['kind']} samples with; set engine.kind: server",
        )
        for engine in ({"kind": "generate"}, {"kind": "continuous"})
    },
    "shared out in 4 bits": (
        {"source": source(engine=SERVER), "training": SHARDED, "adapter": {"rank": 2, "base": "nf4"}},
        "with sharding: none each process keeps all of them",
    ),
    "shared out, with overlap and a proof": (
        {"source": source(ROUNDS | {"overlap": True}, engine=SERVER), "training": SHARDED},
        "leave out source.overlap, or set source.sampling.engine.proof: null",
    ),
    "one sample": ({"source": source({"samples": 1, "count": 1})}, "greater than or equal to 2"),
    "no module": (
        {"source": source(scoring={"rewards": [{"kind": "function", "call": "len"}]})},
        "should match pattern",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused(name):
    """Each combination is refused, with words that say what to change."""
    changes, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        TrainConfig.model_validate(tree(**changes))


def test_what_makes_sense_is_taken():
    """The base of these tests, and what the messages advise, are right."""
    for changes in (
        {},
        {"reference": {"schedule": {"kind": "never"}, "storage": "model"}},
        {"reference": BEFORE | {"round_start": "keep", "storage": "model"}, "source": source({"steps": 1, "count": 1})},
        {"reference": {"schedule": {"kind": "never"}}, "adapter": {"rank": 2}},
        {"source": source(engine=SERVER | {"new_weights": {"kind": "adapter"}}), "adapter": {"rank": 2}},
        {"source": source(engine=SERVER), "training": SHARDED},
        {"source": source(ROUNDS | {"overlap": True}, engine=SERVER | {"proof": None}), "training": SHARDED},
    ):
        config = TrainConfig.model_validate(tree(**changes))
        assert TrainConfig.model_validate(config.model_dump()) == config
        assert "scoring" in describe_config(config)
        sharded = config.training.sharding == "full"
        assert ("shared out over the processes" in describe_config(config)) == sharded


def test_columns_that_are_no_json_are_named(tokenizer, tmp_path):
    """A column of dates, which no samples file could hold, is refused with its row and name when data are read."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "prompts.parquet"
    rows = [{"prompt": f"What is {i}?", "when": datetime.datetime(2024, 1, 1 + i), "answer": str(i)} for i in range(3)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    config = TrainConfig.model_validate(tree(data={"train": str(path), "max_length": 64}))
    with pytest.raises(DataError, match="3 values cannot be kept") as found:
        read_contexts(config, str(path), Renderer(tokenizer, "chat", 64))
    assert "column 'when' holds a datetime, which is no JSON" in found.value.problems[0]
    of_numbers = [{"prompt": "What?", "level": level} for level in (1.0, float("nan"))]
    parquet.write_table(pyarrow.Table.from_pylist(of_numbers), path)
    with pytest.raises(DataError, match="1 values cannot be kept") as found:
        read_contexts(config, str(path), Renderer(tokenizer, "chat", 64))
    assert "row 2: column 'level' holds nan or an infinite number" in found.value.problems[0]


@pytest.mark.parametrize(
    "changes,idle",
    [
        ({"source": {"kind": "fixed"}, "reference": BEFORE, "training": {"batch_size": 8, "steps": 2}}, True),
        ({"reference": {"schedule": {"kind": "each_round"}, "storage": "model"}}, True),
        ({"reference": BEFORE | {"storage": "model"}}, False),
    ],
)
def test_a_run_from_before_a_round_start_without_effect_was_refused_goes_on_without_it(changes, idle):
    """It was the same run; where the setting does something, it is another one."""
    now = TrainConfig.model_validate(tree(**changes)).model_dump(mode="json")
    before = now | {"reference": now["reference"] | {"round_start": "keep"}}
    assert now["reference"]["round_start"] == "sync" == same_settings(now)["reference.round_start"]
    assert (same_settings(before) == same_settings(now)) == idle


def test_validate_looks_at_rounds(toy, tmp_path, capsys):
    """Validation shows prompt, rounds and what has no effect, and names a reward that cannot be given."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(20)))
    rounds = ROUNDS | {"score_margin": 0.1}
    good = tree(
        model=toy["model"],
        output=str(tmp_path / "run"),
        data={"train": str(path), "max_length": 64},
        source=source(rounds, max_tokens=8),
        evaluation={"batch_size": 4},
    )
    validate(TrainConfig.model_validate(good))
    said = capsys.readouterr().out
    assert "GRPO, online" in said and "16 prompts, 4 completions each" in said and "at most 4 of 8 groups" in said
    assert "source.score_margin is for best_worst" in said and "evaluation.batch_size is for fixed data" in said
    idle = ("advantage_eps does nothing", "data.turns is of rows", "mismatch_limit does nothing")
    assert not any(one in said for one in idle)
    set_idly = {
        "objective": {"kind": "grpo", "advantage_std": "none", "advantage_eps": 0.01},
        "data": good["data"] | {"turns": "all"},
        "training": {"batch_size": 8, "temperature": 0.7},
    }
    remarks = validate(TrainConfig.model_validate(good | set_idly)).remarks
    assert all(any(one in remark for remark in remarks) for one in idle)
    assert "of samples, scores and served weights at most" in said and not (tmp_path / "run").exists()
    rewards = [{"kind": "number", "answer": "anser"}, SCORING["rewards"][0]]
    bad = good | {"source": source(rounds, {"rewards": rewards}, max_tokens=8)}
    with pytest.raises(ValueError, match="did you mean answer"):
        validate(TrainConfig.model_validate(bad))
    few = good | {"source": source(rounds | {"contexts_per_round": 30}, max_tokens=8)}
    with pytest.raises(ValueError, match="contexts_per_round 30 is larger than the data: 20 prompts"):
        validate(TrainConfig.model_validate(few))


def test_where_the_reference_comes_from_is_told(toy, tmp_path):
    """An adapter's base is at hand throughout, so that nothing is scored ahead for it."""
    off, ahead = "the base with its adapter switched off", "scored ahead"
    for reference, adapter, wanted in [
        ({"schedule": {"kind": "never"}}, {"rank": 4}, off),
        ({"schedule": {"kind": "never"}}, None, ahead),
        (BEFORE, {"rank": 4}, ahead),
        (BEFORE | {"storage": "model"}, {"rank": 4}, "a second model in memory"),
    ]:
        given = tiny_run(toy, tmp_path / "run", reference=reference, adapter=adapter)
        assert wanted in describe_reference(given) and (wanted == ahead) == (given.window_steps(8) > 0)


def test_no_answer_is_counted_longer_than_it_can_be(toy, tmp_path, capsys):
    """data.max_length goes before max_tokens: one that is meant as no limit does not fill the disk by itself."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i} + 1"}) + "\n" for i in range(40)))
    said = []
    for longest in (63, 10**12):
        distance = {"prompts": toy["prompts"], "max_tokens": longest}
        data = {"train": str(path), "eval": str(path), "max_length": 64}
        given = tree(model=toy["model"], output=str(tmp_path / "run"), data=data)
        given |= {"source": source(max_tokens=longest), "evaluation": {"distance": distance}}
        validate(TrainConfig.model_validate(given))
        line = next(line for line in capsys.readouterr().out.splitlines() if "of samples, scores" in line)
        needed, free = line.rsplit("; ", 1)
        said.append(needed)
        assert free.endswith(" free")  # which others change meanwhile
    assert said[0] == said[1]
