"""Asking a server for a file, or for the rest of one.

The rest is asked for by `Range: bytes=START-`, with `If-Range: VERSION` where a version is known. A server that knows
neither, or that has another version, answers with the whole file. Addresses are https; plain http serves this machine
only.
"""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fedtempo.errors import DataMissing, FedtempoError, InputError

TIMEOUT_SECONDS = 30.0
INSTEAD = "or copy the files by hand and name their folder with --data-dir FOLDER (Python: data_dir=…)"

_LOCAL = ("127.0.0.1", "localhost", "::1")
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP's answers that may be another in a moment."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Cut(Exception):
    """The transfer broke off, and may go on when it is tried again."""


class Answer(NamedTuple):
    """A server's answer: the bytes from `start` on."""

    body: http.client.HTTPResponse
    start: int
    total: int | None
    """Bytes of the whole file, where the server says."""
    version: str | None


def check_address(address: str) -> None:
    """Refuse an address that is not https."""
    if not _is_safe(address):
        raise InputError(f"{address!r} is not an address to download from; give one that begins with https://")


def ask(address: str, start: int, version: str | None) -> Answer:
    """Ask for the file from byte `start` on."""
    headers = {"User-Agent": "fedtempo", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version
    request = urllib.request.Request(address, headers=headers)
    try:
        body = urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the part does not belong to this file
            return ask(address, 0, None)
        raise _refusal(address, error.code) from None
    except urllib.error.URLError as error:
        host, why = urlsplit(address).hostname, getattr(error.reason, "strerror", None) or error.reason
        raise DataMissing(f"{address}: cannot reach {host} ({why}). Try again later, {INSTEAD}") from None
    except (http.client.HTTPException, OSError) as error:
        raise Cut(str(error) or type(error).__name__) from None
    answer = _understood(body, start)
    if answer is None:
        body.close()
        if start:
            return ask(address, 0, None)
        raise _refusal(address, body.status)
    return answer


def _understood(body: http.client.HTTPResponse, start: int) -> Answer | None:
    """What an answer to a request from `start` on means; None if it fits no such request."""
    if body.status == 200:
        length = body.headers.get("Content-Length", "")
        return Answer(body, 0, int(length) if length.isdecimal() else None, _version(body))
    found = _RANGE.fullmatch(body.headers.get("Content-Range", "").strip())
    if body.status == 206 and start and found and int(found[1]) == start and int(found[2]) == int(found[3]) - 1:
        return Answer(body, start, int(found[3]), _version(body))
    return None


def _version(body: http.client.HTTPResponse) -> str | None:
    """The file's ETag, or its date where that is weak or not there."""
    etag = body.headers.get("ETag")
    return etag if etag and etag.startswith('"') else body.headers.get("Last-Modified")


def _refusal(address: str, code: int) -> FedtempoError | Cut:
    if code in _PASSING:
        return Cut(f"HTTP {code}")
    what = "no longer has it" if code in (404, 410) else "does not give it"
    return DataMissing(f"{address}: {urlsplit(address).hostname} {what} (HTTP {code}). Try again later, {INSTEAD}")


def _is_safe(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (parts.scheme == "https" or _is_local(address))
    except ValueError:
        return False


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "http" and parts.hostname in _LOCAL


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to https only; from this machine, also on this machine."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _is_safe(newurl) or (_is_local(newurl) and not _is_local(req.full_url)):
            raise DataMissing(
                f"{req.full_url}: the server sends us on to {newurl}, which is not https, so it was not followed. "
                f"Try again later, {INSTEAD}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)
