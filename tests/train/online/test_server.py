"""Sampling from a server: every way that a scripted one can fail."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import sys
import threading
import time
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import quote

import pytest

from humanline.system.stop import SamplingStopped
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.answers import Answer, Completer
from humanline.train.online.samplers.copies import GREEDY_AFTER
from humanline.train.online.samplers.dialect import Dialect, seed
from humanline.train.online.samplers.server import ServerSampler
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import SamplerError
from tests.helpers.scripted_server import Asked, Reply, script, serving

KEY = (3, 1)
UPDATE = {"kind": "request", "path": "/update", "body": {"model_path": "{path}"}}
SERVER = {"kind": "server", "url": "http://127.0.0.1:1", "new_weights": UPDATE}


@pytest.fixture
def renderer(tokenizer):
    return Renderer(tokenizer, "chat", 128)


def context(renderer, text="What is the cat on?", name="p1", **extra):
    prompt = (Message("user", text),)
    return Context(name, prompt, renderer.encode_prompt(prompt).ids, extra)


class Naps:
    """A sleep that takes no time and keeps what it was asked for."""

    def __init__(self, then=lambda: None):
        self.waits, self.then = [], then

    async def __call__(self, seconds):
        self.waits.append(seconds)
        self.then()


def sampler(renderer, url, *, said=None, naps=None, stopping=lambda: False, **changes):
    engine = {"kind": "server", "url": url, "concurrency": 1, "new_weights": UPDATE}
    sampling = {}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if section == "engine":
            engine[key] = value
        else:
            sampling[name] = value
    config = SamplingConfig.model_validate({"max_tokens": 16, "engine": engine, **sampling})
    heard = [] if said is None else said
    return ServerSampler(config, renderer, say=heard.append, sleep=naps or Naps(), stopping=stopping)


def told(text, finish="stop", **more):
    """One choice of an answer, for either endpoint."""
    return {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "text": text,
        "finish_reason": finish,
        **more,
    }


def choices(*texts, **usage):
    answer = {"choices": [told(text) if isinstance(text, str) else text for text in texts]}
    return Reply(answer | ({"usage": usage} if usage else {}))


def draw(sampler, contexts, samples=1, key=KEY):
    return [rollout for batch in sampler.sample(contexts, samples, key=key) for rollout in batch]


def one(renderer, choice, **changes):
    """The completion that a single choice becomes."""
    with serving(script(choices(choice))) as server:
        [rollout] = draw(sampler(renderer, server.url, **changes), [context(renderer)])
    return rollout.completions[0]


# ---------------------------------------------------------------------------------------------------------------------
# What is asked


def test_a_request_says_all_of_the_sampling_section(renderer):
    """A chat request carries messages, model, temperature, top-p, length limit, stop texts and a seed."""
    with serving(script(choices("On it."))) as server:
        settings = {"temperature": 0.7, "top_p": 0.9, "stop": ["###"], "engine__model": "m"}
        draw(sampler(renderer, server.url + "/v1/", **settings), [context(renderer)])
    [asked] = server.asked
    assert asked.path == "/v1/chat/completions"
    expected = {
        "model": "m",
        "messages": [{"role": "user", "content": "What is the cat on?"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 16,
        "stop": ["###"],
        "seed": seed(KEY, "p1", 0),
        "logprobs": True,
        "top_k": -1,
        "include_stop_str_in_output": True,
    }
    assert expected.items() <= asked.body.items()
    assert "n" not in asked.body


def test_a_template_that_writes_the_day_writes_it_here(tokenizer):
    """By itself a server is sent token ids then: its own template would write the day on which it is asked."""
    dated = copy.deepcopy(tokenizer)
    dated.chat_template = "{{ strftime_now('%d %b %Y') }}" + str(tokenizer.chat_template)
    for template, endpoint, path in (
        ("chat", None, "/v1/completions"),
        ("chat", "completions", "/v1/completions"),
        ("plain", None, "/v1/completions"),
    ):
        config = SamplingConfig.model_validate({"engine": SERVER | {"endpoint": endpoint}})
        assert Dialect(config, Renderer(dated, template, 64, date=date(2025, 1, 2))).path == path
    config = SamplingConfig.model_validate({"engine": SERVER | {"endpoint": "chat"}})
    with pytest.raises(ValueError, match="has the server write prompts, with the day on which it is asked"):
        Dialect(config, Renderer(dated, "chat", 64, date=date(2025, 1, 2)))
    assert Dialect(config, Renderer(tokenizer, "chat", 64)).path == "/v1/chat/completions"


def test_plain_prompts_are_sent_as_the_tokens_of_training(tokenizer):
    """The completions endpoint gets the prompt's own token ids, so that no tokenizer or begin token comes between."""
    renderer = Renderer(tokenizer, "plain", 128)
    with serving(script(choices("On it."))) as server:
        draw(sampler(renderer, server.url), [context(renderer)])
    [asked] = server.asked
    assert asked.path == "/v1/completions"
    assert asked.body["prompt"] == list(context(renderer).ids)
    assert asked.body["add_special_tokens"] is False


def test_a_server_that_takes_only_text_gets_the_rendered_text(tokenizer):
    """Refused token ids become the text they stand for, from then on, without counting as an attempt."""
    renderer = Renderer(tokenizer, "plain", 128)
    refusal = Reply({"detail": "prompt must be a string."}, 400)
    with serving(script(refusal, choices("On it."))) as server:
        ours = sampler(renderer, server.url, engine__attempts=1)
        draw(ours, [context(renderer), context(renderer, name="p2")])
    assert [asked.body["prompt"] for asked in server.asked[1:]] == [f"{tokenizer.bos_token}What is the cat on?"] * 2


def test_seeds_are_a_function_of_key_context_and_sample(renderer):
    """Every sample has a seed of its own, the same in every run of the same key, and another in the next round."""
    runs = []
    for key in (KEY, KEY, (3, 2)):
        with serving(lambda asked: choices("On it.")) as server:
            draw(sampler(renderer, server.url), [context(renderer), context(renderer, name="p2")], 3, key)
        runs.append([asked.body["seed"] for asked in server.asked])
    assert runs[0] == runs[1]
    assert len(set(runs[0] + runs[2])) == 12
    assert all(0 <= value < 2**31 for value in runs[0])


def test_a_long_prompt_leaves_less_room(tokenizer):
    """max_tokens is what data.max_length leaves after the prompt where that is less; with no room there is an error."""
    renderer = Renderer(tokenizer, "chat", 24)
    prompt = context(renderer, "cat " * 6)
    with serving(script(choices("On."))) as server:
        draw(sampler(renderer, server.url), [prompt])
        assert server.asked[0].body["max_tokens"] == 24 - len(prompt.ids) < 16
        longer = Renderer(tokenizer, "chat", 400)
        with pytest.raises(SamplerError, match=r"'p1'.* prompt tokens leave no room .*data.max_length: 24"):
            draw(sampler(renderer, server.url), [context(longer, "cat " * 99)])


@pytest.mark.parametrize("status", [400, 422])
def test_fields_that_a_server_refuses_are_left_out_from_then_on(renderer, status):
    """A refusal that names fields beyond OpenAI's is answered by leaving just those out, in later requests too."""
    unknown = {"top_k", "return_token_ids"}

    def answer(asked: Asked) -> Reply:
        wrong = unknown & asked.body.keys()
        if wrong:  # OpenAI names one at a time
            return Reply({"error": {"message": f"Unrecognized request argument supplied: {min(wrong)}"}}, status)
        return choices("On it.")

    with serving(answer) as server:
        draw(sampler(renderer, server.url, engine__attempts=1), [context(renderer), context(renderer, name="p2")])
    assert len(server.asked) == 2 + 2
    assert server.asked[-1].body["min_p"] == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# What is answered


def test_a_text_gets_its_own_tokens_and_the_end_token_only_if_it_ended(renderer, tokenizer):
    """Without token ids from the server, a completion's ids are its text's, with the end token unless it was cut."""
    for finish, ended in (("stop", True), ("length", False)):
        got = one(renderer, told("The mat.", finish))
        text_ids = tuple(tokenizer.encode("The mat.", add_special_tokens=False))
        assert got.ids == text_ids + ((tokenizer.eos_token_id,) if ended else ())
        assert (got.text, got.finish) == ("The mat.", "end" if ended else "length")
        assert got.logprobs is None


@pytest.mark.parametrize("content", ["", None])
def test_a_blank_answer_is_an_end_token(renderer, tokenizer, content):
    """A model that ends at once has said something: the end token; SGLang's content is null then."""
    got = one(renderer, told(content))
    assert (got.text, got.ids, got.finish) == ("", (tokenizer.eos_token_id,), "end")


def test_text_that_spells_a_special_token_is_not_read_as_one(renderer, tokenizer):
    """A special token written out letter by letter keeps its letters."""
    got = one(renderer, told("a <|end|> b"))
    assert tokenizer.eos_token_id not in got.ids[:-1]
    assert tokenizer.decode(got.ids[:-1]) == "a <|end|> b"


def test_token_ids_and_logprobs_of_the_server_are_kept(renderer, tokenizer):
    """Ids that the server tells are the completion's, and log-probs stay where each id has one."""
    ids = [*tokenizer.encode("Mat", add_special_tokens=False), tokenizer.eos_token_id]
    values = [-0.5] * len(ids)
    chat = {"content": [{"token": "x", "logprob": value} for value in values]}
    assert one(renderer, told("Mat", token_ids=ids, logprobs=chat)).logprobs == tuple(values)
    got = one(renderer, told("Mat", token_ids=ids, logprobs={"token_logprobs": values}), engine__endpoint="completions")
    assert (got.ids, got.logprobs, got.finish) == (tuple(ids), tuple(values), "end")


@pytest.mark.parametrize(
    "logprobs",
    [
        {"token_logprobs": [-1.0]},
        {"token_logprobs": [-1.0, None]},
        {"token_logprobs": [0.5, -1.0]},
        {"content": [1, 2]},
    ],
)
def test_logprobs_that_do_not_fit_are_dropped(renderer, tokenizer, logprobs):
    """One log-prob too few, a missing or an impossible one: the completion has none."""
    ids = [*tokenizer.encode("x", add_special_tokens=False), tokenizer.eos_token_id]
    with serving(script(choices(told("x", token_ids=ids, logprobs=logprobs)))) as server:
        ours = sampler(renderer, server.url)
        [rollout] = draw(ours, [context(renderer)])
    assert rollout.completions[0].logprobs is None


def test_logprobs_after_temperature_are_not_taken_for_those_before_it(renderer, tokenizer):
    """At other temperatures only a server known to give log-probs before temperature is believed: vLLM."""
    ids = [*tokenizer.encode("x", add_special_tokens=False), tokenizer.eos_token_id]
    choice = told("x", token_ids=ids, logprobs={"token_logprobs": [-1.0, -1.0]})
    assert one(renderer, choice, temperature=0.5).logprobs is None
    assert one(renderer, choice | {"stop_reason": None}, temperature=0.5).logprobs == (-1.0, -1.0)


def test_stop_texts_are_told_from_ends(renderer, tokenizer):
    """A stop text that the server tells of, or that the text or its ids end in, makes the finish "stop"."""
    end = tokenizer.eos_token_id

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    cases = [
        (told("a###", stop_reason="###"), "stop", "a###"),
        (told("a", matched_stop="###"), "stop", "a###"),  # cut off, but told: put back
        (told("a###"), "stop", "a###"),
        (told("a"), "end", "a"),
        (told("a", stop_reason=end), "end", "a"),
        (told("a###", token_ids=ids("a###")), "stop", "a###"),
        (told("a", token_ids=ids("a###")), "stop", "a###"),  # cut off and not told, but the ids have it
        (told("a", token_ids=[*ids("a"), end]), "end", "a"),
    ]
    for choice, finish, text in cases:
        got = one(renderer, choice, stop=["###"])
        assert (got.finish, got.text) == (finish, text), choice
        assert (got.ids[-1] == end) == (finish == "end")


def test_an_end_token_that_a_server_keeps_to_itself_is_added(renderer, tokenizer):
    """Ids without the end token of a completion that ended get it, and with it the log-prob that is its."""
    values = {"token_logprobs": [-1.0, -2.0]}
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    got = one(renderer, told("a", token_ids=[letter], logprobs=values))
    assert (got.ids, got.logprobs) == ((letter, tokenizer.eos_token_id), (-1.0, -2.0))


def test_contexts_come_whole_with_all_they_carry(renderer):
    """Rollouts keep id, prompt, extra columns and the published policy's name, and the order of their samples."""
    numbers = itertools.count()
    with serving(lambda asked: choices(f"answer {next(numbers)}")) as server:
        rollouts = draw(sampler(renderer, server.url), [context(renderer, answer="4"), context(renderer, name="p2")], 3)
    assert [rollout.id for rollout in rollouts] == ["p1", "p2"]
    assert rollouts[0].extra == {"answer": "4"}
    assert [done.text for done in rollouts[0].completions] == ["answer 0", "answer 1", "answer 2"]


def test_many_requests_are_under_way_at_once(renderer):
    """Up to `concurrency` requests wait for their answers together, and no more."""
    gate, lock = threading.Barrier(4, timeout=20), threading.Lock()
    now, most = 0, 0

    def answer(asked: Asked) -> Reply:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        gate.wait()  # passes only if four are here together
        with lock:
            now -= 1
        return choices("On it.")

    with serving(answer) as server:
        rollouts = draw(sampler(renderer, server.url, engine__concurrency=4), [context(renderer)], 12)
    assert len(rollouts[0].completions) == 12
    assert most == 4


def test_missing_choices_are_asked_for_again(renderer):
    """A server that obeys n only in part gives what it gives, and is asked for the rest with seeds of their own."""
    with serving(lambda asked: choices("x")) as server:
        [rollout] = draw(sampler(renderer, server.url, engine__samples_per_request=4), [context(renderer)], 4)
    assert len(rollout.completions) == 4
    assert [asked.body.get("n") for asked in server.asked] == [4, 3, 2, None]
    assert len({asked.body["seed"] for asked in server.asked}) == 4


def test_more_choices_than_asked_for_are_an_error(renderer):
    """Which of them were meant is not known."""
    with (
        serving(script(choices("x", "y"))) as server,
        pytest.raises(SamplerError, match=r"'p1': asked for 1 completions, the server sent 2"),
    ):
        draw(sampler(renderer, server.url), [context(renderer)])
    assert len(server.asked) == 1


BAD = {
    "no JSON": (b"<html>\x1b[31m oops", r"no JSON: <html>\\x1b\[31m oops"),
    "no object": ([1], r"without choices: \[1\]"),
    "no choices": ({"choices": []}, "without choices"),
    "no text": ({"choices": [told(1)]}, "no text"),
    "no content": ({"choices": [{"message": {"role": "assistant"}, "finish_reason": "stop"}]}, "no text"),
    "cut before it began": ({"choices": [told(None, "length")]}, "no text"),
    "half a character": (b'{"choices": [{"text": "\\ud800", "finish_reason": "stop"}]}', "no text"),
    "filtered": ({"choices": [told("x", "content_filter")]}, "broke off .*content_filter"),
    "not finished": ({"choices": [told("x", None)]}, "broke off .*null"),
    "ids of another kind": ({"choices": [told("x", token_ids=["a"])]}, "token ids that are not numbers"),
}


@pytest.mark.parametrize("kind", BAD)
def test_answers_that_cannot_be_used_are_asked_for_again(renderer, kind):
    """Wrong JSON and broken-off answers are tried again; a right one mends them, and without it there is an error."""
    body, message = BAD[kind]
    with serving(script(Reply(body), Reply(body), choices("On it."))) as server:
        [rollout] = draw(sampler(renderer, server.url), [context(renderer)])
    assert rollout.completions[0].text == "On it."
    with serving(script(Reply(body))) as server, pytest.raises(SamplerError, match=f"(?s)'p1'.*2 attempts.*{message}"):
        draw(sampler(renderer, server.url, engine__attempts=2), [context(renderer)])
    assert len(server.asked) == 2


def test_an_answer_quoted_in_an_error_is_short(renderer):
    """Errors quote the first 200 characters of what came."""
    with serving(script(Reply(b"x" * 100_000))) as server, pytest.raises(SamplerError) as caught:
        draw(sampler(renderer, server.url, engine__attempts=1), [context(renderer)])
    assert "x" * 200 in str(caught.value)
    assert "x" * 201 not in str(caught.value)


@pytest.mark.parametrize("told_ids", [False, True])
def test_a_server_that_reads_another_prompt_is_found_out(renderer, told_ids):
    """A prompt of another length, or of other tokens where they are told, is an error at once, with both numbers."""
    prompt = context(renderer)
    ours = len(prompt.ids)
    wrong = choices("x", prompt_tokens=ours + 1)
    if told_ids:
        wrong = Reply(wrong.body | {"usage": {"prompt_tokens": ours}, "prompt_token_ids": [0, *prompt.ids[1:]]})
    match = "reads the prompt as other tokens" if told_ids else f"as {ours + 1} tokens where training reads {ours}"
    with serving(script(wrong)) as server, pytest.raises(SamplerError, match=match):
        draw(sampler(renderer, server.url), [prompt])
    assert len(server.asked) == 1
    with serving(script(choices("x", prompt_tokens=ours))) as server:
        assert draw(sampler(renderer, server.url), [prompt])


def test_a_server_that_takes_answers_apart_is_found_out(renderer):
    """Reasoning that the server put elsewhere was sampled, too: without it the completion is another one."""
    choice = told("4")
    choice["message"]["reasoning_content"] = "2 and 2"
    with serving(script(choices(choice))) as server, pytest.raises(SamplerError, match="takes answers apart"):
        draw(sampler(renderer, server.url), [context(renderer)])
    assert len(server.asked) == 1


def test_a_greedy_server_is_suspected_once(renderer):
    """Completions that are all alike for several prompts though the temperature is not 0 are spoken of, once."""
    contexts = [context(renderer, name=f"p{i}") for i in range(GREEDY_AFTER + 2)]
    for texts, temperature, warnings in (("a", 1.0, 1), ("a", 0.0, 0), ("ab", 1.0, 0)):
        said: list[str] = []
        text = itertools.cycle(texts)
        with serving(lambda asked, text=text: choices(next(text))) as server:
            draw(sampler(renderer, server.url, said=said, temperature=temperature), contexts, 2)
        assert len([line for line in said if "do_sample" in line]) == warnings


def deterministic(tokenizer, text, *, reads_seeds):
    """SGLang in its deterministic mode: a text is a function of the seed, and the n of a request are all the same."""

    def answer(asked: Asked) -> Reply:
        said = f"{text} {asked.body['seed'] if reads_seeds else 42}"
        ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        logprobs = {"content": [{"token": "x", "logprob": -2.0} for _ in ids]}
        choice = told(said, response_token_ids=ids, logprobs=logprobs)
        return choices(*[choice] * asked.body.get("n", 1))

    return answer


def test_a_server_that_draws_the_same_n_times_is_asked_one_by_one(tokenizer):
    """Equal completions of one request that chance would not make are one; the others are asked for with own seeds."""
    renderer, said = Renderer(tokenizer, "chat", 128), []
    with serving(deterministic(tokenizer, "The mat", reads_seeds=True)) as server:
        ours = sampler(renderer, server.url, said=said, max_tokens=40, engine__samples_per_request=4)
        rollouts = draw(ours, [context(renderer), context(renderer, name="p2")], 4)
    assert all(len({one.text for one in rollout.completions}) == 4 for rollout in rollouts)
    assert [asked.body.get("n") for asked in server.asked] == [4] + [None] * 7
    assert len([line for line in said if "one by one" in line]) == 1


def test_a_server_that_draws_the_same_with_every_seed_is_refused(tokenizer):
    """Where seeds of their own change nothing, the run ends with words; equal texts that are likely are no reason."""
    renderer = Renderer(tokenizer, "chat", 128)
    with (
        serving(deterministic(tokenizer, "The mat", reads_seeds=False)) as server,
        pytest.raises(
            SamplerError, match=r"'p1': its 4 completions are the same .*--enable-deterministic-inference"
        ) as refused,
    ):
        draw(sampler(renderer, server.url, max_tokens=40), [context(renderer)], 4)
    assert "--resume" not in str(refused.value)  # which a command adds if it has it
    sure = told("4", token_ids=tokenizer.encode("4", add_special_tokens=False), logprobs={"token_logprobs": [-0.01]})
    with serving(script(choices(sure))) as server:
        assert len(draw(sampler(renderer, server.url), [context(renderer)], 8)[0].completions) == 8


def test_a_character_that_was_cut_in_two_is_left_out(renderer, tokenizer):
    """Of a text without ids that ran into its limit, the half character at its end is dropped, else it counts."""
    assert one(renderer, told("東京\ufffd", "length")).text == "東京"
    assert one(renderer, told("東京\ufffd", "stop")).text == "東京\ufffd"


def test_tokens_drawn_ahead_of_a_stop_text_are_dropped(renderer, tokenizer):
    """Ids that go on behind the token that made a stop text whole are cut there, and log-probs with them."""
    ids = [tokenizer.convert_tokens_to_ids(letter) for letter in "ab#cd"]
    choice = told("ab", token_ids=ids, stop_reason="#", logprobs={"token_logprobs": [-1.0, -2.0, -3.0, -4.0, -5.0]})
    got = one(renderer, choice, stop=["#"])
    assert (got.text, got.ids, got.finish, got.logprobs) == ("ab#", tuple(ids[:3]), "stop", (-1.0, -2.0, -3.0))


# ---------------------------------------------------------------------------------------------------------------------
# Trouble


def test_a_busy_server_is_waited_for_as_long_as_it_asks(renderer):
    """429 waits for Retry-After (seconds or a date), at most a minute; without one the waits double."""
    naps = Naps()
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    busy = [Reply({"error": "busy"}, 429, {"Retry-After": value}) for value in ("7", "0.5", "4000", soon, "soon")]
    with serving(script(*busy, Reply({}, 503), choices("On it."))) as server:
        [rollout] = draw(sampler(renderer, server.url, naps=naps, engine__attempts=7), [context(renderer)])
    assert rollout.completions[0].text == "On it."
    assert naps.waits == [7.0, 0.5, 60.0, 60.0, 16.0, 32.0]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_passing_trouble_is_tried_again(renderer, status):
    """Statuses that mean later, or a fault of the server, are asked again until attempts are used up."""
    naps = Naps()
    with serving(script(Reply({"detail": "out of luck"}, status))) as server, pytest.raises(SamplerError) as caught:
        draw(sampler(renderer, server.url, naps=naps, engine__attempts=3), [context(renderer)])
    assert len(server.asked) == 3
    assert naps.waits == [1.0, 2.0]
    for part in ("3 attempts", f"status {status}: out of luck", "See to the server"):
        assert part in str(caught.value)


def test_a_server_that_is_not_there_yet_is_waited_for(renderer):
    """A refused connection is tried again, and goes on when the server has come up."""
    with serving(script(choices("x"))) as gone:
        port = gone.port
    up: list[object] = []

    def start() -> None:
        if not up:
            manager = serving(script(choices("On it.")), port)
            up.extend((manager, manager.__enter__()))

    try:
        [rollout] = draw(sampler(renderer, f"http://127.0.0.1:{port}", naps=Naps(start)), [context(renderer)])
    finally:
        if up:
            up[0].__exit__(None, None, None)
    assert rollout.completions[0].text == "On it."


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
def test_a_refusal_is_final(renderer, status, monkeypatch):
    """What asking again would not change is an error at once, with the server's words and without the key."""
    monkeypatch.setenv("OUR_SERVER", "a-very-private-word")
    words = {"error": {"message": "no, a-very-private-word is not welcome"}}
    elsewhere = {"Location": "http://127.0.0.2:9/"}
    with serving(script(Reply(words, status, elsewhere))) as server, pytest.raises(SamplerError) as caught:
        draw(sampler(renderer, server.url, engine__key_variable="OUR_SERVER"), [context(renderer)])
    assert len(server.asked) == 1
    assert server.asked[0].headers["Authorization"] == "Bearer a-very-private-word"
    assert "no, *** is not welcome" in str(caught.value)
    assert "private" not in str(caught.value)


def test_a_missing_key_is_said_before_anything_is_asked(renderer, monkeypatch):
    """An API key that the environment lacks is an error of the configuration."""
    monkeypatch.delenv("OUR_SERVER", raising=False)
    with pytest.raises(SamplerError, match="environment variable OUR_SERVER is not set"):
        sampler(renderer, "http://127.0.0.1:9", engine__key_variable="OUR_SERVER")


def test_no_proxy_stands_between_us_and_this_machine(renderer, monkeypatch):
    """Proxies of the environment are not asked for a server on loopback."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(script(choices("On it."))) as server:
        assert draw(sampler(renderer, server.url, engine__attempts=1), [context(renderer)])


def test_a_slow_answer_is_given_up(renderer):
    """An answer that takes longer than `seconds` counts as none."""
    never = threading.Event()
    with serving(script(Reply(hold=never), choices("On it."))) as server:
        [rollout] = draw(sampler(renderer, server.url, engine__seconds=1), [context(renderer)])
        assert rollout.completions[0].text == "On it."
        assert server.broken.wait(20)


def test_what_was_whole_before_trouble_was_given(renderer):
    """Contexts that were finished when the server broke down have been yielded."""
    with serving(script(choices("On it."), Reply({}, 401))) as server:
        rollouts = sampler(renderer, server.url).sample([context(renderer), context(renderer, name="p2")], 1, key=KEY)
        assert [one.id for one in next(rollouts)] == ["p1"]
        with pytest.raises(SamplerError, match="'p2'"):
            next(rollouts)


@pytest.mark.parametrize("how", ["close the iterator", "close the sampler"])
def test_closing_cancels_what_is_under_way(renderer, how):
    """Closing in the middle hangs up on the server, so that it stops working, and starts nothing more."""
    never = threading.Event()
    with serving(script(choices("On it."), Reply(hold=never))) as server:
        ours = sampler(renderer, server.url)
        rollouts = ours.sample([context(renderer, name=f"p{i}") for i in range(9)], 1, key=KEY)
        next(rollouts)
        while len(server.asked) < 2:
            time.sleep(0.01)
        rollouts.close() if how == "close the iterator" else ours.close()
        assert server.broken.wait(20)
        assert len(server.asked) == 2


def test_a_run_that_is_to_stop_does_not_wait_for_the_server(renderer):
    """Asked to stop while a request is under way, sampling gives up."""
    stop = threading.Event()
    with serving(lambda asked: (stop.set(), Reply(hold=threading.Event()))[1]) as server:
        with pytest.raises(SamplingStopped):
            draw(sampler(renderer, server.url, stopping=stop.is_set), [context(renderer)])
        assert server.broken.wait(20)


# ---------------------------------------------------------------------------------------------------------------------
# New weights


def weights(tmp_path, name="round-1"):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5], "top_k": 20, "repetition_penalty": 1.1}')
    return folder


def test_weights_by_path_name_the_folder_in_every_request(renderer, tmp_path):
    """Under path, requests name the folder as model, with generation settings that undo those of its files."""
    folder = weights(tmp_path)
    with serving(script(choices("On it."))) as server:
        ours = sampler(renderer, server.url, engine__new_weights={"kind": "path"})
        with pytest.raises(SamplerError, match="new_weights: path"):
            draw(ours, [context(renderer)])
        ours.publish(folder, "v1")
        [rollout] = draw(ours, [context(renderer)])
    assert [(asked.method, asked.path) for asked in server.asked[:1]] == [("GET", "/health")]
    body = server.asked[-1].body
    assert body["model"] == str(folder)
    assert (
        '"do_sample": true, "top_k": 0, "repetition_penalty": 1.0, "eos_token_id": [2, 5]' in body["generation_config"]
    )
    assert rollout.policy == "v1"


def test_weights_by_adapter_are_loaded_and_the_older_unloaded(renderer, tmp_path):
    """Under adapter, vLLM loads the new one before it drops the old one; requests name the new one."""
    first, second = weights(tmp_path), weights(tmp_path, "round-2")
    with serving(lambda asked: Reply(b"Success: adapter") if "lora" in asked.path else choices("On it.")) as server:
        ours = sampler(renderer, server.url, engine__new_weights={"kind": "adapter"}, engine__attempts=1)
        ours.publish(first, "v1")
        ours.publish(second, "v2")
        [rollout] = draw(ours, [context(renderer)])
    asked = [(one.path, one.body) for one in server.asked if one.path != "/health"]
    assert asked[:3] == [
        ("/v1/load_lora_adapter", {"lora_name": "v1", "lora_path": str(first)}),
        ("/v1/load_lora_adapter", {"lora_name": "v2", "lora_path": str(second)}),
        ("/v1/unload_lora_adapter", {"lora_name": "v1"}),
    ]
    assert asked[3][1]["model"] == rollout.policy == "v2"


def test_an_adapter_of_that_name_is_replaced(renderer, tmp_path):
    """After a resume the server may have it already; it is unloaded and loaded, and an unload of nothing is fine."""
    taken = Reply({"error": {"message": "The lora adapter 'v1' has already been loaded."}}, 400)
    gone = Reply({"error": {"message": "cannot be found"}}, 404)
    with serving(script(taken, gone, Reply(b"Success"))) as server:
        sampler(renderer, server.url, engine__new_weights={"kind": "adapter"}).publish(weights(tmp_path), "v1")
    paths = [asked.path for asked in server.asked]
    assert paths == ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_lora_adapter", "/health"]


def test_a_server_without_adapters_is_told_how_to_start(renderer, tmp_path):
    """404 from the adapter endpoint says what vllm serve needs."""
    with (
        serving(script(Reply({"detail": "Not Found"}, 404))) as server,
        pytest.raises(SamplerError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
    ):
        sampler(renderer, server.url, engine__new_weights={"kind": "adapter"}).publish(weights(tmp_path), "v1")


def test_weights_by_request_are_told_where_they_are(renderer, tmp_path):
    """Under request, the folder takes the place of {path}, and a server that reports failure is an error."""
    folder = weights(tmp_path)
    how = {"kind": "request", "path": "/update_weights", "body": {"model_path": "{path}", "flush_cache": True}}
    with serving(script(Reply({"success": True}), Reply({}), Reply({"success": False, "message": "odd"}))) as server:
        ours = sampler(renderer, server.url, engine__new_weights=how, engine__attempts=1)
        ours.publish(folder, "v1")
        with pytest.raises(SamplerError, match="odd"):
            ours.publish(folder, "v2")
    assert server.asked[0].path == "/update_weights"
    assert server.asked[0].body == {"model_path": str(folder), "flush_cache": True}


def told_of(server):
    """The requests that a server was sent, health aside."""
    return [(asked.path, asked.body) for asked in server.asked if asked.path != "/health"]


def test_weights_by_requests_in_order_at_any_depth(renderer, tmp_path):
    """{path} and {name} are filled in wherever a text stands, escaped in a path; everything else is sent as it is."""
    folder = weights(tmp_path, "round {name} 1&2")
    how = {
        "kind": "request",
        "requests": [
            {"path": "/load?from={path}", "body": [1, None, {"deep": ["a {path}", {"{path}": "{name}"}], "n": 2.5}]},
            {"path": "/flush"},
        ],
    }
    with serving(script(Reply({"success": True}))) as server:
        sampler(renderer, server.url, engine__new_weights=how).publish(folder, "v1")
    assert told_of(server) == [
        (
            f"/load?from={quote(str(folder), safe='')}",
            [1, None, {"deep": [f"a {folder}", {"{path}": "v1"}], "n": 2.5}],
        ),
        ("/flush", {}),
    ]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({"detail": "no such method"}, 400), "status 400: no such method"),
        (Reply({"success": False, "message": "odd"}), "no success.*odd"),
        (Reply({"detail": "boom"}, 500), "gave nothing usable in 2 attempts.*boom"),
    ],
)
def test_a_request_that_fails_in_the_middle_ends_the_list(renderer, tmp_path, reply, message):
    """Which request failed and what went before is said, nothing after it is sent, and the old weights still count."""
    how = {"kind": "request", "requests": [UPDATE | {"path": "/a"}, {"path": "/b"}, {"path": "/c"}]}
    del how["requests"][0]["kind"]
    first = {"old": True}

    def answer(asked: Asked) -> Reply:
        return reply if asked.path == "/b" and not first["old"] else Reply({})

    with serving(answer) as server:
        ours = sampler(renderer, server.url, engine__new_weights=how, engine__attempts=2)
        ours.publish(weights(tmp_path), "v1")
        first["old"] = False
        server.asked.clear()
        with pytest.raises(SamplerError, match=rf"(?s)request 2 of 3, after 1 that it took.*/b.*{message}"):
            ours.publish(weights(tmp_path, "round-2"), "v2")
        assert {path for path, _ in told_of(server)} == {"/a", "/b"}
        assert ours._weights.policy == "v1"


def test_vllm_reloads_in_place(renderer, tmp_path):
    """The preset names the folder, empties the prefix cache, and says what is missing where there are no such paths."""
    folder = weights(tmp_path)
    reload = ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
    with serving(script(Reply({"results": [None]}))) as server:
        sampler(renderer, server.url, engine__new_weights={"kind": "vllm"}).publish(folder, "v1")
    assert told_of(server) == [reload, ("/reset_prefix_cache", {})]
    with serving(script(Reply({"results": [None]}))) as server:
        ours = sampler(renderer, server.url, engine__new_weights={"kind": "vllm", "sleep": True})
        for _ in range(2):
            ours.publish(folder, "v1")
            ours.rest(tmp_path)
            ours.rest(tmp_path)  # it sleeps already
    wake = [("/wake_up?tags=weights", {}), reload, ("/wake_up?tags=kv_cache", {}), ("/reset_prefix_cache", {})]
    assert told_of(server) == [*wake, ("/sleep?level=2", {})] * 2
    with (
        serving(script(Reply({"detail": "Not Found"}, 404))) as server,
        pytest.raises(SamplerError, match="VLLM_SERVER_DEV_MODE=1"),
    ):
        sampler(renderer, server.url, engine__new_weights={"kind": "vllm"}).publish(folder, "v1")


def test_sglang_updates_from_disk_and_is_woken_only_from_sleep(renderer, tmp_path):
    """It would break if it were woken or put to sleep twice, which a run that is resumed knows by a file."""
    folder, tags = weights(tmp_path), ["kv_cache", "weights"]
    update = ("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "v1"})
    flush = ("/flush_cache", {})
    wake, sleep = "/resume_memory_occupation", ("/release_memory_occupation", {"tags": tags})
    awake = [update, flush]
    asleep = [(wake, {"tags": ["weights"]}), update, (wake, {"tags": ["kv_cache"]}), flush]
    with serving(script(Reply({"success": True}))) as server:
        ours = sampler(renderer, server.url, engine__new_weights={"kind": "sglang"})
        ours.publish(folder, "v1")
        ours.rest(tmp_path)
        assert told_of(server) == awake
        server.asked.clear()
        how = {"kind": "sglang", "sleep": True}
        for resumed in range(2):
            ours = sampler(renderer, server.url, engine__new_weights=how)
            if resumed:
                ours.rest(tmp_path)  # samples were there
            ours.publish(folder, "v1")
            ours.rest(tmp_path)
        assert told_of(server) == [*awake, sleep, *asleep, sleep]


def command(*words, **more):
    return {"kind": "command", "command": [sys.executable, "-c", *words], **more}


def test_weights_by_command_run_without_a_shell(renderer, tmp_path):
    """Under command, the words get the folder in place of {path}, and nothing in it means anything to a shell."""
    folder = weights(tmp_path, "round 1; exit 3")
    note = tmp_path / "note"
    how = command("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", str(note), "{path}")
    with serving(script(Reply({}))) as server:
        sampler(renderer, server.url, engine__new_weights=how).publish(folder, "v1")
    assert note.read_text() == str(folder)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            command("print('no space left'); raise SystemExit(4)"),
            "(?s)ended with status 4; its last words:\nno space left",
        ),
        (
            command("import time; print('hm', flush=True); time.sleep(60)", seconds=1.5),
            "(?s)took more than 1.5 s.*\nhm",
        ),
        ({"kind": "command", "command": ["/no/such/program"]}, "cannot be run"),
    ],
)
def test_a_command_that_fails_is_an_error_with_its_last_words(renderer, tmp_path, how, message):
    """A status other than 0, a command that takes too long and one that does not exist are errors."""
    with pytest.raises(SamplerError, match=message):
        sampler(renderer, "http://127.0.0.1:9", engine__new_weights=how).publish(weights(tmp_path), "v1")


def test_a_command_that_leaves_a_server_running_is_not_waited_for(renderer, tmp_path):
    """The command's own end counts, though what it started still holds its output open."""
    note = tmp_path / "pid"
    start = "import subprocess, sys; it = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    how = command(start + "open(sys.argv[1], 'w').write(str(it.pid))", str(note), seconds=300)
    with serving(script(Reply({}))) as server:
        sampler(renderer, server.url, engine__new_weights=how).publish(weights(tmp_path), "v1")
    os.kill(int(note.read_text()), signal.SIGKILL)  # it was left running, as a server would be


def test_a_server_is_waited_for_after_new_weights(renderer, tmp_path):
    """Health is asked for until it is good; a server that stays away is an error after `seconds`."""
    naps = Naps()
    with serving(script(Reply({}), Reply({}, 503), Reply({}, 503), Reply({}))) as server:
        sampler(renderer, server.url, naps=naps).publish(weights(tmp_path), "v1")
    assert naps.waits == [0.5, 1.0]
    naps = Naps()
    with (
        serving(script(Reply({}), Reply({"reason": "loading"}, 503))) as server,
        pytest.raises(SamplerError, match=r"did not come back within 4 s .*loading.*See to the server"),
    ):
        sampler(renderer, server.url, naps=naps, engine__seconds=4).publish(tmp_path / "round-1", "v2")
    assert sum(naps.waits) >= 4


def test_a_server_without_health_is_asked_for_a_word(renderer, tmp_path):
    """Where /health is unknown, a request of one token shows that the server answers."""
    answers = script(Reply({}), Reply({}, 404), choices("Hi"))
    with serving(answers) as server:
        sampler(renderer, server.url, engine__model="m").publish(weights(tmp_path), "v1")
    assert server.asked[-1].body == {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "model": "m"}


def test_a_text_longer_than_its_tokens_can_write_is_not_tokenised(renderer, monkeypatch):
    """Megabytes without ids, of which a tokenizer makes gigabytes, are refused by length; shorter ones by count."""
    config = SamplingConfig.model_validate({"max_tokens": 16})
    completer = Completer(Trainable(renderer, config.max_tokens), ())
    seen = []
    encode = renderer.encode
    monkeypatch.setattr(renderer, "encode", lambda prompt, text, *more: seen.append(len(text)) or encode(prompt, text))
    for text in ("a" * 10**6, "a " * 2000):
        with pytest.raises(Untrainable) as refused:
            completer(Answer(text, "end", None, None), context(renderer))
        assert refused.value.reason == "too_many_tokens" and "max_tokens 16" in str(refused.value)
    assert seen == [4000]
