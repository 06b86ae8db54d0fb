"""Runs ClientApps: in a pool of warm processes, in an executor of the user's, or here, one after the other.

A message that has been sent is worked on ahead of the time at which its reply is due, the earliest due first, a few at
once: as many as keep the workers busy, so that replies that nobody asks for yet take no memory. What is due after the
end of training is never worked on.

A worker that dies takes the others' work with it, since nobody knows whose fault it was: what was out is worked on
again, one after the other, and the message on which a worker dies again is answered by an error. Messages of its client
are worked on apart from then on.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from flwr.clientapp import ClientApp

from fedtempo.errors import InputError
from fedtempo.flower.virtual.client_work import (
    ENDED,
    AppPlace,
    Done,
    Task,
    begin_process,
    work,
    work_in_process,
)
from fedtempo.flower.virtual.shared import Shared, drop, put, take

log = logging.getLogger(__name__)

AHEAD = 3
"""Messages a worker that are worked on, or done and not yet asked for, at most."""


class Here(Executor):
    """No executor: work is done when its result is asked for."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        return _Later(lambda: fn(*args, **kwargs))


class _Later(Future[Any]):
    """Work that is done when it is asked for."""

    def __init__(self, call: Callable[[], Done]) -> None:
        super().__init__()
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._call())
        return super().result(timeout)


class Workers:
    """Where ClientApps run."""

    def __init__(self, place: AppPlace, *, executor: Executor | None = None, workers: int | None = None) -> None:
        """Without an executor: a pool of `workers` processes, or here, where the app cannot be found by its name."""
        self._place, self._given = place, executor is not None
        self._single: ProcessPoolExecutor | None = None
        self._deadly: set[int] = set()
        """Nodes on whose messages a worker has died."""
        if executor is not None:
            self._executor: Executor = executor
            self.workers = workers or os.cpu_count() or 1
            return
        self.workers = (os.cpu_count() or 1) if workers is None else workers
        if self.workers < 1:
            raise InputError(
                f"workers: {workers} processes are too few; give at least 1, or leave it out for one per core"
            )
        if place.app is not None:
            log.info("the ClientApp is an object without an import path: it runs in this process")
            self._executor, self.workers = Here(), 1
        else:
            self._executor = self._pool(self.workers)

    def _pool(self, workers: int) -> ProcessPoolExecutor:
        path = [entry for entry in sys.path if entry]
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(workers, mp_context=spawn, initializer=begin_process, initargs=(self._place, path))

    @property
    def ahead(self) -> int:
        """How many messages are to be worked on at once."""
        return 1 if isinstance(self._executor, Here) else AHEAD * self.workers

    def start(self, task: Task) -> Future[Answer]:
        """Begin to work on a message."""
        if self._given or isinstance(self._executor, Here):
            return self._executor.submit(work, self._place, task)
        if task.node in self._deadly:
            return _Later(lambda: self._alone(task))
        try:
            return _submitted(self._executor, task)
        except BrokenProcessPool:
            self._executor.shutdown(wait=False)
            self._executor = self._pool(self.workers)
            return _submitted(self._executor, task)

    def result(self, begun: Future[Answer], task: Task) -> Done:
        """What has come of it; where a worker has died, the message is worked on again, alone."""
        try:
            return _read(begun.result())
        except BrokenProcessPool:
            return _ended(task) if self._given else self._alone(task)

    def _alone(self, task: Task) -> Done:
        """Work on a message in a process in which nothing else is: a client on whose message it dies stays apart."""
        if self._single is None:
            self._single = self._pool(1)
        try:
            return _read(_submitted(self._single, task).result())
        except BrokenProcessPool:
            self._single = None
            self._deadly.add(task.node)
            return _ended(task)

    def close(self) -> None:
        """End the pool, if it is ours."""
        for pool in (self._single, None if self._given else self._executor):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)


Answer = Done | tuple[Done, bytes | Shared]
"""What has come of a message; its reply may be in shared memory."""


def _submitted(executor: Executor, task: Task) -> Future[Answer]:
    """Give a message to a process; where none reads it, its memory is given back."""
    content = put(task.content)

    def unread(begun: Future[Answer]) -> None:
        if begun.cancelled() or begun.exception() is not None:
            drop(content)

    try:
        begun: Future[Answer] = executor.submit(work_in_process, task._replace(content=b""), content)
    except BrokenProcessPool:
        drop(content)
        raise
    begun.add_done_callback(unread)
    return begun


def _read(answer: Answer) -> Done:
    if isinstance(answer, Done):
        return answer
    done, reply = answer
    return done._replace(reply=take(reply))


def _ended(task: Task) -> Done:
    return Done(b"", (ENDED, "the process that ran the ClientApp has ended"), task.state, 0.0)


def place_of(app: ClientApp | str, folder: str = "") -> AppPlace:
    """Where other processes find a ClientApp; where they cannot, the app itself."""
    if isinstance(app, str):
        return AppPlace(app, folder)
    if not isinstance(app, ClientApp):
        raise InputError(
            f"client_app: a {type(app).__name__} is not a ClientApp; give one, or its import path as package.module:app"
        )
    for name, module in sys.modules.copy().items():
        if name == "__main__" or not getattr(module, "__file__", None):
            continue
        for attribute, value in vars(module).copy().items():
            if value is app:
                return AppPlace(f"{name}:{attribute}", folder)
    return AppPlace(app=app)
