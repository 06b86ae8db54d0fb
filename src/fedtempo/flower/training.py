"""A training on Flower: `_rounds` is its loop, and the only place where the order of a round is written.

    θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i        or what the scheme's server rule makes of the contributions

The server's bookkeeping and the waiting rule are the simulator's. What the loop calls:

    transport.py        Flower's Grid: messages out and in, timeouts, when to look
    reply_handler.py    what a reply, a silence, a node that comes or goes means: an event
    measures.py         what the waiting rule needs of the clients
    round_weights.py    ω_i(n)
    versions.py         θ^n, and the models from which jobs that are out started
    buffers.py          arrays that are not trained
    guard.py            whether to go back to an earlier version
    journal.py          what is written down, line by line; state.py writes it, and the model, into a folder
    telling.py          points of the run, told to on_measure
    evaluation.py       measures of the model, by the server and by clients, beside the training
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedtempo.clock.events import Arrived, Deadline, Event, Failed, Job, Joined, Left, Round, Tick
from fedtempo.errors import StorageError
from fedtempo.flower.arrays import model_of
from fedtempo.flower.buffers import Buffers
from fedtempo.flower.clock import NANOSECOND, TrainingClock, TransportCosts, seconds
from fedtempo.flower.estimates import Estimates
from fedtempo.flower.evaluation import ClientEvaluation, Evaluated, EvaluateFn, Evaluator, shown
from fedtempo.flower.faults import Faults
from fedtempo.flower.guard import Good, Guard
from fedtempo.flower.journal import REFUSED, RESTART, Journal, LoggedEvent, LoggedMeasure, Recovery, restarted
from fedtempo.flower.measures import KnownMeasures, MeasuredServer
from fedtempo.flower.reply_handler import ReplyHandler, in_order
from fedtempo.flower.result import Result, RoundRecord, UpdateRecord
from fedtempo.flower.round_weights import FLOOR, RoundWeights, WaitAdvice, Weighed, absences, remarks
from fedtempo.flower.settings import BEFORE_STEPS, ENDLESS, Settings
from fedtempo.flower.state import Resume, Saved, Saver, about, reading_state
from fedtempo.flower.stopping import Stop
from fedtempo.flower.telling import PointsOfRun, run_of
from fedtempo.flower.transport import FlowerTransport
from fedtempo.flower.validator import Contribution, Refused, norm_of
from fedtempo.flower.versions import RuleOnArrays, Step, Versions
from fedtempo.simulation.model_file import ModelFile

log = logging.getLogger("flwr")


class Training:
    """One run, from the first model to the result."""

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
        resume: Resume,
    ) -> None:
        self._grid = grid
        self._num_rounds, self._until, self._timeout = num_rounds, until, timeout
        model = model_of(initial_arrays)
        self._buffers = buffers = Buffers.of(model, settings.buffers)
        asked = {
            "rounds": num_rounds if num_rounds < ENDLESS else None,
            "until": None if until is None else seconds(until),
            "timeout": seconds(timeout),
        }
        self._saver = Saver(settings, model, resume=resume, asked=asked)
        self._settings = settings = self._saver.settings
        try:
            found = self._saver.found
            server, self._rule = settings.scheme.options.server, None
            if server is not None:
                memory, trained = None if found is None else found.memory, buffers.trained(model)
                self._rule = RuleOnArrays(server, settings.server_lr, trained, memory)
            arrays, number = (model, 0) if found is None else (found.arrays, found.server["version"])
            file = ModelFile(self._saver.path)
            room = settings.base_memory
            self._versions = Versions(buffers.mended(arrays), number, self._rule, buffers, file=file, room=room)
            self._guard = Guard(
                settings.guard,
                loss_limit=settings.loss_limit,
                empty_waits=settings.empty_waits,
                wait=settings.wait,
                timeout=timeout,
                loss_key=settings.loss_key,
            )
            self._journal = Journal(scheme=settings.scheme, server_lr=settings.server_lr, on_disk=self._saver.active)
            self._journal.step = "paper" if settings.step == BEFORE_STEPS else settings.step_taken
            self._points: PointsOfRun | None = None
            if settings.on_measure:
                self._points = PointsOfRun(settings.on_measure, run_of(about(settings, model)))
                self._journal.listener = self._points
            self._costs, self._estimates = TransportCosts(), Estimates(settings.rule, settings.max_examples)
            self._handler = ReplyHandler(
                settings,
                self._versions,
                self._estimates,
                Faults(self._journal.fault),
                self._costs,
                buffers=buffers,
                guard=self._guard,
                train_config=train_config,
                timeout=seconds(timeout),
                keep_bases=self._rule is not None and self._rule.mixes,
            )
            if found is not None:
                found.take_up(self._handler, self._estimates, self._journal)
                self._slow_down()
            identity = self._handler.registry.identity
            self._round_weights = RoundWeights(
                settings,
                self._estimates,
                identity,
                rounds=self._journal.rounds_since_change,
                misfit=self._misfit,
            )
            online = self._round_weights.online
            if found is not None and online is not None:
                with reading_state():
                    online.restore(found.state["online"])
            self._known = KnownMeasures(settings, self._estimates, identity, self._handler.losses)
            self._wait_advice = WaitAdvice()
            wait = settings.evaluation == "wait"
            self._evaluator = None if evaluate_fn is None else Evaluator(evaluate_fn, wait=wait)
            self._client_evaluation = ClientEvaluation(settings, self._handler, self._journal, evaluate_config)
        except BaseException:
            self._saver.release()
            raise
        self._held: list[Event] = []
        """What has happened outside of a look; the next one finds it."""
        self._changes = 0
        """How often somebody has come or gone."""
        self._saved = self._handler.server_round
        """The last round that is saved."""
        self._stop = Stop()
        self._begun = False
        self._crowded = False
        """Whether models could not be put away the last time."""
        self._next_evaluation = 0
        self._stopped = ""
        """Why the guard has stopped the run."""

    # -- the run

    @property
    def interrupted(self) -> BaseException | None:
        """What stopped the training before its end; to be raised when that has been said."""
        return self._stop.asked

    def run(self) -> Result:
        """Train to the end, or until somebody stops it."""
        try:
            with self._stop:
                try:
                    self._train()
                except (KeyboardInterrupt, SystemExit) as error:
                    self._stop.asked = error
                if self.interrupted is None:
                    return self._result(self._why)
                self._saver.stopped = self._stop.words()
                if self._stop.idle and self._begun:  # else the last save is what there is
                    self._save_all()
                where = f"; when started again, it continues from {self._saver.path}" if self._saved else ""
                done = self._handler.server_round
                return self._result(f"{self._stop.words()} after round {done}{where}")
        finally:
            self._saver.release()
            if self._evaluator is not None:
                self._evaluator.stop()
            if self._points is not None:
                self._points.close()
            self._versions.close()

    def _train(self) -> None:
        found = self._saver.found
        if found is not None and found.warning:
            self._handler.note(found.server["now"], -1, "checkpoint", found.warning)
        if self._done and found is not None:
            self._evaluate_last(found)
            return
        self._connect()
        self._guard.begin(self._current(), self._clock.now())
        if found is None:
            self._start()
        else:
            self._restart(found.server)
        self._begun = True
        self._rounds()
        self._stop.idle = True
        if self.interrupted is None:
            self._end()

    @property
    def _why(self) -> str:
        """Why training has ended."""
        if self._stopped:
            return self._stopped
        done = f"{self._handler.server_round} rounds are done"
        return done if self._done else f"the time is over: {seconds(self._until or 0):g} s"

    def _rounds(self) -> None:
        """Rounds, until enough of them have taken updates or the time is over."""
        server, transport, handler = self._server, self._transport, self._handler
        deadline = server.deadline
        while not self._over and self.interrupted is None:
            self._stop.idle = True
            now, in_time = transport.next_look(deadline, handler.retries.next_due, at_once=bool(self._held))
            self._stop.idle = False
            if self._until is not None and now > self._until:
                return
            self._watch(now)  # the guard may go back to an earlier version, or stop
            if self._stopped:
                return
            events: list[Event] = []
            if in_time:
                events, self._held = self._held, []
                replies = transport.replies(now)  # pull what has come back, and what has not in time
                events += [event for reply in replies for event in handler.read(reply, now)]  # validate it
                if transport.nodes_due(now):
                    events += handler.come_and_gone(transport.nodes(now), now)
                events += handler.rested(now)  # after the nodes: the rest of a client that is gone need not end
                self._log_measures(events, now)
            if not events and (deadline is None or now < deadline):
                continue
            for event in self._and_deadline(in_order(events), now):
                self._log(event, now)
                closed, jobs = server.handle(event, now)  # the rule decides
                if closed is not None:
                    with self._costs.part("aggregation"):
                        weighed = self._weigh(closed)
                        record, contents = self._fold(closed, weighed)  # θ^{n+1}
                    self._journal.round(record)
                    self._advise(record)
                    if record.updates:
                        self._evaluate(record, contents)
                        self._save()
                    self._watch(now, jobs)
                    if self._over:
                        return
                self._send(jobs)
            deadline = server.deadline

    def _and_deadline(self, events: list[Event], now: Tick) -> Iterator[Event]:
        """The events of one time, and last the rule's deadline if it has come."""
        yield from events
        deadline = self._server.deadline
        if deadline is not None and deadline <= now:
            yield Deadline()

    @property
    def _done(self) -> bool:
        return self._handler.server_round >= self._num_rounds

    @property
    def _over(self) -> bool:
        return bool(self._stopped) or self._done

    # -- before the first round

    def _connect(self) -> None:
        """Wait for the nodes, and set the clock going."""
        clock, needed = self._settings.clock, self._settings.nodes_needed
        self._stop.idle = True
        while len(nodes := list(self._grid.get_nodes())) < needed:
            log.info("Waiting for nodes to connect: %d connected (minimum required: %d).", len(nodes), needed)
            clock.sleep(clock.now() + 10**9)
        self._stop.idle = False
        self._nodes = nodes
        found = self._saver.found
        self._clock = TrainingClock(clock, 0 if found is None else found.server["now"])
        self._transport = FlowerTransport(
            self._grid,
            self._clock,
            self._costs,
            timeout=self._timeout,
            poll=self._settings.poll,
            wait=self._settings.wait,
            until=self._until,
        )

    def _start(self) -> None:
        """Send version 0 to those whom the rule chooses."""
        registry, settings = self._handler.registry, self._settings
        registry.look(self._nodes)
        there = registry.there
        log.info("%d clients: %s", len(there), ", ".join(registry.names[:20]))
        self._server = MeasuredServer(settings.rule, there, unit=NANOSECOND, seed=settings.seed)
        self._round_weights.check(set(there))
        if self._rule is not None:
            self._rule.look(len(there))
        if settings.virtual and not self._clock.shift:
            self._journal.unit = getattr(settings.clock, "unit", None)
        self._journal.begin(there, self._changed_measures(there, 0), settings.seed)
        if self._evaluator is not None:
            self._evaluator.submit(0, self._versions.record(), must=True)
        self._send(self._server.start(0))

    def _restart(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot: whatever was out has failed, and is sent again when the rule hears of it.

        Clients may have come and gone without the server's knowledge before it was killed.
        """
        now: Tick = snapshot["now"]
        handler = self._handler
        with reading_state():
            self._server = server = MeasuredServer.restored(self._settings.rule, restarted(snapshot))
        self._journal.log(LoggedEvent(now, RESTART))
        reason = f"the server was restarted after round {handler.server_round}; unanswered jobs are sent again"
        handler.note(now, -1, "restart", reason)
        self._held += [Failed(job, reason) for job in server.in_flight.values()]
        handler.come_and_gone(self._nodes, now)
        ready = {client for client in handler.registry.there if not handler.retries.resting(client)}
        self._held += [Left(client) for client in sorted(server.clients - ready)]
        self._held += [Joined(client) for client in sorted(ready - server.clients)]
        for measure in self._changed_measures(handler.registry.there, now):
            self._journal.log(measure)

    # -- the steps of a round

    def _send(self, jobs: tuple[Job, ...]) -> None:
        """Jobs go out; after them what evaluates the model that they start from. Those that cannot go have failed."""
        packed = []
        self._round_weights.sent(jobs)
        for job in jobs:
            if self._handler.retries.resting(job.client):
                continue  # set aside when its round was closed: the server hears in the next look that it has left
            message = self._handler.pack(job)
            if message is None:
                self._held += self._handler.lost(job, "not sent", "its node is no longer connected", job.sent)
            else:
                packed.append((job, message))
        for job in self._transport.send(packed):
            self._handler.gone(job)
            self._held += self._handler.lost(job, "not sent", "Flower does not know its node", job.sent)
        self._client_evaluation.post(self._transport, self._clock.now())

    def _log(self, event: Event, now: Tick) -> None:
        """Write down what the server hears; a client that has left is no longer waited for."""
        self._journal.log(LoggedEvent.of(event, now))
        self._changes += isinstance(event, (Joined, Left))
        if not isinstance(event, Left):
            return
        if (job := self._transport.abandon(event.client, now)) is not None:
            self._handler.gone(job)
        if (owed := self._round_weights.left(event.client)) > 0:
            reason = f"it has left; {owed:.3g} s of its work were not weighed yet and are lost"
            self._handler.note(now, event.client, "weights", reason)

    def _log_measures(self, events: list[Event], now: Tick) -> None:
        """Tell the server what the rule needs of those of whom there is news, and write that down."""
        if self._settings.rule.needs:
            of = {e.job.client if isinstance(e, (Arrived, Failed)) else getattr(e, "client", -1) for e in events}
            for measure in self._changed_measures(sorted(of), now):
                self._journal.log(measure)

    def _changed_measures(self, clients: Iterable[int], now: Tick) -> list[LoggedMeasure]:
        """What is known of these clients, and the server did not know; it does then."""
        changed = []
        for name in self._settings.rule.needs:
            for client in clients:
                value = self._known.of(name, client)
                if value is not None and self._server.known(name).get(client) != value:
                    self._server.note(name, client, value)
                    changed.append(LoggedMeasure(now, name, client, value))
        return changed

    def _weigh(self, closed: Round) -> Weighed:
        """ω_i(n) of the round's jobs."""
        if self._handler.identities_changed:
            self._round_weights.forget()
            self._handler.identities_changed = False
        return self._round_weights.applied(closed, self._server.clients, self._changes)

    def _misfit(self, closed: Round, reason: str) -> None:
        """The weights that a scheme brings do not fit a round."""
        self._handler.note(closed.end, -1, "weights", f"round {closed.number}: {reason}")

    def _fold(self, closed: Round, weighed: Weighed) -> tuple[RoundRecord, list[RecordDict]]:
        """Make θ^{n+1}; the round as it is written down, and its replies without their arrays."""
        updates: list[UpdateRecord] = []
        contents: list[RecordDict] = []
        steps: list[Step] = []
        taken: list[tuple[Job, Contribution]] = []
        for job, weight, even in zip(closed.jobs, weighed.weights, weighed.stable, strict=True):
            found, arrived, base = self._handler.contributions.pop(job)
            weight *= self._weight_factor
            if not self._fits(job, weight * found.clipped, found.norm, closed.end):
                continue
            factor = self._settings.server_lr * weight * found.clipped
            share = self._round_weights.value(job.client) if self._rule is not None and self._rule.tells_apart else 0.0
            applied = weight * found.clipped
            whose = (base, job.client, share, found.values, even)
            steps.append(Step(factor, found.delta, found.norm, applied, *whose, found.memories))
            where = (job.client, job.number, job.base, job.sent, arrived)
            updates.append(UpdateRecord(*where, weight, found.clipped, found.bytes_up, job.draws))
            contents.append(found.content)
            taken.append((job, found))
        for place in self._versions.advance(steps):
            job, step = taken.pop(place)[0], steps[place]
            del updates[place], contents[place]
            self._handler.lengths.take_back(step.weight, step.norm)
            self._leave_out(
                job, f"with this update, of norm {step.norm:.3g}, the new model would not be finite", closed.end
            )
        for job, found in taken:
            self._handler.retries.worked(job.client)
            self._guard.accepted(job, found.metrics)
            self._estimates.taken(job, closed.number)
        self._make_room(closed.end)
        self._handler.server_round += bool(updates)
        names = tuple(self._handler.registry.identity(update.client) for update in updates)
        record = RoundRecord(closed.number, self._handler.server_round, closed.end, tuple(updates), names, weighed.step)
        if updates:
            self._guard.closed(record, self._server.clients, self._current)
        return record, contents

    def _fits(self, job: Job, weight: float, norm: float, now: Tick) -> bool:
        """Whether an update may enter its round with this weight; else it is left out, and that is said."""
        if job in self._guard.undone:
            self._guard.undone.discard(job)
            self._journal.log(LoggedEvent(now, REFUSED, job.client, job.number))
            undone = f"job {job.number} started from version {job.base}, which was rolled back; it is ignored"
            self._handler.note(now, job.client, "guard", undone)
            self._estimates.failed(job)
            return False
        if (reason := self._handler.lengths.too_long(weight, norm, self._own_norm)) is not None:
            self._leave_out(job, reason, now)
        return reason is None

    def _leave_out(self, job: Job, reason: str, now: Tick) -> None:
        """An update that its round does not take; its client has failed, and may have to rest."""
        self._journal.log(LoggedEvent(now, REFUSED, job.client, job.number))
        self._held += [event for event in self._handler.lost(job, "refused", reason, now) if isinstance(event, Left)]

    def _make_room(self, now: Tick) -> None:
        """Put models away that are too many for the memory; a disk that refuses is said once."""
        try:
            self._versions.make_room()
        except StorageError as error:
            if not self._crowded:
                self._handler.note(now, -1, "memory", str(error))
            self._crowded = True
        else:
            self._crowded = False

    def _own_norm(self) -> float:
        """‖θ^n‖ of the arrays that are trained."""
        with np.errstate(all="ignore"):
            norm = norm_of(self._buffers.trained(self._versions.arrays))
        return 0.0 if isinstance(norm, Refused) else norm

    # -- the guard

    @property
    def _weight_factor(self) -> float:
        """What the guard makes of weights; where a server rule has a rate of its own, it halves that instead."""
        return self._guard.factor if self._rule is None or self._rule.mixes else 1.0

    def _current(self) -> Good:
        """The current version, to go back to."""
        memory = () if self._rule is None else self._rule.memory
        return Good(self._versions.number, self._versions.model, memory, self._handler.lengths.snapshot())

    def _watch(self, now: Tick, fresh: tuple[Job, ...] = ()) -> None:
        """Go back to the last good version, or stop, where the guard says so; `fresh` jobs are not sent yet."""
        alarm = self._guard.alarm(now, lambda: self._handler.registry.there)
        if alarm is None:
            return
        if alarm.action == "say":
            silent = sorted(self._server.in_flight)[:10]
            who = ", ".join(self._handler.registry.identity(client) for client in silent)
            self._handler.note(now, -1, "guard", f"{alarm.reason}; it waits for {who or 'clients to connect'}")
            return
        blamed = self._guard.blamed
        words = ""
        if self._settings.guard == "recover":
            out = {*self._server.in_flight.values(), *self._server.arrived.values()} - set(fresh)
            good = self._guard.go_back(now, out)
            try:
                self._versions.put_back(good.model)
            except StorageError as error:  # the current model is all that is left
                reason = f"{alarm.reason}, and version {good.version}, the last good one, is lost: {error}"
                self._handler.note(now, -1, "memory", reason)
                self._stopped = f"the guard stopped the run: {reason}"
                return
            self._handler.lengths.restore(good.lengths)
            if self._guard.again:
                self._handler.lengths.forget()  # what was usual there may be what is wrong
            if self._rule is not None:
                self._rule.memory = good.memory
            self._slow_down()
            self._handler.retries.pardon(blamed, now)
            factor = self._guard.factor
            self._journal.recovery(Recovery(now, self._versions.number, good.version, factor, alarm.reason))
            words = f"; rolled back to the model of version {good.version}, with steps scaled by {factor:g}"
        self._handler.note(now, -1, "guard", f"{alarm.reason}{words}")
        if alarm.action == "stop":
            self._stopped = f"the guard stopped the run: {alarm.reason}"
        if self._saver.active and self._handler.server_round:  # so that a crash does not undo it
            self._know()
            self._journal.write_rest()
            self._write(self._snapshot())

    def _slow_down(self) -> None:
        """Let a server rule with a rate of its own go at the guard's."""
        if self._rule is not None and not self._rule.mixes:
            self._rule.set_rate(self._settings.server_lr * self._guard.factor)

    def _advise(self, record: RoundRecord) -> None:
        """Log the round, and what is to be said of the wait."""
        if self._settings.wait:
            estimates, wait = self._estimates, seconds(self._settings.wait)
            overhead, identity = self._costs.floor, self._handler.registry.identity
            floor = 0.0 if self._settings.virtual else max(FLOOR, overhead)
            self._wait_advice.say(remarks(wait, estimates.times(), estimates.intervals(), floor, identity))
            missed = {job.client: record.number - job.base for job in self._server.in_flight.values()}
            self._wait_advice.say(absences(wait, missed, identity))
        if record.updates and log.isEnabledFor(logging.INFO):
            of = "" if self._num_rounds >= ENDLESS else f"/{self._num_rounds}"
            log.info("[ROUND %d%s] %s", record.server_round, of, record)

    def _evaluate(self, record: RoundRecord, contents: list[RecordDict]) -> None:
        """Aggregate the clients' metrics; let the model be evaluated by the server and by clients."""
        number = record.server_round
        last = number >= self._num_rounds
        try:
            believed = self._handler.believed(record.updates, contents)
            metrics = self._settings.train_metrics(believed, self._settings.examples_key)
            self._journal.measure("train", number, metrics)
            if log.isEnabledFor(logging.INFO):
                log.info("\t└──> Σω %.3g; clients' metrics: %s", sum(record.weights), shown(metrics) or "none")
        except Exception as error:  # the user's function
            self._handler.note(record.end, -1, "metrics", f"those of round {number} cannot be aggregated: {error}")
        if record.end < self._next_evaluation and not last:
            return
        self._next_evaluation = record.end + self._settings.evaluate_every
        if self._evaluator is None and not self._settings.fraction_evaluate:
            return
        still = self._client_evaluation.rounds
        if self._evaluator is not None:
            self._evaluator.submit(number, self._versions.record(), must=last)
            still |= self._evaluator.rounds
        self._client_evaluation.ask(number, self._versions.record, self._server.clients, must=last)
        self._guard.asked(number, self._current, still)
        if self._evaluator is not None:
            self._evaluated(self._evaluator.collect(), self._clock.now())

    def _evaluated(self, done: list[Evaluated], now: Tick) -> None:
        for number, metrics, error in done:
            if error is not None:
                self._handler.note(now, -1, "evaluation", f"round {number}: {error}")
            elif metrics is not None:
                log.info("evaluation of round %d: %s", number, metrics)
                self._journal.measure("server", number, metrics)
                self._guard.evaluated("evaluate_fn", number, metrics)

    def _save(self) -> None:
        if self._saver.due(self._handler.server_round):
            self._know()
            self._write(self._snapshot())

    # -- the end, and what is kept

    def _end(self) -> None:
        """Wait for the evaluations, and save what came after the last round."""
        number = self._handler.server_round
        if number and not self._client_evaluation.has(number):
            self._client_evaluation.ask(number, self._versions.record, self._server.clients, must=True)
        self._client_evaluation.finish(self._transport)
        if self._evaluator is not None:
            if not self._journal.has_measured("server", number) and number not in self._evaluator.rounds:
                self._evaluator.submit(number, self._versions.record(), must=True)
            self._evaluated(self._evaluator.finish(), self._clock.now())
        self._saver.ended = self._why
        self._save_all()

    def _save_all(self) -> None:
        """Save what there is, also what came after the last round."""
        self._stop.idle = False
        if self._evaluator is not None:
            self._evaluated(self._evaluator.collect(), self._clock.now())
        self._know()
        self._journal.write_rest()
        if self._handler.server_round and self._saver.active:
            self._write(self._snapshot())

    def _evaluate_last(self, found: Saved) -> None:
        """All rounds are done, but the run may have been killed while its last model was evaluated."""
        number, now = self._handler.server_round, found.server["now"]
        self._stop.idle = True
        if self._evaluator is not None and not self._journal.has_measured("server", number):
            self._evaluator.submit(number, self._versions.record(), must=True)
        if self._settings.fraction_evaluate and not self._journal.has_measured("evaluate", number):
            self._connect()
            self._handler.come_and_gone(self._nodes, now)
            self._client_evaluation.ask(number, self._versions.record, set(self._handler.registry.there), must=True)
            self._client_evaluation.finish(self._transport)
        if self._evaluator is not None:
            self._evaluated(self._evaluator.finish(), now)
        self._stop.idle, self._saver.ended = False, self._why
        if self._journal.has_lines or found.state.get("ended") is None:
            self._write(found.server)

    def _result(self, stopped: str) -> Result:
        journal, registry = self._journal, self._handler.registry
        if self._saver.failure is not None:
            stopped += f"; rounds after {self._saved} are not saved: {self._saver.failure}"
            log.warning("Rounds after %d are not saved: %s", self._saved, self._saver.failure)
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
            folder=self._saver.path,
        )

    def _know(self) -> None:
        """Who is who, and how much each counts, for the record."""
        registry = self._handler.registry
        self._journal.names = registry.names
        self._journal.importance = tuple(self._round_weights.importance(len(registry)).tolist())

    def _snapshot(self) -> dict[str, Any]:
        """The server's; time goes on from what it has heard last, or from where the guard has gone back."""
        snapshot: dict[str, Any] = self._server.snapshot()
        back = [to.time for to in self._journal.recoveries[-1:]]
        return {**snapshot, "now": max([snapshot["now"], *back])}

    def _write(self, snapshot: dict[str, Any]) -> None:
        """Save; a disk that refuses is said once, and once more when it does no longer."""
        failed = self._saver.failure is not None
        self._write_once(snapshot)
        failure = self._saver.failure
        if failure is None:
            missed, self._saved = self._saved, self._handler.server_round
            if failed:
                what = f"saving works again; nothing was saved since round {missed}"
                self._handler.note(snapshot["now"], -1, "saved again", what)
                self._write_once(snapshot)  # with that line
        elif not failed:
            again = "training continues, and saving is tried again at the next round to be saved"
            self._handler.note(snapshot["now"], -1, "checkpoint", f"{failure}; {again}")

    def _write_once(self, snapshot: dict[str, Any]) -> None:
        with self._costs.part("checkpoint"):
            memory = () if self._rule is None else self._rule.memory
            online = self._round_weights.online
            more = {} if online is None else {"online": online.snapshot()}
            self._saver.write(
                snapshot, self._versions.arrays, self._handler, self._estimates, self._journal, memory, **more
            )
