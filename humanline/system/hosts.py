"""Which hosts a run may talk to: this machine and public addresses; private and link-local ones where they are named.

Without this a recipe of someone else's could make a machine ask what only that machine may ask: the metadata service
of its cloud (169.254.169.254), or a device in its network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class HostError(ValueError):
    """A host that a run may not talk to; the message names the setting that allows it."""


def host_of(url: str) -> str:
    """Return the host of a URL, in small letters; raise ValueError if it has none, or its port is no number."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host or parts.port == 0 or any(character.isspace() for character in host):
        raise ValueError("no host")
    return host


def is_here(host: str) -> bool:
    """Return whether a host, by its name alone, is this machine."""
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def refuse_network(allowed: str) -> None:
    """Raise ValueError if an entry of `allow_hosts` is neither a name nor an address nor a network."""
    if "/" in allowed:
        try:
            ipaddress.ip_network(allowed)
        except ValueError as error:
            raise ValueError(f"{allowed!r} is no network such as 10.0.0.0/8: {error}") from None
    elif ":" in allowed.strip("[]") and _address(allowed) is None:
        raise ValueError(f"{allowed!r} is no host: leave out scheme and port, as in gpu-node-7 or 10.0.0.7")


def refuse_host(host: str, address: str | None, allowed: Sequence[str], place: str = "source.sampling.engine") -> None:
    """Raise HostError if a host, or the address that its name stands for, is neither public nor here nor allowed.

    Parameters
    ----------
    host : str
        A name, or an address.
    address : str or None
        None: the host is looked at as it is written, and a name passes.
    allowed : sequence of str
        Names, addresses and networks.
    place : str
        What the message calls the server's settings.
    """
    found = _address(host if address is None else address)
    if found is None:
        return
    for one in _meanings(found):
        if one.is_loopback or one.is_unspecified or (one.is_global and not one.is_multicast):
            continue
        if any(_allows(entry, host, one) for entry in allowed):
            continue
        kind = "link-local" if one.is_link_local else "private"
        shown = f"{one}" if host == str(one) else f"{host}, which is {one}"
        raise HostError(
            f"{place}.url: {shown}, a {kind} address, is not asked unless it is named; if that is your "
            f"server, set {place}.allow_hosts: [{host}]"
        )


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _meanings(address: Address) -> list[Address]:
    """Return an address, or the IPv4 addresses that are written into it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    if ipaddress.IPv6Address(int(address)) in _NAT64:  # without its scope
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]


def _allows(entry: str, host: str, address: Address) -> bool:
    if entry.lower().strip("[]") == host.lower().strip("[]"):
        return True
    try:
        network = ipaddress.ip_network(entry.strip("[]"))
    except ValueError:
        return False
    return ipaddress.ip_address(int(address)) in network if address.version == network.version else False
