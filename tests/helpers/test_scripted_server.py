"""The scripted server counts whole requests alone."""

from __future__ import annotations

import socket
import urllib.request

from tests.helpers.scripted_server import CHAT, Reply, script, serving


def test_half_a_request_was_never_asked():
    """A client that hangs up between its head and its body has asked nothing, and the next one is answered."""
    with serving(script(Reply({}))) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n".encode())
        assert server.broken.wait(20)
        assert not server.asked
        with urllib.request.urlopen(urllib.request.Request(server.url + CHAT, data=b'{"n": 1}')) as answer:
            assert answer.status == 200
        assert [one.body for one in server.asked] == [{"n": 1}]
