"""What may enter the model: a reply becomes a contribution, or a reason why not.

Δ_i = θ_i − θ^{ρ_i(n)}, scaled by min(1, clip/‖Δ_i‖) where a largest norm is asked for. ‖·‖ is over all floating arrays.
Whole numbers (counters of batches) are kept as floats here, and rounded when the model is made. A compressed reply is
decoded first, and then a reply like any other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from fedtempo.flower.arrays import Arrays, read, size
from fedtempo.flower.compressing import MARKER, decompressed
from fedtempo.flower.metrics import Remark, bad_count, bounded, too_long
from fedtempo.flower.text import last_words

_ENOUGH_NORMS = 5
_NORMS_KEPT = 101


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
    """The reply without its arrays and within bounds, for the functions that aggregate metrics."""
    bytes_up: int = 0
    """Bytes of its arrays as Flower carried them."""
    remarks: tuple[Remark, ...] = ()
    """What was odd in its metrics."""


class Refused(NamedTuple):
    """Why a reply does not enter."""

    reason: str


class ReplyValidator:
    """The checks; they remember the norms of what was let in."""

    def __init__(
        self,
        weighted_by_key: str,
        *,
        clip_norm: float | None,
        norm_limit: float | None,
        wanted: Collection[str] = (),
    ) -> None:
        """`wanted`: metrics that are read here, however many others there are."""
        self._examples_key, self._clip, self._limit, self._wanted = weighted_by_key, clip_norm, norm_limit, wanted
        self._norms: deque[float] = deque(maxlen=_NORMS_KEPT)

    def admit(self, reply: Message, base: Arrays) -> Contribution | Refused:
        """The contribution of a reply to a job that started from `base`."""
        if reply.has_error():
            return Refused(failed(reply))
        if not reply.has_content():
            return Refused("the reply is empty")
        content = reply.content
        records = [(key, record) for key, record in content.items() if isinstance(record, ArrayRecord)]
        if len(records) != 1:
            return Refused(f"the reply has {len(records)} ArrayRecords; it must have one")
        [(_, arrays)] = records
        said = bounded(content, self._examples_key, self._wanted)
        if (wrong := too_long(said.values)) is not None:
            return Refused(f"{wrong!r} is a whole number of more than 64 bits")
        examples: Any = said.values.get(self._examples_key)
        if (reason := bad_count(examples, self._examples_key)) is not None:
            return Refused(reason)
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
        said.content.pop(MARKER, None)
        return Contribution(delta, float(examples), norm, factor, said.values, said.content, size(arrays), said.remarks)

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


def failed(reply: Message) -> str:
    """What a reply that is an error says, and what to change where the ServerApp can."""
    said = last_words(reply.error.reason)
    hint = next((hint for word, hint in _HINTS.items() if word in said), "")
    return f"the client failed with Flower's code {reply.error.code}: {said}{hint}"


_HINTS = {
    "secaggplus": ". Its ClientApp has Flower's secure aggregation, which cannot work here: the server weighs each "
    "update by its client's pace and checks it alone, and masked updates are only good for their sum over a fixed set "
    "of clients. Take the mod out of the ClientApp",
    "clipping_norm": ". Here the norm comes with the config: give start(train_config=ConfigRecord({'clipping_norm': "
    "…})), and no wrapper around the strategy",
}
"""By a word in what a client's error says."""


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
            return Refused(f"{name!r} cannot be read: {last_words(str(error))}")
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
        return Refused(f"its compressed arrays cannot be read: {last_words(str(error))}")
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
