"""Compressed contributions on Flower: a mod for ClientApps, and what the server makes of their replies.

    client      Δ_i = its new model − the model it was sent;  encode;  the payload takes the place of the reply's arrays
    server      decode;  from there on every check is that of a plain reply

What a client keeps (the error memory) lies in `context.state`, which stays at its node for the run. It is what the
client has never sent: if a contribution is lost on its way or refused, it is lost like a plain one, and the memory is
right as it is. Arrays that are not trained travel as they are: whole numbers, and those that the server names in the
message (BatchNorm's statistics). A reply that cannot be compressed (another model, NaN) goes as it is, and the server
says what is wrong with it. A compression of one's own must be imported in the server's app too: the server takes no
client's word for what to import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType

from fedtempo.errors import InputError
from fedtempo.flower.arrays import Arrays, finite, read, record_of
from fedtempo.registry import only_named
from fedtempo.training.compression.method import Compression, Parts
from fedtempo.training.compression.named import compression_of
from fedtempo.training.compression.wire import Payload, WireState, decode, encode, first_state, job_key, slots_of

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]

MARKER = "fedtempo.compression"
"""The record of a reply that says how its arrays are compressed; in a client's state, for what it keeps a memory."""
_MEMORY = "fedtempo.compression.memory"
_RUN, _JOBS = "run", "jobs"
BUFFERS = "buffers"
"""In a message's config: floating arrays that are not trained. In a reply's marker: those that travel as they are."""
_FLOATS = (np.float16, np.float32, np.float64)
_BITS: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}

log = logging.getLogger("flwr")


def compressing(method: Compression, *, seed: int = 0) -> Mod:
    """A mod that compresses what a client sends back: ``ClientApp(mods=[compressing(ft.TopK(0.01))])``.

    It is to be the first of the mods, and the server one of fedtempo.flower. Draws depend on `seed`, the client (its
    partition-id, else its node) and the job alone: they are those of a simulation in which it has that number.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import compressing
        >>> small_app = ClientApp(mods=[compressing(ft.TopK(0.01))])
        >>> _ = small_app.train()(train)
        >>> @(app := ServerApp()).main()
        ... def main(grid, context):
        ...     FedFix(wait=1).start(grid, ArrayRecord([np.zeros(1000)]), num_rounds=1)
        >>> for clients in (client_app, small_app):
        ...     print(simulate_app(app, clients, times=ft.FixedTimes([1, 1])).rounds[0].updates[0].bytes_up, "bytes")
        8128 bytes
        309 bytes
    """
    if not isinstance(method, Compression):
        raise InputError(
            f"compressing: {method!r} is not a compression; give ft.TopK(0.01), ft.QSGD(4) or ft.LowRank(2)"
        )

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        given = _only_arrays(message)
        sent = None if given is None else dict(given[1])  # a client may empty the record while it reads it
        job, buffers = _number_of(message), _buffers_of(message)
        reply = call_next(message, context)
        if reply.has_error() or not reply.has_content():
            return reply
        reason = _compress(reply, sent, context, method, seed, job, buffers)
        if reason is not None:
            log.warning("compression: this update is sent uncompressed: %s", reason)
        return reply

    return mod


def _compress(
    reply: Message,
    sent: dict[str, Array] | None,
    context: Context,
    method: Compression,
    seed: int,
    job: int | None,
    buffers: list[str],
) -> str | None:
    """Put the payload in the place of the reply's arrays; or leave them, and say why."""
    found = _only_arrays(reply)
    if sent is None or found is None:
        return "message and reply must have one ArrayRecord each"
    try:
        new = {name: read(array) for name, array in found[1].items()}
    except Exception:  # whatever the client has put there
        return "its arrays cannot be read"
    change = _change(new, sent, buffers)
    if isinstance(change, str):
        return change
    memory, count = _recall(context, method, change)
    who = context.node_config.get("partition-id", context.node_id)
    key = job_key(seed, who if isinstance(who, int) else str(who), count if job is None else job)
    payload, memory = encode(method, change, memory, key=key)
    if not finite(*(part for parts in (payload.parts, *memory.values()) for part in parts.values())):
        return "it contains numbers that are not finite, or not in float32"
    _remember(context, method, memory, count + 1)
    reply.content[found[0]] = record_of(dict(payload.parts))
    reply.content[MARKER] = ConfigRecord({**_plain(method), **({BUFFERS: buffers} if buffers else {})})
    return None


def _only_arrays(message: Message) -> tuple[str, ArrayRecord] | None:
    records = [(key, record) for key, record in message.content.items() if isinstance(record, ArrayRecord)]
    return records[0] if len(records) == 1 else None


def _number_of(message: Message) -> int | None:
    """The job's number, where the server says it."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and isinstance(job := record.get("job"), int):
            return job
    return None


def _buffers_of(message: Message) -> list[str]:
    """The floating arrays that the server says are not trained."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and isinstance(names := record.get(BUFFERS), list):
            return [str(name) for name in names]
    return []


def _change(new: Arrays, sent: Mapping[str, Array], buffers: list[str]) -> Arrays | str:
    """Contributions of floating arrays, and all others as they are; or why there are none."""
    if new.keys() != sent.keys():
        return "its arrays are not those it was sent"
    change: Arrays = {}
    for name, array in new.items():
        old = read(sent[name])
        kind = old.dtype.newbyteorder("=")
        if array.shape != old.shape or not np.can_cast(array.dtype, kind, "same_kind"):
            return f"{name!r} is not of the shape and type that it was sent in"
        if name in buffers and kind in _FLOATS:
            change[name] = array.astype(kind, order="C").view(_BITS[kind.itemsize])  # which no method takes
        elif kind.kind == "f":
            change[name] = np.asarray(np.subtract(array, old, dtype=kind, casting="same_kind"))
        elif array.dtype == old.dtype:
            change[name] = array.astype(kind)
        else:
            return f"{name!r} is not of the type that it was sent in"
    return change


# -- what a client keeps


def _plain(method: Compression) -> dict[str, Any]:
    return {key: value for key, value in method.spec().items() if value is not None}  # which a record does not hold


def _recall(context: Context, method: Compression, change: Arrays) -> tuple[WireState, int]:
    """What is kept since the last job of this run by this method, and how many jobs there were."""
    first = first_state(method, change)
    about, record = context.state.get(MARKER), context.state.get(_MEMORY)
    if not isinstance(about, ConfigRecord) or about.get(_RUN) != str(context.run_id):
        return first, 0
    jobs = about.get(_JOBS)
    count = jobs if isinstance(jobs, int) else 0
    same = {name: about.get(name) for name in _plain(method)} == _plain(method)
    if not same or not isinstance(record, ArrayRecord):
        return first, count
    kept: dict[str, dict[str, Any]] = {}
    for key, array in record.items():
        part, _, name = key.partition("/")
        kept.setdefault(name, {})[part] = read(array)
    return (dict(kept) if _shapes(kept) == _shapes(first) else first), count


def _shapes(state: Mapping[str, Parts]) -> dict[tuple[str, str], Any]:
    return {(name, part): (array.shape, array.dtype) for name, p in state.items() for part, array in p.items()}


def _remember(context: Context, method: Compression, memory: WireState, count: int) -> None:
    context.state[MARKER] = ConfigRecord({**_plain(method), _RUN: str(context.run_id), _JOBS: count})
    flat = {f"{part}/{name}": array for name, parts in memory.items() for part, array in parts.items()}
    if flat:
        context.state[_MEMORY] = record_of(flat)


# -- on the server


def decompressed(marker: object, record: ArrayRecord, base: Arrays, buffers: Sequence[str]) -> tuple[Arrays, Set[str]]:
    """What a compressed reply holds for a model: contributions of floating arrays, and all others as they are.

    And which of the floating arrays that are not trained, `buffers`, are among the others: older clients compress them.
    Any exception means that the reply cannot be read.
    """
    if not isinstance(marker, ConfigRecord):
        raise InputError(f"{MARKER} is not a ConfigRecord")
    parts = {name: read(array) for name, array in record.items()}
    told = marker.get(BUFFERS, [])
    if told and told != list(buffers):
        raise InputError(f"{told!r} are not the model's buffers")
    with only_named():  # a client's word imports nothing
        method = compression_of({key: value for key, value in marker.items() if key != BUFFERS})
    bits = {name: _BITS[base[name].itemsize] for name in buffers if told and base[name].dtype in _FLOATS}
    known = {name: array.view(bits[name]) if name in bits else array for name, array in base.items()}
    found: Arrays = decode(Payload(method, slots_of(known), listed=False, parts=parts))
    return {name: array.view(base[name].dtype) for name, array in found.items()}, bits.keys()
