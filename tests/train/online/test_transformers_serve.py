"""What is true of a real server, transformers serve, on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.server import ServerSampler
from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.save import save_model

pytestmark = pytest.mark.slow
SHARPER = 4.0
QUESTIONS = ["What is the cat on?", "Two and two?", "Grüße aus 東京 🙂"]


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """Two models whose answers differ; as most models have, theirs have generation settings of their own."""
    root = tmp_path_factory.mktemp("served")
    for i in (0, 1):
        model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=128, seed=i)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(4)  # so that the most probable token depends on what came before
            # Halves of characters come back as signs that have more tokens than they had; none is ever probable here.
            halves = [i for i in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([i])]
            model.get_input_embeddings().weight[halves] = 0
            model.model.norm.weight.mul_(SHARPER)
        model.generation_config.update(do_sample=False, top_k=50, top_p=1.0, repetition_penalty=1.3)
        save_model(root / f"model-{i}", model, tokenizer)
    return root / "model-0", root / "model-1"


@pytest.fixture(scope="module")
def url(folders, tmp_path_factory):
    pytest.importorskip("uvicorn")
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [*words, "--port", str(port), "--device", "cpu"],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"},
            stdout=log,
            stderr=log,
        )
        yield f"http://127.0.0.1:{port}"
        server.send_signal(signal.SIGKILL)
        server.wait()


def contexts(renderer):
    prompts = [(Message("user", question),) for question in QUESTIONS]
    return [Context(f"p{i}", prompt, renderer.encode_prompt(prompt).ids) for i, prompt in enumerate(prompts)]


def sampler(renderer, url, said=None, **changes):
    engine = {"kind": "server", "url": url, "concurrency": 4, "new_weights": {"kind": "path"}, "seconds": 120}
    config = SamplingConfig.model_validate({"max_tokens": 12, "engine": engine | changes.pop("engine", {}), **changes})
    return ServerSampler(config, renderer, say=([] if said is None else said).append)


def draw(sampler, renderer, samples):
    batches = sampler.sample(contexts(renderer), samples, key=(0, 1))
    return {one.id: one.completions for batch in batches for one in batch}


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_new_weights_by_path_answer_as_generate_does(tokenizer, folders, url, template):
    """After each publish the greedy answers are those of that folder's weights, as computed here, on both endpoints."""
    renderer = Renderer(tokenizer, template, 64)
    ours = sampler(renderer, url, temperature=0.0)
    texts = []
    for i, folder in enumerate(folders):
        ours.publish(folder, f"v{i}")
        got = draw(ours, renderer, 1)
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.generation_config.repetition_penalty = 1.0
        for context in contexts(renderer):
            ids = torch.tensor([context.ids])
            output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
            expected = tokenizer.decode(output[0, len(context.ids) :], skip_special_tokens=True)
            assert got[context.id][0].text == expected
        texts.append([got[f"p{j}"][0].text for j in range(len(QUESTIONS))])
    assert texts[0] != texts[1]


def test_samples_differ_whatever_the_models_own_settings_say(tokenizer, folders, url):
    """At temperature 1 the samples of a prompt differ, though the model's files say that it is not to sample."""
    renderer = Renderer(tokenizer, "chat", 64)
    said: list[str] = []
    ours = sampler(renderer, url, said)
    ours.publish(folders[0], "v0")
    got = draw(ours, renderer, 8)
    assert all(len({one.text for one in completions}) > 1 for completions in got.values())
    assert not said


def test_completions_are_tokens_that_stand_for_their_text(tokenizer, folders, url):
    """Ids decode to the text and stay within the limit; a prompt of other tokens than ours would have been an error."""
    renderer = Renderer(tokenizer, "chat", 64)
    ours = sampler(renderer, url, engine={"samples_per_request": 3})  # n is not obeyed, so the rest is asked for again
    ours.publish(folders[1], "v1")
    for completions in draw(ours, renderer, 3).values():
        assert len(completions) == 3
        for one in completions:
            assert one.finish in ("end", "length")
            spoken = one.ids[:-1] if one.finish == "end" else one.ids
            assert tokenizer.decode(spoken) == one.text
            assert one.logprobs is None


def test_a_stop_text_ends_a_completion_and_stays(tokenizer, folders, url):
    """A text that the greedy answer holds, given as stop text, ends the answer right there."""
    renderer = Renderer(tokenizer, "chat", 64)
    free = sampler(renderer, url, temperature=0.0)
    free.publish(folders[0], "v0")
    whole = draw(free, renderer, 1)["p0"][0].text
    stop = whole[2]
    ours = sampler(renderer, url, temperature=0.0, stop=[stop])
    ours.publish(folders[0], "v0")
    cut = draw(ours, renderer, 1)["p0"][0]
    assert cut.finish == "stop"
    assert whole.startswith(cut.text)
    assert stop in cut.text
    assert len(cut.text) < len(whole)
