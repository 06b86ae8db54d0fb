"""A live page that is served in a thread, and what asks it over real sockets."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from fedtempo.report.browser.live import live_page
from fedtempo.report.browser.server import LiveServer


@contextmanager
def serving(look: Callable[[], Mapping[str, Any]], **options: Any) -> Iterator[LiveServer]:
    """The server, until the block ends."""
    server = LiveServer(live_page("Test"), look, **{"every": 0.01, **options})
    begun = threading.Event()
    thread = threading.Thread(target=server.run, args=(begun.set,), daemon=True)
    thread.start()
    assert begun.wait(10)
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
        assert not thread.is_alive()


class Stream:
    """An open stream of events."""

    def __init__(self, server: LiveServer) -> None:
        parts = urlsplit(server.url)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        self.connection.request("GET", f"/events?{parts.query}")
        self.answer = self.connection.getresponse()

    def line(self) -> str:
        """The next line; "" at the end."""
        return self.answer.readline().decode()

    def event(self) -> dict[str, str]:
        """The next event or comment, by the names of its fields."""
        found: dict[str, str] = {}
        while (line := self.line()) not in ("", "\n"):
            name, _, value = line.rstrip("\n").partition(": ")
            assert name not in found, "an event of one line each"
            found[name] = value
        return found

    def seen(self) -> dict[str, Any]:
        """What the next event of sections has."""
        while "data" not in (event := self.event()):
            assert event, "the stream has ended"
        return json.loads(event["data"])

    def close(self) -> None:
        """Go away."""
        self.answer.close()
        self.connection.close()


def asked(
    server: LiveServer, target: str | None = None, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of one request; None is the page with its token."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    with closing(connection):
        connection.request(method, f"/?{parts.query}" if target is None else target, headers=dict(headers or {}))
        answer = connection.getresponse()
        body = answer.read().decode()
    return answer.status, dict(answer.getheaders()), body
