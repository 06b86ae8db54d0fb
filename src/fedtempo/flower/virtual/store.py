"""Replies of ClientApps in a file, from which a run that was killed goes on to the same record.

A run is repeated from its beginning, and what a client answered then is read instead of worked out again: the server,
any strategy and what it remembers come to where they were. An entry is asked for by whose message it answers, and by
the digest of what was sent: where the server does not do the same again, the reply is worked out anew.

    8 bytes    length of the header
    header     JSON: key, digest, lengths, error, the processor's seconds, CRC-32 of what follows
    rest       the reply's content, the client's state afterwards

What a kill has cut short at the end is cut off. Beyond `limit` bytes nothing more is kept, and the rest is worked out
again.
"""

from __future__ import annotations

import json
import logging
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedtempo.files import storage_errors
from fedtempo.flower.virtual.client_work import Done

log = logging.getLogger(__name__)

Key = tuple[str, int, int]
"""Kind of message, client, how many of that kind the client has had."""


class _Entry(NamedTuple):
    digest: str
    begin: int
    reply: int
    state: int
    error: tuple[int, str] | None
    seconds: float


class ReplyStore:
    """The file of a run; `close` it."""

    def __init__(self, path: Path, *, limit: int = 8 << 30) -> None:
        self._path, self._limit = path, limit
        self._entries: dict[Key, _Entry] = {}
        self.used = 0
        """Replies that were read instead of worked out."""
        self._said = False
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("a+b")
            self._end = self._read()
            self._file.truncate(self._end)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Nothing more is kept."""
        self._file.close()

    def get(self, key: Key, digest: str) -> Done | None:
        """The reply to this message, if it was kept."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found.digest != digest:
            if not self._said:
                self._said = True
                log.warning(
                    "%s: the server does not repeat what it did before, so later replies are computed again; let the "
                    "ServerApp seed its random generators",
                    self._path,
                )
            return None
        self._file.seek(found.begin)
        data = self._file.read(found.reply + found.state)
        self.used += 1
        return Done(data[: found.reply], found.error, data[found.reply :], found.seconds)

    def put(self, key: Key, digest: str, done: Done) -> None:
        """Keep a reply."""
        size = len(done.reply) + len(done.state)
        if self._end + size > self._limit:
            if self._limit:
                log.warning(
                    "%s holds %.1f GB: later replies are not kept, and are computed again if the run is killed",
                    self._path,
                    self._end / 1e9,
                )
                self._limit = 0
            return
        rest = done.reply + done.state
        header = json.dumps(
            {
                "key": key,
                "digest": digest,
                "sizes": [len(done.reply), len(done.state)],
                "error": done.error,
                "seconds": done.seconds,
                "crc": zlib.crc32(rest),
            }
        ).encode()
        entry = b"".join([len(header).to_bytes(8, "little"), header, rest])
        try:
            self._file.seek(0, 2)
            self._file.write(entry)
            self._file.flush()
        except OSError as error:
            log.warning(
                "%s cannot be written (%s): later replies are not kept, and are computed again if the run is killed",
                self._path,
                error.strerror,
            )
            self._limit = 0
            return
        begin = self._end + 8 + len(header)
        self._entries[key] = _Entry(digest, begin, len(done.reply), len(done.state), done.error, done.seconds)
        self._end = begin + size

    def _read(self) -> int:
        """Enter what is there; where what is whole ends."""
        self._file.seek(0)
        end = 0
        while len(length := self._file.read(8)) == 8:
            size = int.from_bytes(length, "little")
            if size > 1 << 20:
                return end
            try:
                header = json.loads(self._file.read(size))
                reply, state = header["sizes"]
                kind, client, number = header["key"]
                error = header["error"]
            except (ValueError, LookupError, TypeError):
                return end
            rest = self._file.read(reply + state)
            if len(rest) < reply + state or zlib.crc32(rest) != header["crc"]:
                return end
            wrong = None if error is None else (int(error[0]), str(error[1]))
            begin = end + 8 + size
            self._entries[kind, client, number] = _Entry(
                header["digest"], begin, reply, state, wrong, float(header["seconds"])
            )
            end = begin + reply + state
        return end
