"""Trained parameters that get no gradient: told, the same in several processes as in one, and gone on with."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from humanline.system.files import DamagedError
from humanline.system.stop import StopRequested
from humanline.train.loop import train
from humanline.train.policy.errors import ModelError
from humanline.train.policy.spread import Whole
from humanline.train.run.state import OptimizerState, RandomState
from humanline.train.setup import set_up
from tests.helpers.support import config
from tests.train.run.test_distributed import job, two_processes

TRAINING = {"steps": 3, "batch_size": 6, "micro_batch_size": 3}


@pytest.fixture(scope="module")
def around(toy, tmp_path_factory):
    """A tiny Gemma 3n, which in training mode goes around two of its adapted layers."""
    folder, tokenizer = tmp_path_factory.mktemp("gemma3n"), AutoTokenizer.from_pretrained(toy["model"])
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    shape = {"hidden_size": 32, "intermediate_size": [48] * 2, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "laurel_rank": 4}
    shape |= {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"], "altup_num_inputs": 2}
    shape |= {"activation_sparsity_pattern": [0.0] * 2, "hidden_size_per_layer_input": 8}
    sizes = {"vocab_size": len(tokenizer), "vocab_size_per_layer_input": len(tokenizer)}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3n_text", **sizes, **shape, **ids)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return toy | {"model": str(folder)}


def adapted(around, output, **changes):
    return config(around, output, adapter={"rank": 2, "alpha": 4.0}, training=TRAINING, **changes)


def weights(output):
    return load_file(output / "final" / "adapter_model.safetensors")


def test_what_gets_no_gradient_is_told_and_draws_no_number(around, tmp_path, capsys):
    """Their names stand in the log; the look at them leaves random numbers and gradients as they were."""
    with set_up(adapted(around, tmp_path / "run")) as run:
        policy = run.trained.policy
        assert all(weight.grad is None for weight in policy.parameters())
    said = capsys.readouterr().err
    assert "tensors get no gradient in this model's pass in training mode and stay as they are: " in said
    assert "altup.correction_coefs.lora_A" in said
    from humanline.train.policy.reached import unreached

    before, state = policy.training, torch.get_rng_state()
    names = unreached(policy, list(range(3, 12)))
    assert names and all("altup.correction_coefs" in name for name in names) and policy.training is before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in policy.parameters())


def test_such_a_run_is_gone_on_with_to_the_same_bits(around, tmp_path):
    """Its optimizer has no state for them, which had been taken for a part that was lost."""
    whole, stopped = (adapted(around, tmp_path / name, checkpoint={"every": 1}) for name in ("whole", "stopped"))
    train(whole, show_progress=False)

    class AfterTwo:
        holding = True

        def hold(self) -> None: ...

        @property
        def requested(self):
            metrics = tmp_path / "stopped" / "metrics.jsonl"
            return "SIGTERM" if metrics.exists() and '"step": 1' in metrics.read_text() else None

    with pytest.raises(StopRequested):
        train(stopped, stop=AfterTwo(), show_progress=False)
    train(stopped, resume=True, show_progress=False)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_state_that_lost_a_parameter_is_still_refused():
    """What never had a state is named in it; what is neither there nor named is lost."""
    rows = {name: torch.nn.Parameter(torch.ones(2)) for name in ("one", "two", "three")}

    def made():
        optimizer = torch.optim.AdamW(rows.values())
        return OptimizerState(optimizer, rows, lambda _, tensor: tensor)

    state = made()
    for name in ("one", "two"):
        rows[name].grad = torch.ones(2)
    state.optimizer.step()
    kept = state.state()
    assert sum(name.endswith("/three") for name in kept) == 1
    made().load_state(kept)
    for lost in ("three", "two"):
        with pytest.raises(DamagedError, match="covers a part of the parameters only"):
            made().load_state({name: one for name, one in kept.items() if not name.endswith(f"/{lost}")})


@pytest.mark.slow
def test_two_processes_are_one(around, tmp_path, server):
    """Averaged gradients of the others: each process had gone on with its own, with exit code 0."""
    one, two = (adapted(around, tmp_path / name) for name in ("one", "two"))
    train(one, show_progress=False)
    two_processes(tmp_path, [job(two)], server=server)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all((first[name] - second[name]).abs().max() < 1e-6 for name in first)


class Forking(torch.nn.Module):
    """A pass that goes through a second layer or around it, as tokens may decide."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, row, through):
        return self.second(self.first(row)) if through else self.first(row)


class OfSeveral:
    """What a spread asks of an accelerator, with torch's own averaging, over a group of one process."""

    num_processes, ddp_handler = 2, None

    def prepare(self, policy):
        unused = self.ddp_handler is not None and self.ddp_handler.find_unused_parameters
        return torch.nn.parallel.DistributedDataParallel(policy, find_unused_parameters=unused)

    def unwrap_model(self, wrapped):
        return wrapped.module

    def no_sync(self, wrapped):
        return wrapped.no_sync()

    def clip_grad_norm_(self, parameters, limit):
        return torch.nn.utils.clip_grad_norm_(parameters, limit)


@pytest.fixture
def group():
    """A group of one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("passes", list(itertools.product((True, False), repeat=2)))
def test_a_gradient_that_does_not_travel_ends_the_run_of_several_processes(group, passes):
    """What the last pass of a step does not reach is not averaged, also where an earlier pass of the step did."""
    for unreached in (False, True):
        spread = Whole(Forking(), OfSeveral(), unreached=unreached)
        for number, through in enumerate(passes):
            with spread.accumulating(last=number == 1):
                spread.wrapped(torch.ones(1, 2), through).sum().backward()
        if unreached or passes[-1]:
            assert float(spread.clip(1.0)) > 0
        else:
            with pytest.raises(ModelError, match=r"not reached trained tensors .* in one process$"):
                spread.clip(1.0)


def test_one_process_alone_has_nobody_to_wait_for(toy, tmp_path):
    """It takes whatever gradients there are."""
    with set_up(config(toy, tmp_path / "run", training=TRAINING), show_progress=False) as run:
        assert float(run.trained.spread.clip(1.0)) == 0.0


def test_each_process_draws_dropout_of_its_own():
    """The first one as one process alone; the others had drawn the same masks."""
    drawn = []
    for rank in (0, 1, 2):
        torch.manual_seed(7)
        RandomState(torch.device("cpu"), 7).begin(rank)
        drawn.append(torch.rand(4).tolist())
    torch.manual_seed(7)
    assert drawn[0] == torch.rand(4).tolist() and len({tuple(one) for one in drawn}) == 3
