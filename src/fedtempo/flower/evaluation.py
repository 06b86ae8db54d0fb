"""The server's evaluation beside the loop, so that a slow one holds up no round.

It runs on one thread; meanwhile at most one more model waits, and a newer one takes its place. Those that must not be
left out (the first, the last) always have their turn.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from flwr.app import ArrayRecord, MetricRecord

log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Evaluated(NamedTuple):
    """What came of an evaluation: its measures (None: it gave none), or what it raised."""

    server_round: int
    metrics: MetricRecord | None
    error: str | None


class _Task(NamedTuple):
    server_round: int
    arrays: ArrayRecord
    must: bool


class Evaluator:
    """One thread that evaluates models of the server."""

    def __init__(self, evaluate: EvaluateFn) -> None:
        self._evaluate = evaluate
        self._waiting: deque[_Task] = deque()
        self._done: deque[Evaluated] = deque()
        self._busy = False
        self._stopped = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="fedtempo-evaluation", daemon=True)
        self._thread.start()

    def submit(self, server_round: int, arrays: ArrayRecord, *, must: bool = False) -> None:
        """Evaluate this model when the thread is free; what has waited so far gives way unless it must be done."""
        with self._change:
            for task in [task for task in self._waiting if not task.must]:
                self._waiting.remove(task)
                log.info("round %d is not evaluated: round %d is newer", task.server_round, server_round)
            self._waiting.append(_Task(server_round, arrays, must))
            self._change.notify_all()

    def collect(self) -> list[Evaluated]:
        """What has been evaluated since the last time."""
        with self._change:
            done, self._done = list(self._done), deque()
        return done

    def finish(self) -> list[Evaluated]:
        """Wait for all that is to be evaluated, and end the thread."""
        with self._change:
            while self._waiting or self._busy:
                self._change.wait()
        self.stop()
        return self.collect()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._waiting and not self._stopped:
                    self._change.wait()
                if self._stopped:
                    return
                task = self._waiting.popleft()
                self._busy = True
            metrics, error = None, None
            try:
                metrics = self._evaluate(task.server_round, task.arrays)
                if not (metrics is None or isinstance(metrics, MetricRecord)):
                    error = f"evaluate_fn gave a {type(metrics).__name__}; return a MetricRecord or None"
                    metrics = None
            except BaseException as raised:  # the user's function, also if it exits; training goes on
                error = f"{type(raised).__name__}: {raised}"
                log.exception("evaluate_fn failed on round %d", task.server_round)
            with self._change:
                self._done.append(Evaluated(task.server_round, metrics, error))
                self._busy = False
                self._change.notify_all()
