"""Which addresses a run connects to, whatever a name stands for and wherever a server sends it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from humanline.train.config.rounds import ServerEngine
from humanline.train.online.samplers.http import Client
from humanline.train.online.types import SamplerError
from tests.helpers.scripted_server import Reply, engine, serving


def ask(config: ServerEngine, monkeypatch, *addresses: str) -> tuple[list[str], object]:
    """What was connected to, where a name stands for these addresses one after the other, and the answer."""
    left, connected = list(addresses), []
    real = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def resolve(self, host, port, **how):
        if host != "models.example":
            return await real(self, host, port, **how)
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    connect = asyncio.selector_events.BaseSelectorEventLoop.sock_connect

    async def noting(self, sock, address):
        connected.append(address[0])
        return await connect(self, sock, address)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolve)
    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_connect", noting)

    async def go() -> object:
        async with Client(config, None, asyncio.sleep) as client:
            return await client.post("/x", {}, bytes)

    return connected, asyncio.run(go())


def test_a_name_is_asked_at_the_address_that_was_looked_at(monkeypatch):
    """A name that stands for this machine when it is looked up is connected to there, and looked up no second time."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(lambda asked: Reply({"host": asked.headers.get("Host", asked.headers.get("host"))})) as server:
        config = engine(f"http://models.example:{server.port}")
        connected, answer = ask(config, monkeypatch, "127.0.0.1", "169.254.169.254")
        assert connected == ["127.0.0.1"] and b"models.example" in answer


def test_a_name_of_a_private_address_is_refused_before_it_is_asked(monkeypatch):
    """A name that stands for the metadata service of a cloud is not connected to, and not tried again."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    said = r"models\.example, which is 169\.254\.169\.254, a link-local address.*allow_hosts: \[models\.example\]"
    with pytest.raises(SamplerError, match=said):
        ask(engine("http://models.example:80"), monkeypatch, "169.254.169.254")


def test_no_redirect_is_followed(monkeypatch):
    """A server that sends elsewhere is refused, wherever that is."""
    with serving(lambda asked: Reply({}, status=307, headers={"location": "http://169.254.169.254/"})) as server:
        with pytest.raises(SamplerError, match="redirects are not followed"):
            ask(engine(server.url), monkeypatch, "127.0.0.1")
        assert len(server.asked) == 1
