"""What may enter the model: a reply becomes a contribution, or a reason why not.

Δ_i = θ_i − θ^{ρ_i(n)}, scaled by min(1, clip/‖Δ_i‖) where a largest norm is asked for. ‖·‖ is over all floating arrays.
Whole numbers (counters of batches) are kept as floats here, and rounded when the model is made. A compressed reply is
decoded first, and then a reply like any other.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtempo.flower.arrays import Arrays, read, size
from fedtempo.flower.compressing import MARKER, decompressed

_ENOUGH_NORMS = 5
_NORMS_KEPT = 101
_RAISED = re.compile(r"<class '|[A-Za-z_][\w.]*(Error|Exception)\b")
"""How the line begins on which an exception stands, in Flower's reasons and in tracebacks."""


class Contribution(NamedTuple):
    """An update that may enter a round."""

    delta: Arrays
    examples: float
    norm: float
    """‖Δ_i‖, before it was clipped."""
    clipped: float
    """Factor by which the norm was clipped: 1 if it was not."""
    metrics: dict[str, Any]
    content: RecordDict
    """The reply without its arrays, for the functions that aggregate metrics."""
    bytes_up: int = 0
    """Bytes of its arrays as Flower carried them."""


class Refused(NamedTuple):
    """Why a reply does not enter."""

    reason: str


class ReplyValidator:
    """The checks; they remember the norms of what was let in."""

    def __init__(self, weighted_by_key: str, *, clip_norm: float | None, norm_limit: float | None) -> None:
        self._examples_key, self._clip, self._limit = weighted_by_key, clip_norm, norm_limit
        self._norms: deque[float] = deque(maxlen=_NORMS_KEPT)

    def admit(self, reply: Message, base: Arrays) -> Contribution | Refused:
        """The contribution of a reply to a job that started from `base`."""
        if reply.has_error():
            return Refused(f"the client failed with Flower's code {reply.error.code}: {_short(reply.error.reason)}")
        if not reply.has_content():
            return Refused("the reply is empty")
        content = reply.content
        records = [(key, record) for key, record in content.items() if isinstance(record, ArrayRecord)]
        if len(records) != 1:
            return Refused(f"the reply has {len(records)} ArrayRecords; it must have one")
        [(key, arrays)] = records
        metrics = _numbers(content)
        if (wrong := _too_long(metrics)) is not None:
            return Refused(f"{wrong!r} is a whole number of more than 64 bits")
        examples = metrics.get(self._examples_key)
        if isinstance(examples, list) or examples is None:
            return Refused(f"the reply's metrics have no number {self._examples_key!r}")
        if not (math.isfinite(examples) and examples > 0):
            return Refused(f"{self._examples_key} is {examples:g}; it must be above zero and finite")
        with np.errstate(all="ignore"):
            delta = _delta(arrays, base) if MARKER not in content else _decoded(arrays, content[MARKER], base)
            if isinstance(delta, Refused):
                return delta
            norm = _norm(delta, base)
            if isinstance(norm, Refused):
                return norm
            if (reason := self._too_large(norm, base)) is not None:
                return Refused(reason)
            self._norms.append(norm)
            factor = 1.0
            if self._clip is not None and norm > self._clip:
                factor = self._clip / norm
        rest = content.copy()  # without its arrays: it may wait for long
        for name in {key, MARKER} & rest.keys():
            del rest[name]
        return Contribution(delta, float(examples), norm, factor, metrics, rest, size(arrays))

    def _too_large(self, norm: float, base: Arrays) -> str | None:
        if self._limit is None:
            return None
        usual, said = self._usual(base)
        if usual <= 0 or norm <= self._limit * usual:
            return None
        return (
            f"its norm {norm:.3g} is more than {self._limit:g} times {said} {usual:.3g}; "
            "if that is right, raise norm_limit or set it to None"
        )

    def _usual(self, base: Arrays) -> tuple[float, str]:
        """A norm to measure by, 0 if there is none yet: the median, and before that the most that speaks for it."""
        if len(self._norms) >= _ENOUGH_NORMS:
            return sorted(self._norms)[len(self._norms) // 2], "the usual"
        known, model = max(self._norms, default=0.0), _norm(base, base)
        if isinstance(model, Refused):  # it is not finite: nothing to measure by
            return 0.0, ""
        return (known, "the longest so far,") if known >= model else (model, "the model's own,")

    def take_back(self, norm: float) -> None:
        """An update of this norm was let in and has been refused after all: it says nothing of what is usual."""
        if norm in self._norms:
            self._norms.remove(norm)

    def snapshot(self) -> list[float]:
        """The norms of what was let in lately."""
        return list(self._norms)

    def restore(self, saved: list[float]) -> None:
        """What `snapshot` gave."""
        self._norms.extend(saved)


def _numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    """All metrics of a reply together."""
    found: dict[str, Any] = {}
    for record in content.values():
        if isinstance(record, MetricRecord):
            found.update(record)
    return found


def _too_long(metrics: Mapping[str, Any]) -> str | None:
    """The key of a whole number beyond Flower's own 64 bits: not all of those become floats."""
    for key, value in metrics.items():
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, int) and not -(2**63) <= number < 2**64:
                return key
    return None


def _delta(record: ArrayRecord, base: Arrays) -> Arrays | Refused:
    if record.keys() != base.keys():
        missing, extra = sorted(base.keys() - record.keys()), sorted(record.keys() - base.keys())
        said = [f"{words} {', '.join(names[:3])}" for words, names in (("lacks", missing), ("has", extra)) if names]
        return Refused(f"its arrays are not the model's: it {' and '.join(said)}")
    delta: Arrays = {}
    for name, theta in base.items():
        try:
            array = read(record[name])
        except Exception as error:  # whatever bytes a client sends
            return Refused(f"{name!r} cannot be read: {_short(str(error))}")
        if array.shape != theta.shape:
            return Refused(f"{name!r} has shape {array.shape} where the model has {theta.shape}")
        if array.dtype != theta.dtype and not np.can_cast(array.dtype, theta.dtype, "same_kind"):
            return Refused(f"{name!r} has dtype {array.dtype}, which does not become the model's {theta.dtype}")
        if array.dtype == theta.dtype and theta.dtype.kind in "fc":
            part = np.subtract(array, theta, order="C")
        elif theta.dtype.kind in "fc":
            part = np.subtract(array, theta, dtype=theta.dtype, casting="same_kind", order="C")
        else:
            part = array.astype(np.float64) - theta.astype(np.float64)
        delta[name] = np.asarray(part)  # NumPy makes a number of an array without dimensions
    return delta


def _decoded(record: ArrayRecord, marker: object, base: Arrays) -> Arrays | Refused:
    try:
        found = decompressed(marker, record, base)
    except Exception as error:  # whatever bytes a client sends
        return Refused(f"its compressed arrays cannot be read: {_short(str(error))}")
    for name, theta in base.items():
        if theta.dtype.kind == "c":
            found[name] = np.asarray(found[name] - theta)
        elif theta.dtype.kind != "f":
            found[name] = np.asarray(found[name].astype(np.float64) - theta.astype(np.float64))
    return found


def _norm(delta: Arrays, base: Arrays) -> float | Refused:
    """‖Δ‖; a value that is not finite is a reason."""
    total = 0.0
    for name, part in delta.items():
        if base[name].dtype.kind not in "fc":
            continue
        square = _square(part)
        if not math.isfinite(square):
            wrong = ~np.isfinite(part)
            if wrong.any():
                what = "NaN" if np.isnan(part).any() else "Inf"
                return Refused(f"{name!r} holds {what} in {int(wrong.sum())} of {part.size} places")
            total = math.hypot(total, _large(part))
        else:
            total = math.hypot(total, math.sqrt(square))
    return total


def _large(part: NDArray[Any]) -> float:
    """The norm of finite numbers whose squares are not."""
    most = float(np.abs(part).max())
    return most * math.sqrt(_square(part / most))


def _square(part: NDArray[Any]) -> float:
    flat = part.ravel(order="K")
    if flat.dtype == np.float16:
        flat = flat.astype(np.float32)
    return float(np.vdot(flat, flat).real)


def _short(text: str | None) -> str:
    """The last line of a client's traceback says most; where it continues an exception's text, with that one's line."""
    lines = [line.strip() for line in (text or "").strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    head = next((line for line in reversed(lines) if _RAISED.match(line)), last)
    if head is not last:
        return f"{_cut(head, 120)} {_cut(last, 160)}"
    return _cut(last, 200)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}…"
