"""One file, downloaded whole or not at all.

What comes is written to `NAME.part` beside the target, and moved to its place once its digest is the published one. A
part that is left, by a cut connection or Ctrl-C, is where the next download goes on. One process at a time works in a
folder.
"""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from fedtempo.data.catalogue import File
from fedtempo.data.lock import locked
from fedtempo.data.part import CHUNK, Part, digest_of, writing
from fedtempo.data.transfer import INSTEAD, Cut, ask, check_address
from fedtempo.errors import DataMissing

ATTEMPTS = 3
PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)

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
            log.warning("%s is not the official file (its %s is another); replacing it", target, file.algorithm)
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
        f"{address}: what came is not the official {file.name}: its {file.algorithm} is {found}, not {file.digest}; "
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
        f"{address}: the download of {file.name} broke off {ATTEMPTS} times ({why}); what came is kept, and the same "
        f"command goes on from there. Try again later, {INSTEAD}"
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
