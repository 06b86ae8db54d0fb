"""The metrics of a reply, within bounds: what is beyond them is left out, and the update enters all the same.

    names     at most `MOST_NAMES` a reply, of at most `LONGEST_NAME` characters that show
    lists     of at most `LONGEST_LIST` numbers
    configs   records of texts and bytes that come with them, of at most `LARGEST_CONFIG` bytes

Numbers that are not finite stay where they are, and means leave them out (evaluation.py). What was odd is said once for
each client.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtempo.flower.text import clean, is_clean

MOST_NAMES = 100
LONGEST_NAME = 100
LONGEST_LIST = 1000
LARGEST_CONFIG = 1_000_000
_MOST_RECORDS = 100
_SHOWN = 3
_BOUNDS = f"a reply may have {MOST_NAMES} names of {LONGEST_NAME} characters, and lists of {LONGEST_LIST} numbers"


class Remark(NamedTuple):
    """What was odd, and of which kind, so that it is said once."""

    kind: str
    words: str


class ReplyMetrics(NamedTuple):
    """What a reply says beside its arrays."""

    values: dict[str, Any]
    """All metrics together."""
    content: RecordDict
    """The reply without its arrays and without what is beyond the bounds; the record with the count comes first."""
    remarks: tuple[Remark, ...]


def bounded(content: RecordDict, count: str, wanted: Collection[str] = ()) -> ReplyMetrics:
    """The metrics of a reply; `count`, its number of examples, and the `wanted` names are kept whatever else it has."""
    values: dict[str, Any] = {}
    records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
    dropped: list[str] = []
    wrong: list[str] = []
    first: str | None = None
    left = MOST_NAMES
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            continue
        if len(records) >= _MOST_RECORDS:
            dropped.append(f"all after its first {_MOST_RECORDS} records")
            break
        if isinstance(record, ConfigRecord):
            if record.count_bytes() > LARGEST_CONFIG:
                dropped.append(f"a ConfigRecord of more than {LARGEST_CONFIG} bytes")
            else:
                records[key] = record
            continue
        bad: set[str] = set()
        for name, value in record.items():
            if name == count or name in wanted:
                pass
            elif not is_clean(name, LONGEST_NAME):
                bad.add(name)
                dropped.append(f"a name that is too long or not printable ({clean(name, 30)!r})")
                continue
            elif left <= 0:
                bad.add(name)
                dropped.append(f"all after its first {MOST_NAMES} names")
                continue
            else:
                left -= 1
            if isinstance(value, list):
                if len(value) > LONGEST_LIST:
                    bad.add(name)
                    dropped.append(f"{clean(name, LONGEST_NAME)!r}, a list of {len(value)} numbers")
                    continue
                if not all(map(_finite, value)):
                    wrong.append(name)
            elif not _finite(value):
                wrong.append(name)
            if name != count:
                values[name] = value
            elif first is None:
                first, values[name] = key, value
        records[key] = record if not bad else MetricRecord({n: v for n, v in record.items() if n not in bad})
    if first is not None and next(iter(records)) != first:
        records = {first: records.pop(first), **records}
    remarks = []
    if dropped:
        remarks.append(Remark("dropped", f"of its metrics {_some(dropped)} is left out; {_BOUNDS}"))
    if wrong := [name for name in wrong if name != count]:
        said = ", ".join(f"{clean(name, LONGEST_NAME)!r}" for name in wrong[:_SHOWN])
        remarks.append(Remark("not finite", f"its metric {said} is not finite; it is left out of means"))
    rest = content.copy()  # which is quicker than to make one of records
    for key in content.keys() - records.keys():
        del rest[key]
    if dropped or first not in (None, next(iter(rest))):
        rest = RecordDict(records)
    return ReplyMetrics(values, rest, tuple(remarks))


def with_count(content: RecordDict, count: str, value: float) -> RecordDict:
    """The same content with another number of examples."""
    changed: dict[str, Any] = dict(content.items())
    for key, record in content.items():
        if isinstance(record, MetricRecord) and count in record:
            changed[key] = MetricRecord({**record, count: value})
            break
    return RecordDict(changed)


def bad_count(value: object, count: str) -> str | None:
    """Why this is no number of examples; None if it is one."""
    if isinstance(value, list) or value is None:
        return f"the reply's metrics have no number {count!r}"
    assert isinstance(value, (int, float))
    if not (math.isfinite(value) and value > 0):
        return f"{count} is {value:g}; it must be above zero and finite"
    return None


def too_long(values: dict[str, Any]) -> str | None:
    """The name of a whole number beyond Flower's own 64 bits: not all of those become floats."""
    for name, value in values.items():
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, int) and not -(2**63) <= number < 2**64:
                return name
    return None


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of more than 1024 bits: `too_long` refuses it
        return True


def _some(what: list[str]) -> str:
    what = list(dict.fromkeys(what))
    return ", ".join(what[:_SHOWN]) + (", …" if len(what) > _SHOWN else "")
