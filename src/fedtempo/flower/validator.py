"""What may enter the model: a reply becomes a contribution, or a reason why not.

Δ_i = θ_i − θ^{ρ_i(n)}, scaled by min(1, clip/‖Δ_i‖) where a largest norm is asked for. ‖·‖ is over the arrays that are
trained; of the others (buffers.py) what the client has sent is kept as it is. A compressed reply is decoded first, and
then a reply like any other. Whether a contribution is too long is said when its weight is known (guard.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from fedtempo.flower.arrays import Arrays, read, room_for, size
from fedtempo.flower.buffers import Buffers
from fedtempo.flower.compressing import MARKER, decompressed
from fedtempo.flower.metrics import Remark, bad_count, bounded, too_long
from fedtempo.flower.text import last_words

_GROWTHS_KEPT = 101
_FEW_BATCHES = 1000.0
"""In one job that is never too many for a counter."""


class Contribution(NamedTuple):
    """An update that may enter a round."""

    delta: Arrays
    """Of the arrays that are trained."""
    values: Arrays
    """Of the others."""
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
    memories: Sequence[NDArray[Any]] = ()
    """Those in which `delta` lies, where they are fewer than its arrays."""


class Refused(NamedTuple):
    """Why a reply does not enter."""

    reason: str


class ReplyValidator:
    """The checks; they remember by how much counters have grown."""

    def __init__(
        self,
        weighted_by_key: str,
        *,
        clip_norm: float | None,
        norm_limit: float | None,
        wanted: Collection[str] = (),
        buffers: Buffers | None = None,
    ) -> None:
        """`wanted`: metrics that are read here, however many others there are.

        `buffers` of the model; None: those of the first base that is given.
        """
        self._examples_key, self._clip, self._limit, self._wanted = weighted_by_key, clip_norm, norm_limit, wanted
        self._buffers = buffers
        self._growths: deque[float] = deque(maxlen=_GROWTHS_KEPT)

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
        if self._buffers is None:
            self._buffers = Buffers(base)
        buffers = self._buffers
        with np.errstate(all="ignore"):
            if MARKER not in content:
                found = _read(arrays, base, buffers)
            else:
                found = _decoded(arrays, content[MARKER], base, buffers)
            if isinstance(found, Refused):
                return found
            delta, values, memories = found
            norm = norm_of(delta)
            if isinstance(norm, Refused):
                return norm
            if (reason := buffers.wrong(values) or self._jumps(buffers.growth(values, base))) is not None:
                return Refused(reason)
            factor = 1.0
            if self._clip is not None and norm > self._clip:
                factor = self._clip / norm
        said.content.pop(MARKER, None)
        told = said.values, said.content, size(arrays), said.remarks
        return Contribution(delta, values, float(examples), norm, factor, *told, memories)

    def _jumps(self, growth: float) -> str | None:
        """Why a counter that has grown by so much is not believed."""
        usual = _FEW_BATCHES
        if self._limit is not None and growth > self._limit * usual and self._growths:
            usual = max(sorted(self._growths)[len(self._growths) // 2], usual)
        if self._limit is None or growth <= self._limit * usual:
            self._growths.append(growth)
            return None
        return (
            f"a counter has grown by {growth:.3g} in one job, more than {self._limit:g} times the usual, {usual:.3g}; "
            "if that is right, raise norm_limit or set it to None"
        )


def failed(reply: Message) -> str:
    """What a reply that is an error says, and what to change where the ServerApp can."""
    said = last_words(reply.error.reason)
    hint = next((hint for word, hint in _HINTS.items() if word in said), "")
    return f"the client failed with Flower's code {reply.error.code}: {said}{hint}"


_HINTS = {
    "secaggplus": ". Its ClientApp uses Flower's secure aggregation, which cannot work here: the server "
    "weighs each update by its client's pace and checks it alone, but masked updates are "
    "only useful as a sum over a fixed set of clients. "
    "Remove the mod from the ClientApp",
    "clipping_norm": ". Here the norm comes with the config: give start(train_config=ConfigRecord({'clipping_norm': "
    "…})), and no wrapper around the strategy",
}
"""By a word in what a client's error says."""


_Found = tuple[Arrays, Arrays, Sequence[NDArray[Any]]]
"""Contributions of the arrays that are trained, the others as they were sent, and the memories of the first."""


def _read(record: ArrayRecord, base: Arrays, buffers: Buffers) -> _Found | Refused:
    """What a reply has, in the model's types."""
    if record.keys() != base.keys():
        missing, extra = sorted(base.keys() - record.keys()), sorted(record.keys() - base.keys())
        said = [f"{words} {', '.join(names[:3])}" for words, names in (("lacks", missing), ("has", extra)) if names]
        return Refused(f"its arrays are not the model's: it {' and '.join(said)}")
    delta, memories = room_for(buffers.trained(base))
    values: Arrays = {}
    given = dict(record.items())
    for name, theta in base.items():
        try:
            array = read(given[name], theta)
        except Exception as error:  # whatever bytes a client sends
            return Refused(f"{name!r} cannot be read: {last_words(str(error))}")
        if array.shape != theta.shape:
            return Refused(f"{name!r} has shape {array.shape} where the model has {theta.shape}")
        if array.dtype == theta.dtype:
            if name in delta:
                np.subtract(array, theta, out=delta[name])
            else:
                values[name] = array
            continue
        if not np.can_cast(array.dtype, theta.dtype, "same_kind"):
            return Refused(f"{name!r} has dtype {array.dtype}, which cannot be converted to the model's {theta.dtype}")
        if name in delta:
            np.subtract(array, theta, out=delta[name], dtype=theta.dtype, casting="same_kind")
        else:
            values[name] = array.astype(theta.dtype, copy=False)
    return delta, values, memories


def _decoded(record: ArrayRecord, marker: object, base: Arrays, buffers: Buffers) -> _Found | Refused:
    try:
        found, as_sent = decompressed(marker, record, base, buffers.floating)
    except Exception as error:  # whatever bytes a client sends
        return Refused(f"its compressed arrays cannot be read: {last_words(str(error))}")
    delta = buffers.trained(found)
    for name in delta:
        if base[name].dtype.kind == "c":
            delta[name] = np.asarray(found[name] - base[name])
    values = {name: found[name] for name in buffers.names}
    # by an older version, which compresses what statistics have moved by, and so not exactly:
    moved = {name: np.asarray(base[name] + found[name]) for name in buffers.floating if name not in as_sent}
    values |= buffers.mended(moved)
    return delta, values, ()


def norm_of(delta: Arrays) -> float | Refused:
    """‖Δ‖; a value that is not finite is a reason."""
    total = 0.0
    for name, part in delta.items():
        square = _square(part)
        if not math.isfinite(square):
            wrong = ~np.isfinite(part)
            if wrong.any():
                what = "NaN" if np.isnan(part).any() else "Inf"
                return Refused(f"{name!r} contains {what} in {int(wrong.sum())} of {part.size} entries")
            total = math.hypot(total, _large(part))
        else:
            total = math.hypot(total, math.sqrt(square))
    return total


def _large(part: NDArray[Any]) -> float:
    """The norm of finite numbers whose squares are not."""
    most = float(np.abs(part).max())
    return most * math.sqrt(_square(part / most))


def _square(part: NDArray[Any]) -> float:
    flat = part if part.ndim == 1 else part.ravel(order="K")
    if flat.dtype.kind == "c":
        return float(np.vdot(flat, flat).real)
    if flat.dtype == np.float16:
        flat = flat.astype(np.float32)
    return float(flat.dot(flat))
