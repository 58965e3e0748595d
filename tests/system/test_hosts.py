"""Which hosts a run asks: this machine, public addresses, and private ones that the recipe names."""

from __future__ import annotations

import asyncio
import socket

import pytest
from pydantic import ValidationError

from humanline.system.hosts import HostError, host_of, is_here, refuse_host
from humanline.train.config.rounds import ServerEngine
from humanline.train.online.samplers.http import Client
from humanline.train.online.types import SamplerError
from tests.helpers.scripted_server import Reply, serving


def engine(url: str, *allowed: str) -> ServerEngine:
    tree = {"url": url, "allow_hosts": allowed, "attempts": 1, "seconds": 5.0, "new_weights": {"kind": "path"}}
    return ServerEngine.model_validate(tree)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",  # the metadata service of clouds
        "10.0.0.7",
        "172.16.3.4",
        "192.168.1.1",
        "100.64.0.1",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[::ffff:10.0.0.7]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "224.0.0.1",
    ],
)
def test_private_and_link_local_addresses_have_to_be_named(host):
    """However an address is written, it is refused with the setting that allows it, and taken where that is set."""
    with pytest.raises(ValidationError, match=r"source\.sampling\.engine\.allow_hosts: \["):
        engine(f"http://{host}:8000")
    assert engine(f"http://{host}:8000", host).allow_hosts == (host,)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://8.8.8.8", "http://0.0.0.0:1"]
)
def test_this_machine_and_public_addresses_are_asked(url):
    """Nothing has to be named for a server on this machine or on a public address."""
    engine(url)


def test_what_a_network_allows():
    """Networks hold their addresses, in either way of writing, and no others."""
    for address in ("10.1.2.3", "::ffff:10.1.2.3"):
        refuse_host("gpu", address, ["10.0.0.0/8"])
        with pytest.raises(HostError, match=r"gpu, which is 10\.1\.2\.3, a private address"):
            refuse_host("gpu", address, ["10.0.0.0/16", "fd00::/8", "other"])
    refuse_host("GPU", "10.1.2.3", ["gpu"])
    for wrong, what in (
        ("10.0.0.1/8", "no network"),
        ("gpu:8000", "leave out scheme and port"),
        ("http://gpu", "network"),
    ):
        with pytest.raises(ValidationError, match=what):
            engine("http://gpu", wrong)


@pytest.mark.parametrize("url", ["http://", "http://:80", "http://user:a/b@host", "http://host:99999", "http://ho st"])
def test_what_is_no_url_is_refused_with_the_recipe(url):
    """A URL without a host, or with a port that is none, is found when the recipe is read."""
    with pytest.raises(ValidationError, match="is no URL of a server"):
        engine(url)
    with pytest.raises(ValueError, match=r"host|[Pp]ort"):
        host_of(url)
    assert not is_here("host") and is_here("a.localhost")


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
