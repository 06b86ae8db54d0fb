"""A ClientApp at work on one message: in this process, in a thread, or in a process of a pool.

    reply, state ← ClientApp(message, context)        with every generator seeded by (seed, client, job) before

Python's, NumPy's and, where they are loaded, PyTorch's and TensorFlow's own generators are seeded, so that an app that
draws from them does the same again. What the app raises, or returns in a reply's place, is Flower's error of code 2, as
a SuperNode makes one. Processes of a pool use one thread each: their bits do not depend on how many there are.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Error, Message, Metadata
from flwr.clientapp import ClientApp

from fedtempo.errors import InputError
from fedtempo.flower.virtual.records import decoded, encoded
from fedtempo.flower.virtual.shared import Shared, put, take

RAISED = 2
"""Flower's code for a ClientApp that raised."""
ENDED = 8
"""Flower's code for a ClientApp whose process has ended."""
FOREVER = 1e9
"""Seconds that a message lives: virtual time does not pass while it is worked on."""


@dataclass(frozen=True)
class AppPlace:
    """Where a ClientApp is found: by name, so that another process finds it too, or the object itself."""

    name: str = ""
    """As "package.module:app"."""
    folder: str = ""
    """Put on Python's path before."""
    app: ClientApp | None = field(default=None, compare=False)

    def load(self) -> ClientApp:
        """The ClientApp."""
        if self.app is not None:
            return self.app
        found = load_component(self.name, self.folder)
        if not isinstance(found, ClientApp):
            raise InputError(f"{self.name} is a {type(found).__name__}, not a ClientApp; name the object")
        return found


def load_component(name: str, folder: str = "") -> Any:
    """What "package.module:attribute" names, of an app in a folder."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError(f"{name!r} does not name a component; write it as package.module:app")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # the user's module: whatever it raises
        where = f" in {folder}" if folder else ""
        raise InputError(
            f"{module}{where} cannot be imported ({type(error).__name__}: {error}); check [tool.flwr.app.components], "
            "and that what the app imports is installed here"
        ) from error
    if not hasattr(loaded, attribute):
        raise InputError(f"{module} has no {attribute!r}; check [tool.flwr.app.components]")
    return getattr(loaded, attribute)


class Task(NamedTuple):
    """A message for a client, and what the ClientApp gets with it."""

    content: bytes
    message_id: str
    message_type: str
    group_id: str
    node: int
    node_config: Mapping[str, Any]
    run_config: Mapping[str, Any]
    state: bytes
    seed: int


class Done(NamedTuple):
    """What has come of it."""

    reply: bytes
    """The content; empty where there is an error."""
    error: tuple[int, str] | None
    state: bytes
    seconds: float
    """The processor's."""


def metadata_of(
    *, message_id: str, node: int, message_type: str, group_id: str = "", ttl: float | None = None
) -> Metadata:
    """Metadata of a message from the server to a node."""
    return Metadata(
        run_id=1,
        message_id=message_id,
        src_node_id=1,
        dst_node_id=node,
        reply_to_message_id="",
        group_id=group_id,
        created_at=time.time(),
        ttl=ttl or FOREVER,
        message_type=message_type,
    )


def work(place: AppPlace, task: Task) -> Done:
    """Let the ClientApp answer."""
    app = place.load()
    known = metadata_of(
        message_id=task.message_id, node=task.node, message_type=task.message_type, group_id=task.group_id
    )
    make: Any = Message
    message: Message = make(content=decoded(task.content), metadata=known)
    state = decoded(task.state)
    context = Context(1, task.node, dict(task.node_config), state, dict(task.run_config))
    with generators_seeded(task.seed, restore=_PLACE is None):
        begin = time.thread_time() if place.app is not None else time.process_time()
        try:
            reply = app(message, context)
            if not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned a {type(reply).__name__}; return a Message")
        except Exception:
            return Done(b"", (RAISED, traceback.format_exc()), task.state, 0.0)
        spent = (time.thread_time() if place.app is not None else time.process_time()) - begin
    if reply.has_error():
        return Done(b"", (reply.error.code, reply.error.reason or ""), encoded(context.state), spent)
    return Done(encoded(reply.content), None, encoded(context.state), spent)


# -- generators


@contextmanager
def generators_seeded(seed: int, *, restore: bool = True) -> Iterator[None]:
    """Everybody's generators start from `seed` inside, and are as they were afterwards, if that is wanted."""
    if not restore:
        seed_generators(seed)
        yield
        return
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    kept = torch.get_rng_state() if torch is not None else None
    seed_generators(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(kept)


def seed_generators(seed: int) -> None:
    """Python's, NumPy's, and those of the libraries that are loaded."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(seed)


# -- processes of a pool

_PLACE: AppPlace | None = None


def begin_process(place: AppPlace, path: list[str]) -> None:
    """A process of the pool: the app is loaded once; what it prints goes to standard error."""
    global _PLACE
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that has started this one ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    _PLACE = place
    place.load()
    limit_threads()


def _end_with_parent() -> None:
    """End this process when the one that has started it is gone, also if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def limit_threads() -> None:
    """One thread for products of matrices in this process."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def work_in_process(task: Task, content: bytes | Shared) -> tuple[Done, bytes | Shared]:
    """As `work`, by the app that the process has loaded; the content and the reply may be in shared memory."""
    assert _PLACE is not None
    done = work(_PLACE, task._replace(content=take(content)))
    return done._replace(reply=b""), put(done.reply)


def error_reply(message: Message, code: int, reason: str) -> Message:
    """Flower's reply of a client that has failed."""
    return Message(Error(code, reason), reply_to=message)
