"""Just enough of Protocol Buffers to read a bytes feature of a `tf.train.Example`.

A message is a row of fields. A field is a varint (field number × 8 + wire type), then its value: wire type 0 a varint,
1 eight bytes, 2 a length and as many bytes, 5 four bytes. The messages, with their field numbers:

    Example    { features = 1: Features }
    Features   { feature = 1: entry { key = 1: string, value = 2: Feature }, repeated }
    Feature    { bytes_list = 1: BytesList }
    BytesList  { value = 1: bytes, repeated }
"""

from __future__ import annotations

from collections.abc import Iterator

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
