"""The server of a live page: this machine alone, to read only, for whoever has the token in the address.

    GET /?token=…          the page
    GET /events?token=…    its sections as server-sent events: all of them at first, then those that have changed

    one reader       however many pages are open, one thread looks, every second
    a look that fails leaves what was there, and says why; the next one may work again
    a request        names no file. Another method, host or token is refused before anything else is done

Whoever may connect and has no token learns nothing. A page of another site cannot ask either: it does not know the
token, its name for this machine is not ours (DNS rebinding), and nothing allows it to read the answers.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from urllib.parse import parse_qs

from fedtempo.errors import FedtempoError, InputError, in_one_line
from fedtempo.report.browser.document import WebPage, plain
from fedtempo.report.browser.live import Section, Sections
from fedtempo.report.text import printable

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError:
    raise InputError(
        "the live page needs Starlette and Uvicorn: pip install 'fedtempo[watch]'; or add --text for the terminal"
    ) from None

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
QUIET_SECONDS = 15.0
"""After so long without news a comment is sent, so that both sides know of each other."""
RETRY_MILLISECONDS = 1500
MOST_PAGES = 16
"""Pages that are followed at the same time."""
MOST_CONNECTIONS = 64
LAST_SECONDS = 1
"""So long open connections may take when the server ends."""
HERE = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "")

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Feed:
    """What is seen, for all pages: looked at by one thread, and known by number of change."""

    def __init__(self, look: Callable[[], Sections], every: float = LOOK_SECONDS) -> None:
        self._look, self._every = look, every
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedtempo-watch")
        self._texts: dict[str, str] = {}
        """The sections as JSON."""
        self._changed_at: dict[str, int] = {}
        self._order: list[str] = []
        self.number = 0
        self._news = asyncio.Event()
        self.ended = False

    async def follow(self) -> None:
        """Look until the end."""
        loop = asyncio.get_running_loop()
        while not self.ended:
            self._take(await loop.run_in_executor(self._thread, self._seen))
            await asyncio.sleep(self._every)

    def _seen(self) -> dict[str, str] | Section:
        """The sections as text; of a look that fails, what is wrong."""
        try:
            return {name: _json(section) for name, section in self._look().items()}
        except FedtempoError as error:
            return {"failed": str(error)}
        except Exception as error:  # what lies there is not ours; the page says so, and goes on
            log.debug("a look has failed", exc_info=True)
            return {"failed": in_one_line(error)}

    def _take(self, seen: dict[str, str] | Section) -> None:
        texts = dict(seen)
        wrong = texts.pop("failed", None)
        if wrong is not None:
            texts = {**self._texts, "trouble": _json({"words": printable(str(wrong))})}
        changed = [name for name, text in texts.items() if self._texts.get(name) != text]
        gone = self._texts.keys() - texts.keys()
        if not changed and not gone and self.number:
            return
        self.number += 1
        self._texts, self._order = texts, [*texts]
        self._changed_at = {name: self._changed_at.get(name, 0) for name in texts} | dict.fromkeys(changed, self.number)
        self._news.set()
        self._news = asyncio.Event()

    def event(self, since: int) -> str:
        """All that has changed since a number, as one event."""
        fresh = [name for name in self._order if self._changed_at[name] > since]
        sections = ",".join(f"{_json(name)}:{self._texts[name]}" for name in fresh)
        return f'id: {self.number}\nevent: seen\ndata: {{"order":{_json(self._order)},"sections":{{{sections}}}}}\n\n'

    async def wait(self, seconds: float) -> None:
        """Until there is news, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    def end(self) -> None:
        """Nothing more will be seen."""
        self.ended = True
        self._news.set()

    async def close(self, last: Callable[[], object]) -> None:
        """Wait for the last look; `last` is called in the thread that looked."""
        await asyncio.get_running_loop().run_in_executor(self._thread, last)
        self._thread.shutdown()


def _json(value: object) -> str:
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Guard:
    """Refuses what is not a GET of somebody with the token, under a name of this server."""

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self._app, self._token, self._host = app, token.encode(), host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> Response | None:
        if scope["method"] != "GET":
            return _said("This page is to be read: GET.", 405, Allow="GET")
        headers = [value for name, value in scope["headers"] if name == b"host"]
        if len(headers) != 1 or not known_host(headers[0].decode("latin-1"), self._host):
            return _said("This server does not go by that name.", 421)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._token):
            return _said("The address lacks its token; take the whole line that fedtempo watch has printed.", 403)
        return None


def known_host(header: str, host: str) -> bool:
    """Whether the host that a request names is this server, so that no other site's name leads here."""
    name = header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]
    name = name.lower().rstrip(".")
    if name in HERE or name == host.lower():
        return True
    if host not in _ANY:
        return False
    if name in (socket.gethostname().lower(), socket.getfqdn().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _said(text: str, status: int, **headers: str) -> Response:
    return PlainTextResponse(f"{text}\n", status, {**_HEADERS, **headers})


def app_of(page: WebPage, feed: Feed, token: str, host: str) -> Guard:
    """The application."""
    open_pages = 0

    async def shown(request: Request) -> Response:
        return HTMLResponse(page.html, headers=_HEADERS)

    async def events(request: Request) -> Response:
        if open_pages >= MOST_PAGES:
            return _said(f"{MOST_PAGES} pages follow it already; close some.", 503, **{"Retry-After": "10"})
        return StreamingResponse(told(), media_type="text/event-stream", headers=_HEADERS)

    async def told() -> AsyncIterator[str]:
        nonlocal open_pages
        open_pages += 1
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n"
            known = 0
            while not feed.ended:
                if feed.number > known:
                    text, known = feed.event(known), feed.number
                    yield text
                else:
                    await feed.wait(QUIET_SECONDS)
                    if feed.number == known and not feed.ended:
                        yield ": still here\n\n"
        finally:
            open_pages -= 1

    routes = [Route("/", shown, methods=["GET"]), Route("/events", events, methods=["GET"])]
    return Guard(Starlette(routes=routes), token, host)


class _Server(uvicorn.Server):
    """Ends its streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C, or a polite kill."""
        self._feed.ended = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams first."""
        self._feed.end()
        await super().shutdown(sockets)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free."""
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"--host: {host} is not an address of this machine ({error.strerror}); leave it out") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise InputError(
            f"--port: cannot listen on {host}, port {port} ({error.strerror}); choose another port, or leave it out"
        ) from None
    return found


def address(host: str, port: int, token: str) -> str:
    """The address of the page."""
    name = socket.gethostname() if host in _ANY else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={token}"


class LiveServer:
    """A page and who looks for it, from `run` until Ctrl-C or `stop`."""

    def __init__(
        self,
        page: WebPage,
        look: Callable[[], Sections],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        closed: Callable[[], object] = lambda: None,
        every: float = LOOK_SECONDS,
    ) -> None:
        """`look`, and at last `closed`, are called in one thread of their own."""
        self._page, self._look, self._closed, self._every, self._host = page, look, closed, every, host
        self._token = secrets.token_urlsafe(24)
        self._socket = bound(host, port)
        self._server: _Server | None = None
        self.url = address(host, self._socket.getsockname()[1], self._token)
        """Where the page is, with its token."""

    def run(self, begun: Callable[[], object] = lambda: None) -> None:
        """Serve; `begun` is called when requests can come."""
        with self._socket:
            asyncio.run(self._run(begun))

    def stop(self) -> None:
        """End `run`, from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    async def _run(self, begun: Callable[[], object]) -> None:
        feed = Feed(self._look, self._every)
        config = uvicorn.Config(
            app_of(self._page, feed, self._token, self._host),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=LAST_SECONDS,
            h11_max_incomplete_event_size=16_384,
        )
        self._server = _Server(config, feed)
        looking = asyncio.create_task(feed.follow())
        try:
            self._socket.listen()
            begun()
            await self._server.serve(sockets=[self._socket])
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            await feed.close(self._closed)
