"""Models of which each process holds its rows, as they are saved: the files of a model that is whole."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from humanline.system import disk
from humanline.system.files import flush
from humanline.system.folders import MANIFEST
from humanline.train.online.samplers.proof import Text
from humanline.train.online.samplers.prover import said_of
from humanline.train.policy import save
from humanline.train.policy.build import build_policy, build_sharded_policy
from humanline.train.policy.load import load_tokenizer
from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.save import save_model, save_together
from humanline.train.run.fingerprint import trained_hash
from humanline.train.run.processes import alone, leave_processes
from humanline.train.run.shares import is_shard, share_of
from tests.helpers.support import config

LORA = {"rank": 4, "alpha": 8.0}


@pytest.fixture
def one_process():
    """Leave the group of one that a sharded policy makes."""
    yield
    leave_processes()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["tied", "untied", "lora"])
def test_the_files_are_those_of_a_whole_model(toy, tmp_path, monkeypatch, one_process, kind):
    """Byte for byte, in one file and in several; transformers reads the same weights back."""
    tokenizer = load_tokenizer(toy["model"])
    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=64, seed=3)
    if kind == "untied":
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    else:
        assert model.lm_head.weight is model.model.embed_tokens.weight
    save_model(tmp_path / "start", model, tokenizer)
    one = config(toy, tmp_path, model=str(tmp_path / "start"), adapter=LORA if kind == "lora" else None)
    torch.manual_seed(0)
    plain, whole_adapter = build_policy(one)
    torch.manual_seed(0)
    sharded, adapter = build_sharded_policy(one, torch.device("cpu"))
    with torch.no_grad():  # as training does, past the files
        for ours, theirs in zip(plain.parameters(), sharded.parameters(), strict=True):
            ours.add_(0.5)
            share_of(theirs).rows.add_(0.5)
    processes = alone(torch.device("cpu"))
    for limit in (save.FILE_BYTES, 20_000):
        monkeypatch.setattr(save, "FILE_BYTES", limit)
        wanted, found = tmp_path / f"wanted-{limit}", tmp_path / f"found-{limit}"
        save_model(wanted, whole_adapter or plain.model, tokenizer)
        save_together(found, adapter or sharded.model, tokenizer, processes)
        assert files(found) == files(wanted)
        several = [name for name in files(found) if name.startswith("model-")]
        assert len(several) > 2 or limit > 20_000 or kind == "lora"
        assert MANIFEST in files(found)
        if kind != "lora":
            again = AutoModelForCausalLM.from_pretrained(found)
            for name, weight in again.state_dict().items():
                assert torch.equal(weight, plain.model.state_dict()[name])


def test_outside_training_a_policy_is_whole(toy, tmp_path):
    """Whatever training.sharding says: one process reads all of it, and no group is made."""
    policy, _ = build_policy(config(toy, tmp_path, training__sharding="full"))
    assert not any(map(is_shard, policy.parameters())) and not torch.distributed.is_initialized()
    wanted = load_file(Path(toy["model"]) / "model.safetensors")
    assert all(torch.equal(policy.model.state_dict()[name], weight) for name, weight in wanted.items())


def test_a_disk_that_fails_leaves_nothing(toy, tmp_path, monkeypatch, one_process):
    """At the second of several files, or at the seal."""
    policy, _ = build_sharded_policy(config(toy, tmp_path), torch.device("cpu"))
    processes, tokenizer = alone(torch.device("cpu")), load_tokenizer(toy["model"])
    monkeypatch.setattr(save, "FILE_BYTES", 20_000)
    for part, call in (("flush", 2), ("seal_folder", 1)):
        calls, inner = [], getattr(save, part)

        def fails(path, calls=calls, inner=inner, call=call, **how):
            calls.append(path)
            if len(calls) == call:
                raise OSError(errno.ENOSPC, "No space left on device")
            inner(path, **how)

        with monkeypatch.context() as broken, pytest.raises(OSError, match="No space left"):
            broken.setattr(save, part, fails)
            save_together(tmp_path / "model", policy.model, tokenizer, processes)
        assert len(calls) == call and not list(tmp_path.glob("*model*")) and not list(tmp_path.glob(".model*"))
    save_together(tmp_path / "model", policy.model, tokenizer, processes)
    assert (tmp_path / "model" / MANIFEST).is_file()


def test_a_full_disk_is_waited_for(toy, tmp_path, monkeypatch, one_process):
    """Under training.disk_full: wait the file that found no space is written again, and the others once."""
    policy, _ = build_sharded_policy(config(toy, tmp_path), torch.device("cpu"))
    tokenizer, calls = load_tokenizer(toy["model"]), []
    monkeypatch.setattr(save, "FILE_BYTES", 20_000)
    monkeypatch.setattr(disk, "LOOK_AGAIN", 0.01)
    save_model(tmp_path / "wanted", policy_of(toy), tokenizer)

    def fails_twice(path):
        calls.append(path.name)
        if len(calls) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(path)

    monkeypatch.setattr(save, "flush", fails_twice)
    with disk.of_run("wait", None):
        save_together(tmp_path / "model", policy.model, tokenizer, alone(torch.device("cpu")))
    assert files(tmp_path / "model") == files(tmp_path / "wanted")
    assert [calls.count(name) for name in sorted(set(calls))] == [1, 3, 1]


def policy_of(toy):
    return AutoModelForCausalLM.from_pretrained(toy["model"], dtype=torch.float32)


@pytest.mark.parametrize("tied", [True, False])
def test_the_proof_reads_the_same_of_shards(toy, tmp_path, one_process, tied):
    """Log-probabilities at temperature 1, as the weights are and rounded to bf16, to the last bit; shards come back."""
    model = policy_of(toy)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) / 7)
    save_model(tmp_path / "start", model, load_tokenizer(toy["model"]))
    given = config(toy, tmp_path, model=str(tmp_path / "start"), training__temperature=0.7)
    plain, _ = build_policy(given)
    sharded, _ = build_sharded_policy(given, torch.device("cpu"))
    texts = {"a": Text(tuple(range(3, 30)), 4), "b": Text(tuple(range(9, 20)), 1)}
    wanted, found = said_of(plain, texts, exact=True), said_of(sharded, texts, exact=True)
    ids = torch.tensor([texts["a"].ids])
    with torch.no_grad():
        own = torch.log_softmax(plain.model(ids).logits[0, 3:-1].double(), -1).gather(1, ids[0, 4:, None]).squeeze(1)
    assert abs(wanted.policy["a"] - own.numpy()).max() < 1e-5
    for name in texts:
        assert np.array_equal(wanted.policy[name], found.policy[name])
        assert np.array_equal(wanted.rounded[name], found.rounded[name])
        assert not np.array_equal(found.policy[name], found.rounded[name])
    assert all(map(is_shard, sharded.parameters()))
    assert trained_hash(sharded, lambda value, how: value) == trained_hash(plain)
