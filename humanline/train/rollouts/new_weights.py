"""How a server is told of new weights: by requests, as an adapter, or by a command of the user's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

from humanline.train.rollout import SamplerError, SamplingStopped
from humanline.train.rollouts.client import BadAnswer, Client, Refused, parse, quoted
from humanline.train.round_config import ByCommand, ByRequest
from humanline.train.terminal import redact, visible

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LOOK = 0.2  # seconds between two looks at `stopping`


async def tell(client: Client, how: ByRequest, path: str) -> None:
    """Tell a server of a folder of weights by a request; raise SamplerError if it refuses or reports failure."""
    body = {
        name: value.replace("{path}", path) if isinstance(value, str) else value for name, value in how.body.items()
    }
    async with client:
        try:
            await client.post(how.path, body, _success)
        except Refused as error:
            raise SamplerError(f"new weights: {error}") from None


class Adapters:
    """Adapters that a server holds: the newest, under a name of its own."""

    def __init__(self) -> None:
        self.name: str | None = None

    async def load(self, client: Client, name: str, path: str) -> None:
        """Have the server load an adapter, then drop the one before; raise SamplerError if it refuses."""
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
    shown = visible(redact(" ".join(words)))
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
        late = f"took more than {how.seconds:g} s (sampling.engine.new_weights.seconds)"
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
