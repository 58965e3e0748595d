"""One way to ask an HTTP server for JSON: retried while it is gone, busy or broken, and never anything beyond it.

The client is httpx2, which huggingface_hub and so transformers already bring along: it cancels requests cleanly, which
a thread blocked in the standard library's urllib cannot, and it leaves status, headers and retries to us, which the
openai package takes into its own hands.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from humanline.system.hosts import HostError, is_here, refuse_host
from humanline.system.terminal import HIDDEN, redact, remember, visible
from humanline.train.config.rounds import ServerAddress
from humanline.train.config.secrets import hidden
from humanline.train.online.types import SamplerError

RETRIED = frozenset({408, 409, 425, 429})  # and every 5xx
LONGEST_WAIT = 60.0  # seconds between two attempts, whatever a server wishes
LARGEST_ANSWER = 1 << 28  # bytes
ANOTHER_ADDRESS = 5.0  # seconds until the next address of a host is tried
SHOWN = 200  # characters of an answer in an error
T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


class BadAnswer(ValueError):
    """An answer that cannot be used, though another attempt may bring one that can."""


class Refused(SamplerError):
    """An answer with a status that asking again would not change."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)


def api_key(engine: ServerAddress) -> str | None:
    """Return the key that `key_variable` names; raise SamplerError if the environment lacks it or it is no header."""
    if engine.key_variable is None:
        return None
    key = os.environ.get(engine.key_variable, "").strip()
    if not key:
        raise SamplerError(
            f"{engine.place}.key_variable: the environment variable {engine.key_variable} is not set; "
            "set it to the server's API key, or leave key_variable out for a server without one"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SamplerError(f"the API key in {engine.key_variable} holds characters that no key has; check it")
    remember([key])  # whatever its variable is called
    return key


class Client:
    """Requests to one server, with its key; an async context manager.

    Redirects are errors, as they might lead elsewhere. A server on this machine is reached directly; for others the
    usual variables for proxies and certificates hold (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE). Each connection goes to an
    address that was looked at first (`humanline.system.hosts`), whatever a name stands for from one moment to the next;
    behind a proxy it is the proxy that knows what names stand for.

    Parameters
    ----------
    engine : ServerAddress
    key : str or None
        Sent as a bearer token.
    sleep : callable
        `await sleep(seconds)`.
    """

    def __init__(self, engine: ServerAddress, key: str | None, sleep: Sleep) -> None:
        self.root = root(engine)
        self.shown = redact(self.root)
        self._engine = engine
        self._key = key
        self._sleep = sleep
        self._http: Any = None

    async def __aenter__(self) -> Client:
        import httpx2

        engine = self._engine
        here = is_here(httpx2.URL(self.root).host)
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx2.Timeout(engine.seconds),
            limits=httpx2.Limits(max_connections=engine.concurrency + 1, max_keepalive_connections=engine.concurrency),
            follow_redirects=False,
            trust_env=not here,
            verify=not here or self.root.startswith("https"),  # reading certificates takes longer than a request here
        )
        pool = self._http._transport._pool
        pool._network_backend = Checked(pool._network_backend, engine.allow_hosts, engine.place)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: Any, read: Callable[[bytes], T]) -> T:
        """Return the answer to a request, as `read` reads it.

        Parameters
        ----------
        path : str
            Below the server's root.
        body : JSON
        read : callable
            Raises BadAnswer where asking again may help.

        Raises
        ------
        Refused
            At once, for a status that asking again would not change.
        SamplerError
            After `attempts` without a usable answer.
        """
        trouble, attempts = "", self._engine.attempts
        wait = 0.0
        for attempt in range(attempts):
            if attempt:
                await self._sleep(wait)
            wait = min(LONGEST_WAIT, 2.0**attempt)
            try:
                status, headers, content = await self.send("POST", path, body)
            except ConnectionError as error:
                trouble = str(error)
                continue
            if 200 <= status < 300:
                try:
                    return read(content)
                except BadAnswer as error:
                    trouble = str(error)
                    continue
            reason = self._clean(_reason(content))
            trouble = f"status {status}" + (f": {reason}" if reason else "")
            if status < 500 and status not in RETRIED:
                told = f"{self.shown}{redact(path)} refuses: {trouble}{_advice(status, self._engine)}"
                raise Refused(status, reason, told)
            wait = _retry_after(headers.get("retry-after"), wait)
        raise SamplerError(
            f"{self.shown}{redact(path)} gave nothing usable in {attempts} attempts ({self._engine.place}.attempts); "
            f"the last: {self._clean(trouble)}. See to the server"
        )

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any, bytes]:
        """Return status, headers and content of one attempt; raise ConnectionError if no answer comes."""
        import httpx2

        seconds = self._engine.seconds
        try:
            # The client's own limits are for each read, so that a server that trickles could take for ever.
            async with (
                asyncio.timeout(seconds),
                self._http.stream(method, self.root + path, **({} if body is None else {"json": body})) as response,
            ):
                content = bytearray()
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > LARGEST_ANSWER:
                        raise ConnectionError(f"an answer of more than {LARGEST_ANSWER} bytes")
                return response.status_code, response.headers, bytes(content)
        except (TimeoutError, httpx2.TimeoutException):
            raise ConnectionError(f"no answer within {seconds:g} s ({self._engine.place}.seconds)") from None
        except httpx2.RequestError as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from None

    def _clean(self, text: str) -> str:
        return visible(redact(text).replace(self._key or HIDDEN, HIDDEN))[: 2 * SHOWN]  # a key of any length


def root(engine: ServerAddress) -> str:
    """Return the server's root without a slash or /v1 at its end; raise SamplerError if it is no URL."""
    import httpx2

    url = engine.url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        host = httpx2.URL(url).host
    except httpx2.InvalidURL:
        host = ""
    if not host:
        shown = visible(redact(hidden({"url": engine.url})["url"]))
        raise SamplerError(f"{engine.place}.url: {shown!r} is no URL")
    return url


class Checked:
    """A network backend of the client's that looks at every address before it connects, and connects to that one.

    Parameters
    ----------
    backend
        What connects.
    allowed : sequence of str
        Its `allow_hosts`.
    place : str
        What messages call the server's settings.
    """

    def __init__(self, backend: Any, allowed: Sequence[str], place: str) -> None:
        self._backend, self._allowed, self._place = backend, allowed, place

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> Any:
        """Connect to the first address of a host that answers; raise SamplerError if one of them may not be asked."""
        import httpcore2

        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        try:
            for address in addresses:
                refuse_host(host, address, self._allowed, self._place)
        except HostError as error:
            raise SamplerError(str(error)) from None
        for number, address in enumerate(addresses, start=1):
            last = number == len(addresses)
            limit = timeout if last or timeout is None else min(timeout, ANOTHER_ADDRESS)
            try:
                return await self._backend.connect_tcp(address, port, timeout=limit, **options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if last:
                    raise
        raise httpcore2.ConnectError(f"{host} has no address")

    async def connect_unix_socket(self, path: str, **options: Any) -> Any:
        """Refuse: a server has a host."""
        raise SamplerError(f"{self._place}.url: {path} is no host")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._backend.sleep(seconds)


def parse(content: bytes) -> Any:
    """Return an answer's JSON; raise BadAnswer if it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BadAnswer(f"an answer that is no JSON: {quoted(content.decode('utf-8', 'replace'))}") from None


def quoted(value: Any) -> str:
    """Return the first characters of an answer, fit to be shown."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return visible(redact(text[: 10 * SHOWN]))[:SHOWN] or "(nothing)"


def _reason(content: bytes) -> str:
    """Return the reason in a refusal, wherever servers put it."""
    text = content[: 1 << 20].decode("utf-8", "replace")
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        told = text
    for name in ("error", "detail", "message"):
        if isinstance(told, dict) and told.get(name):
            told = told[name]
    told = told if isinstance(told, str) else json.dumps(told)
    return " ".join(told.split())[: 10 * SHOWN]


def _advice(status: int, engine: ServerAddress) -> str:
    if status in (401, 403):
        where = engine.key_variable or f"the variable that {engine.place}.key_variable names"
        return f"; check the API key in {where}"
    if 300 <= status < 400:
        return f"; redirects are not followed: set {engine.place}.url to where the server is"
    if status == 404:
        return f"; check {engine.place}.url and the model's name: is this model, or this path, served there?"
    return ""


def _retry_after(header: str | None, otherwise: float) -> float:
    """Return the seconds that a server asks to wait, at most LONGEST_WAIT."""
    if header is None:
        return otherwise
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return otherwise
    return min(LONGEST_WAIT, max(0.0, seconds)) if seconds == seconds else otherwise
