"""TensorFlow Federated's Shakespeare: an SQLite database with a row per snippet, a contiguous piece that a role says.

    examples         split_name TEXT, client_id TEXT, serialized_example_proto BLOB
    client_metadata  client_id TEXT, split_name TEXT, num_examples INTEGER

A role is a `client_id`; its splits are `train` and `test`; a row's blob is a `tf.train.Example` with one bytes feature
`snippets`. The text of a role is its training snippets in the order of their rows, then its test snippets, joined by
newlines and cleaned as LEAF does. The database is opened in memory: the file is never written to.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing

from fedtempo.data.damage import Damage
from fedtempo.data.example_proto import Malformed, bytes_feature
from fedtempo.data.roles import Roles, cleaned

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
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(bytes(content))
            return _roles(database)
    except sqlite3.Error as error:
        raise Damage(f"its database is damaged or another one ({error})") from None


def _roles(database: sqlite3.Connection) -> Roles:
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
