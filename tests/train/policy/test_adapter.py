"""LoRA under every schedule: equal to an oracle that copies adapters; saved alone, merged, refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from humanline.cli import main
from humanline.objectives import dpo_loss, token_log_ratio
from humanline.system.files import OutputError
from humanline.system.stop import StopRequested
from humanline.theory import ClipRange
from humanline.train.data.run_data import renderer_of, training_stream
from humanline.train.data.sets import read_sets
from humanline.train.loop import train
from humanline.train.policy import build
from humanline.train.policy.build import build_policy
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_policy
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.merge import merge
from humanline.train.policy.new_model import new_model
from humanline.train.preflight.workload import full_block
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.fingerprint import frozen_hash
from humanline.train.setup import set_up
from humanline.train.step.reference import BaseModel, LogprobsAhead, logprobs_pass
from tests.conftest import ROOT
from tests.helpers.cases import StopAt
from tests.helpers.cpu_flag import VARIABLE
from tests.helpers.support import CLIP, OBJECTIVES, SCHEDULES, config, run, same, steps, without_timing

LORA = {"rank": 4, "alpha": 8.0}
TRAINING = {"steps": 6, "batch_size": 8, "micro_batch_size": 4}

needs_bitsandbytes = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason="bitsandbytes (extra low-memory) is not installed"
)


def believing(believed: str, *command: str) -> subprocess.CompletedProcess:
    """Run a module of Python in a process whose bitsandbytes believes in AVX512-BF16, or does not."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, VARIABLE: believed}
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600
    )


def adapter_weights(result) -> dict[str, torch.Tensor]:
    return load_file(result.model / "adapter_model.safetensors")


@pytest.mark.parametrize("k", [1, 4])
def test_scoring_ahead_equals_a_copied_adapter(toy, tmp_path, k):
    """A plain loop with two peft adapters, one copied before every k-th update, ends with the same bits as the run."""
    rate, settings = 3e-3, {"adapter": LORA, "training": TRAINING, "transform": CLIP}
    schedule = {"schedule": {"kind": "before_step", "every": k}}
    start = run(toy, tmp_path / "start", optimizer__lr=0.0, **settings)  # its adapter is the one every run begins with
    wanted = config(toy, tmp_path / "run", reference=schedule, optimizer__lr=rate, **settings)
    result = train(wanted, show_progress=False)

    from peft import PeftModel

    model, tokenizer = load_policy(toy["model"], dropout=False, max_length=64)
    two = PeftModel.from_pretrained(model, start.model, adapter_name="policy", is_trainable=True)
    two.load_adapter(start.model, adapter_name="reference")
    policy, clip = LogprobModel(two.get_base_model()), ClipRange(CLIP["log_eps_low"], CLIP["log_eps_high"])
    trained = {n: p for n, p in policy.named_parameters() if ".policy." in n}
    copied = {n: p for n, p in policy.named_parameters() if ".reference." in n}
    assert trained.keys() == {name.replace(".reference.", ".policy.") for name in copied}
    optimizer = torch.optim.AdamW(trained.values(), lr=rate, weight_decay=0.0, fused=True)
    renderer = renderer_of(wanted, tokenizer)
    stream = training_stream(wanted, read_sets(wanted, renderer).train, renderer)
    losses = []
    for step in range(TRAINING["steps"]):
        total = 0.0
        batch = stream.step(step)
        for micro in batch.micro_batches:
            two.set_adapter("reference")
            with torch.no_grad():
                ref = policy.eval()(*micro.block.inputs)
            two.set_adapter("policy")
            log_ratio = clip.clip(token_log_ratio(policy.train()(*micro.block.inputs), ref, micro.block.mask))
            half, mask = len(micro.units), micro.block.mask
            loss, _ = dpo_loss(
                log_ratio[:half],
                log_ratio[half:],
                chosen_mask=mask[:half],
                rejected_mask=mask[half:],
                beta=0.5,
                denominator=batch.total_units,
            )
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        if step % k == 0:
            with torch.no_grad():
                for name, tensor in copied.items():
                    tensor.copy_(trained[name.replace(".reference.", ".policy.")])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    assert [row["loss"] for row in steps(result)] == pytest.approx(losses, abs=1e-7)
    mine = {name.replace(".policy.", ".").removeprefix("model."): tensor for name, tensor in trained.items()}
    theirs = {name.removeprefix("base_model.model."): t for name, t in adapter_weights(result).items()}
    assert same(theirs, mine)
    assert not same(theirs, {n.removeprefix("base_model.model."): t for n, t in adapter_weights(start).items()})


SOME = {("dpo", "before_1"), ("dpo", "never"), ("kto", "before_3"), ("grpo", "round_4")}


@pytest.mark.parametrize(
    "objective,schedule",
    [pytest.param(*one, marks=() if one in SOME else pytest.mark.slow) for one in product(OBJECTIVES, SCHEDULES)],
)
def test_every_schedule_equals_a_second_adapter(toy, tmp_path, objective, schedule):
    """For all objectives and schedules nothing but the adapter is kept, and the results equal a second adapter's."""
    results = [
        run(
            toy,
            tmp_path / storage,
            objective,
            adapter=LORA,
            training=TRAINING,
            transform=CLIP,
            reference={
                "schedule": SCHEDULES[schedule],
                "storage": storage,
                "baseline": "initial" if objective == "grpo" and schedule != "never" else "reference",
            },
        )
        for storage in ("score_ahead", "model")
    ]
    assert same(*map(adapter_weights, results))
    assert without_timing(steps(results[0])) == without_timing(steps(results[1]))


def test_the_base_model_is_the_initial_policy(toy, tmp_path):
    """Under an adapter `never` and the initial baseline keep nothing: the base scores, and no window is made."""
    both = {"schedule": {"kind": "before_step", "every": 2}, "baseline": "initial"}
    with set_up(config(toy, tmp_path / "both", "grpo", adapter=LORA, reference=both), show_progress=False) as ready:
        assert [type(one) for one in ready.references] == [LogprobsAhead, BaseModel]
    with set_up(config(toy, tmp_path / "never", adapter=LORA), show_progress=False) as ready:
        assert [type(one) for one in ready.references] == [BaseModel]


def test_a_second_adapter_is_all_that_storage_model_keeps(toy, tmp_path):
    """With `storage: model` the copy holds the adapter's weights and not one of the base."""
    with set_up(config(toy, tmp_path, adapter=LORA, reference={"storage": "model"}), show_progress=False) as ready:
        (second,) = ready.references
        trained = [tensor for tensor in ready.trained.policy.parameters() if tensor.requires_grad]
        assert sum(t.numel() for t in second.copy.values()) == sum(t.numel() for t in trained)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_log_ratios_are_zero_at_rate_zero_with_dropout(toy, tmp_path, precision):
    """At learning rate 0 every log-ratio is exactly 0, with dropout of the adapter configured too."""
    result = run(
        toy,
        tmp_path / "run",
        adapter=LORA | {"dropout": 0.3},
        training=TRAINING | {"precision": precision, "dropout": True},
        optimizer__lr=0.0,
        reference={"schedule": {"kind": "before_step", "every": 1}},
    )
    assert [row["log_ratio_rms"] for row in steps(result)] == [0.0] * TRAINING["steps"]


def test_dropout_acts_in_training_and_not_in_scoring(toy, tmp_path):
    """Dropout of the adapter changes what is learned, and scoring twice gives the same bits."""
    plain, dropped = (
        run(toy, tmp_path / str(rate), adapter=LORA | {"dropout": rate}, training=TRAINING) for rate in (0.0, 0.3)
    )
    assert not same(adapter_weights(plain), adapter_weights(dropped))


def learned(toy, **changes):
    """A policy whose adapter changes what it computes (at the start it adds nothing), and the adapter."""
    policy, adapter = build_policy(config(toy, Path("unused"), **changes))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy, adapter


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_scoring_drops_nothing_of_an_adapter_that_adds_something(toy, precision):
    """Scoring in the midst of training is that of an adapter without dropout, bit for bit, where training is not."""
    block = full_block(3, 20)
    block = replace(block, input_ids=torch.arange(60).view(3, 20) + 30)
    found = {}
    for rate in (0.0, 0.5):
        policy, _ = learned(toy, adapter=LORA | {"dropout": rate}, training=TRAINING | {"precision": precision})
        policy.train()
        found[rate] = [logprobs_pass(policy)(block) for _ in range(2)]
        dropped = policy(*block.inputs).detach()
        assert policy.training and torch.equal(dropped, found[rate][0]) is (rate == 0.0)
    assert all(torch.equal(found[0.0][0], other) for other in [*found[0.0], *found[0.5]])


@pytest.mark.parametrize("frozen", [False, True])
def test_an_adapter_is_off_for_as_long_as_it_should_be(toy, frozen):
    """Off, also within off, the model is its base bit for bit; then, or after an error, all is as it was before."""
    policy, adapter = learned(toy, adapter=LORA)
    base = LogprobModel(load_policy(toy["model"], dropout=False, max_length=64)[0])
    if frozen:
        adapter.parameters()[0].requires_grad_(False)
    ids, mask = torch.arange(20)[None] + 30, torch.ones((1, 19), dtype=torch.bool)
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    before, expected = policy(ids, mask), base(ids, mask)
    assert not torch.equal(before, expected)
    with pytest.raises(ZeroDivisionError), adapter.off():
        with adapter.off():
            assert torch.equal(policy(ids, mask), expected)
        assert torch.equal(policy(ids, mask), expected)
        1 / 0  # noqa: B018
    assert torch.equal(policy(ids, mask), before)
    assert [name for name, parameter in policy.named_parameters() if parameter.requires_grad] == trained


def test_activation_checkpointing_repeats_the_dropout(toy, tmp_path):
    """Activations computed again see the same dropout: the run's bits are those without checkpointing."""
    kept, again = (
        run(
            toy,
            tmp_path / str(on),
            adapter=LORA | {"dropout": 0.3},
            training=TRAINING | {"activation_checkpointing": on},
        )
        for on in (False, True)
    )
    assert same(adapter_weights(kept), adapter_weights(again))


def test_the_merged_model_computes_what_the_adapter_did(toy, tmp_path, capsys):
    """`humanline merge` writes a whole model whose log-probabilities equal those of base and adapter together."""
    result = run(toy, tmp_path / "run", adapter=LORA, training=TRAINING, optimizer__lr=3e-2)
    assert sorted(p.name for p in result.model.glob("*.safetensors")) == ["adapter_model.safetensors"]
    assert main(["merge", str(result.model), str(tmp_path / "whole")]) == 0
    assert str(tmp_path / "whole") in capsys.readouterr().out

    from peft import PeftModel

    model, tokenizer = load_policy(toy["model"], dropout=False, max_length=64)
    ids = torch.tensor([tokenizer.encode("3 hgfedcba")])
    mask = torch.ones((1, ids.shape[1] - 1), dtype=torch.bool)
    with torch.no_grad():
        before = LogprobModel(model)(ids, mask)
        adapted = LogprobModel(PeftModel.from_pretrained(model, result.model).get_base_model())(ids, mask)
        merged = LogprobModel(load_policy(str(tmp_path / "whole"), dropout=False, max_length=64)[0])(ids, mask)
    # One rounding of each weight and another order of sums: a few float32 ulps of logits of order 1.
    torch.testing.assert_close(merged, adapted, rtol=0, atol=2e-6)
    assert (merged - before).abs().max() > 1e-3


def test_a_merged_model_can_be_trained_on_and_an_adapter_says_so(toy, tmp_path):
    """A run that is given an adapter's folder for a model names the command that makes a model of it."""
    result = run(toy, tmp_path / "run", adapter=LORA, training__steps=1)
    with pytest.raises(ModelError, match=r"is an adapter of .*humanline merge"):
        run(toy | {"model": str(result.model)}, tmp_path / "next")
    merge(str(result.model), str(tmp_path / "whole"))
    run(toy | {"model": str(tmp_path / "whole")}, tmp_path / "next", training__steps=1)


def test_merging_rounds_once_to_the_type_of_the_base(toy, tmp_path):
    """Over a bf16 base every merged weight is (W + alpha / rank B A), summed in float32 and rounded once to bf16."""
    base, _ = load_policy(toy["model"], dropout=False, max_length=64)
    base.to(torch.bfloat16).save_pretrained(tmp_path / "base")
    shutil.copytree(
        toy["model"],
        tmp_path / "base",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("*.safetensors", "config.json"),
    )
    mine = toy | {"model": str(tmp_path / "base")}
    result = run(mine, tmp_path / "run", adapter={"rank": 4, "alpha": 12.0}, training__steps=3, optimizer__lr=3e-2)
    merge(str(result.model), str(tmp_path / "whole"))
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "whole"))
    parts = {name.removeprefix("base_model.model."): tensor for name, tensor in adapter_weights(result).items()}
    changed = 0
    for name, weight in before.items():
        stem = name.removesuffix(".weight")
        if f"{stem}.lora_A.weight" in parts:
            added = 3.0 * parts[f"{stem}.lora_B.weight"] @ parts[f"{stem}.lora_A.weight"]
            expected = (weight.float() + added).to(torch.bfloat16)
            changed += 1
        else:
            expected = weight
        assert after[name].dtype == torch.bfloat16
        # The library's sum may differ in its last float32 bit, which can tip a rounding: one bf16 step at most.
        torch.testing.assert_close(after[name].float(), expected.float(), rtol=2**-7, atol=1e-9)
    assert changed == 14


OTHERWISE = {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "rms_norm_eps": 1e-3}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_base_that_computes_something_else_is_not_merged(toy, tmp_path, name):
    """A base with the same tensors but other settings is refused, unless the adapter does not say what its base was."""
    result = run(toy, tmp_path / "run", adapter=LORA, training__steps=1)
    other = tmp_path / "other"
    shutil.copytree(toy["model"], other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(settings | {name: OTHERWISE[name]}))
    with pytest.raises(ModelError, match=r"trained on a model with other settings .* remove base_settings\.json"):
        merge(str(result.model), str(tmp_path / "whole"), base=str(other))
    assert not (tmp_path / "whole").exists()
    (result.model / "base_settings.json").write_text("[]")
    with pytest.raises(ModelError, match=r"base_settings\.json cannot be read"):
        merge(str(result.model), str(tmp_path / "whole"), base=str(other))
    (result.model / "base_settings.json").unlink()
    merge(str(result.model), str(tmp_path / "whole"), base=str(other))


def test_a_base_with_other_weights_is_not_merged(toy, tmp_path):
    """Of the same shapes and settings: what was trained on it would be added to another model."""
    base = tmp_path / "base"
    shutil.copytree(toy["model"], base)
    result = run(toy | {"model": str(base)}, tmp_path / "run", adapter=LORA, training__steps=1)
    merge(str(result.model), str(tmp_path / "same"), base=toy["model"])  # which it is a copy of
    tensors = load_file(base / "model.safetensors")
    save_file({name: 1.5 * one for name, one in tensors.items()}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"was trained on other weights than those in .*base"):
        merge(str(result.model), str(tmp_path / "whole"))
    assert not (tmp_path / "whole").exists()
    (result.model / "base_settings.json").unlink()
    merge(str(result.model), str(tmp_path / "whole"))


def test_a_merged_model_has_the_template_that_it_was_trained_with(toy, tmp_path):
    """That beside the adapter, whatever the base's has become, or another copy of it has."""
    base = tmp_path / "base"
    shutil.copytree(toy["model"], base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template.replace("{{ bos_token }}", "") + "{# mine #}"
    tokenizer.save_pretrained(base)
    result = run(toy | {"model": str(base)}, tmp_path / "run", adapter=LORA, training__steps=1)
    merge(str(result.model), str(tmp_path / "whole"), base=toy["model"])
    assert AutoTokenizer.from_pretrained(tmp_path / "whole").chat_template == tokenizer.chat_template


HOW = {
    "bf16": {"training__precision": "bf16"},
    "packed": {"training__padding": "free"},
    "checkpointing": {"training__activation_checkpointing": True},
    "nf4": {"adapter": LORA | {"base": "nf4"}},
}


@pytest.mark.parametrize("how", HOW)
def test_how_a_base_was_kept_does_not_matter_to_merging(toy, tmp_path, recwarn, how):
    """What the frozen weights were kept in, and how passes were made, is no setting of the base; nor is its name."""
    if how == "nf4":
        pytest.importorskip("bitsandbytes")
    result = run(toy, tmp_path / "run", **{"adapter": LORA, "training__steps": 1} | HOW[how])
    base = tmp_path / "moved"
    shutil.copytree(toy["model"], base)
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | {"transformers_version": "5.0.0", "dtype": "bfloat16"}))
    merge(str(result.model), str(tmp_path / "whole"), base=str(base))
    assert not [str(one.message) for one in recwarn if "keyword" in str(one.message)]  # peft knows every setting


def test_merge_refuses_what_it_cannot_merge(toy, tmp_path):
    """No adapter, a base that is gone, another base, an output in use: each is named, and nothing is written."""
    result = run(toy, tmp_path / "run", adapter=LORA, training__steps=1)
    whole = tmp_path / "whole"
    with pytest.raises(ModelError, match="holds no adapter"):
        merge(toy["model"], str(whole))
    moved = tmp_path / "moved"
    shutil.copytree(result.model, moved)
    settings = json.loads((moved / "adapter_config.json").read_text())
    (moved / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "gone"}))
    with pytest.raises(ModelError, match=r"'gone': no config.json"):
        merge(str(moved), str(whole))
    merge(str(moved), str(tmp_path / "named"), base=toy["model"])
    tensors = load_file(moved / "adapter_model.safetensors")
    save_file(
        {name.replace("self_attn", "attn"): t for name, t in tensors.items()}, moved / "adapter_model.safetensors"
    )
    with pytest.raises(ModelError, match=r"does not fit the model .*: 16 of its tensors have no place there"):
        merge(str(moved), str(whole), base=toy["model"])
    with pytest.raises(ModelError, match=r"holds no adapter: .*did you mean '.*/run/final'"):
        merge(str(tmp_path / "run"), str(whole))
    (moved / "adapter_model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ModelError, match=r"adapter .* cannot be loaded"):
        merge(str(moved), str(whole), base=toy["model"])
    (moved / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        merge(str(moved), str(whole))
    assert not whole.exists()
    whole.mkdir()
    (whole / "mine").touch()
    with pytest.raises(OutputError, match="not an empty folder"):
        merge(str(result.model), str(whole))
    assert [p.name for p in whole.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "targets,message",
    [
        (["q_porj"], "q_porj: no such linear layer in LlamaForCausalLM; did you mean q_proj"),
        (["v_proj", "lm_head"], "lm_head: the output head and the embedding cannot have an adapter"),
        (["embed_tokens"], "embed_tokens: the output head and the embedding"),
        (["model.layers"], "model.layers: no such linear layer"),
    ],
)
def test_unknown_targets_are_refused_before_weights_are_read(toy, tmp_path, monkeypatch, targets, message):
    """A target that is no linear layer, or the head, is an error that names the nearest, before loading."""
    monkeypatch.setattr(build, "load_weights", lambda *a, **k: pytest.fail("the weights were read"))
    with pytest.raises(ModelError, match=message):
        run(toy, tmp_path / "run", adapter=LORA | {"targets": targets})
    assert not (tmp_path / "run").exists()


def test_targets_choose_the_layers(toy, tmp_path):
    """Only the named layers get additions; their names are written in order, not in that of a set."""
    result = run(toy, tmp_path / "run", adapter=LORA | {"targets": ["q_proj", "1.mlp.down_proj"]}, training__steps=1)
    layers = {name.split(".lora_")[0].partition("layers.")[2] for name in adapter_weights(result)}
    assert layers == {"0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.down_proj"}
    names = json.loads((result.model / "adapter_config.json").read_text(encoding="utf-8"))["target_modules"]
    assert len(names) == 3 and names == sorted(names)


def test_a_stopped_run_goes_on_to_the_same_bits(toy, tmp_path):
    """Stopped at every third safe point and resumed, a run with an adapter and dropout ends with the same bits."""
    settings = {"adapter": LORA | {"dropout": 0.2}, "training": TRAINING, "transform": CLIP}
    reference = {"schedule": SCHEDULES["before_3"]}
    count = StopAt(10**9)
    result = train(config(toy, tmp_path / "whole", reference=reference, **settings), stop=count, show_progress=False)
    whole = adapter_weights(result)
    assert count.asked > 8
    for number in range(1, count.asked, 4):
        stopped = config(toy, tmp_path / f"stop-{number}", reference=reference, **settings)
        with pytest.raises(StopRequested):
            train(stopped, stop=StopAt(number), show_progress=False)
        result = train(stopped, resume=True, show_progress=False)
        assert same(adapter_weights(result), whole)
        saved = next((tmp_path / f"stop-{number}").glob("checkpoints/*/policy-0.safetensors"))
        assert all("lora" in name for name in load_file(saved))


@pytest.mark.slow
def test_every_process_writes_the_same_files_of_an_adapter(toy, tmp_path):
    """Whatever order Python's sets have in a process, the bytes of a saved adapter, its manifest too, are the same."""
    code = (
        "import sys; from humanline.train import load_config, train\n"
        "train(load_config(sys.argv[1], [f'output={sys.argv[2]}']), show_progress=False)"
    )
    recipe = tmp_path / "recipe.yaml"
    whole = config(toy, tmp_path / "unused", adapter=LORA, training={"steps": 1, "batch_size": 4})
    recipe.write_text(whole.model_dump_json(), encoding="utf-8")
    found = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        output = tmp_path / seed
        subprocess.run([sys.executable, "-c", code, recipe, output], cwd=ROOT, env=environment, check=True, timeout=600)
        found.append({path.name: path.read_bytes() for path in (output / "final").iterdir()})
    names = json.loads(found[0]["adapter_config.json"])["target_modules"]
    assert len(names) == len(set(names)) == 14 and "manifest.json" in found[0]
    assert [name for name, text in found[0].items() if text != found[1][name]] == []


def test_another_base_is_not_resumed(toy, tmp_path):
    """A run whose frozen weights have changed in their file since the checkpoint is refused with what differs."""
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    mine = toy | {"model": str(model)}
    stopped = config(mine, tmp_path / "run", adapter=LORA, training=TRAINING)
    with pytest.raises(StopRequested):
        train(stopped, stop=StopAt(3), show_progress=False)
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][0] += 2**-20
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="frozen weights"):
        train(stopped, resume=True, show_progress=False)


@needs_bitsandbytes
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_qlora_scores_ahead_as_a_second_adapter_does(toy, tmp_path, precision):
    """Over a base kept in 4 bits scoring ahead equals a second adapter bit for bit, and at rate 0 nothing moves."""
    settings = {"adapter": LORA | {"base": "nf4"}, "training": TRAINING | {"precision": precision}}
    references = {
        storage: {"schedule": {"kind": "before_step", "every": 2}, "storage": storage}
        for storage in ("score_ahead", "model")
    }
    results = [run(toy, tmp_path / name, reference=one, **settings) for name, one in references.items()]
    assert same(*map(adapter_weights, results))
    still = run(toy, tmp_path / "still", reference=references["score_ahead"], optimizer__lr=0.0, **settings)
    assert [row["log_ratio_rms"] for row in steps(still)] == [0.0] * TRAINING["steps"]


@needs_bitsandbytes
def test_qlora_keeps_linear_layers_in_four_bits(toy):
    """Under `base: nf4` linear layers are 4-bit, the adapter float32, and only the adapter is trained."""
    policy, _ = build_policy(config(toy, Path("unused"), adapter=LORA | {"base": "nf4"}))
    layer = policy.model.model.layers[0].self_attn.q_proj
    assert layer.base_layer.weight.dtype == torch.uint8
    assert {p.dtype for n, p in policy.named_parameters() if p.requires_grad} == {torch.float32}
    assert all("lora_" in name for name, p in policy.named_parameters() if p.requires_grad)


@needs_bitsandbytes
@pytest.mark.parametrize("precision,compute", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_layers_in_four_bits_compute_in_the_precision_of_the_run(toy, precision, compute):
    """The compute type of nf4 reaches every linear layer, and what is not in 4 bits is kept in that type too."""
    given = config(toy, Path("unused"), adapter=LORA | {"base": "nf4"}, training=TRAINING | {"precision": precision})
    policy, _ = build_policy(given)
    layers = [module.base_layer for module in policy.modules() if hasattr(module, "lora_A") and module.lora_A]
    assert len(layers) == 14 and {layer.compute_dtype for layer in layers} == {compute}
    assert policy.model.get_input_embeddings().weight.dtype == compute


def dequantised(policy, path: str) -> torch.nn.Module:
    """Give the model that a 4-bit one stands for, in float64: its linear layers hold what the codes mean."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).requires_grad_(False)
    weights = dict(plain.named_parameters())
    for name, module in policy.model.named_modules():
        if isinstance(module, Linear4bit):
            kept = dequantize_4bit(module.weight.data, module.weight.quant_state)
            weights[name.removesuffix(".base_layer") + ".weight"].copy_(kept)
    return plain.double()


@needs_bitsandbytes
@pytest.mark.parametrize("believed", [True, False])
@pytest.mark.parametrize("width", [48, 192])
def test_four_bits_keep_their_gradients_after_scoring(toy, tmp_path, monkeypatch, believed, width):
    """Whatever the CPU, log-ratios at rate 0 are 0, and gradients after scoring those through the dequantised base.

    On one with AVX512-BF16 bitsandbytes would lay out layers anew that are 192 and 512 wide, and fail at those that are
    48 wide. Not every CPU could compute with the result, so that trying it is an error here.
    """
    from bitsandbytes.nn import modules

    monkeypatch.setattr(modules, "has_avx512bf16", lambda: believed)
    monkeypatch.setattr(modules, "_convert_weight_packed_for_cpu", lambda *_: pytest.fail("laid out anew"))
    model = str(new_model(tmp_path / "model", text=toy["pairs"], vocab_size=320, hidden_size=width))
    settings = {"adapter": LORA | {"base": "nf4"}, "training": TRAINING | {"steps": 2}}
    reference = {"schedule": {"kind": "before_step", "every": 1}}
    mine = toy | {"model": model}
    still = run(mine, tmp_path / "still", optimizer__lr=0.0, reference=reference, **settings)
    assert [row["log_ratio_rms"] for row in steps(still)] == [0.0, 0.0]

    policy, adapter = learned(mine, **settings)
    block = replace(full_block(2, 12), input_ids=torch.arange(24).view(2, 12) + 30)
    ids, weighted = block.input_ids, torch.linspace(-1, 1, 22).view(2, 11) / 22  # a mean, as losses are
    found = logprobs_pass(policy)(block)
    with adapter.off():
        logprobs_pass(policy)(block)
    policy.model.eval().generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
    trained = {name.removeprefix("model."): p for name, p in policy.named_parameters() if p.requires_grad}
    logprobs = policy.train()(*block.inputs)
    assert torch.equal(logprobs, found)
    (logprobs * weighted).sum().backward()

    plain = dequantised(policy, model)
    copies = {name: p.detach().double().requires_grad_() for name, p in trained.items()}
    weights = dict(plain.named_parameters())
    for name in [name for name in copies if ".lora_A." in name]:
        layer = f"{name.partition('.lora_A.')[0]}.weight"
        weights[layer] = weights[layer] + 2.0 * copies[name.replace("lora_A", "lora_B")] @ copies[name]
    logits = torch.func.functional_call(plain, weights, (ids,)).logits[:, :-1]
    expected = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    (expected * weighted).sum().backward()
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)
    for name, copy in copies.items():
        assert copy.grad.abs().max() > 1e-4
        torch.testing.assert_close(trained[name].grad.double(), copy.grad, rtol=0, atol=1e-6)


@needs_bitsandbytes
@pytest.mark.slow
@pytest.mark.parametrize("believed", ["0", "1"])
def test_qlora_is_the_same_on_every_cpu(believed):
    """All tests of layers in 4 bits pass where bitsandbytes believes in AVX512-BF16 and where it does not."""
    chosen = ["-m", "not slow", "-k", "(qlora or four_bits or nf4) and not cpu", "tests/train/policy/test_adapter.py"]
    result = believing(believed, "pytest", "-q", "-p", "tests.helpers.cpu_flag", "-p", "no:cacheprovider", *chosen)
    assert result.returncode == 0, result.stdout[-4000:]


@needs_bitsandbytes
def test_layers_that_lose_their_gradient_are_refused(toy, monkeypatch):
    """A version of bitsandbytes whose 4-bit layers have no gradient after a scoring pass is not trained with."""
    from bitsandbytes.nn import Linear4bit

    whole = Linear4bit.forward
    monkeypatch.setattr(Linear4bit, "forward", lambda self, x: whole(self, x).detach())
    with pytest.raises(ModelError, match="no gradient after a scoring pass"):
        build_policy(config(toy, Path("unused"), adapter=LORA | {"base": "nf4"}))


def test_settings_reach_the_adapter(toy):
    """Rank, alpha and dropout arrive in every adapted layer."""
    policy, _ = build_policy(config(toy, Path("unused"), adapter={"rank": 3, "alpha": 12.0, "dropout": 0.3}))
    layers = [module for module in policy.modules() if hasattr(module, "lora_A") and module.lora_A]
    assert len(layers) == 14
    assert {(m.r["default"], m.scaling["default"], m.lora_dropout["default"].p) for m in layers} == {(3, 4.0, 0.3)}


def test_frozen_weights_are_told_apart():
    """The fingerprint of frozen weights sees one bit, an order and an odd byte, wherever a tensor begins."""
    values = torch.randn(17, dtype=torch.bfloat16)
    module = torch.nn.Module()

    def fingerprint(tensor):
        module.weight = torch.nn.Parameter(tensor, requires_grad=False)
        return frozen_hash(module)

    changed = values.clone()
    changed[-1] += 1
    assert len({fingerprint(t) for t in (values, values.flip(0), changed)}) == 3
    assert fingerprint(values[1:9]) == fingerprint(values[1:9].clone())


def test_a_bf16_base_is_half_as_large(toy):
    """In bf16 the frozen weights are bf16 unless told otherwise, and the adapter stays float32."""
    for base, kept in ((None, torch.bfloat16), ("float32", torch.float32)):
        training = TRAINING | {"precision": "bf16"}
        policy, _ = build_policy(config(toy, Path("unused"), adapter=LORA | {"base": base}, training=training))
        assert {p.dtype for p in policy.parameters() if not p.requires_grad} == {kept}
        assert {p.dtype for p in policy.parameters() if p.requires_grad} == {torch.float32}


def test_the_tokenizer_travels_with_the_adapter(toy, tmp_path):
    """The adapter's folder holds the tokenizer, and its settings name the base."""
    result = run(toy, tmp_path / "run", adapter=LORA, training__steps=1)
    settings = json.loads((result.model / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == toy["model"]
    assert (result.model / "tokenizer.json").is_file()
    assert not (result.model / "model.safetensors").exists()
