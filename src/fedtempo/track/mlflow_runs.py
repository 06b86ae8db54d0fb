"""MLflow: a run for each run, in one experiment of a tracking server, of a database, or of a folder with a database.

A run is found again by its tag, and what it has already is not written twice. Where the points told are others than
those that are there (another study, or rounds that a crash has undone), a new run takes its place; MLflow keeps what
was deleted until `mlflow gc`. A metric's timestamp is virtual time, its step the number of the point.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtempo.errors import InputError, in_one_line
from fedtempo.files import make_folder, put_in_place, remove_unfinished, storage_errors
from fedtempo.simulation.run_info import RunInfo
from fedtempo.track.sink import Point, Sink, Told, not_installed

_TAG = "fedtempo.run"
_DATABASE = "mlflow.db"
_BATCH = 1000
"""Metrics that MLflow takes at once."""
_LONGEST = 500
"""Characters of a parameter."""
_NAME = re.compile(r"[^\w\-. /]")


@dataclass
class _Run:
    """A run that is there, and what it had before."""

    id: str
    there: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """By metric and step: value and timestamp."""
    same: list[Point] = field(default_factory=list)
    """The points told so far, while there is something to compare them with."""
    params: list[Any] = field(default_factory=list)
    """Those that are not written yet."""


class MLflow(Sink):
    """Runs of one experiment."""

    def __init__(self, place: str | Path, experiment: str) -> None:
        super().__init__()
        try:
            import mlflow.tracking as tracking
            from mlflow import entities
        except ImportError:
            raise not_installed("MLflow", "mlflow") from None
        text = str(place)
        self.folder = None if "://" in text or text == "databricks" else Path(place)
        self.uri = text if self.folder is None else _sqlite(self.folder / _DATABASE)
        self.experiment = experiment
        self._tracking: Any = tracking
        self._entities: Any = entities
        self._client: Any = None
        self._number = ""
        """Of the experiment."""
        self._known: dict[str, str] = {}
        """Runs that were there, by their names."""
        self._runs: dict[str, _Run] = {}
        if self.folder is None:
            with self._words():
                self._made(self.uri)  # a URI that cannot be one is said before anything runs

    def _write(self, told: Sequence[Told]) -> None:
        with self._words():
            if self._client is None:
                self._open()
            for of_run in told:
                run = self._runs.get(of_run.run.name) or self._begin(of_run.run)
                self._add(of_run.run, run, list(of_run.points.values()))

    def _open(self) -> None:
        for chatty in ("alembic", "mlflow.store.db.utils"):  # a line for each table of a new database
            logging.getLogger(chatty).setLevel(logging.WARNING)
        if self.folder is not None:
            self._make_database(self.folder)
        self._client = client = self._made(self.uri)
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            where = None if self.folder is None else (self.folder / "artifacts").resolve().as_uri()
            self._number = client.create_experiment(self.experiment, artifact_location=where)
        elif found.lifecycle_stage != "active":
            raise InputError(
                f"track mlflow: the experiment {self.experiment!r} was deleted there; restore it, or name another"
            )
        else:
            self._number = found.experiment_id
        token = None
        while token != "":
            page = client.search_runs([self._number], max_results=1000, page_token=token)
            self._known |= {run.data.tags[_TAG]: run.info.run_id for run in page if _TAG in run.data.tags}
            token = page.token or ""

    def _make_database(self, folder: Path) -> None:
        """Whole or not at all: MLflow cannot open one whose tables it was making when it was killed."""
        with storage_errors(folder):
            make_folder(folder)
            remove_unfinished(folder, _DATABASE)
            if (folder / _DATABASE).exists():
                return
            half = folder / f".{_DATABASE}.{secrets.token_hex(4)}"
            self._made(_sqlite(half))
            put_in_place(half, folder / _DATABASE)

    def _made(self, uri: str) -> Any:
        return self._tracking.MlflowClient(tracking_uri=uri, registry_uri=uri)

    def _begin(self, info: RunInfo) -> _Run:
        """The run of that name, gone on with or new."""
        client, known = self._client, self._known.get(info.name)
        if known is None:
            return self._new(info)
        run = self._runs[info.name] = _Run(known)
        client.update_run(known, status="RUNNING")
        for name in client.get_run(known).data.metrics:
            history = client.get_metric_history(known, name)
            run.there[name] = {metric.step: (metric.value, metric.timestamp) for metric in history}
        return run

    def _new(self, info: RunInfo) -> _Run:
        made = self._client.create_run(self._number, run_name=info.name, tags={_TAG: info.name})
        run = self._runs[info.name] = _Run(made.info.run_id)
        self._known[info.name] = run.id
        run.params = [self._entities.Param(_key(name), str(label)[:_LONGEST]) for name, label in info.labels.items()]
        return run

    def _add(self, info: RunInfo, run: _Run, points: list[Point]) -> None:
        """Write what is new of these points; a new run, where they are not those that are there."""
        if run.there:
            run.same += points
            if any(self._differs(run, metric) for point in points for metric in _metrics(point)):
                self._client.delete_run(run.id)
                points = run.same
                run = self._new(info)
        metrics = [
            self._entities.Metric(name, value, timestamp, step)
            for point in points
            for name, value, timestamp, step in _metrics(point)
            if step not in run.there.get(name, ())
        ]
        for begin in range(0, len(metrics), _BATCH):
            params, run.params = run.params, []
            self._client.log_batch(run.id, metrics=metrics[begin : begin + _BATCH], params=params)

    def _differs(self, run: _Run, metric: tuple[str, float, int, int]) -> bool:
        name, value, timestamp, step = metric
        found = run.there.get(name, {}).get(step)
        if found is None:
            return False
        same = found[0] == value or (math.isnan(found[0]) and math.isnan(value))
        return not same or found[1] != timestamp

    def _end(self, stopped: bool) -> None:
        if self._client is None:
            return
        with self._words():
            for run in self._runs.values():
                self._client.set_terminated(run.id, "KILLED" if stopped else "FINISHED")
        self._runs.clear()
        self._known.clear()
        self._client = None

    @contextmanager
    def _words(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of MLflow, its database or the network
            raise InputError(
                f"track mlflow: {self.uri} cannot be written ({in_one_line(error)}); check that place, or name another"
            ) from error


def _metrics(point: Point) -> Iterator[tuple[str, float, int, int]]:
    """Name, value, timestamp in milliseconds, and step of what a point has; the time itself is one of them."""
    timestamp = round(point.time * 1000)
    for name, value in {**point.values, "time": point.time}.items():
        yield _key(name), _stored(value), timestamp, point.step


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path.resolve()}"


def _stored(value: float) -> float:
    """As databases keep it: infinity is the largest number there."""
    return math.copysign(1.7976931348623157e308, value) if math.isinf(value) else float(value)


def _key(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return _NAME.sub("_", name)
