"""Servers that hang up, lie, flood or answer with something else: bounded, said, and nothing wrong is kept."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from humanline.cli import main
from humanline.train.online.ledger import read_lines
from humanline.train.online.samplers.http import LONGEST_WAIT
from humanline.train.online.samplers.server import ServerSampler
from humanline.train.policy.load import load_tokenizer
from tests.campaign.stage import Stage
from tests.campaign.world import online, tree_of, write_recipe
from tests.helpers.scripted_server import GIVEN, NO_TEXTS, Asked, Reply, serving
from tests.train.data.test_bad_input import LITERALS, ODD, bent, garbled
from tests.train.online.test_untrainable import WRONG, healthy

COUNT = 130
LIMIT = 12  # tokens a completion
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
Raw = Callable[[socket.socket], None]


def sends(*parts: bytes, pause: float = 0.0) -> Raw:
    """Send some bytes, and hang up."""

    def act(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)

    return act


def floods(head: bytes, part: bytes, seconds: float = 20.0) -> Raw:
    """Send bytes as long as they are taken."""

    def act(connection: socket.socket) -> None:
        connection.sendall(head)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(part)

    return act


def drips(head: bytes, part: bytes) -> Raw:
    """Send a little, again and again, so that no single wait is long."""

    def act(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(400):
            connection.sendall(part)
            time.sleep(0.05)

    return act


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silent(connection: socket.socket) -> None:
    connection.settimeout(20)
    connection.recv(1)


def bomb(mib: int, head: bytes, part: bytes, tail: bytes) -> Raw:
    """Send a few bytes that unpack to very many."""

    def act(connection: socket.socket) -> None:
        packing = zlib.compressobj(9, wbits=31)
        data = packing.compress(head)
        for _ in range(mib):
            data += packing.compress(part * ((1 << 20) // len(part)))
        data += packing.compress(tail) + packing.flush()
        connection.sendall(HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(data) + data)

    return act


def lying(length: int) -> Raw:
    return sends(HEAD + b"content-length: %d\r\n\r\n" % length + b'{"choices": []}')


RAW: dict[str, Raw] = {
    "hangs up": sends(),
    "resets": resets,
    "says nothing": silent,
    "half a status": sends(b"HTTP/1.1 20"),
    "no HTTP": sends(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600),
    "another protocol": sends(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "HTTP/0.9": sends(b'{"choices": []}'),
    "HTTP/9.9": sends(b"HTTP/9.9 200 OK\r\n\r\n{}"),
    "a status of letters": sends(b"HTTP/1.1 abc OK\r\n\r\n"),
    "status 999": sends(b"HTTP/1.1 999 \r\ncontent-length: 0\r\n\r\n"),
    "status 204": sends(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "goes on and on": sends(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 5000),
    "early hints without end": floods(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
    "headers without end": floods(b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"x" * 8000 + b"\r\n"),
    "a header without end": floods(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 65536),
    "a header of escapes": sends(b"HTTP/1.1 500 \x1b[31m\r\nx-\x1b[31m: \x1b[2J\r\ncontent-length: 6\r\n\r\n\x1b[31m!"),
    "a body without end": floods(HEAD + b"\r\n", b" " * 65536),
    "a chunked body without end": floods(
        HEAD + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"
    ),
    "a body in drops": drips(HEAD + b"content-length: 1000000\r\n\r\n", b" "),
    "headers in drops": drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "too short a body": lying(1000),
    "too long a body": lying(3),
    "a length of -1": lying(-1),
    "a length of 10**30": lying(10**30),
    "two lengths": sends(HEAD + b"content-length: 2\r\ncontent-length: 15\r\n\r\n{}" + b" " * 13),
    "chunks of garbage": sends(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    "a chunk of 2**62": sends(HEAD + b"transfer-encoding: chunked\r\n\r\n4000000000000000\r\n{}"),
    "a compressed body that is none": sends(HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"),
    "an unknown encoding": sends(HEAD + b"content-encoding: evil\r\ncontent-length: 2\r\n\r\n{}"),
    "a bomb of 1 GiB": bomb(1024, b"[", b" ", b"]"),
    "a bomb of ids": bomb(250, b'{"choices": [{"finish_reason": "stop", "text": "x", "token_ids": [7', b",7", b"]}]}"),
    "a bomb of objects": bomb(250, b'{"choices": [{}', b",{}", b"]}"),
    "a bomb of text": bomb(250, b'{"choices": [{"finish_reason": "stop", "message": {"content": "x', b"9 a", b'"}}]}'),
    "a body of brackets": sends(HEAD + b"content-length: 6000\r\n\r\n" + b"[" * 6000),
    "a body of 200 000 brackets": sends(HEAD + b"content-length: 200000\r\n\r\n" + b"[" * 200_000),
    "a body in UTF-16": sends(HEAD + b"content-length: 8\r\n\r\n" + "[{}]".encode("utf-16-le")),
    "a redirect to itself": sends(b"HTTP/1.1 307 x\r\nlocation: /v1/chat/completions\r\ncontent-length: 0\r\n\r\n"),
    "a redirect to a file": sends(b"HTTP/1.1 302 x\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n"),
    "a redirect elsewhere": sends(b"HTTP/1.1 302 x\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"),
    "wait for ever": sends(b"HTTP/1.1 429 x\r\nretry-after: 99999999999\r\ncontent-length: 0\r\n\r\n"),
    "wait for less than nothing": sends(b"HTTP/1.1 503 x\r\nretry-after: -1e308\r\ncontent-length: 0\r\n\r\n"),
    "wait for nan": sends(b"HTTP/1.1 503 x\r\nretry-after: nan\r\ncontent-length: 0\r\n\r\n"),
    "cookies": sends(HEAD + b"set-cookie: " + b"x" * 60000 + b"\r\ncontent-length: 2\r\n\r\n{}"),
    "an upgrade": sends(b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
    "events": sends(
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"choices": []}\n\ndata: [DONE]\n\n'
    ),
}


def _choice(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: {"choices": [choice | changes]}


def _message(content: Any, **more: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: {"choices": [choice | {"message": {"role": "assistant", "content": content}} | more]}


# What becomes of a good choice: the body of an answer.
BODIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a word": lambda choice: "choices",
    "null": lambda choice: None,
    "a number": lambda choice: 5,
    "choices of null": lambda choice: {"choices": None},
    "choices of words": lambda choice: {"choices": ["x"]},
    "a choice in a choice": lambda choice: {"choices": [{"choices": [choice]}]},
    "too many choices": lambda choice: {"choices": [choice] * 10_000},
    "an error in 200": lambda choice: {"error": {"message": "\x1b[31m" + "x" * 100_000}},
    "an error of lists": lambda choice: {"error": [[["x"]]]},
    "a text of 5 MB": _message("9 a" * 1_700_000, token_ids=None),
    "a text of lists": _message([{"type": "text", "text": "x"}]),
    "a text of escapes": _message("\x1b[2J\u202e", token_ids=None),
    "a text of NUL": _message("\0" * 5, token_ids=None),
    "half a character": _message("\ud800", token_ids=None),
    "special tokens in a text": _message("<|end|><|user|>", token_ids=None),
    "a blank text": _message("", token_ids=None),
    "an end that is a number": _choice(finish_reason=5),
    "ids of nothing": _choice(token_ids=[]),
    "ids of null": _choice(token_ids=[None]),
    "ids of true": _choice(token_ids=[True, False]),
    "ids of fractions": _choice(token_ids=[1.5]),
    "ids of 10**30": _choice(token_ids=[10**30]),
    "100 000 ids": _choice(token_ids=[7] * 100_000),
    "ids of the padding": _choice(token_ids=[0, 0, 2]),
    "end after end": _choice(token_ids=[2, 2, 2]),
    "log-probabilities above 0": lambda choice: {
        "choices": [choice | {"logprobs": {"content": [{"logprob": 5.0}] * len(choice["token_ids"])}}]
    },
    "log-probabilities of nan": lambda choice: {
        "choices": [choice | {"logprobs": {"content": [{"logprob": float("nan")}] * len(choice["token_ids"])}}]
    },
    "log-probabilities of 1e308": lambda choice: {
        "choices": [choice | {"logprobs": {"token_logprobs": [-1e308] * len(choice["token_ids"])}}]
    },
    "log-probabilities of words": lambda choice: {"choices": [choice | {"logprobs": "x"}]},
    "usage of words": lambda choice: {"choices": [choice], "usage": {"prompt_tokens": "x", "completion_tokens": -1}},
    "usage of 10**30": lambda choice: {"choices": [choice], "usage": {"prompt_tokens": 10**30}},
    "another prompt's ids": lambda choice: {"choices": [choice], "prompt_token_ids": [5, 6, 7]},
    "a prompt's ids of words": lambda choice: {"choices": [choice], "prompt_token_ids": "x"},
}


def behaviour(number: int, seed: int, model: str) -> tuple[str, Callable[[Asked], Reply]]:
    """Return the behaviour of a server of a number, in words and as a function that answers."""
    tokenizer = load_tokenizer(model)
    chance = random.Random(f"server {number} {seed}")
    answers: Callable[[Asked, dict[str, Any]], Reply]
    if number < len(RAW):
        name = list(RAW)[number]
        answers = lambda asked, choice: Reply(raw=RAW[name])  # noqa: E731
    elif (number := number - len(RAW)) < len(BODIES):
        name = list(BODIES)[number]
        answers = lambda asked, choice: Reply(BODIES[name](choice))  # noqa: E731
    elif (number := number - len(BODIES)) < len(WRONG):
        name = list(WRONG)[number]
        answers = lambda asked, choice: Reply({"choices": [WRONG[name][0](tokenizer, choice)]})  # noqa: E731
    else:
        name = f"answers {'garbled' if number % 3 == 0 else 'mutated'} now and then"

        def answers(asked: Asked, choice: dict[str, Any]) -> Reply:
            good: Any = {"choices": [choice], "usage": {"prompt_tokens": 5}, "model": "m"}
            if chance.random() < 0.4:
                return Reply(good)
            if number % 3 == 0:
                return Reply(garbled(json.dumps(good).encode(), chance))
            text = json.dumps(bent(good, chance, ODD, [*choice, "choices", "text", "logprobs"]))
            for what, literal in LITERALS.items():
                text = text.replace(json.dumps(what), literal)
            return Reply(text.encode("utf-8", "surrogatepass"))

    def answer(asked: Asked) -> Reply:
        if not asked.path.endswith("/completions") or asked.body is None:
            return Reply({})
        return NO_TEXTS if asked.path == GIVEN else answers(asked, healthy(tokenizer, asked))

    return name, answer


def served(number: int, seed: int, model: str, words: tuple[str, ...]) -> int:
    """Run a command against a server that this process has beside it."""
    _, answer = behaviour(number, seed, model)
    really = asyncio.sleep

    async def nap(seconds: float, *result: Any) -> Any:
        if seconds > LONGEST_WAIT:
            print(f"waits {seconds:g} s", file=sys.stderr)
        return await really(min(seconds, 0.05), *result)

    ServerSampler.__init__.__kwdefaults__["sleep"] = nap
    with serving(answer) as server:
        return main([*words, f"source.sampling.engine.url={server.url}"])


def play(stage: Stage) -> None:
    model = stage.world.toy["model"]
    stage.name, _ = behaviour(stage.number, stage.seed, model)
    engine = {"kind": "server", "url": "http://127.0.0.1:9", "attempts": 2, "concurrency": 2, "seconds": 2.0}
    tree = tree_of(
        online(
            stage.world.toy,
            stage.folder / "run",
            sampling={"max_tokens": LIMIT, "engine": engine | {"new_weights": {"kind": "path"}}},
            rounds={"contexts_per_round": 4, "samples": 2, "count": 1, "steps": 1},
        )
    )
    write_recipe(tree, stage.folder / "recipe.yaml")
    trains = stage.number % 4 == 0
    words = ("train", "recipe.yaml") if trains else ("sample", "recipe.yaml", "--limit", "3", "--out", "samples.jsonl")
    outcome = stage.run(work=partial(served, stage.number, stage.seed, model, words))
    stage.expect(" waits " not in f" {outcome.err}", "waits longer than it says")
    stage.count("finished on right answers" if outcome.code == 0 else "refused with words")
    for path in _samples(stage.folder):
        rows = read_lines(path)
        wrong = [one for row in rows for one in row["completions"] if not _is_right(load_tokenizer(model), one)]
        stage.expect(not wrong, f"kept what cannot be trained on: {wrong[:1]!r}"[:500])
    if outcome.code == 0:
        stage.expect(list(_samples(stage.folder)), "finished without samples")


def _samples(folder: Path) -> Iterator[Path]:
    yield from folder.glob("samples.jsonl")
    yield from folder.glob("run/rounds/*/samples.jsonl")


def _is_right(tokenizer: Any, one: dict[str, Any]) -> bool:
    """Tell whether a completion's ids are of the model, within the limit, and those of its text."""
    ids = one["ids"]
    return (
        0 < len(ids) <= LIMIT
        and all(type(i) is int and 0 <= i < 320 for i in ids)
        and (tokenizer.decode(ids, skip_special_tokens=True) == one["text"] or tokenizer.decode(ids) == one["text"])
    )
