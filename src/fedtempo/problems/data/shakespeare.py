"""Shakespeare's roles, one text each: TensorFlow Federated's release, or LEAF's roles; both cleaned as LEAF does.

LEAF: a JSON object with `users`, `num_samples` (one each) and `user_data[user]["raw"]`, a role's text.

TensorFlow Federated: an SQLite database with a row per snippet, a contiguous part of what a role says.

    examples         split_name TEXT, client_id TEXT, serialized_example_proto BLOB
    client_metadata  client_id TEXT, split_name TEXT, num_examples INTEGER

A role is a `client_id`; its splits are `train` and `test`; a row's blob is a `tf.train.Example` with one bytes feature
`snippets`. The text of a role is its training snippets in the order of their rows, then its test snippets, joined by
newlines. The database is opened in memory: the file is never written to. Of Protocol Buffers there is just enough to
read that feature. A message is a row of fields; a field is a varint (field number × 8 + wire type), then its value:
wire type 0 a varint, 1 eight bytes, 2 a length and as many bytes, 5 four bytes. The messages, with their field numbers:

    Example    { features = 1: Features }
    Features   { feature = 1: entry { key = 1: string, value = 2: Feature }, repeated }
    Feature    { bytes_list = 1: BytesList }
    BytesList  { value = 1: bytes, repeated }
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtempo.problems.data.catalogue import Folder, needed
from fedtempo.problems.data.reading import Damage, read, reading

if TYPE_CHECKING:
    from sqlite3 import Connection

_SPACES = re.compile("  +")


class Roles(NamedTuple):
    """Names of roles, and the cleaned text of each."""

    names: tuple[str, ...]
    texts: tuple[str, ...]


def cleaned(text: str) -> str:
    """The text as LEAF cleans it: newlines become spaces, runs of spaces become one."""
    return _SPACES.sub(" ", text.replace("\n", " "))


_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5
_MAX_VARINT = 10
"""Bytes of a varint: ten times seven bits hold 64."""


class Malformed(Exception):
    """The bytes are not such a message."""


def bytes_feature(example: bytes, name: str) -> list[bytes]:
    """The values of the bytes feature `name`; empty if there is none."""
    values: list[bytes] = []
    for features in _messages(example, 1):
        for entry in _messages(features, 1):
            if b"".join(list(_messages(entry, 1))[-1:]) == name.encode():
                lists = [part for feature in _messages(entry, 2) for part in _messages(feature, 1)]
                values = [value for part in lists for value in _messages(part, 1)]
    return values


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the length-delimited fields with the number `wanted`."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise Malformed("a field has the number 0")
        if kind == _VARINT:
            _, at = _varint(data, at)
            continue
        if kind == _DELIMITED:
            size, at = _varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise Malformed(f"a field has the wire type {kind}")
        if size > len(data) - at:
            raise Malformed(f"a field of {size} bytes begins {len(data) - at} bytes before the end")
        if kind == _DELIMITED and number == wanted:
            yield data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint that begins at `at`, and where it ends."""
    value = 0
    for shift, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise Malformed("a number does not end")


def leaf_roles(data: bytes) -> Roles:
    """The roles in the file's order."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damage(f"it is not JSON ({error})") from None
    users, counts, texts = _parts(document)
    if not users:
        raise Damage("it holds no roles")
    if not all(isinstance(user, str) for user in users) or len(set(users)) < len(users):
        raise Damage("its users are not names that differ from each other")
    if len(counts) != len(users):
        raise Damage(f"it has {len(counts)} entries in num_samples for {len(users)} users")
    return Roles(tuple(users), tuple(cleaned(_raw(texts, user)) for user in users))


def _parts(document: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """`users`, `num_samples` and `user_data`."""
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(document, dict) or not isinstance(document.get(key), kind):
            raise Damage(f"it does not have LEAF's keys: {key} is not there, or not a {kind.__name__}")
    return document["users"], document["num_samples"], document["user_data"]


def _raw(texts: dict[str, Any], user: str) -> str:
    entry = texts.get(user)
    raw = entry.get("raw") if isinstance(entry, dict) else None
    if not isinstance(raw, str):
        raise Damage(
            f'the role {user!r} has no text: user_data["{user}"]["raw"] is not there (LEAF writes it with --raw)'
        )
    return raw


SPLITS = ("train", "test")
FEATURE = "snippets"

_BEGINS = b"SQLite format 3\0"
_JOURNAL = slice(18, 20)
"""Where the header says whether changes go to a log beside the file (2, 2), which a database in memory cannot have."""


def tff_roles(data: bytes) -> Roles:
    """The roles, sorted by name."""
    if not data.startswith(_BEGINS):
        raise Damage("it is not an SQLite database")
    content = bytearray(data)
    content[_JOURNAL] = b"\1\1"
    import sqlite3  # loaded by those who read this release

    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(bytes(content))
            return _roles(database)
    except sqlite3.Error as error:
        raise Damage(f"its database is damaged or another one ({error})") from None


def _roles(database: Connection) -> Roles:
    database.execute("PRAGMA query_only = ON")
    database.execute("PRAGMA trusted_schema = OFF")
    [(verdict,)] = database.execute("PRAGMA quick_check(1)")
    if verdict != "ok":
        raise Damage(f"its database is damaged ({verdict.splitlines()[-1]})")
    for table in ("examples", "client_metadata"):  # real ones: a view could compute anything
        if not list(database.execute(f"{_MASTER} AND name = ?", [table])):
            raise Damage(f"its database has no table {table}")
    names = sorted(name for (name,) in database.execute("SELECT DISTINCT client_id FROM client_metadata"))
    snippets: dict[tuple[str, str], list[str]] = defaultdict(list)
    rows = "SELECT rowid, client_id, split_name, serialized_example_proto FROM examples ORDER BY rowid"
    for row, name, split, example in database.execute(rows):
        if split not in SPLITS:
            raise Damage(f"row {row} of its examples belongs to a split {split!r}, neither train nor test")
        snippets[name, split].append(_snippet(example, row))
    said = [[*snippets[name, "train"], *snippets[name, "test"]] for name in names]
    if not names:
        raise Damage("it holds no roles")
    for name, pieces in zip(names, said, strict=True):
        if not pieces:
            raise Damage(f"it has no snippets of the role {name!r}")
    return Roles(tuple(names), tuple(cleaned("\n".join(pieces)) for pieces in said))


_MASTER = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND rootpage > 0"


def _snippet(example: object, row: int) -> str:
    """The text in a serialized example."""
    try:
        if not isinstance(example, bytes):
            raise Malformed("it is not a blob")
        [snippet] = bytes_feature(example, FEATURE)
        return snippet.decode()
    except (Malformed, UnicodeDecodeError) as error:
        raise Damage(f"row {row} of its examples is malformed: {error}") from None
    except ValueError:
        raise Damage(f"row {row} of its examples does not hold exactly one text {FEATURE!r}") from None


LIMIT = 128 * 2**20


def load_shakespeare(data_dir: Folder = None) -> Roles:
    """The roles and their texts, from `shakespeare/` below the data folder.

    There it takes TensorFlow Federated's database, shakespeare.sqlite.lzma or shakespeare.sqlite (roles sorted by name,
    each role's training snippets, then its test snippets, joined by a space), or LEAF's roles, leaf_all_users_raw.json
    or all_data.json, .gz or unpacked (roles in the file's order).
    """
    [path] = needed("shakespeare", data_dir)
    with reading(path, "shakespeare", data_dir):
        data = read(path, LIMIT)
        return tff_roles(data) if ".sqlite" in path.name else leaf_roles(data)
