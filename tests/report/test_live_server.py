"""The server of a live page: who is let in, what is sent when, and how it ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from fedtempo.errors import DataMissing, InputError
from fedtempo.report.browser import server as module
from fedtempo.report.browser.server import LiveServer, address, bound, known_host
from support.live_server import Stream, asked, serving


def nothing() -> dict[str, Any]:
    return {"head": {"title": "t"}}


@pytest.fixture(scope="module")
def server():
    with serving(nothing) as running:
        yield running


def until(there: Callable[[], bool]) -> None:
    for _ in range(1000):
        if there():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come")


# -- who is let in


def test_the_page_comes_to_whoever_has_the_token(server) -> None:
    status, headers, body = asked(server)
    assert status == 200
    assert body.startswith("<!doctype html>")
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-store")
    assert not [name for name in headers if name.startswith(("access-control", "server", "set-cookie"))]


@pytest.mark.parametrize("path", ["/", "/events", "/study.json", "/../../etc/passwd", "//", "/%2e%2e/x"])
@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=x", "?token={token}x", "?token={token}&token={token}", "?Token={token}"]
)
def test_nothing_is_said_without_it(server, path, query) -> None:
    token = urlsplit(server.url).query.removeprefix("token=")
    status, _, body = asked(server, path + query.format(token=token))
    assert status == 403
    assert body == "The address lacks its token; take the whole line that fedtempo watch has printed.\n"
    assert token not in body


def test_a_path_leads_to_no_file(server, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("secret")
    query = urlsplit(server.url).query
    for path in ("/secret", "/../secret", f"/{tmp_path}/secret", "/%2e%2e/secret", "/events/secret", "/static/x"):
        assert asked(server, f"{path}?{query}")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_it_is_only_read(server, method) -> None:
    status, headers, _ = asked(server, method=method)
    assert (status, headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost", 200),
        ("LOCALHOST:{port}", 200),
        ("[::1]:{port}", 200),
        ("evil.example", 421),
        ("evil.example:{port}", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.168.0.7", 421),
        ("", 421),
    ],
)
def test_another_name_for_this_machine_is_refused(server, name, status) -> None:
    host = name.format(port=urlsplit(server.url).port)
    assert asked(server, headers={"Host": host})[0] == status


def test_two_names_are_refused(server) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
        names = f"Host: 127.0.0.1:{parts.port}\r\n"
        raw.sendall(f"GET /?{parts.query} HTTP/1.1\r\n{names}Host: evil.example\r\nConnection: close\r\n\r\n".encode())
        status = raw.recv(4096).split()[1]
    assert status in (b"400", b"421")


def test_names_where_everyone_may_ask() -> None:
    for host in ("0.0.0.0", "::"):
        assert known_host("192.168.0.7:80", host)
        assert known_host("[fe80::1]:80", host)
        assert known_host(socket.gethostname(), host)
        assert not known_host("evil.example", host)
    assert known_host("192.168.0.7", "192.168.0.7")
    assert not known_host("192.168.0.8", "192.168.0.7")
    assert address("::1", 80, "t") == "http://[::1]:80/?token=t"
    assert address("0.0.0.0", 80, "t") == f"http://{socket.gethostname()}:80/?token=t"


# -- what is sent


def test_first_everything_and_then_what_has_changed() -> None:
    sections: dict[str, Any] = {"head": {"title": "a\nb\u2028c\x85</script>"}, "chart:loss": {"lines": [1]}}
    with serving(lambda: dict(sections)) as server:
        stream = Stream(server)
        assert stream.answer.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert stream.event() == {"retry": str(module.RETRY_MILLISECONDS)}
        first = stream.event()
        assert first.keys() == {"id", "event", "data"}
        assert first["event"] == "seen"
        sections["chart:loss"] = {"lines": [1, 2]}
        assert stream.seen() == {"order": ["head", "chart:loss"], "sections": {"chart:loss": {"lines": [1, 2]}}}
        other = Stream(server)
        assert other.seen()["sections"] == sections
        del sections["chart:loss"]
        assert stream.seen() == {"order": ["head"], "sections": {}}
        sections["table:units"] = {"rows": [float("nan"), float("inf")]}
        assert stream.seen()["sections"] == {"table:units": {"rows": [None, None]}}
        stream.close()
        other.close()


def test_numbers_of_events_rise() -> None:
    count = 0

    def look() -> dict[str, Any]:
        nonlocal count
        count += 1
        return {"head": {"count": count}}

    with serving(look) as server:
        stream = Stream(server)
        stream.event()
        numbers = [int(stream.event()["id"]) for _ in range(5)]
        assert numbers == sorted(set(numbers))
        stream.close()


@pytest.mark.parametrize("error", [DataMissing("it is\x1b[2J gone"), ValueError("odd")], ids=str)
def test_a_look_that_fails_leaves_what_was_there(error) -> None:
    fails = threading.Event()

    def look() -> dict[str, Any]:
        if fails.is_set():
            raise error
        return {"head": {"title": "t"}}

    with serving(look) as server:
        stream = Stream(server)
        assert stream.seen()["order"] == ["head"]
        fails.set()
        seen = stream.seen()
        assert seen["order"] == ["head", "trouble"]
        words = seen["sections"]["trouble"]["words"]
        assert words == ("it is�[2J gone" if isinstance(error, DataMissing) else "ValueError: odd")
        fails.clear()
        assert stream.seen() == {"order": ["head"], "sections": {}}
        stream.close()


def test_the_first_look_may_fail() -> None:
    def look() -> dict[str, Any]:
        raise DataMissing("not yet")

    with serving(look) as server:
        stream = Stream(server)
        assert stream.seen()["order"] == ["trouble"]
        stream.close()


def test_one_thread_looks_however_many_pages_there_are() -> None:
    threads: set[int] = set()
    at_once: list[int] = []
    inside = 0

    def look() -> dict[str, Any]:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        threads.add(threading.get_ident())
        time.sleep(0.001)
        inside -= 1
        return {"head": {"count": len(at_once)}}

    closed: list[int] = []
    with serving(look, closed=lambda: closed.append(threading.get_ident())) as server:
        streams = [Stream(server) for _ in range(6)]
        for stream in streams:
            stream.seen()
            stream.seen()
            stream.close()
    assert set(at_once) == {1}
    assert len(threads) == 1
    assert closed == list(threads)


def test_pages_are_counted_and_those_that_leave_make_room(monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_PAGES", 3)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.02)
    with serving(nothing) as server:
        streams = [Stream(server) for _ in range(3)]
        for stream in streams:
            stream.seen()
        refused = Stream(server)
        assert refused.answer.status == 503
        assert refused.answer.getheader("retry-after") == "10"
        refused.close()
        streams[0].close()

        def let_in() -> bool:
            again = Stream(server)
            again.close()
            return again.answer.status == 200

        until(let_in)
        for stream in streams[1:]:
            stream.close()


def test_a_quiet_stream_is_kept_alive(monkeypatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.02)
    with serving(nothing) as server:
        stream = Stream(server)
        stream.seen()
        assert stream.event() == {"": "still here"}
        stream.close()


# -- the end


def test_streams_end_with_the_server(monkeypatch) -> None:
    with serving(nothing) as server:
        stream = Stream(server)
        stream.seen()
    assert stream.line() == ""
    stream.close()
    port = urlsplit(server.url).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_places_that_cannot_be_had_are_said(server) -> None:
    port = urlsplit(server.url).port
    with pytest.raises(
        InputError, match=rf"--port: cannot listen on 127.0.0.1, port {port} \(Address already in use\)"
    ):
        LiveServer(None, nothing, port=port)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"--host: no.such.host is not an address of this machine"):
        bound("no.such.host", 0)
    with pytest.raises(InputError, match=r"cannot listen on 192.0.2.1, port 0"):
        bound("192.0.2.1", 0)
