"""Shakespeare's roles from both releases, and every damage that is told."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtempo.errors import DataMissing, InputError
from fedtempo.problems.data import Roles, load_shakespeare, shakespeare
from fedtempo.problems.data.shakespeare import Malformed, bytes_feature, cleaned
from support import true_formats as true

# what TensorFlow's guide to tf.train.Example prints
GUIDE = (
    b"\nR\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00"
    b"\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
)


def whole(text: dict[str, list[str]]) -> dict[str, str]:
    return {role: cleaned("\n".join(lines)) for role, lines in text.items()}


@pytest.mark.parametrize("name", ["leaf_all_users_raw.json.gz", "leaf_all_users_raw.json", "all_data.json"])
def test_leafs_roles_in_the_order_of_the_file(tmp_path: Path, name: str) -> None:
    roles = load_shakespeare(true.shakespeare_leaf(tmp_path, name=name))
    expected = whole(true.speeches(4))
    assert roles == Roles(tuple(reversed(expected)), tuple(reversed(expected.values())))
    assert all(len(text) >= 400 for text in roles.texts)


@pytest.mark.parametrize("name", ["shakespeare.sqlite.lzma", "shakespeare.sqlite"])
def test_tffs_roles_by_name_training_before_test(tmp_path: Path, name: str) -> None:
    roles = load_shakespeare(true.shakespeare_tff(tmp_path, name=name))
    expected = whole(true.speeches(4))
    assert roles == Roles(tuple(expected), tuple(expected.values()))


def test_both_ways_of_packing(tmp_path: Path) -> None:
    path = true.shakespeare_tff(tmp_path) / "shakespeare" / "shakespeare.sqlite.lzma"
    before = load_shakespeare(tmp_path)
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()), format=lzma.FORMAT_XZ))
    assert load_shakespeare(tmp_path) == before


def test_a_database_with_a_log_is_read_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shakespeare" / "shakespeare.sqlite"
    true.write(path, true.database([("train", "A", true.example("Hark!"))], wal=True))
    before = path.read_bytes()
    path.chmod(0o444)
    assert load_shakespeare(tmp_path) == Roles(("A",), ("Hark!",))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["shakespeare.sqlite"]


def test_text_is_cleaned_as_leaf_does() -> None:
    assert cleaned("To be,\n  or   not\n\n to be \t:\n") == "To be, or not to be \t: "


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"shakespeare is not in .*fedtempo data get shakespeare.*shakespeare.sqlite"):
        load_shakespeare(tmp_path)


TRAIN = ("train", "A", true.example("Hark!"))
VIEW = "DROP TABLE examples; CREATE VIEW examples AS SELECT 1 AS rowid, 'train' AS split_name"


def tff_damages() -> dict[str, tuple[bytes, str]]:
    good = true.database([("train", f"R{n % 3}", true.example("x" * 900)) for n in range(40)])
    return {
        "nothing": (b"", "not an SQLite database"),
        "no database": (b"x" * 5000, "not an SQLite database"),
        "cut short": (good[: len(good) // 2], "damaged"),
        "overwritten": (good[:8192] + b"\xff" * 8192 + good[16384:], "damaged"),
        "no tables": (altered("DROP TABLE examples"), "no table examples"),
        "no roles' table": (altered("DROP TABLE client_metadata"), "no table client_metadata"),
        "a view": (altered(VIEW), "no table examples"),
        "another column": (altered("ALTER TABLE examples RENAME split_name TO split"), "no such column"),
        "no roles": (true.database([]), "no roles"),
        "a role without text": (altered("UPDATE client_metadata SET client_id = 'B'"), "no snippets of the role 'B'"),
        "another split": (true.database([("held", "A", TRAIN[2])]), "split 'held'"),
        "another feature": (true.database([("train", "A", true.example("x", "text"))]), "exactly one text 'snippets'"),
        "a cut example": (true.database([TRAIN, ("test", "A", TRAIN[2][:-2])]), "row 2 of its examples is malformed"),
        "no UTF-8": (true.database([("train", "A", TRAIN[2].replace(b"Hark", b"\xff\xfe\xfd\xfc"))]), "malformed"),
        "text for a blob": (true.database([("train", "A", "Hark!")]), "not a blob"),  # type: ignore[list-item]
    }


def altered(sql: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(true.database([TRAIN]))
        connection.executescript(sql)
        return connection.serialize()


@pytest.mark.parametrize("damage", tff_damages())
def test_a_damaged_database(tmp_path: Path, damage: str) -> None:
    data, words = tff_damages()[damage]
    path = tmp_path / "shakespeare" / "shakespeare.sqlite"
    true.write(path, data)
    assert_told(tmp_path, path, words)


def test_a_damaged_packing(tmp_path: Path) -> None:
    path = true.shakespeare_tff(tmp_path) / "shakespeare" / "shakespeare.sqlite.lzma"
    data = path.read_bytes()
    for broken, words in ((data[:-40], "cut short"), (b"xxxx" + data[4:], "damaged"), (b"", "cut short")):
        path.write_bytes(broken)
        assert_told(tmp_path, path, words)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = true.shakespeare_tff(tmp_path) / "shakespeare" / "shakespeare.sqlite.lzma"
    path.write_bytes(lzma.compress(bytes(2**23), format=lzma.FORMAT_ALONE))
    monkeypatch.setattr(shakespeare, "LIMIT", 2**20)
    assert_told(tmp_path, path, "more than 1 MiB")


GOOD = {"users": ["A", "B"], "num_samples": [1, 2], "user_data": {"A": {"raw": "x"}, "B": {"raw": "y"}}}
LEAF_DAMAGES = {
    "no JSON": (b"{", "not JSON"),
    "no text": (b"\xff\xfe\xfa", "not JSON"),
    "endless depth": (b"[" * 200_000, "not JSON"),
    "a list": (b"[1]", "users is not there"),
    "no users": (json.dumps({**GOOD, "users": None}).encode(), "users is not there"),
    "no user_data": (json.dumps({**GOOD, "user_data": []}).encode(), "user_data is not there"),
    "no roles": (json.dumps({**GOOD, "users": [], "num_samples": []}).encode(), "no roles"),
    "a count too few": (json.dumps({**GOOD, "num_samples": [1]}).encode(), "1 entries in num_samples for 2 users"),
    "a role twice": (json.dumps({**GOOD, "users": ["A", "A"]}).encode(), "differ from each other"),
    "a role without name": (json.dumps({**GOOD, "users": ["A", 7]}).encode(), "differ from each other"),
    "a role without entry": (json.dumps({**GOOD, "user_data": {"A": {"raw": "x"}}}).encode(), "'B' has no text"),
    "samples only": (json.dumps({**GOOD, "user_data": {"A": {"x": []}}}).encode(), "--raw"),
}


@pytest.mark.parametrize("damage", LEAF_DAMAGES)
def test_damaged_roles_of_leaf(tmp_path: Path, damage: str) -> None:
    data, words = LEAF_DAMAGES[damage]
    path = tmp_path / "shakespeare" / "all_data.json.gz"
    true.write(path, gzip.compress(data))
    assert_told(tmp_path, path, words)


def test_an_example_as_tensorflow_writes_it() -> None:
    assert bytes_feature(GUIDE, "feature2") == [b"goat"]
    assert bytes_feature(GUIDE, "feature0") == []  # numbers, not bytes
    assert bytes_feature(GUIDE, "feature9") == []


def test_fields_of_every_kind_are_passed_over() -> None:
    others = b"\x10\x96\x01" + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    long = "x" * 300
    assert bytes_feature(others + true.example(long) + others, "snippets") == [long.encode()]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a", "does not end"),
        (b"\x0a\x05abc", "5 bytes begins 3 bytes before the end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "before the end"),
        (b"\xff" * 12, "does not end"),
        (b"\x08\x80", "does not end"),
        (b"\x0b", "wire type 3"),
        (b"\x02\x00", "number 0"),
        (b"\x09\x00", "8 bytes begins 1"),
    ],
)
def test_malformed_examples(data: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        bytes_feature(data, "snippets")


@given(st.binary(max_size=80))
def test_any_bytes_are_an_example_or_malformed(data: bytes) -> None:
    try:
        values = bytes_feature(data, "")
    except Malformed:
        return
    assert sum(len(value) for value in values) <= len(data)


def assert_told(folder: Path, path: Path, why: str) -> None:
    with pytest.raises(InputError) as caught:
        load_shakespeare(folder)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    for words in (why, "remove it", "fedtempo data get shakespeare", "--data-dir"):
        assert words in message
    assert "\n" not in message
