"""Sampling by generate, against a plain loop without cache that looks at one sequence at a time."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, GenerationConfig

from humanline.system.stop import SamplingStopped
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.generate import GenerateSampler, _Ending, end_tokens, inverse_cdf, sampling_mode
from humanline.train.policy.build import build_policy
from humanline.train.policy.load import load_model
from humanline.train.policy.logprobs import PACKED, LogprobModel
from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.packing import pack
from humanline.train.policy.precision import compute_in, narrowed
from humanline.train.run.processes import NonFiniteError
from tests.helpers import strategies
from tests.helpers.paper_models import write_paper_model
from tests.helpers.support import config

QUESTIONS = ["a", "What is the cat on?", "Grüße aus 東京 🙂", "The cat sat on the mat, and the dog sat on the cat."]
OTHER_ENDS = tuple(range(40, 80))  # so many that completions end by themselves


@pytest.fixture(scope="module")
def model(tokenizer):
    """A model whose own settings would spoil everything if they were asked, but for its many end tokens."""
    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=128)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # so that tokens are neither certain nor all alike
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.1,
        top_k=1,
        top_p=0.1,
        repetition_penalty=2.0,
        min_new_tokens=5,
        max_new_tokens=2,
        num_beams=2,
        num_return_sequences=2,
        bad_words_ids=[[7]],
        suppress_tokens=[8, 9],
        eos_token_id=[tokenizer.eos_token_id, *OTHER_ENDS],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


@pytest.fixture
def renderer(tokenizer):
    return Renderer(tokenizer, "chat", 64)


def contexts_of(renderer, questions=QUESTIONS):
    prompts = [(Message("user", question),) for question in questions]
    return [Context(f"p{i}", prompt, renderer.encode_prompt(prompt).ids, {"n": i}) for i, prompt in enumerate(prompts)]


def sampler_of(model, renderer, batch_size=64, computing=None, stopping=None, **settings):
    more = {name: value for name, value in (("computing", computing), ("stopping", stopping)) if value is not None}
    wanted = {"max_tokens": 8, "engine": {"kind": "generate", "batch_size": batch_size}, **settings}
    return GenerateSampler(model, renderer, SamplingConfig.model_validate(wanted), **more)


def draw(sampler, contexts, samples=3, key=(5, 2)):
    rollouts = [one for batch in sampler.sample(contexts, samples, key=key) for one in batch]
    assert [one.id for one in rollouts] == [context.id for context in contexts]
    assert all(len(one.completions) == samples for one in rollouts)
    return {one.id: one.completions for one in rollouts}


def plain_loop(model, context, sample, key, room, ends, temperature=1.0, top_p=1.0):
    """Return tokens, their log-probabilities and the reason of the end; nothing of the package is used."""
    name = int.from_bytes(hashlib.blake2b(context.id.encode(), digest_size=8).digest(), "little")
    uniform = np.random.default_rng([*key, name, sample]).random(room)
    ids, logprobs = [], []
    while len(ids) < room:
        with torch.no_grad():
            logits = model(torch.tensor([[*context.ids, *ids]]), use_cache=False).logits[0, -1].double().numpy()
        plain = logits - logits.max()
        plain = plain - math.log(np.exp(plain).sum())
        if temperature == 0:
            token = int(logits.argmax())
        else:
            probs = np.exp(plain / temperature - (plain / temperature).max())
            probs /= probs.sum()
            nucleus, held = set(), 0.0
            for place in sorted(range(len(probs)), key=lambda i: -probs[i]):
                if held >= top_p:
                    break
                nucleus.add(place)
                held += probs[place]
            total, token = 0.0, None
            for place in range(len(probs)):
                if place in nucleus:
                    total += probs[place] / held
                    if total > uniform[len(ids)]:
                        token = place
                        break
        ids.append(token)
        logprobs.append(plain[token])
        if token in ends:
            return ids, logprobs, "end"
    return ids, logprobs, "length"


def assert_is_the_plain_loop(model, got, contexts, samples, key, limits, ends, tokenizer, **settings):
    limit, max_length = limits
    reasons = set()
    for context in contexts:
        for sample in range(samples):
            room = min(limit, max_length - len(context.ids))
            ids, logprobs, finish = plain_loop(model, context, sample, key, room, ends, **settings)
            one = got[context.id][sample]
            assert (list(one.ids), one.finish, one.truncated) == (ids, finish, finish == "length")
            assert np.allclose(one.logprobs, logprobs, atol=1e-4, rtol=0)  # float32 sums of other shapes
            assert one.text == tokenizer.decode(ids[:-1] if finish == "end" else ids, skip_special_tokens=True)
            reasons.add(finish)
    return reasons


@pytest.mark.parametrize(
    ("temperature", "top_p", "batch_size", "key"),
    [
        (1.0, 1.0, 64, (5, 2)),
        (0.7, 1.0, 3, (5, 3)),
        pytest.param(1.5, 0.8, 5, (6, 2), marks=pytest.mark.slow),
        (1.0, 0.3, 2, (0, 0)),
        pytest.param(2.0, 0.999, 7, (2**40, 1), marks=pytest.mark.slow),
        (0.0, 1.0, 4, (5, 2)),
    ],
)
def test_completions_are_those_of_a_plain_loop(model, renderer, tokenizer, temperature, top_p, batch_size, key):
    """Tokens, log-probs at temperature 1, text and reason equal a loop without cache, padding, batches or library."""
    prompts, settings = contexts_of(renderer), {"temperature": temperature, "top_p": top_p}
    assert len({len(context.ids) for context in prompts}) == 4
    got = draw(sampler_of(model, renderer, batch_size, **settings), prompts, 4, key)
    ends = {tokenizer.eos_token_id, *OTHER_ENDS}
    found = assert_is_the_plain_loop(model, got, prompts, 4, key, (8, 64), ends, tokenizer, **settings)
    assert found == {"end", "length"} or temperature == 0


def test_greedy_completions_are_those_of_generate(model, renderer, tokenizer):
    """At temperature 0 the ids are those of transformers' own greedy generate, whatever the model's settings say."""
    clean = copy.deepcopy(model)
    clean.generation_config = GenerationConfig()
    got = draw(sampler_of(model, renderer, temperature=0.0, max_tokens=20), contexts_of(renderer), 1)
    for context in contexts_of(renderer):
        ids = torch.tensor([context.ids])
        output = clean.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(20, 64 - len(context.ids)),
            do_sample=False,
            eos_token_id=[tokenizer.eos_token_id, *OTHER_ENDS],
            pad_token_id=tokenizer.pad_token_id,
        )
        assert got[context.id][0].ids == tuple(output[0, len(context.ids) :].tolist())


def test_completions_do_not_depend_on_their_batch(model, renderer):
    """Batch size, order of contexts, their number, and how many samples are drawn beside it change no completion."""
    prompts = contexts_of(renderer)
    want = draw(sampler_of(model, renderer), prompts, 5)
    for batch_size, order, samples in (
        (1, prompts[::-1], 2),
        (3, prompts[::-1], 5),
        (3, prompts[1:], 2),
        (64, prompts[::-1], 2),
        (64, prompts[2:3], 5),
    ):
        got = draw(sampler_of(model, renderer, batch_size), order, samples)
        for context in order:
            assert [c.ids for c in got[context.id]] == [c.ids for c in want[context.id][:samples]]
    texts = [one.ids for many in want.values() for one in many]
    assert len(set(texts)) == len(texts)  # every sample and every context draws by itself
    other = draw(sampler_of(model, renderer), prompts, 5, key=(5, 3))
    assert not {one.ids for many in other.values() for one in many} & set(texts)


def test_batches_hold_whole_contexts(model, renderer):
    """As many contexts go together as a batch holds, never none; each batch is yielded by itself, with all columns."""
    prompts = contexts_of(renderer)
    for batch_size, samples, together in ((64, 3, 21), (7, 3, 2), (6, 3, 2), (5, 3, 1), (2, 3, 1), (1, 3, 1)):
        sampler = sampler_of(model, renderer, batch_size, max_tokens=1)
        assert sampler.together(samples) == together
        batches = list(sampler.sample(prompts, samples, key=(0, 0)))
        assert [[one.id for one in batch] for batch in batches] == [
            [context.id for context in prompts[i : i + together]] for i in range(0, 4, together)
        ]
        for context, one in zip(prompts, (one for batch in batches for one in batch), strict=True):
            assert (one.prompt, one.extra, one.policy) == (context.prompt, context.extra, "")


def test_no_pass_is_larger_than_a_batch(model, renderer, monkeypatch):
    """Passes through the model have at most batch_size rows, also where a context has more samples."""
    rows, forward = [], model.forward

    def counted(input_ids, *args, **kwargs):
        rows.append(len(input_ids))
        return forward(input_ids, *args, **kwargs)

    monkeypatch.setattr(model, "forward", counted)
    for batch_size, samples, want in ((3, 8, {3, 2}), (4, 2, {4}), (5, 2, {4})):
        rows.clear()
        draw(sampler_of(model, renderer, batch_size, max_tokens=1), contexts_of(renderer), samples)
        assert set(rows) == want


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.7)])
def test_frequencies_over_keys_are_the_probabilities(model, renderer, temperature, top_p):
    """Over the keys of many rounds and samples, first tokens follow the model's distribution."""
    [context] = contexts_of(renderer, QUESTIONS[1:2])
    sampler = sampler_of(model, renderer, 400, max_tokens=1, temperature=temperature, top_p=top_p)
    got = [one.ids[0] for round_ in range(5) for one in draw(sampler, [context], 400, key=(1, round_))["p0"]]
    with torch.no_grad():
        probs = (model(torch.tensor([context.ids])).logits[0, -1].double() / temperature).softmax(-1).numpy()
    order = np.argsort(-probs)
    kept = order[: int((probs[order].cumsum() < top_p).sum()) + 1]
    law = np.zeros_like(probs)
    law[kept] = probs[kept] / probs[kept].sum()
    seen = np.bincount(got, minlength=len(law)) / len(got)
    assert set(got) <= set(kept.tolist())
    # Dvoretzky, Kiefer, Wolfowitz: beyond this with probability 1e-6.
    assert np.abs(seen.cumsum() - law.cumsum()).max() < math.sqrt(math.log(2e6) / (2 * len(got)))
    assert len(set(got)) > 20


def test_each_context_has_room_of_its_own(model, renderer):
    """Completions end at max_tokens, or where data.max_length leaves no room, even for one token, and say so."""
    questions = ["a", "The cat sat on the mat, and the dog sat on the cat, 東京 и Москва"]
    model = copy.deepcopy(model)
    model.generation_config.eos_token_id = None
    short, long = contexts_of(renderer, questions)
    tight = Renderer(renderer.tokenizer, "chat", len(long.ids) + 1)
    for limit, room in ((500, (tight.limits.max_length - len(short.ids), 1)), (3, (3, 1)), (1, (1, 1))):
        got = draw(sampler_of(model, tight, max_tokens=limit), [short, long], 3)
        for context, most in zip((short, long), room, strict=True):
            for one in got[context.id]:
                assert (one.finish == "length") == (one.ids[-1] != renderer.tokenizer.eos_token_id)
                assert len(one.ids) == len(one.logprobs) == most or (one.finish == "end" and len(one.ids) <= most)
            assert any(one.truncated and len(one.ids) == most for one in got[context.id])


def test_stop_texts_end_a_completion_that_keeps_them(model, renderer, tokenizer):
    """A completion is cut after the first token with which its text holds a stop text (special tokens spelled out)."""
    prompts = contexts_of(renderer)
    free = draw(sampler_of(model, renderer, max_tokens=12), prompts, 6)
    parts = [[tokenizer.decode([i]) for i in one.ids] for many in free.values() for one in many]
    spanning = [x[-1] + y[0] for part in parts for x, y in pairwise(part[1:]) if (x + y).isascii() and x and y]
    stops = [spanning[0], spanning[-1], "e"]
    got = draw(sampler_of(model, renderer, max_tokens=12, stop=stops), prompts, 6)
    reasons = []
    for name, many in free.items():
        for whole, one in zip(many, got[name], strict=True):
            texts = [tokenizer.decode(whole.ids[: n + 1]) for n in range(len(whole.ids))]
            places = [n for n, text in enumerate(texts, start=1) if any(stop in text for stop in stops)]
            length, stopped = (places or [len(texts)])[0], bool(places)
            ended = whole.finish == "end" and length == len(texts)
            assert one.ids == whole.ids[:length]
            assert one.finish == (whole.finish if ended or not stopped else "stop")
            if one.finish == "stop":
                assert one.text == tokenizer.decode(one.ids, skip_special_tokens=True)
            reasons.append(one.finish)
    assert set(reasons) == {"end", "stop", "length"}


@pytest.mark.parametrize("stop", ["東", "京", "🙂", "on the", "mat, and", "\n\n", "e", "ü"])
def test_a_stop_text_is_found_at_its_last_token(tokenizer, stop):
    """Also where its characters take several tokens, it is found with the token that completes it, not before."""
    ids = tokenizer.encode("The cat on the mat, and\n\nü 東 京 🙂 me", add_special_tokens=False)
    prompt = tokenizer.encode("xyz", add_special_tokens=False)
    want = next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
    ending = _Ending(len(prompt), frozenset([0]), [len(ids)], [stop], tokenizer, lambda: False)
    seen = [bool(ending(torch.tensor([prompt + ids[:n]]), None)[0]) for n in range(1, len(ids) + 1)]
    assert seen == [n >= want for n in range(1, len(ids) + 1)]
    assert ending.found() == [(want, "stop")]


def test_a_stop_text_may_not_begin_in_the_prompt(tokenizer):
    """A completion is not stopped by a stop text of which the prompt holds the beginning, as servers see it too."""
    prompt, ids = (tokenizer.encode(text, add_special_tokens=False) for text in ("The mat,", " and the mat, and"))
    ending = _Ending(len(prompt), frozenset([0]), [len(ids)], ["mat, and"], tokenizer, lambda: False)
    for length in range(1, len(ids) + 1):
        ending(torch.tensor([prompt + ids[:length]]), None)
    assert ending.found() == [(len(ids), "stop")] and len(ids) > 2


def test_an_end_token_goes_before_the_length_limit(tokenizer):
    """An end token in the last place is an end, and what comes after the end of a row changes nothing."""
    ending = _Ending(1, frozenset([3, 4]), [2, 2, 1, 3], (), tokenizer, lambda: False)
    rows = [[9, 5, 4, 4], [9, 5, 5, 4], [9, 5, 4, 4], [9, 5, 5, 3]]
    seen = [ending(torch.tensor([row[: n + 1] for row in rows]), None).tolist() for n in (1, 2, 3)]
    assert seen == [[False, False, True, False], [True, True, True, False], [True] * 4]
    assert ending.found() == [(2, "end"), (2, "length"), (1, "length"), (3, "end")]


@pytest.mark.parametrize("family", [pytest.param("llama3", marks=pytest.mark.slow), "gemma2", "qwen2.5"])
def test_a_packed_model_samples_like_an_unpacked_one(tmp_path, family):
    """Each family of the paper, packed or not, samples as a plain loop does, under its own template and end tokens."""
    folder = write_paper_model(tmp_path / family, family)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, packed = (load_model(folder, torch.float32).eval() for _ in range(2))
    pack(packed)
    renderer = Renderer(tokenizer, "chat", 64)
    prompts = contexts_of(renderer, ["a b", "The cat sat on the mat, 2 + 2"])
    ends = end_tokens(model, renderer)
    marks = {"llama3": ["<|eot_id|>"], "gemma2": ["<eos>", "<end_of_turn>"], "qwen2.5": ["<|im_end|>"]}[family]
    own = model.generation_config.eos_token_id
    listed = [own] if isinstance(own, int) else own or []
    assert ends == {*tokenizer.convert_tokens_to_ids(marks), *listed}
    for one in (model, packed):
        got = draw(sampler_of(one, renderer, 3, max_tokens=12), prompts, 3)
        assert_is_the_plain_loop(model, got, prompts, 3, (5, 2), (12, 64), ends, tokenizer)
    assert packed.config._attn_implementation == PACKED


def test_the_templates_end_token_ends_a_completion(model, tokenizer):
    """Where the template ends a turn by another token than the tokenizer's, both end a completion; no text shows it."""
    other = copy.deepcopy(tokenizer)
    mark = tokenizer.convert_ids_to_tokens(tokenizer.all_special_ids)
    mark = next(m for m in mark if m not in (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token))
    other.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '" + mark + "\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    renderer, number = Renderer(other, "chat", 100), tokenizer.convert_tokens_to_ids(mark)
    model = copy.deepcopy(model)
    model.generation_config.eos_token_id = 50
    assert end_tokens(model, renderer) == {50, number, tokenizer.eos_token_id}
    model.generation_config = None
    assert end_tokens(model, renderer) == {number, tokenizer.eos_token_id}
    with torch.no_grad():  # now it is likely everywhere
        head = copy.deepcopy(model.get_output_embeddings())
        head.weight[number] = head.weight.mean(0) * 0 + model.model(torch.tensor([[5, 6]])).last_hidden_state[0, -1]
        model.set_output_embeddings(head)
    prompts = contexts_of(renderer, ["a", "b c"])
    model.generation_config = GenerationConfig()
    got = draw(sampler_of(model, renderer, max_tokens=20), prompts, 8)
    ended = [one for many in got.values() for one in many if one.ids[-1] == number]
    assert ended and all(one.finish == "end" and mark not in one.text for one in ended)
    assert all(number not in one.ids[:-1] for many in got.values() for one in many)


class _Broken(Exception):
    pass


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("how", ["whole", "stopped", "broken"])
def test_the_model_is_left_as_it_was(model, renderer, monkeypatch, training, how):
    """Mode, attention and generation config are the model's own again, also after a stop or an error in the middle."""
    model = copy.deepcopy(model)
    pack(model)
    model.train(training)
    own, values = model.generation_config, model.generation_config.to_dict()
    asked = []

    def stopping():
        asked.append(model.training)
        if how == "broken" and len(asked) == 3:
            raise _Broken
        return how == "stopped" and len(asked) == 3

    sampler = sampler_of(model, renderer, 4, stopping=stopping)
    if how == "whole":
        draw(sampler, contexts_of(renderer))
    else:
        with pytest.raises(SamplingStopped if how == "stopped" else _Broken):
            draw(sampler, contexts_of(renderer))
        assert len(asked) == 3
    assert not any(asked)
    assert model.training == training and all(module.training == training for module in model.modules())
    assert model.generation_config is own and own.to_dict() == values
    assert model.config._attn_implementation == PACKED
    assert all(p.grad is None for p in model.parameters())


def test_what_was_yielded_before_a_stop_is_whole(model, renderer):
    """A stop in the second batch leaves the first one, and nothing of the second."""
    prompts, calls = contexts_of(renderer), []

    def stopping():
        calls.append(1)
        return len(calls) > 8  # each batch has at most 8 tokens

    want = draw(sampler_of(model, renderer), prompts)
    sampler, got = sampler_of(model, renderer, 3, stopping=stopping), []
    with pytest.raises(SamplingStopped):
        for batch in sampler.sample(prompts, 3, key=(5, 2)):
            got += batch
    assert 1 <= len(got) < len(prompts)
    assert {one.id: [c.ids for c in one.completions] for one in got} == {
        context.id: [c.ids for c in want[context.id]] for context in prompts[: len(got)]
    }


def test_sampling_mode_is_left_by_an_error():
    """The context alone puts back what it changed when its body raises."""

    class Model:
        training, generation_config = True, GenerationConfig(top_k=3)
        _supports_sdpa = False

        def __init__(self):
            self.config, self.history = self, []

        def get_text_config(self):
            return self

        _attn_implementation = PACKED

        def eval(self):
            self.training = False

        def train(self, mode):
            self.training = mode

        def set_attn_implementation(self, name):
            self._attn_implementation = name
            self.history.append(name)

    model = Model()
    own = model.generation_config
    with pytest.raises(KeyError), sampling_mode(model):
        assert not model.training and model.generation_config is not own
        raise KeyError
    assert model.training and model.generation_config is own
    assert model.history == ["eager", PACKED]  # the first because this model has no other attention


def test_an_adapter_in_training_is_sampled_from(toy, tmp_path):
    """LoRA, activation checkpointing, packed rows and training mode: samples are those of a plain loop with LoRA."""
    settings = config(
        toy,
        tmp_path / "run",
        adapter={"rank": 4, "alpha": 8.0},
        training={"steps": 1, "batch_size": 2, "activation_checkpointing": True, "padding": "free"},
    )
    policy, adapter = build_policy(settings)
    assert adapter is not None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
            else:
                weight.mul_(4)
    policy.train()
    renderer = Renderer(AutoTokenizer.from_pretrained(toy["model"]), "chat", 64)
    prompts = contexts_of(renderer, ["3 abc", "10 hgfedcba"])
    got = draw(sampler_of(policy.model, renderer, 4), prompts, 3)
    assert all(module.training for module in policy.modules()) and any(
        getattr(m, "gradient_checkpointing", False) for m in policy.modules()
    )
    policy.eval()
    policy.model.set_attn_implementation("eager")
    ends, args = {renderer.tokenizer.eos_token_id}, (3, (5, 2), (8, 64))
    assert_is_the_plain_loop(policy.model, got, prompts, *args, ends, renderer.tokenizer)
    with torch.no_grad():  # and without the adapter they would be others
        for name, weight in policy.named_parameters():
            if "lora" in name:
                weight.zero_()
    ids, _, _ = plain_loop(policy.model, prompts[0], 0, (5, 2), 8, ends)
    assert ids != list(got["p0"][0].ids)


def test_the_model_computes_in_copies(model, renderer):
    """With bf16 the same key draws the same again, and log-probs are those of the policy's passes, up to rounding."""
    [context] = contexts_of(renderer, QUESTIONS[1:2])
    sampler = sampler_of(model, renderer, computing=functools.partial(narrowed, model, torch.bfloat16))
    got = draw(sampler, [context], 4)["p0"]
    assert got == draw(sampler, [context], 4)["p0"]
    policies = {"bf16": LogprobModel(copy.deepcopy(model)), "float32": LogprobModel(model)}
    compute_in(policies["bf16"], torch.bfloat16)
    gaps = {"bf16": [], "float32": []}
    for one in got:
        ids = torch.tensor([[*context.ids, *one.ids]])
        for name, values in gaps.items():
            with torch.no_grad():
                theirs = policies[name](ids, torch.ones(1, ids.shape[1] - 1, dtype=torch.bool))
            theirs = theirs[0, len(context.ids) - 1 :]
            values.append((theirs - torch.tensor(one.logprobs)).abs().max().item())
    # bf16 has 8 bits: logits of about 4 are rounded to 0.016, a few times over the layers.
    assert max(gaps["bf16"]) < 0.2
    assert max(gaps["float32"]) > 1e-3


@given(strategies.laws(3, zeros=True), st.lists(strategies.draws, min_size=3, max_size=3))
@example([[0.0, 0.5, 0.0, 0.5, 0.0]] * 3, [0.0, 0.5, math.nextafter(1, 0)])
@example([[0.1] * 10 + [0.0]] * 3, [0.0, 0.3, math.nextafter(1, 0)])
@example([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 1.0, 1.0])  # as if rounded up
@example([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [0.0, math.nextafter(1, 0), math.nextafter(1, 0)])
@settings(max_examples=200, deadline=None)
def test_inverse_cdf_is_the_first_place_above_the_draw(rows, draws):
    """Each row's place is that of a loop over its cumulative sums, and never one of probability 0."""
    got = inverse_cdf(torch.tensor(rows, dtype=torch.float64), torch.tensor(draws, dtype=torch.float64))
    assert got.shape == (3, 1) and not got.is_floating_point()
    for row, draw_, place in zip(rows, draws, got.squeeze(1).tolist(), strict=True):
        sums = np.cumsum(row)
        above = [i for i, total in enumerate(sums) if total > draw_ * sums[-1]]
        last = max(i for i, p in enumerate(row) if p > 0)
        assert place == (above[0] if above else last)
        assert row[place] > 0


def test_a_broken_policy_is_not_sampled_from(model, renderer):
    """Log-probabilities that are not finite end sampling by name, before anything is yielded."""
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="not finite"):
        draw(sampler_of(broken, renderer), contexts_of(renderer))
