"""Which hosts a run asks: this machine, public addresses, and private ones that the recipe names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from humanline.system.hosts import HostError, host_of, is_here, refuse_host
from tests.helpers.scripted_server import engine


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
