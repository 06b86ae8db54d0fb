"""A training on Flower: the simulator's server and waiting rule, Flower as the carrier, and models.

    for each closed round n:   θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i;   save;   send θ^{n+1} to the contributors

The scheme's server rule takes the sum's place where it has one.

Everything that happens goes through `step` of the simulator's clock; models are here and nowhere below.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedtempo.clock.events import Event, Failed, Job, Joined, Left, Round, Tick
from fedtempo.clock.transport import step
from fedtempo.flower.arrays import Arrays, model_of
from fedtempo.flower.clock import NANOSECOND, TrainingClock, TransportCosts, seconds
from fedtempo.flower.estimates import Estimates
from fedtempo.flower.evaluation import ClientEvaluation, Evaluated, EvaluateFn, Evaluator
from fedtempo.flower.faults import Faults
from fedtempo.flower.journal import LEFT, REFUSED, RESTART, Journal, LoggedEvent, LoggingServer, restarted
from fedtempo.flower.reply_handler import TrainReplyHandler
from fedtempo.flower.result import Result, RoundRecord, UpdateRecord
from fedtempo.flower.round_weights import RoundWeights, WaitAdvice, absences, remarks
from fedtempo.flower.settings import Settings
from fedtempo.flower.state import Saved, Saver
from fedtempo.flower.transport import FlowerTransport
from fedtempo.flower.versions import RuleOnArrays, Step, Versions

log = logging.getLogger("flwr")


class Training:
    """One run, from the first model to the result. It is the carrier that its server sees."""

    def __init__(
        self,
        settings: Settings,
        grid: Grid,
        initial_arrays: ArrayRecord,
        *,
        num_rounds: int,
        timeout: Tick,
        until: Tick | None,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
        resume: bool,
    ) -> None:
        self._settings, self._grid = settings, grid
        self._num_rounds, self._until, self._timeout = num_rounds, until, timeout
        model = model_of(initial_arrays)
        self._saver = Saver(settings, model, resume=resume)
        try:
            found = self._saver.found
            server, self._rule = settings.scheme.options.server, None
            if server is not None:
                self._rule = RuleOnArrays(server, settings.server_lr, model, None if found is None else found.memory)
            arrays, number = (model, 0) if found is None else (found.arrays, found.server["version"])
            self._versions = Versions(arrays, number, self._rule)
            self._bases: dict[Job, Arrays] = {}
            self._journal = Journal(scheme=settings.scheme, server_lr=settings.server_lr, on_disk=self._saver.active)
            self._costs, self._estimates = TransportCosts(), Estimates(settings.rule)
            self._handler = TrainReplyHandler(
                settings,
                self._versions,
                self._estimates,
                Faults(self._journal.fault),
                self._costs,
                train_config=train_config,
                timeout=seconds(timeout),
            )
            if found is not None:
                found.take_up(self._handler, self._estimates, self._journal)
            self._round_weights = RoundWeights(
                settings.weights,
                settings.rule,
                self._estimates,
                self._handler.registry.identity,
                importance=settings.importance,
                times=settings.times,
            )
            self._wait_advice = WaitAdvice()
            self._evaluator = None if evaluate_fn is None else Evaluator(evaluate_fn)
            self._client_evaluation = ClientEvaluation(settings, self._handler, self._journal, evaluate_config)
        except BaseException:
            self._saver.release()
            raise
        self._unsaved = False

    # -- the run

    def run(self) -> Result:
        """Train to the end."""
        try:
            if self._done and self._saver.found is not None:
                self._evaluate_last(self._saver.found)
            else:
                self._begin()
                for closed in self._rounds():
                    self._close(closed)
                    if self._done:
                        break
                self._end()
            done = f"{self._handler.server_round} rounds are done"
            return self._result(done if self._done else f"the time is over: {seconds(self._until or 0):g} s")
        finally:
            self._saver.release()
            if self._evaluator is not None:
                self._evaluator.stop()

    @property
    def _done(self) -> bool:
        return self._handler.server_round >= self._num_rounds

    def _begin(self) -> None:
        """Wait for the nodes, and set the clock going."""
        clock, needed = self._settings.clock, self._settings.nodes_needed
        while len(nodes := list(self._grid.get_nodes())) < needed:
            log.info("Waiting for nodes to connect: %d connected (minimum required: %d).", len(nodes), needed)
            clock.sleep(clock.now() + 10**9)
        self._nodes = nodes
        found = self._saver.found
        self._clock = TrainingClock(clock, 0 if found is None else found.server["now"])
        self._transport = FlowerTransport(
            self._grid,
            self._clock,
            self._handler,
            self._costs,
            timeout=self._timeout,
            poll=self._settings.poll,
            wait=self._settings.wait,
            until=self._until,
        )

    def _rounds(self) -> Iterator[Round]:
        """The rounds, as the rule ends them; each one's jobs are sent when the next is asked for."""
        if self._saver.found is None:
            self._handler.registry.look(self._nodes)
            there = self._handler.registry.there
            log.info("%d clients: %s", len(there), ", ".join(self._handler.registry.names[:20]))
            self._server = LoggingServer(self._settings.rule, there, unit=NANOSECOND)
            self._server.note_told = self._told
            self._journal.begin(there)
            if self._evaluator is not None:
                self._evaluator.submit(0, self._versions.record(), must=True)
            self.send(self._server.start(0))
        else:
            self._restart(self._saver.found.server)
        while (yield from step(self._server, self, self._until)):
            pass

    def _restart(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot: whatever was out has failed, and is sent again when that is told.

        The desk may have known of comings and goings that the server was not told before it was killed.
        """
        now: Tick = snapshot["now"]
        self._server = LoggingServer.restored(self._settings.rule, restarted(snapshot))
        self._server.note_told = self._told
        self._journal.log(LoggedEvent(now, RESTART))
        reason = f"the server was started again after round {self._handler.server_round}; what was out is sent again"
        self._handler.note(now, -1, "restart", reason)
        self._transport.hold(Failed(job, reason) for job in self._server.in_flight.values())
        self._handler.listed(self._nodes, now)
        ready = {client for client in self._handler.registry.there if not self._handler.retries.resting(client)}
        self._transport.hold(Left(client) for client in sorted(self._server.clients - ready))
        self._transport.hold(Joined(client) for client in sorted(ready - self._server.clients))

    def _told(self, told: LoggedEvent) -> None:
        """The server is told something: it is written down, and a client that has left is no longer waited for."""
        self._journal.log(told)
        if told.kind == LEFT:
            self._transport.abandon(told.client, told.time)

    # -- the carrier that the server sees

    def send(self, jobs: tuple[Job, ...]) -> None:
        """Jobs go out; after them what evaluates the model that they start from."""
        if self._rule is not None and self._rule.mixes:
            self._bases.update(dict.fromkeys(jobs, self._versions.arrays))
        self._transport.send(jobs)
        self._client_evaluation.post(self._transport, self._clock.now())

    def wait(self, deadline: Tick | None) -> tuple[Tick, list[Event]]:
        """The next moment, and what happens then."""
        return self._transport.wait(deadline)

    # -- a round

    def _close(self, closed: Round) -> None:
        """Make θ^{n+1}, and write down what was done."""
        updates: list[UpdateRecord] = []
        contents = []
        with self._costs.part("aggregation"):
            weights = self._weights(closed)
            steps: list[Step] = []
            for job, weight in zip(closed.jobs, weights, strict=True):
                found, arrived = self._handler.contributions.pop(job)
                factor = self._settings.server_lr * weight * found.clipped
                steps.append(Step(factor, found.delta, found.norm, weight * found.clipped, self._bases.get(job)))
                told = (job.client, job.number, job.base, job.sent, arrived, weight, found.clipped, found.bytes_up)
                updates.append(UpdateRecord(*told))
                contents.append(found.content)
            for place in self._versions.advance(steps):
                lost, norm = updates.pop(place), steps[place].norm
                del contents[place]
                self._handler.validator.take_back(norm)
                self._journal.log(LoggedEvent(closed.end, REFUSED, lost.client, lost.job))
                reason = f"job {lost.job}: with it, of norm {norm:.3g}, the new model would not be finite"
                self._handler.note(closed.end, lost.client, "refused", reason)
        if self._bases:
            needed = {*self._server.in_flight.values(), *self._server.arrived.values()}
            self._bases = {job: base for job, base in self._bases.items() if job in needed}
        for job in closed.jobs:
            self._estimates.taken(job, closed.number)
        self._handler.server_round += bool(updates)
        names = tuple(self._handler.registry.identity(update.client) for update in updates)
        record = RoundRecord(closed.number, self._handler.server_round, closed.end, tuple(updates), names)
        self._journal.round(record)
        self._advise(record)
        if updates:
            self._report(record)
            self._measure(record, contents)
            self._save()

    def _weights(self, closed: Round) -> list[float]:
        """ω_i(n) of its jobs."""
        if self._handler.identities_changed:
            self._round_weights.forget()
            self._handler.identities_changed = False
        return self._round_weights.applied(closed, self._server.clients, self._server.changes) if closed.jobs else []

    def _report(self, record: RoundRecord) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("[ROUND %d/%d] %s", record.server_round, self._num_rounds, record)

    def _advise(self, record: RoundRecord) -> None:
        if self._settings.wait:
            estimates, wait = self._estimates, seconds(self._settings.wait)
            overhead, identity = self._costs.floor, self._handler.registry.identity
            self._wait_advice.say(remarks(wait, estimates.times(), estimates.intervals(), overhead, identity))
            missed = {job.client: record.number - job.base for job in self._server.in_flight.values()}
            self._wait_advice.say(absences(wait, missed, identity))

    def _measure(self, record: RoundRecord, contents: list[Any]) -> None:
        number = record.server_round
        last = number >= self._num_rounds
        try:
            metrics = self._settings.train_metrics(contents, self._settings.examples_key)
            self._journal.measure("train", number, metrics)
        except Exception as error:  # the user's function, or clients with unlike metrics
            self._handler.note(record.end, -1, "metrics", f"those of round {number} cannot be aggregated: {error}")
        if self._evaluator is not None:
            self._evaluator.submit(number, self._versions.record(), must=last)
            self._evaluated(self._evaluator.collect(), self._clock.now())
        self._client_evaluation.ask(number, self._versions.record, self._server.clients, must=last)

    def _evaluated(self, done: list[Evaluated], now: Tick) -> None:
        for number, metrics, error in done:
            if error is not None:
                self._handler.note(now, -1, "evaluation", f"round {number}: {error}")
            elif metrics is not None:
                log.info("evaluation of round %d: %s", number, metrics)
                self._journal.measure("server", number, metrics)

    # -- the end, and what is kept

    def _end(self) -> None:
        """Wait for the evaluations, and save what came after the last round."""
        number = self._handler.server_round
        if number and not self._client_evaluation.has(number):
            self._client_evaluation.ask(number, self._versions.record, self._server.clients, must=True)
        self._client_evaluation.finish(self._transport)
        if self._evaluator is not None:
            self._evaluated(self._evaluator.finish(), self._clock.now())
        self._know()
        self._journal.tell_rest()
        if number and (self._unsaved or self._journal.has_lines):
            self._write(self._server.snapshot())

    def _evaluate_last(self, found: Saved) -> None:
        """All rounds are done, but the run may have been killed while its last model was evaluated."""
        number, now = self._handler.server_round, found.server["now"]
        if self._evaluator is not None and not self._journal.has_measured("server", number):
            self._evaluator.submit(number, self._versions.record(), must=True)
        if self._settings.fraction_evaluate and not self._journal.has_measured("evaluate", number):
            self._begin()
            self._handler.listed(self._nodes, now)
            self._client_evaluation.ask(number, self._versions.record, set(self._handler.registry.there), must=True)
            self._client_evaluation.finish(self._transport)
        if self._evaluator is not None:
            self._evaluated(self._evaluator.finish(), now)
        if self._journal.has_lines:
            self._write(found.server)

    def _result(self, stopped: str) -> Result:
        journal, registry = self._journal, self._handler.registry
        return Result(
            arrays=self._versions.record(),
            train_metrics_clientapp=journal.measured("train"),
            evaluate_metrics_clientapp=journal.measured("evaluate"),
            evaluate_metrics_serverapp=journal.measured("server"),
            rounds=journal.rounds,
            client_times={registry.identity(client): time for client, time in self._estimates.times().items()},
            errors=journal.faults,
            transport=self._costs,
            stopped=stopped,
            journal=journal,
        )

    def _know(self) -> None:
        """Who is who, and how much each counts, for the record."""
        registry = self._handler.registry
        self._journal.names = registry.names
        self._journal.importance = tuple(self._round_weights.importance(len(registry)).tolist())

    def _save(self) -> None:
        self._unsaved = self._saver.active
        if self._saver.due(self._handler.server_round):
            self._know()
            self._write(self._server.snapshot())

    def _write(self, snapshot: dict[str, Any]) -> None:
        with self._costs.part("checkpoint"):
            memory = () if self._rule is None else self._rule.memory
            self._saver.write(snapshot, self._versions.arrays, self._handler, self._estimates, self._journal, memory)
        self._unsaved = False
