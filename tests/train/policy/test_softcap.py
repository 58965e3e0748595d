"""Gemma 2's soft cap on attention's logits is computed wherever the model runs, or the model is refused there."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import transformers
from transformers.models.gemma2 import modeling_gemma2

from humanline.train.config.rounds import SamplingConfig
from humanline.train.online.samplers.continuous import ContinuousSampler
from humanline.train.online.samplers.generate import sampling_mode
from humanline.train.policy.attention import attention_softcap_of, usual_attention
from humanline.train.policy.build import checked_model
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_model, load_outline
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.packing import pack, refuse_unpackable
from humanline.train.policy.slices import empty_model
from humanline.train.preflight.memory import Estimator
from humanline.train.preflight.workload import Workload
from tests.helpers.paper_models import write_paper_model
from tests.helpers.rounds import online
from tests.helpers.support import config

IDS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> str:
    return write_paper_model(tmp_path_factory.mktemp("paper") / "gemma2", "gemma2")


@pytest.fixture
def uncapped_by_default(monkeypatch):
    """Some versions of transformers run such models with torch's attention, and say nothing of the cap: be one."""
    sdpa = transformers.AttentionInterface()["sdpa"]

    def silent(*args, softcap=None, **options):
        return sdpa(*args, **options)

    monkeypatch.setattr(modeling_gemma2.Gemma2PreTrainedModel, "_supports_sdpa", True)
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "sdpa", silent)


def logprobs(model, ids=IDS) -> torch.Tensor:
    with torch.no_grad():
        return LogprobModel(model.eval())(ids, torch.ones((len(ids), ids.shape[1] - 1), dtype=torch.bool))


def test_a_loaded_model_computes_its_soft_cap(gemma, uncapped_by_default):
    """What is loaded computes what our own capped attention does, also where transformers would leave the cap out."""
    plain = transformers.AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.float32)
    loaded = load_model(gemma, torch.float32)
    before = logprobs(loaded)
    pack(loaded)
    policy = LogprobModel(loaded, packed=True).eval()
    with torch.no_grad():
        ours = policy(IDS, torch.ones((2, 23), dtype=torch.bool))
    torch.testing.assert_close(before, ours, rtol=0, atol=1e-5)  # float32 sums in another order
    assert (logprobs(plain) - ours).abs().max() > 1e-2  # what that would have been


def test_every_way_to_a_model_keeps_the_cap(gemma, uncapped_by_default):
    """An outline, a model read in slices, one sampled from while its rows are packed: all run with the model's code."""
    made = load_model(gemma, torch.float32)
    for model in (made, load_outline(gemma), empty_model(gemma, dropout=False, dtype=torch.float32)):
        assert attention_softcap_of(model) == 3.0
        assert model.config.get_text_config()._attn_implementation == usual_attention(model) == "eager"
    pack(made)
    with sampling_mode(made):
        assert made.config._attn_implementation == "eager"


def test_models_without_a_cap_keep_the_fast_attention(toy):
    """Nothing changes for a model that caps nothing."""
    model = load_model(toy["model"], torch.float32)
    assert attention_softcap_of(model) is None and model.config._attn_implementation == "sdpa"
    assert usual_attention(model) == "sdpa"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_packed_rows_are_refused_on_a_gpu_before_weights_are_read(gemma, tmp_path, device):
    """On a GPU there is no kernel for it: `training.padding: right` is asked for; on a CPU rows are packed as ever."""
    refused = pytest.raises(ModelError, match=r"cannot be trained without padding.*softly.*training\.padding: right")
    training = {"steps": 1, "padding": "free"}
    given = config({"model": gemma, "pairs": "none"}, tmp_path / "run", training=training, data__max_length=16)
    with refused if device == "cuda" else nullcontext():
        checked_model(given, torch.device(device))
    with refused if device == "cuda" else nullcontext():
        refuse_unpackable(gemma, load_outline(gemma), device)
    if device == "cuda":  # nor is it what a run that does not fit is told to try
        with refused:
            Estimator(load_outline(gemma), cuda=True).estimate(given, Workload.at_limits(given, why=""))


def test_continuous_batching_is_refused(gemma, tmp_path):
    """Continuous batching knows no cap, so that the sampler, and a run before its weights are read, refuse it."""
    how = {"engine": {"kind": "continuous"}, "max_tokens": 8}
    refused = pytest.raises(ModelError, match=r"attn_logit_softcapping 3 .*source\.sampling\.engine\.kind: generate")
    with refused:
        ContinuousSampler(load_model(gemma, torch.float32), None, SamplingConfig.model_validate(how))
    given = online({"model": gemma, "pairs": "none"}, "none", tmp_path / "run", sampling=how)
    with refused:
        checked_model(given, torch.device("cpu"))
