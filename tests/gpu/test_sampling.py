"""Continuous batching where it belongs, on a GPU: greedy answers are generate's, log-probabilities those of a pass."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch

from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.continuous import ContinuousSampler
from humanline.train.policy.load import load_model
from humanline.train.policy.packing import pack
from humanline.train.policy.precision import narrowed
from tests.helpers.gpu import write_model

QUESTIONS = ["abc", "hgfedcba hgfedcba", "2 a", "12 ccddee"]


@pytest.mark.parametrize("compute,packed", [("float32", False), ("bf16", True)])
def test_answers_are_the_models_own(device, toy, tmp_path, compute, packed):
    """Each id drawn at temperature 0 is the likeliest of a plain pass, and has the log-probability of that pass.

    Up to rounding: a pass with a cache sums in another order, so that in bf16 an id may be one that is as likely as the
    likeliest but for 9 bits. Afterwards weights, attention, mode and random numbers are what they were.
    """
    from transformers import AutoTokenizer

    # In bf16 two attentions of the same weights at 0.3 differ by more than 0.2 nats at one token in 140.
    spread = 0.3 if compute == "float32" else 0.15
    path = write_model(tmp_path / "model", toy["model"], initializer_range=spread)
    model = load_model(path, torch.float32).to(device)
    if packed:
        pack(model)
    tokenizer = AutoTokenizer.from_pretrained(toy["model"])
    renderer = Renderer(tokenizer, "plain", 128)
    prompts = [(Message("user", question),) for question in QUESTIONS]
    contexts = [Context(f"p{i}", prompt, renderer.encode_prompt(prompt).ids) for i, prompt in enumerate(prompts)]
    computing = functools.partial(narrowed, model, torch.bfloat16) if compute == "bf16" else contextlib.nullcontext
    engine = {"kind": "continuous", "num_blocks": 64, "max_batch_tokens": 512}
    settings = SamplingConfig.model_validate({"max_tokens": 12, "temperature": 0.0, "engine": engine})
    before = torch.get_rng_state(), model.config._attn_implementation, [id(weight) for weight in model.parameters()]
    sampler = ContinuousSampler(model, renderer, settings, computing=computing)
    drawn = {one.id: one.completions for batch in sampler.sample(contexts, 2, key=(0, 1)) for one in batch}
    assert torch.equal(torch.get_rng_state(), before[0]) and model.config._attn_implementation == before[1]
    assert [id(weight) for weight in model.parameters()] == before[2]
    model.set_attn_implementation("eager")
    allowed = 1e-3 if compute == "float32" else 0.2  # nats
    for context in contexts:
        for completion in drawn[context.id]:
            assert 1 <= len(completion.ids) <= 12
            ids = torch.tensor([[*context.ids, *completion.ids]], device=device)
            with computing(), torch.no_grad():
                scores = torch.log_softmax(model(ids).logits[0, len(context.ids) - 1 : -1].float(), -1)
            theirs = scores.gather(1, ids[0, len(context.ids) :, None]).squeeze(1)
            assert (scores.amax(1) - theirs).max() <= allowed
            told = torch.tensor(completion.logprobs, device=device)
            torch.testing.assert_close(told, theirs, rtol=0, atol=allowed)
