"""A server for tests that answers as it is told, request by request, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from humanline.train.config.rounds import ServerEngine

CHAT, GIVEN = "/v1/chat/completions", "/v1/completions"  # where answers are asked for, and what is said of given texts


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    """status, body (bytes as they are, anything else as JSON), headers; `hold` is waited for before it is sent.

    `raw` writes to the connection itself, in place of all that, which is then closed.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    raw: Callable[[socket.socket], None] | None = None


NO_TEXTS = Reply({"detail": "prompt must be a string"}, status=422)  # of a server that scores no given text


class Scripted:
    def __init__(self, answer: Callable[[Asked], Reply], port: int = 0) -> None:
        self.asked: list[Asked] = []
        self.broken = threading.Event()  # a client that hung up
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                content = self.rfile.read(length)
                if len(content) < length:  # a client that hung up while it was still asking has asked nothing
                    outer.broken.set()
                    self.close_connection = True
                    return
                asked = Asked(self.command, self.path, dict(self.headers), json.loads(content) if content else None)
                outer.asked.append(asked)
                reply = answer(asked)
                if reply.hold is not None:
                    while not reply.hold.wait(0.02):
                        self.connection.setblocking(False)
                        try:
                            if self.connection.recv(1) == b"":
                                outer.broken.set()
                                return
                        except BlockingIOError:
                            pass
                        finally:
                            self.connection.setblocking(True)
                if reply.raw is not None:
                    self.close_connection = True
                    with contextlib.suppress(OSError):  # a client that has had enough
                        reply.raw(self.connection)
                    return
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _answer

            def log_message(self, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exception(), ConnectionError):  # a client that has had enough is no fault
                    super().handle_error(request, client_address)

        self._http = Quiet(("127.0.0.1", port), Handler)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def completions(self) -> list[Asked]:
        return [one for one in self.asked if one.path.endswith("/completions")]

    def chats(self) -> list[Asked]:
        return [one for one in self.asked if one.path == CHAT]


@contextmanager
def serving(answer: Callable[[Asked], Reply], port: int = 0) -> Iterator[Scripted]:
    server = Scripted(answer, port)
    thread = threading.Thread(target=server._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._http.shutdown()
        server._http.server_close()
        thread.join()


def script(*replies: Reply | Callable[[Asked], Reply]) -> Callable[[Asked], Reply]:
    """One reply after the other, and the last for ever."""
    left = list(replies)

    def answer(asked: Asked) -> Reply:
        reply = left.pop(0) if len(left) > 1 else left[0]
        return reply(asked) if callable(reply) else reply

    return answer


def engine(url: str, *allowed: str) -> ServerEngine:
    """The settings of a server at this address, asked once, and the hosts that are allowed."""
    tree = {"url": url, "allow_hosts": allowed, "attempts": 1, "seconds": 5.0, "new_weights": {"kind": "path"}}
    return ServerEngine.model_validate(tree)
