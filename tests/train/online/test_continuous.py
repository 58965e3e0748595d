"""Sampling by continuous batching, against generate and against the model's own distribution."""

from __future__ import annotations

import functools
import threading

import pytest
import torch

from humanline.system.stop import SamplingStopped
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.continuous import ContinuousSampler
from humanline.train.online.types import SamplerError
from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.precision import narrowed

QUESTIONS = ["What is the cat on?", "Two and two?", "Grüße aus 東京 🙂"]


@pytest.fixture(scope="module")
def model(tokenizer):
    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=128)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # so that tokens are neither certain nor all alike
    model.generation_config.update(top_k=3, repetition_penalty=1.5)  # a model's own settings are not asked
    return model


@pytest.fixture
def renderer(tokenizer):
    return Renderer(tokenizer, "chat", 64)


def contexts(renderer, questions=QUESTIONS):
    prompts = [(Message("user", question),) for question in questions]
    return [Context(f"p{i}", prompt, renderer.encode_prompt(prompt).ids) for i, prompt in enumerate(prompts)]


def sampler(model, renderer, **changes):
    engine = {"kind": "continuous", "num_blocks": 64, "max_batch_tokens": 512}
    engine |= changes.pop("engine", {})
    more = {name: changes.pop(name) for name in ("computing", "stopping") if name in changes}
    config = SamplingConfig.model_validate({"max_tokens": 8, "engine": engine, **changes})
    return ContinuousSampler(model, renderer, config, **more)


def draw(sampler, contexts, samples=1, key=(0, 1)):
    batches = sampler.sample(contexts, samples, key=key)
    return {one.id: one.completions for batch in batches for one in batch}


def logprobs_here(model, context, completion):
    """The log-probabilities of a completion's ids in one plain pass."""
    ids = torch.tensor([[*context.ids, *completion.ids]])
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0, len(context.ids) - 1 : -1].float(), -1)
    return scores.gather(1, ids[0, len(context.ids) :, None]).squeeze(1)


def test_greedy_completions_are_those_of_generate(model, renderer):
    """At temperature 0 the ids equal generate's, each with the log-prob that a plain pass gives it."""
    prompts = contexts(renderer)
    got = draw(sampler(model, renderer, temperature=0.0), prompts)
    for context in prompts:
        ids = torch.tensor([context.ids])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, repetition_penalty=1.0
        )
        [one] = got[context.id]
        assert one.ids == tuple(output[0, len(context.ids) :].tolist())
        # Other shapes of the same float32 sums.
        torch.testing.assert_close(torch.tensor(one.logprobs), logprobs_here(model, context, one), atol=1e-4, rtol=0)


def test_samples_follow_the_models_distribution(model, renderer):
    """First tokens at temperature 1 have the model's own frequencies, and the same key gives the same samples."""
    [context] = contexts(renderer, QUESTIONS[:1])
    n = 400
    ours = sampler(model, renderer, max_tokens=1)
    got = draw(ours, [context], n)["p0"]
    assert draw(ours, [context], n)["p0"] == got
    with torch.no_grad():
        expected = model(torch.tensor([context.ids])).logits[0, -1].softmax(-1)
    seen = torch.bincount(torch.tensor([one.ids[0] for one in got]), minlength=len(expected)) / n
    # Total variation of n draws: at most half the sum of sqrt(p (1 - p) / n) on average, and by McDiarmid within
    # sqrt(ln(1e6) / (2 n)) of that with probability 1 - 1e-6.
    mean = 0.5 * (expected * (1 - expected) / n).sqrt().sum()
    assert 0.5 * (seen - expected).abs().sum() < mean + (13.8 / (2 * n)) ** 0.5
    assert len(set(got)) > 20


def test_temperature_and_top_p_act(model, renderer):
    """Top-p keeps to the smallest set that holds it, a low temperature draws likelier tokens; neither has log-probs."""
    [context] = contexts(renderer, QUESTIONS[:1])
    with torch.no_grad():
        probs = model(torch.tensor([context.ids])).logits[0, -1].softmax(-1)
    order = probs.sort(descending=True)
    nucleus = set(order.indices[: int((order.values.cumsum(0) < 0.3).sum()) + 1].tolist())
    narrow = draw(sampler(model, renderer, max_tokens=1, top_p=0.3), [context], 100)["p0"]
    assert {one.ids[0] for one in narrow} <= nucleus
    assert len({one.ids[0] for one in narrow}) > 1
    cold = draw(sampler(model, renderer, max_tokens=1, temperature=0.01), [context], 20)["p0"]
    assert {one.ids[0] for one in cold} <= set(order.indices[:3].tolist())
    assert all(one.logprobs is None for one in (*narrow, *cold))


def test_contexts_have_room_and_ends_of_their_own(model, renderer, tokenizer):
    """Completions stop at an end token, which they keep, or where max_length leaves no more room after their prompt."""
    prompts = contexts(renderer, ["a", "The cat sat on the mat, and the dog sat on the cat, 東京 и Москва 🙂"])
    got = draw(sampler(model, renderer, max_tokens=60), prompts, 12)
    assert len({len(context.ids) for context in prompts}) == 2
    for context in prompts:
        room = min(60, 64 - len(context.ids))
        for one in got[context.id]:
            assert one.truncated == (one.ids[-1] != tokenizer.eos_token_id)
            assert len(one.ids) == room if one.truncated else len(one.ids) <= room
            assert len(one.logprobs) == len(one.ids)


def test_a_stop_text_cuts_where_it_is_complete(model, renderer, tokenizer):
    """A completion ends with the token that completes the first stop text in it."""
    prompts = contexts(renderer, QUESTIONS[:1])
    [whole] = draw(sampler(model, renderer, temperature=0.0), prompts)["p0"]
    stop = tokenizer.decode(whole.ids[2:3])
    [cut] = draw(sampler(model, renderer, temperature=0.0, stop=[stop]), prompts)["p0"]
    assert cut.finish == "stop"
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert len(cut.ids) <= 3
    assert len(cut.logprobs) == len(cut.ids)
    assert stop in cut.text
    assert stop not in tokenizer.decode(cut.ids[:-1])


def test_the_model_and_training_are_left_as_they_were(model, renderer):
    """Mode, settings, attention, forward and torch's random numbers are afterwards what they were before."""
    model.train()
    before = (
        torch.random.get_rng_state(),
        vars(model).keys(),
        model.config._attn_implementation,
        model.generation_config,
    )
    draw(sampler(model, renderer), contexts(renderer))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert model.training
    assert vars(model).keys() - {"_cached_continuous_batching_manager"} == before[1]
    assert model.config._attn_implementation == before[2]
    assert model.generation_config is before[3]
    model.eval()


def test_the_passes_of_another_thread_compute_in_copies(model, renderer):
    """All passes see the same bf16 copies, made once though they run in another thread, and none is left after."""
    kept, seen = [id(weight) for weight in model.parameters()], set()

    def look(module, *_):
        seen.add((threading.current_thread() is threading.main_thread(), id(module.weight), module.weight.dtype))

    hook = model.get_output_embeddings().register_forward_hook(look)
    prompts = contexts(renderer)
    computing = functools.partial(narrowed, model, torch.bfloat16)
    got = draw(sampler(model, renderer, computing=computing, temperature=0.0), prompts)
    hook.remove()
    [(in_main, copy, dtype)] = seen
    assert not in_main and dtype == torch.bfloat16
    assert [id(weight) for weight in model.parameters()] == kept and copy not in kept
    for context in prompts:
        with computing():
            expected = logprobs_here(model, context, got[context.id][0])
        # bf16 has 8 bits: sums of its products, in another order, over 2 layers.
        torch.testing.assert_close(torch.tensor(got[context.id][0].logprobs), expected, atol=0.1, rtol=0)


def test_a_request_that_fails_is_an_error_with_its_context(model, renderer):
    """What a pass raises ends sampling with an error that says so, and the model is left in order."""

    def fail(*_):
        raise RuntimeError("out of \x1b[31mmemory")

    kept = [id(weight) for weight in model.parameters()]
    hook = model.get_output_embeddings().register_forward_hook(fail)
    computing = functools.partial(narrowed, model, torch.bfloat16)
    with pytest.raises(SamplerError, match=r"context 'p\d'.*out of \\x1b"):
        draw(sampler(model, renderer, computing=computing), contexts(renderer))
    hook.remove()
    assert [id(weight) for weight in model.parameters()] == kept
    assert draw(sampler(model, renderer), contexts(renderer))


def test_sampling_gives_up_when_asked_to_stop(model, renderer):
    """Asked to stop, it does not wait for what is under way."""
    asked = iter([False, True])
    with pytest.raises(SamplingStopped):
        draw(sampler(model, renderer, stopping=lambda: next(asked, True), max_tokens=40), contexts(renderer), 8)
