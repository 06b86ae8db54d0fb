"""``simulate_app``: a Flower app, its ServerApp and its ClientApp unchanged, in exact virtual time.

What the ServerApp starts decides what runs:

    a strategy of fedtempo    sleeps by the grid's clock (Settings.on)
    a strategy of Flower's    runs its own loop over `send_and_receive` (flower_rounds.py)
    another scheme            with `scheme=`: a strategy of fedtempo's takes the place of the one that is started, with
                              its keys, its numbers of nodes, its configs and its evaluation

To be told of it, `start` of Flower's strategies is wrapped while the ServerApp runs, and messages can be made outside
of Flower's processes. Both use names that Flower exports, and are as they were afterwards.
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as flower

from fedtempo import files
from fedtempo.clock.streams import stream_key
from fedtempo.clock.ticks import Exact, exact, positive, positive_int
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower.result import Result
from fedtempo.flower.run_folder import RunFolder
from fedtempo.flower.settings import ENDLESS
from fedtempo.flower.strategy import TimedStrategy
from fedtempo.flower.virtual.app_folder import AppFolder, app_folder, digest_of, overridden
from fedtempo.flower.virtual.client_work import AppPlace, Done, generators_seeded, load_component, metadata_of
from fedtempo.flower.virtual.flower_rounds import FlowerRounds
from fedtempo.flower.virtual.grid import MeasuredTimes, VirtualGrid
from fedtempo.flower.virtual.jobs import Workers, place_of
from fedtempo.flower.virtual.records import Digests, decoded, encoded
from fedtempo.flower.virtual.store import ReplyStore
from fedtempo.schemes.named import FedAvg, Scheme
from fedtempo.schemes.timelines import timeline

log = logging.getLogger(__name__)

Times = ClientTimes | MeasuredTimes
REPLIES = "replies.bin"
SETTINGS = "app.json"


def simulate_app(
    server_app: ServerApp | str | Path,
    client_app: ClientApp | str | None = None,
    *,
    times: Times,
    until: Exact | None = None,
    rounds: int | None = None,
    scheme: Scheme | None = None,
    options: Mapping[str, Any] | None = None,
    known_times: bool = False,
    bandwidth: Exact | Sequence[Exact] | None = None,
    evaluate_time: Exact = 0,
    run_config: Mapping[str, Any] | None = None,
    seed: int = 0,
    executor: Executor | Workers | None = None,
    workers: int | None = None,
    folder: Path | str | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> Result:
    """Run a Flower app in virtual time; returns the result of its strategy's `start`, with the times of all rounds.

    server_app     a ServerApp, its place as "package.server_app:app", or the folder of an app
    client_app     a ClientApp, or its place; of a folder it is known
    times          how long each client's jobs take: any of fedtempo's client times, or `MeasuredTimes`
    until          the end, in the times' unit; without it, the app's own number of rounds
    rounds         in the place of the app's own number of rounds
    scheme         one of fedtempo's in the place of the app's strategy, with more `options` of the strategies
    known_times    weights follow from the clients' mean times, as in the simulator; else they are measured, as deployed
    bandwidth      bytes a second, one number or one per client: models then take time on their way
    evaluate_time  what a client needs to evaluate, as a share of its training time
    run_config     other values for the app's config
    executor       where ClientApps run; without it, `workers` processes, each with the app loaded once
    folder         where the run is kept; started again after it was killed, it goes on to the same record
    on_progress    is told the virtual time and the updates so far

    Example:
        >>> from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> from flwr.serverapp import ServerApp
        >>> from fedtempo.flower import FedFix, simulate_app
        >>> client_app, server_app = ClientApp(), ServerApp()
        >>> @client_app.train()
        ... def train(message, context):  # half the way to a number of its own
        ...     [model] = message.content["arrays"].to_numpy_ndarrays()
        ...     model = (model + context.node_config["partition-id"]) / 2
        ...     reply = {"arrays": ArrayRecord([model]), "metrics": MetricRecord({"num-examples": 1})}
        ...     return Message(RecordDict(reply), reply_to=message)
        >>> @server_app.main()
        ... def main(grid, context):
        ...     FedFix(wait=1).start(grid, ArrayRecord([np.zeros(1)]), num_rounds=100)
        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=4)
        >>> [(round.time, round.contributors) for round in result.rounds]
        [(1.0, ('node 2',)), (2.0, ('node 1', 'node 2')), (3.0, ('node 2',)), (4.0, ('node 0', 'node 1', 'node 2'))]
    """
    found = app_folder(cast(Path, server_app)) if _is_folder(server_app) else None
    config = overridden(found.config, run_config or {}) if found is not None else dict(run_config or {})
    place = _place(found, client_app)
    server = _server(found, server_app)
    horizon = None if until is None else positive(until, "until")
    if scheme is not None and horizon is None and rounds is None and isinstance(times, MeasuredTimes):
        raise InputError("until: give how long each scheme trains; measured times do not say it")
    kept = None if folder is None else _Kept(Path(folder), _about(found, place, config))
    pool = executor if isinstance(executor, Workers) else Workers(place, executor=executor, workers=workers)
    try:
        grid = VirtualGrid(
            times,
            pool,
            seed=seed,
            until=horizon,
            bandwidth=_per_client(bandwidth, times.num_clients),
            evaluate=_share(evaluate_time),
            run_config=config,
            store=None if kept is None else kept.store,
        )
        if on_progress is not None:
            grid.on_update = lambda time, updates: on_progress(float(time), updates)
        asked = _Asked(
            horizon, None if rounds is None else positive_int(rounds, "rounds"), scheme, options, known_times
        )
        run = _AppRun(grid, asked, kept)
        result = run.of(server, Context(1, 1, {}, RecordDict(), config))
        if kept is not None:
            kept.finished()
        return result
    finally:
        if pool is not executor:
            pool.close()
        if kept is not None:
            kept.close()


def _is_folder(given: object) -> bool:
    return isinstance(given, Path) or (isinstance(given, str) and ":" not in given)


def _place(found: AppFolder | None, client_app: ClientApp | str | None) -> AppPlace:
    if found is not None and client_app is None:
        place = AppPlace(found.client, str(found.path))
    elif client_app is None:
        raise InputError("client_app: none given; give the ClientApp, its import path, or only the folder of an app")
    else:
        place = place_of(client_app, "" if found is None else str(found.path))
    place.load()  # what is wrong with it is said before anything runs
    return place


def _server(found: AppFolder | None, given: ServerApp | str | Path) -> ServerApp:
    if isinstance(given, ServerApp):
        server: Any = given
    else:
        name, folder = (found.server, str(found.path)) if found is not None else (str(given), "")
        server = load_component(name, folder)
        if not isinstance(server, ServerApp):
            raise InputError(f"{name} is a {type(server).__name__}, not a ServerApp; name the object")
    if getattr(server, "_main", True) is None:
        raise InputError(
            "server_app: it has no main function. Flower's older API (server_fn, flwr.server.strategy) cannot run in "
            "virtual time. Write @app.main() with a strategy of flwr.serverapp.strategy; Flower's guide "
            "“upgrade to the Message API” shows how"
        )
    return cast(ServerApp, server)


def _per_client(given: Exact | Sequence[Exact] | None, clients: int) -> list[Fraction] | None:
    if given is None:
        return None
    values: list[Any] = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given] * clients
    if len(values) != clients:
        raise InputError(f"bandwidth: {len(values)} numbers for {clients} clients; give one, or one per client")
    return [positive(value, f"bandwidth of client {i}") for i, value in enumerate(values)]


def _share(given: Exact) -> Fraction:
    share = exact(given, "evaluate_time")
    if share < 0:
        raise InputError(f"evaluate_time: {given} is below zero; give a share of the training time, as 0.2")
    return share


# -- what is kept of a run


def _about(found: AppFolder | None, place: AppPlace, config: Mapping[str, Any]) -> dict[str, Any]:
    """What replies follow from: another app, or other settings of it, gives others."""
    source = getattr(sys.modules.get(place.name.partition(":")[0]), "__file__", None)
    code = found.digest if found is not None else "" if source is None else digest_of(Path(source).parent)
    return {"client_app": place.name, "code": code, "config": dict(config)}


class _Kept:
    """The folder of a run: replies while it runs, the record when it is done."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self._replies = path, path / REPLIES
        if RunFolder(path).holds_a_run() and not self._replies.exists():
            raise ResultsConflict(f"{path} contains a finished run: fedtempo show {path}; choose another folder")
        files.make_folder(path)
        settings, known = path / SETTINGS, json.loads(json.dumps(about))
        if self._replies.exists():
            if not settings.is_file() or json.loads(settings.read_text(encoding="utf-8")) != known:
                log.warning("%s: the app or its config has changed since the run was started; it starts again", path)
                self._replies.unlink()
            files.remove(*(path / name for name in ("state.npz", "state.previous.npz", "rounds.jsonl")))
        files.write_text(settings, json.dumps(known))
        self.store = ReplyStore(self._replies)
        if len(self.store):
            log.info("%s: %d replies are kept from before", path, len(self.store))

    def finished(self) -> None:
        """The record is whole: replies are no longer needed."""
        self.store.close()
        files.remove(self._replies)

    def close(self) -> None:
        """Let the file go."""
        self.store.close()


# -- a ServerApp at work


class _Asked:
    """What is asked of a run beyond what the app says."""

    def __init__(
        self,
        until: Fraction | None,
        rounds: int | None,
        scheme: Scheme | None,
        options: Mapping[str, Any] | None,
        known_times: bool,
    ) -> None:
        self.until, self.rounds, self.scheme = until, rounds, scheme
        self.options, self.known_times = dict(options or {}), known_times


class _AppRun:
    """One run of a ServerApp."""

    def __init__(self, grid: VirtualGrid, asked: _Asked, kept: _Kept | None) -> None:
        self._grid, self._asked, self._kept = grid, asked, kept
        self._results: list[Result] = []
        self._inside = False

    def of(self, server: ServerApp, context: Context) -> Result:
        """Run it, and take what its strategy has come to."""
        seed = int(stream_key("app-server", self._grid.seed)[0])
        with ExitStack() as around:
            around.enter_context(generators_seeded(seed))
            around.enter_context(_messages())
            around.enter_context(self._wrapped())
            server(self._grid, context)
        if not self._results:
            raise InputError(
                "server_app: its main function did not start a strategy; call start of one of flwr.serverapp.strategy "
                "or of fedtempo.flower with the grid that main is given"
            )
        return self._results[-1]

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Every strategy's `start` comes to us first."""
        with ExitStack() as around:
            for cls in _strategies(flower.Strategy):
                if "start" in vars(cls):
                    around.enter_context(patch.object(cls, "start", self._start_of(vars(cls)["start"])))
            yield

    def _start_of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def start(strategy: flower.Strategy, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(strategy, *args, **kwargs)
            bound = inspect.signature(original).bind(strategy, *args, **kwargs)
            bound.apply_defaults()
            if bound.arguments.get("grid") is not self._grid:
                return original(strategy, *args, **kwargs)
            self._inside = True
            try:
                self._results.append(self._started(strategy, original, bound))
            finally:
                self._inside = False
            return self._results[-1]

        return start

    @property
    def _folder(self) -> Path | None:
        """Of the run that begins: of a second one in the same app, a folder inside."""
        if self._kept is None:
            return None
        return self._kept.path if not self._results else self._kept.path / f"run-{len(self._results) + 1}"

    def _started(
        self, strategy: flower.Strategy, original: Callable[..., Any], bound: inspect.BoundArguments
    ) -> Result:
        given = bound.arguments
        asked, own_rounds = self._asked, given.get("num_rounds")
        until = asked.until
        if asked.scheme is not None:
            if until is None and asked.rounds is None:
                until = self._as_long_as_fedavg(own_rounds)
            ours = self._instead(strategy, asked.scheme, given)
            found = TimedStrategy.start  # as it is wrapped: we are inside already
            return found(ours, **_known(given), **self._end(until, own_rounds), resume=False)
        if isinstance(strategy, TimedStrategy):
            strategy.save_in(self._folder)
            arguments = {**_known(given), "evaluate_fn": self._remembered(given.get("evaluate_fn"))}
            limit = given.get("until")
            if until is None and limit is not None:
                until = exact(limit, "until")
            found = original
            result = found(strategy, **arguments, **self._end(until, own_rounds), resume=False)
            return cast(Result, result)
        rounds = FlowerRounds(strategy, self._grid, self._folder)
        if given.get("evaluate_fn") is not None:
            given["evaluate_fn"] = _told(self._remembered(given["evaluate_fn"]), rounds.measured)
        if own_rounds is not None:
            given["num_rounds"] = asked.rounds or (own_rounds if until is None else ENDLESS)
        initial = given.get("initial_arrays")
        return rounds.run(lambda: original(*bound.args, **bound.kwargs), initial or ArrayRecord())

    def _end(self, until: Fraction | None, own_rounds: Any) -> dict[str, Any]:
        """`num_rounds` and `until` of a strategy of ours."""
        rounds = self._asked.rounds or (own_rounds if until is None else ENDLESS)
        return {"num_rounds": rounds, "until": until}

    def _as_long_as_fedavg(self, rounds: Any) -> Fraction:
        """When FedAvg would have done the app's rounds: schemes are compared in the same time."""
        times = self._grid.times
        if isinstance(times, MeasuredTimes) or not isinstance(rounds, int):
            raise InputError("until: give how long each scheme trains; the app does not say it")
        line = timeline(FedAvg(), times, rounds=rounds, seed=self._grid.seed)
        return Fraction(line.duration)

    def _instead(self, strategy: flower.Strategy, scheme: Scheme, given: Mapping[str, Any]) -> TimedStrategy:
        """A strategy of ours with the keys, numbers and configs of the app's own."""
        kept = {
            name: getattr(strategy, name)
            for name in ("fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
            if hasattr(strategy, name)
        }
        kept |= {
            name: getattr(strategy, name)
            for name in ("weighted_by_key", "arrayrecord_key", "configrecord_key")
            if hasattr(strategy, name)
        }
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            own = getattr(strategy, name, None)
            if own is not None and not str(getattr(own, "__module__", "")).startswith("flwr."):
                kept[name] = own
        times = self._grid.times
        if isinstance(times, ClientTimes):
            kept["evaluate_every"] = _slowest(times)
            if times.availability is not None and times.availability.fails:
                kept["max_failures"] = ENDLESS  # a job that fails is the clock's doing, as in the simulator
            if self._asked.known_times:
                means = times.exact_mean_time or tuple(map(Fraction, times.mean_time.tolist()))
                kept["times"] = {f"node {i}": mean for i, mean in enumerate(means)}
        kept |= {"seed": self._grid.seed, **self._asked.options}
        if "start" in vars(type(strategy)) and not type(strategy).__module__.startswith(("flwr.", "fedtempo.")):
            log.warning("%s has its own start, which is not called under %s", type(strategy).__name__, scheme)
        ours = TimedStrategy(scheme, **kept)
        ours.save_in(self._folder)
        mutable = cast(dict[str, Any], given)
        mutable["train_config"] = self._config_of(strategy, given)
        mutable["evaluate_fn"] = self._remembered(given.get("evaluate_fn"))
        return ours

    def _config_of(self, strategy: flower.Strategy, given: Mapping[str, Any]) -> ConfigRecord | None:
        """The config that the app's strategy sends in its first round: FedProx has its μ there."""
        config = given.get("train_config")
        if type(strategy) is flower.FedAvg or isinstance(strategy, TimedStrategy):
            return cast("ConfigRecord | None", config)
        try:
            copy = ConfigRecord(dict(config or {}))
            sent = list(strategy.configure_train(1, given["initial_arrays"], copy, self._grid))
            first = next(iter(sent[0].content.config_records.values()))
            return ConfigRecord({name: value for name, value in first.items() if name != "server-round"})
        except Exception as error:  # the user's strategy
            log.warning("%s gives no config for a round (%s); that of start is sent", type(strategy).__name__, error)
            return cast("ConfigRecord | None", config)

    def _remembered(self, evaluate: Any) -> Any:
        """The server's evaluation: its draws are its own, and what it found before a kill is read again."""
        if evaluate is None:
            return None
        store, digests, seed = None if self._kept is None else self._kept.store, Digests(), self._grid.seed

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            key = ("server", len(self._results), server_round)
            digest = "" if store is None else digests.of(RecordDict({"arrays": arrays}))
            done = None if store is None else store.get(key, digest)
            if done is not None:
                return cast("MetricRecord | None", decoded(done.reply).get("metrics") if done.reply else None)
            with generators_seeded(int(stream_key(f"app-evaluation-{server_round}", seed)[0])):
                found = evaluate(server_round, arrays)
            if store is not None and (found is None or isinstance(found, MetricRecord)):
                reply = b"" if found is None else encoded(RecordDict({"metrics": found}))
                store.put(key, digest, Done(reply, None, b"", 0.0))
            return cast("MetricRecord | None", found)

        return evaluated


def _strategies(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    below: type[Any]
    for below in cls.__subclasses__():
        yield from _strategies(below)


_STARTED = ("grid", "initial_arrays", "timeout", "train_config", "evaluate_config", "evaluate_fn")


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that every `start` has."""
    return {name: given[name] for name in _STARTED if name in given}


def _told(evaluate: Any, tell: Callable[[int, MetricRecord | None], None]) -> Any:
    def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        found = evaluate(server_round, arrays)
        tell(server_round, found)
        return cast("MetricRecord | None", found)

    return evaluated


def _slowest(times: ClientTimes) -> Fraction:
    return max(times.exact_mean_time or (Fraction(float(times.mean_time.max())),))


@contextmanager
def _messages() -> Iterator[None]:
    """Messages can be made as in a running ServerApp."""
    original = Message.__init__

    def init(self: Message, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("metadata") is None and kwargs.get("reply_to") is None:
            named = dict(zip(("content", "dst_node_id", "message_type"), args, strict=False)) | kwargs
            content, node, kind = (named.get(name) for name in ("content", "dst_node_id", "message_type"))
            if isinstance(content, RecordDict) and isinstance(node, int) and isinstance(kind, str):
                group = str(named.get("group_id") or "")
                known = metadata_of(message_id="", node=node, message_type=kind, group_id=group, ttl=named.get("ttl"))
                cast(Any, original)(self, content=content, metadata=known)
                return
        original(self, *args, **kwargs)

    with patch.object(Message, "__init__", init):
        yield
