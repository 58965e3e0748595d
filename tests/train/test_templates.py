"""One chat template in every part of a run: in validation, sampling, scoring, pairing, training, and on a server."""

from __future__ import annotations

import copy
import json
import shutil
import time

import pytest
from transformers import AutoTokenizer, GenerationMixin

from humanline.cli import main
from humanline.train.config import load_config
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data import template_limits
from humanline.train.data.messages import Given, Message
from humanline.train.data.prompts import Context, contexts_hash, read_contexts
from humanline.train.data.render import Renderer
from humanline.train.data.rows import read_set
from humanline.train.data.sets import read_units
from humanline.train.data.units import units_hash
from humanline.train.online.samplers.server import ServerSampler
from humanline.train.online.select import Kept, preference_rows
from humanline.train.online.types import Completion, Rollout
from humanline.train.preflight.validate import NotReadyError, validate
from humanline.train.run.fingerprint import same_settings
from tests.helpers.chat_templates import ASK, CALLING, LOOPS, RESULT, SAID, THINKING, TOOL, with_template
from tests.helpers.rounds import online as in_rounds
from tests.helpers.scripted_server import Reply, serving
from tests.helpers.support import config


@pytest.fixture(scope="module")
def thinking(tokenizer):
    """Offer a renderer whose template writes tools, calls and reasoning."""
    return Renderer(with_template(tokenizer, THINKING), "chat", 4096)


def test_what_is_ignored_without_being_there_is_told(toy, write, tmp_path, capsys):
    """Names in data.ignore that are no column and no key are told of each set; those that are there, or empty, not."""
    row = {"prompt": [ASK | {"name": None}], "chosen": [SAID], "rejected": "no", "tools": [TOOL], "id": 1}
    path, names = write(*[row] * 8), ["reasoning_content", "reasoning_contnet", "tools", "id", "tool", "name"]
    _, columns = read_set(path, "preference", ignore=names)
    assert columns.nowhere == ("reasoning_contnet", "tool")
    assert str(columns).endswith("; data.ignore names what is not there: 'reasoning_contnet', 'tool'")
    assert "not there" not in str(read_set(path, "preference", ignore=["id", "tools", "name"])[1])
    other = write(*[{"prompt": "q", "chosen": "a", "rejected": "b"}] * 8, name="held_out.jsonl")
    data = {"train": str(path), "eval": str(other), "max_length": 128, "ignore": ["reasoning_content", "tools", "nam"]}
    validate(config(toy, tmp_path / "run", data=data))
    out = capsys.readouterr().out
    assert out.count("data.ignore names what is not there: 'nam'\n") == 1
    assert out.count("data.ignore names what is not there: 'reasoning_content', 'tools', 'nam'\n") == 1


@pytest.fixture
def online(toy, tmp_path, tokenizer, write):
    """A recipe in rounds over two prompts, of which one has tools, whose model's template writes them."""
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    with_template(AutoTokenizer.from_pretrained(model), THINKING).save_pretrained(model)
    prompts = [
        {"prompt": [{"role": "user", "content": f"{i} abc"}], "tools": json.dumps([SMALL]), "answer": "cab", "level": 3}
        for i in range(2)
    ]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model: {model}\noutput: {tmp_path / 'run'}\nobjective: {{kind: dpo}}\n"
        f"data: {{train: {write(*prompts, name='prompts.jsonl')}, max_length: 128}}\n"
        "source:\n  kind: rounds\n  contexts_per_round: 2\n  samples: 4\n  count: 1\n  score_margin: 0.0\n"
        "  sampling: {max_tokens: 6, engine: {kind: generate, batch_size: 2}}\n"
        "  scoring:\n    workers: 1\n"
        "    rewards: [{kind: function, call: 'tests.helpers.toy_rewards:scrambled', columns: [answer]}]\n"
        "training: {batch_size: 2, micro_batch_size: 2}\noptimizer: {lr: 1e-3}\n"
        "reference: {schedule: {kind: each_round}}\n"
    )
    return str(recipe)


SMALL = {"type": "function", "function": {"name": "sort", "description": "Sort it."}}


def test_sampling_scoring_pairing_and_training_read_one_prompt(online, toy, tmp_path, monkeypatch, capsys):
    """Validation shows the tools, what is sampled from holds them, and pairs of samples have the same prompt ids."""
    assert main(["validate", online]) == 0
    shown = capsys.readouterr().out
    assert "Sort it." in shown
    assert "columns      read: 'prompt', 'tools', 'answer'; ignored: 'level'" in shown
    samples, scored, pairs = (str(tmp_path / f"{name}.jsonl") for name in ("samples", "scored", "pairs"))
    generate, asked = GenerationMixin.generate, []
    monkeypatch.setattr(
        GenerationMixin, "generate", lambda self, ids, **how: asked.extend(ids.tolist()) or generate(self, ids, **how)
    )
    assert main(["sample", online, "--out", samples]) == 0
    assert main(["score", online, samples, "--out", scored]) == 0
    assert main(["pair", online, scored, "--out", pairs]) == 0
    recipe = load_config(online)
    renderer = Renderer(AutoTokenizer.from_pretrained(recipe.model), "chat", 128)
    contexts, _ = read_contexts(recipe, recipe.data.train, renderer)
    offline = config(toy, tmp_path / "offline", data={"train": pairs, "max_length": 128, "shape": "preference"})
    units, _ = read_units(offline, pairs, renderer)
    prompts = {unit.sequences[0].ids[: unit.sequences[0].prompt_length] for unit in units}
    assert units and prompts <= {context.ids for context in contexts} == {*map(tuple, asked)}
    assert all("Sort it." in renderer.tokenizer.decode(list(ids)) for ids in prompts)


def test_validation_shows_what_fixed_data_train_on(online, toy, write, tmp_path, capsys):
    """Tools stand before the mark of what counts, reasoning behind it, and held-out rows are listed like the others."""
    said = {"role": "assistant", "content": "ab", "reasoning_content": "so"}
    rows = [
        {"prompt": f"{i} abc", "chosen": [said], "rejected": "no", "tools": [SMALL], "id": i, "note": None}
        for i in range(8)
    ]
    data = {"train": str(write(*rows)), "eval": str(write(*rows[:2], name="held_out.jsonl")), "max_length": 128}
    validate(config(toy, tmp_path / "run", model=str(tmp_path / "model"), data=data))
    out = capsys.readouterr().out
    assert out.count(json.dumps(SMALL)) == 1 and "«<think>so</think>" in out
    assert out.index(json.dumps(SMALL)) < out.index("«<think>")
    listed = "columns      read: 'prompt', 'chosen', 'rejected', 'tools'; ignored: 'id', 'note'; "
    assert out.count(listed + "keys of messages read: 'reasoning_content'") == 2


def test_validation_lists_columns_without_a_template_too(toy, write, tmp_path, capsys):
    """Where the tokenizer has no template the rows alone are read, and their columns are listed all the same."""
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    with_template(AutoTokenizer.from_pretrained(model), None).save_pretrained(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    row = {"prompt": "q", "chosen": "a", "rejected": "b", "id": 1}
    with pytest.raises(NotReadyError, match="no chat template"):
        validate(config(toy, tmp_path / "run", model=str(model), data={"train": str(write(row)), "max_length": 64}))
    assert "columns      read: 'prompt', 'chosen', 'rejected'; ignored: 'id'\n" in capsys.readouterr().out


class Serves:
    """A server that reads prompts as OpenAI-compatible ones do, with a template and tokenizer of its own."""

    def __init__(self, tokenizer, *, wants_no_choice=False):
        self.tokenizer, self.wants_no_choice = tokenizer, wants_no_choice

    def __call__(self, asked):
        body = asked.body
        if self.wants_no_choice and body.get("tools") and body.get("tool_choice") != "none":
            reason = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            return Reply({"object": "error", "message": reason}, 400)
        turns = copy.deepcopy(body["messages"])
        for turn in turns:
            for call in turn.get("tool_calls", ()):
                assert isinstance(call["function"]["arguments"], str)
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        text = self.tokenizer.apply_chat_template(
            turns,
            tools=body.get("tools"),
            add_generation_prompt=True,
            tokenize=False,
            **body.get("chat_template_kwargs", {}),
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Grey."}, "finish_reason": "stop"}
        return Reply({"choices": [choice], "prompt_token_ids": ids, "usage": {"prompt_tokens": len(ids)}})


@pytest.mark.parametrize("wants_no_choice", [False, True], ids=["as it is", "without a parser of tools"])
def test_a_server_is_asked_for_all_of_it(thinking, wants_no_choice):
    """A server with the same template reads the very tokens of training: tools, calls, keys and arguments arrive."""
    renderer = thinking
    extra = {"tools": json.dumps([TOOL]), "chat_template_kwargs": {"think": False}, "answer": "4"}
    prompt = tuple(map(Message.of, [ASK, CALLING | {"content": "Let me see."}, RESULT]))
    context = Context("c", prompt, renderer.render_prompt(prompt, Given.of(extra)), extra)
    plain = Context("d", prompt[:1], renderer.render_prompt(prompt[:1]), {})
    update = {"kind": "request", "path": "/update", "body": {"folder": "{path}"}}
    engine = {"kind": "server", "concurrency": 1, "new_weights": update}
    with serving(Serves(renderer.tokenizer, wants_no_choice=wants_no_choice)) as server:
        settings = SamplingConfig.model_validate({"max_tokens": 8, "engine": engine | {"url": server.url}})
        sampler = ServerSampler(settings, renderer, say=lambda text: None)
        drawn = [one for batch in sampler.sample([context, plain], 1, key=(0, 0)) for one in batch]
    assert [one.completions[0].text for one in drawn] == ["Grey."] * 2
    assert drawn[0].prompt == prompt and drawn[0].given == context.given
    assert len(server.asked) == 2 + wants_no_choice
    assert not {"tools", "tool_choice", "chat_template_kwargs"} & server.asked[-1].body.keys()


def test_without_the_column_the_fingerprint_differs(toy, thinking, write, tmp_path):
    """A run whose rows lose their tools or their reasoning is another run, offline and in rounds."""
    renderer = thinking
    rows = [{"prompt": f"q {i}", "chosen": [SAID], "rejected": "b", "tools": [TOOL]} for i in range(2)]
    less = [
        rows,
        [{**row, "tools": None} for row in rows],
        [row | {"chosen": [{"role": "assistant", "content": "Grey."}]} for row in rows],
    ]
    given = config(toy, tmp_path / "run", data={"train": "-", "max_length": 512})
    hashes = [units_hash(read_units(given, str(write(*some)), renderer)[0]) for some in less]
    assert len(set(hashes)) == 3
    ignoring = given.model_copy(update={"data": given.data.model_copy(update={"ignore": ("tools",)})})
    assert units_hash(read_units(ignoring, str(write(*rows)), renderer)[0]) == hashes[1]
    prompts = [{"prompt": row["prompt"], "tools": row["tools"]} for row in rows]
    rounds = in_rounds(toy, "-", tmp_path / "rounds", data=given.data.model_dump())
    with_tools, _ = read_contexts(rounds, str(write(*prompts)), renderer)
    without, _ = read_contexts(rounds, str(write(*[{"prompt": row["prompt"]} for row in prompts])), renderer)
    assert contexts_hash(with_tools) != contexts_hash(without)
    assert all(len(a.ids) > len(b.ids) for a, b in zip(with_tools, without, strict=True))


def test_a_run_from_before_the_setting_goes_on(toy, tmp_path):
    """Ignoring nothing is the setting of runs that did not know it; ignoring something is another one."""
    now = config(toy, tmp_path / "run").model_dump(mode="json")
    before = {**now, "data": {name: value for name, value in now["data"].items() if name != "ignore"}}
    assert same_settings(before) == same_settings(now)
    assert same_settings(config(toy, tmp_path / "run", data__ignore=["name"]).model_dump(mode="json")) != same_settings(
        now
    )


def test_rollouts_keep_what_their_prompts_hold():
    """A row of samples comes back as it was, keys and tools too, and pairs made of it have them."""
    prompt = tuple(map(Message.of, [ASK, CALLING | {"content": ""}, RESULT]))
    completions = (Completion("a", (1,), "end"), Completion("b", (2,), "end"))
    one = Rollout("r", prompt, completions, {"tools": [TOOL], "answer": 4}, "v")
    again = Rollout.from_row(json.loads(json.dumps(one.row())))
    assert again == one and again.given == Given.of({"tools": [TOOL]})
    (row,) = preference_rows([Kept(again, (0, 1), (1.0, 0.0))])
    assert row["prompt"] == [ASK, CALLING | {"content": ""}, RESULT] and row["tools"] == [TOOL]
    for wrong in ({"tools": [1]}, {"tools": "hammer"}):
        with pytest.raises(ValueError, match="'tools' is"):
            Rollout.from_row(one.row() | {"extra": wrong})


@pytest.mark.parametrize("command", ["train", "validate"])
def test_train_and_validate_refuse_a_model_with_such_a_template(toy, tmp_path, capfd, monkeypatch, command):
    """Both end with an input error that names the model, after one row and not after all of them."""
    monkeypatch.setattr(template_limits, "SECONDS", 0.2)
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "chat_template.jinja").write_text(LOOPS)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps(
            {
                "model": str(model),
                "output": str(tmp_path / "run"),
                "objective": {"kind": "dpo"},
                "data": {"train": toy["pairs"], "max_length": 64, "template": "chat"},
                "training": {"steps": 1, "batch_size": 2},
                "optimizer": {"lr": 1e-3},
            }
        )
    )
    started = time.process_time()
    assert main([command, str(recipe)]) == 2
    said = capfd.readouterr().err
    assert str(model) in said and "takes too much" in said and said.count("0.2 s of CPU") == 1
    assert time.process_time() - started < 20
