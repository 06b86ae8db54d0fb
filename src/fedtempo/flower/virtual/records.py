"""What messages hold, as bytes: for processes that run ClientApps, and for the file from which a run goes on.

    8 bytes    length of the header
    header     JSON: the records in order; metrics and configs with their values, arrays with their place in the rest
    rest       the arrays' bytes, one after the other

No pickle: bytes from a file run no code. Whole numbers, floats (NaN too), texts and lists come back as they were.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtempo.errors import InputError

_LENGTH = 8


def encoded(content: RecordDict) -> bytes:
    """A message's content, or a client's state."""
    header: list[Any] = []
    rest: list[bytes] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = [[key, a.dtype, list(a.shape), a.stype, len(a.data)] for key, a in record.items()]
            header.append([name, "arrays", arrays])
            rest += [array.data for array in record.values()]
        else:
            kind = "metrics" if isinstance(record, MetricRecord) else "config"
            header.append([name, kind, {key: _plain(value) for key, value in record.items()}])
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *rest])


def decoded(data: bytes) -> RecordDict:
    """What `encoded` has made bytes of."""
    try:
        begin = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        header, view = json.loads(data[_LENGTH:begin]), memoryview(data)
        content = RecordDict()
        for name, kind, fields in header:
            if kind == "arrays":
                record = ArrayRecord()
                for key, dtype, shape, stype, size in fields:
                    array = Array(dtype=dtype, shape=tuple(shape), stype=stype, data=bytes(view[begin : begin + size]))
                    record[key], begin = array, begin + size
                content[name] = record
            else:
                values = {key: _back(value) for key, value in fields.items()}
                content[name] = MetricRecord(values) if kind == "metrics" else ConfigRecord(values)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"these bytes are not records ({type(error).__name__}: {error})") from None
    return content


def array_bytes(data: bytes) -> int:
    """How many of the bytes are those of arrays."""
    return max(0, len(data) - _LENGTH - int.from_bytes(data[:_LENGTH], "little"))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value


def _back(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_back(part) for part in value] if isinstance(value, list) else value


class Digests:
    """Digests of what is sent; those of a model are made once for all clients that get it."""

    def __init__(self, kept: int = 4) -> None:
        self._kept = kept
        self._models: dict[int, tuple[ArrayRecord, bytes]] = {}

    def of(self, content: RecordDict, more: bytes = b"") -> str:
        """The digest of a message's content, and of what else the reply depends on."""
        total = hashlib.blake2b(more, digest_size=12)
        for name, record in content.items():
            total.update(name.encode())
            if isinstance(record, ArrayRecord):
                total.update(self._of_arrays(record))
            else:
                total.update(encoded(RecordDict({name: record})))
        return total.hexdigest()

    def _of_arrays(self, record: ArrayRecord) -> bytes:
        known = self._models.get(id(record))
        if known is not None and known[0] is record:
            return known[1]
        total = hashlib.blake2b(digest_size=12)
        for name, array in record.items():
            total.update(f"{name}/{array.dtype}/{array.shape}".encode())
            total.update(array.data)
        while len(self._models) >= self._kept:
            del self._models[next(iter(self._models))]
        self._models[id(record)] = record, total.digest()
        return total.digest()
