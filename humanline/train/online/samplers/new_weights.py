"""Telling a server of new weights: by requests, as an adapter, or by a command of the user's.

Where one GPU is shared, the server sleeps while the run trains, and is woken with new weights. What it is told then
differs for SGLang, which breaks when it is woken twice: so a file beside the weights says that it was put to sleep.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from humanline.system.stop import STOPPING, SamplingStopped
from humanline.system.terminal import redact, visible
from humanline.train.config.rounds import PLACEHOLDER, ByCommand, ByRequest, BySglang, ByVllm, ServerRequest
from humanline.train.config.secrets import hidden
from humanline.train.online.samplers.http import BadAnswer, Client, Refused, Sleep, parse, quoted
from humanline.train.online.samplers.under_way import LOOK
from humanline.train.online.types import SamplerError

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
By = ByRequest | ByVllm | BySglang


def to_load(how: By, *, asleep: bool) -> tuple[ServerRequest, ...]:
    """Return the requests after which a server has new weights, and is awake."""
    if isinstance(how, ByRequest):
        return how.in_order
    if isinstance(how, ByVllm):
        load = (
            # Without a path it would read again what it was started with.
            ServerRequest(path="/collective_rpc", body=_VLLM_RELOAD),
            ServerRequest(path="/reset_prefix_cache"),
        )
        if not how.sleep:
            return load
        # Nothing happens where it is awake. The cache's memory comes last, so that loading has room.
        wake = [ServerRequest(path=f"/wake_up?tags={tag}") for tag in ("weights", "kv_cache")]
        return wake[0], load[0], wake[1], load[1]
    load = (
        ServerRequest(path="/update_weights_from_disk", body={"model_path": "{path}", "weight_version": "{name}"}),
        ServerRequest(path="/flush_cache"),
    )
    if not asleep:
        return load
    wake = [ServerRequest(path="/resume_memory_occupation", body={"tags": [tag]}) for tag in ("weights", "kv_cache")]
    return wake[0], load[0], wake[1], load[1]


def to_sleep(how: By) -> tuple[ServerRequest, ...]:
    """Return the requests that put a server to sleep; none where it is to stay awake."""
    if isinstance(how, ByRequest):
        return how.sleep
    if not how.sleep:
        return ()
    if isinstance(how, ByVllm):
        return (ServerRequest(path="/sleep?level=2"),)  # which keeps no copy of the weights: new ones will come
    return (ServerRequest(path="/release_memory_occupation", body={"tags": ["kv_cache", "weights"]}),)


_VLLM_RELOAD: JsonValue = {"method": "reload_weights", "kwargs": {"weights_path": "{path}"}}


async def tell(client: Client, requests: Sequence[ServerRequest], path: str = "", name: str = "") -> None:
    """Send requests one after the other, the next when one has succeeded.

    Parameters
    ----------
    client : Client
    requests : sequence of ServerRequest
    path, name : str
        What `{path}` and `{name}` stand for.

    Raises
    ------
    SamplerError
        If the server refuses one, reports failure or stays away; it says which, and that others went before.
    """
    async with client:
        for number, request in enumerate(requests, start=1):
            filled = request.path
            for word, value in (("path", path), ("name", name)):
                filled = filled.replace(f"{{{word}}}", urllib.parse.quote(value, safe=""))
            try:
                await client.post(filled, _filled(request.body, path, name), _success)
            except SamplerError as error:
                before = f", after {number - 1} that it took" if number > 1 else ""
                which = f" (request {number} of {len(requests)}{before})" if len(requests) > 1 else ""
                raise SamplerError(f"new weights{which}: {error}{_advice(error, request)}") from None


def _filled(value: JsonValue, path: str, name: str) -> JsonValue:
    """Return a JSON value with what the placeholders in its texts stand for."""
    if isinstance(value, str):
        # In one go: a folder's name may look like a placeholder.
        return PLACEHOLDER.sub(lambda match: {"path": path, "name": name}[match[1]], value)
    if isinstance(value, list):
        return [_filled(one, path, name) for one in value]
    if isinstance(value, dict):
        return {key: _filled(one, path, name) for key, one in value.items()}
    return value


def _advice(error: SamplerError, request: ServerRequest) -> str:
    if not isinstance(error, Refused) or error.status not in (404, 405):
        return ""
    place = request.path.partition("?")[0]
    if place in ("/collective_rpc", "/reset_prefix_cache", "/wake_up", "/sleep"):
        return "; vllm serve has it with VLLM_SERVER_DEV_MODE=1 in its environment, and sleeps with --enable-sleep-mode"
    if place in ("/release_memory_occupation", "/resume_memory_occupation"):
        return "; start SGLang with --enable-memory-saver"
    return ""


class Adapters:
    """Adapters that a server holds: the newest, under a name of its own."""

    def __init__(self) -> None:
        self.name: str | None = None

    async def load(self, client: Client, name: str, path: str) -> None:
        """Load an adapter into the server, then drop the one before; raise SamplerError if the server refuses."""
        async with client:
            body = {"lora_name": name, "lora_path": path}
            try:
                try:
                    await client.post(LOAD, body, _anything)
                except Refused as error:
                    if error.status != 400 or "already" not in error.reason:
                        raise
                    await self._unload(client, name)
                    await client.post(LOAD, body, _anything)
            except Refused as error:
                advice = (
                    "; start vllm serve with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                    if error.status == 404
                    else ""
                )
                raise SamplerError(f"new weights: {error}{advice}") from None
            if self.name not in (None, name):
                await self._unload(client, str(self.name))
            self.name = name

    async def _unload(self, client: Client, name: str) -> None:
        try:
            await client.post(UNLOAD, {"lora_name": name}, _anything)
        except Refused as error:
            if error.status not in (400, 404):  # it is not there (any more)
                raise


async def wait_until_healthy(client: Client, model: str | None, seconds: float, sleep: Sleep) -> None:
    """Return when the server answers.

    Parameters
    ----------
    client : Client
    model : str or None
        Asked for where the server has no other way to say how it is.
    seconds : float
        Waited at most.
    sleep : callable
        `await sleep(seconds)`.

    Raises
    ------
    SamplerError
        If that takes too long.
    """
    begun, waited, wait, trouble = time.monotonic(), 0.0, 0.5, ""
    async with client:
        while True:
            try:
                status, _, content = await client.send("GET", "/health")
                if status in (404, 405):
                    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
                    body |= {} if model is None else {"model": model}
                    status, _, content = await client.send("POST", "/v1/chat/completions", body)
                if 200 <= status < 300:
                    return
                trouble = f"status {status} {quoted(content.decode('utf-8', 'replace'))}"
            except ConnectionError as error:
                trouble = str(error)
            if max(waited, time.monotonic() - begun) >= seconds:  # requests take time, too
                break
            await sleep(wait)
            waited, wait = waited + wait, min(5.0, 2 * wait)
        raise SamplerError(
            f"{client.shown} did not come back within {seconds:g} s (source.sampling.engine.seconds) after "
            f"it was given new weights; the last: {visible(redact(trouble))}. See to the server"
        )


def generation_settings(folder: Path, end: int | None, temperature: float) -> str:
    """Return generation settings for transformers serve, which else takes the model's own, such as its top-k.

    Parameters
    ----------
    folder : Path
        The model's folder; its files may name the token that ends a text.
    end : int or None
        That token where they do not.
    temperature : float
    """
    tokens: dict[str, Any] = {"eos_token_id": end}
    try:
        own = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        tokens |= {name: own[name] for name in ("eos_token_id", "pad_token_id") if own.get(name) is not None}
    except (OSError, ValueError, AttributeError):
        pass
    how = {"do_sample": True, "top_k": 0} if temperature else {"do_sample": False}
    return json.dumps(how | {"repetition_penalty": 1.0} | tokens)


def run_command(how: ByCommand, path: str, stopping: Callable[[], bool]) -> None:
    """Run a command that gives a server new weights.

    Raises
    ------
    SamplerError
        If it cannot be run, takes too long or ends with another status than 0; with its last words.
    SamplingStopped
        If `stopping` said so; the command is ended.
    """
    words = [word.replace("{path}", path) for word in how.command]
    shown = visible(redact(" ".join(hidden(words, sent=True))))
    # Not a pipe: a server that the command leaves running would hold it open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise SamplerError(f"new weights: {shown} cannot be run: {error}") from None
        code, until = None, time.monotonic() + how.seconds
        try:
            while code is None and time.monotonic() < until:
                if stopping():
                    raise SamplingStopped
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(LOOK)
        finally:
            if code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code == 0:
            return
        if code is not None and -code in STOPPING:  # by a scheduler, which is asking this process to stop, too
            time.sleep(LOOK)
            if stopping():
                raise SamplingStopped
        late = f"took more than {how.seconds:g} s (source.sampling.engine.new_weights.seconds)"
        output.seek(0)
        tail = visible(redact(output.read().decode("utf-8", "replace"))[-2000:], keep="\n").strip()
        trouble = late if code is None else f"ended with status {code}"
        raise SamplerError(f"new weights: {shown} {trouble}; its last words:\n{tail or '(none)'}")


def _anything(content: bytes) -> None:
    """Take any answer, such as vLLM's sentence."""


def _success(content: bytes) -> None:
    """Take any answer but one that says that it did not work."""
    try:
        answer = parse(content)
    except BadAnswer:
        return
    if isinstance(answer, dict) and answer.get("success") is False:
        raise BadAnswer(f"no success: {quoted(answer)}")
