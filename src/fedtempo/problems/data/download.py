"""One file, downloaded whole or not at all, by one process at a time in a folder.

What comes is written to `NAME.part` beside the target, and moved to its place once its digest is the published one. A
part that is left, by a cut connection or Ctrl-C, is where the next download goes on; `NAME.part.version` says of which
version it is a part, an ETag or a date, since going on with another version's part would mix two files.

The rest is asked for by `Range: bytes=START-`, with `If-Range: VERSION` where a version is known. A server that knows
neither, or that has another version, answers with the whole file. Addresses are https; plain http serves this machine
only. The lock is on a file, and the operating system lets it go when its holder ends, however it ends.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fedtempo.errors import DataMissing, FedtempoError, InputError
from fedtempo.files import put_in_place
from fedtempo.problems.data.catalogue import File

CHUNK = 2**18


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the file system refuses becomes a message."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}; make room or give permission there, or choose another folder "
            "with --data-dir (Python: data_dir=…)"
        ) from None


def digest_of(path: Path, algorithm: str) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


class Part:
    """The part of a file that is here so far."""

    def __init__(self, target: Path, algorithm: str) -> None:
        self._target, self._algorithm = target, algorithm
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.version")

    @property
    def size(self) -> int:
        """Bytes; 0 if nothing is here."""
        with writing(self.path):
            return self.path.stat().st_size if self.path.exists() else 0

    @property
    def digest(self) -> str:
        """The digest of what is here."""
        with writing(self.path):
            return digest_of(self.path, self._algorithm) if self.path.exists() else ""

    @property
    def version(self) -> str | None:
        """What the server called the version of which this is a part."""
        with writing(self._note):
            note = self._note.read_text("latin-1") if self._note.exists() else ""
        return note if note.isprintable() and note else None

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Callable[[bytes], None]]:
        """Go on at the end, or from the beginning where `start` is 0; yields what writes a piece."""
        with writing(self.path):
            if not start:
                self.remove()
                self._note.write_text(version or "", "latin-1")
            file = self.path.open("ab", buffering=0)
        with file:

            def write(piece: bytes) -> None:
                with writing(self.path):
                    left = memoryview(piece)
                    while left:
                        left = left[file.write(left) :]

            yield write

    def put_in_place(self) -> None:
        """Make the part the target."""
        with writing(self._target):
            put_in_place(self.path, self._target)
            self._note.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget what is here."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)


log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on `path`, which is made if need be and stays; waits for who holds it."""
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _take(handle, wait=False):
            log.warning("another process is downloading to %s; waiting for it", path.parent)
            _take(handle, wait=True)
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _take(handle: int, *, wait: bool) -> bool:
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:  # LK_LOCK itself gives up after ten seconds
                if not wait:
                    return False
            else:
                return True
else:
    import fcntl

    def _take(handle: int, *, wait: bool) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: the digest still guards the target
            return True
        return True


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
    what = "no longer has it" if code in (404, 410) else "refuses it"
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
                f"{req.full_url}: the server redirects to {newurl}, which is not https, so it was not followed. "
                f"Try again later, {INSTEAD}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


ATTEMPTS = 3
PAUSE_SECONDS = 1.0


Tell = Callable[[int, int | None], None]


def fetch(file: File, folder: Path, *, address: str, tell: Tell | None = None) -> Path:
    """The file in `folder`, downloaded unless it is there with its published digest."""
    check_address(address)
    target = folder / file.name
    if _is_right(target, file):
        return target
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        if _is_right(target, file):  # another process has done it meanwhile
            return target
        if target.exists():
            log.warning("%s is not the official file (its %s differs); replacing it", target, file.algorithm)
        part = Part(target, file.algorithm)
        for last in (False, True):
            resumed = part.digest != file.digest and _complete(file, address, part, tell)
            if part.digest == file.digest:
                part.put_in_place()
                log.info("%s: downloaded, %s as published", target, file.algorithm)
                return target
            found = part.digest
            part.remove()
            if last or not resumed:  # otherwise pieces of two versions may have met: once more, from the beginning
                break
    raise DataMissing(
        f"{address}: the downloaded file is not the official {file.name}: its {file.algorithm} is {found}, not "
        f"{file.digest}; "
        f"it was not kept. Try again later, {INSTEAD}"
    )


def _is_right(target: Path, file: File) -> bool:
    with writing(target):
        return target.is_file() and digest_of(target, file.algorithm) == file.digest


def _complete(file: File, address: str, part: Part, tell: Tell | None) -> bool:
    """Download what the part lacks, in up to three attempts; whether some of it was there before."""
    why = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            log.info("%s: %s; trying again", file.name, why)
            time.sleep(PAUSE_SECONDS * attempt)
        try:
            return _go_on(file, address, part, tell)
        except Cut as cut:
            why = str(cut)
    raise DataMissing(
        f"{address}: the download of {file.name} failed {ATTEMPTS} times ({why}); the part that arrived is kept, and "
        f"the same command continues from there. Try again later, {INSTEAD}"
    )


def _go_on(file: File, address: str, part: Part, tell: Tell | None) -> bool:
    """Download from where the part ends, or from the beginning if the server wants that; whether it was the former."""
    if part.size >= file.limit:
        part.remove()
    answer = ask(address, part.size, part.version)
    with answer.body as body:
        if (answer.total or 0) > file.limit:
            raise _too_long(file, address, f"{answer.total:,} bytes")
        with part.open(answer.start, answer.version) as write:
            while part.size <= file.limit and (chunk := _read(body)):
                write(chunk)
                if tell is not None:
                    tell(part.size, answer.total)
    if part.size > file.limit:
        part.remove()
        raise _too_long(file, address, f"more than {file.limit:,} bytes")
    if answer.total is not None and part.size < answer.total:
        raise Cut(f"after {part.size:,} of {answer.total:,} bytes")
    return answer.start > 0


def _read(body: http.client.HTTPResponse) -> bytes:
    try:
        return body.read(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise Cut(str(error) or type(error).__name__) from None


def _too_long(file: File, address: str, size: str) -> DataMissing:
    return DataMissing(
        f"{address}: {urlsplit(address).hostname} sends {size}, and {file.name} has fewer than {file.limit:,}; "
        f"it was not kept. Try again later, {INSTEAD}"
    )
