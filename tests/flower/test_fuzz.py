"""Any order of events through the fake Grid: what is accepted enters one round, as it was sent; nothing else does."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random

import numpy as np
import pytest
from flwr.app import MetricRecord

import fedtempo as ft
import fedtempo.flower.strategy as strategy_module
from fedtempo import files
from fedtempo.clock.events import Arrived, Joined, Left
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, recorded
from fedtempo.flower.reply_handler import ReplyHandler
from fedtempo.flower.state import Saver
from fedtempo.flower.training import Training
from support.flower_fake import (
    SECOND,
    FakeGrid,
    Killed,
    VirtualClock,
    answer,
    arrays_of,
    failure,
    make_message,
    record_of,
)
from support.power import using

CASES = int(os.environ.get("FEDTEMPO_CASES", "640")) // 4
"""A hundred and sixty, unless `make fuzz` asks for more."""
SHARDS = 10
SIZE = 5
WAIT = SECOND
SCHEMES = (
    lambda **o: FedAvg(**o),
    lambda **o: AsyncFedAvg(**o),
    lambda **o: FedFix(1, **o),
    lambda **o: FedBuff(2, **o),
    lambda **o: TimedStrategy(ft.UniformSampling(2), **o),
    lambda **o: TimedStrategy(ft.MultinomialSampling(3), **o),
    lambda **o: TimedStrategy(ft.FastestSampling(2), weights="identical", **o),
    lambda **o: TimedStrategy(ft.CuredSampling(ft.FastestSampling(2), window=9, biased=2), **o),
)
SERVERS = (None, None, ft.SlowMo(0.5), ft.FedAdam(), ft.MixModels())
KINDS = ("good",) * 14 + ("error", "nan", "inf", "shape", "keys", "zero", "huge", "hang", "double", "slow")
KINDS += ("variance", "counter", "thrown")
BUFFERS = {"bn.running_mean": np.zeros(2), "bn.running_var": np.ones(2), "bn.num_batches_tracked": np.array(0)}


class World:
    """Nodes that come and go and answer as they like; each good answer is the model plus a step of its own."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.costs = draw.random() < 0.3
        self.grid = FakeGrid(VirtualClock(wakes=draw.random() < 0.7))
        if self.costs:
            self.grid.push_cost = draw.choice([0, SECOND // 10, 3 * SECOND])
            self.grid.pull_cost = draw.choice([0, SECOND // 20])
        self.steps: dict[int, np.ndarray] = {}
        self.values: dict[int, dict[str, np.ndarray]] = {}
        """By token: what was sent of the arrays that are not trained."""
        self.told: dict[int, tuple[int, int, int]] = {}
        """By token: node, job and base version of the message that it answers."""
        self.bad: set[int] = set()
        self.next_node = 100
        self.named = draw.random() < 0.3
        for device in range(draw.randint(2, 5)):
            self.connect(device)
        for _ in range(draw.randint(0, 6)):
            self.grid.at(draw.randint(1, 200) / 10, self._disturb)

    def connect(self, device: int) -> None:
        key = f"key {device}".encode() if self.draw.random() < 0.5 else b""
        self.grid.connect(self.next_node, self.behave(device, self.next_node), key)
        self.next_node += 1

    def _disturb(self) -> None:
        nodes = list(self.grid.nodes)
        kind = self.draw.random()
        if kind < 0.4 and nodes:
            self.grid.disconnect(self.draw.choice(nodes))
        elif kind < 0.6 and nodes:  # gone and back at once, as another node
            self.grid.disconnect(self.draw.choice(nodes))
            self.connect(self.draw.randrange(6))
        else:
            self.connect(self.draw.randrange(6))

    def behave(self, device: int, node: int):
        def behave(message):
            draw, token = self.draw, len(self.steps)
            kind = draw.choice(KINDS)
            config = message.content["config"]
            step = np.array([draw.uniform(-1, 1) for _ in range(SIZE)])
            self.steps[token] = step
            self.told[token] = node, config["job"], config["base-version"]
            sent = arrays_of(message)
            arrays = {"theta": sent["theta"] + step}
            arrays["bn.running_mean"] = np.array([draw.gauss(0, 3) for _ in range(2)])
            arrays["bn.running_var"] = np.array([draw.choice([0.0, draw.uniform(0, 4)]) for _ in range(2)])
            arrays["bn.num_batches_tracked"] = sent["bn.num_batches_tracked"] + draw.randint(0, 50)
            self.values[token] = arrays
            metrics = {"num-examples": draw.randint(1, 50), "token": token, "who": device}
            work = draw.randint(1, 25) * SECOND // 10
            if kind not in ("good", "double", "slow", "huge", "thrown"):
                self.bad.add(token)
            match kind:
                case "error":
                    return [(work, failure(message))]
                case "hang":
                    return []
                case "slow":
                    return [(work + 30 * SECOND, answer(message, arrays, metrics))]
                case "nan" | "inf":
                    arrays["theta"][draw.randrange(SIZE)] = float(kind)
                case "shape":
                    arrays["theta"] = arrays["theta"][1:]
                case "variance":
                    arrays["bn.running_var"] = -arrays["bn.running_var"] - 0.1
                case "counter":
                    arrays["bn.num_batches_tracked"] += 10**12
                case "thrown":  # within the limit, and far
                    step += 1e3
                    arrays["theta"] = arrays["theta"] + 1e3
                case "keys":
                    arrays["other"] = arrays.pop("theta")
                case "zero":
                    metrics["num-examples"] = draw.choice([0, -3])
                case "huge":
                    step += 1e8  # the first few may enter: nobody knows yet what is usual
                    arrays["theta"] = arrays["theta"] + 1e8
            reply = (work, answer(message, arrays, metrics))
            return [reply, reply] if kind == "double" else [reply]

        return behave


def tokens(records, key) -> MetricRecord:
    return MetricRecord({"tokens": [int(next(iter(r.metric_records.values()))["token"]) for r in records]})


class PlainServer:
    """The global model, by the equations of `fedtempo.training.server_rules`; η_g = 0.5."""

    def __init__(self, rule, recoveries) -> None:
        self.rule, self.models = rule, [np.zeros(SIZE)]
        self.largest = 1.0
        self.factor = 1.0
        self.buffers = [BUFFERS]
        self._recoveries = recoveries
        self._values: list[tuple[float, dict[str, np.ndarray]]] = []
        self._sum, self._taken = np.zeros(SIZE), 0
        self._first, self._second = np.zeros(SIZE), np.full(SIZE, 1e-6)
        self._memory = [(self._first, self._second)]

    @property
    def rate(self) -> float:
        """η_g: the guard halves it where the rule has steps of its own, and else the weights."""
        return 0.5 * self.factor if isinstance(self.rule, (ft.SlowMo, ft.FedAdam)) else 0.5

    def take(self, update, step, values) -> None:
        """An update enters the round."""
        weight = update.weight if isinstance(self.rule, (ft.SlowMo, ft.FedAdam)) else update.weight / self.factor
        self._values.append((weight, values))
        if isinstance(self.rule, ft.MixModels):  # one after the other
            step = self.models[update.base] + step - (self.models[-1] + 0.5 * self._sum)
        self._sum, self._taken = self._sum + update.weight * update.clipped * step, self._taken + 1

    def close(self) -> None:
        """The next model; an empty round is no step."""
        change = self._sum
        if self._taken and isinstance(self.rule, ft.SlowMo):
            change = self._first = 0.5 * self._first + change
        if self._taken and isinstance(self.rule, ft.FedAdam):
            self._first = 0.9 * self._first + 0.1 * change
            self._second = 0.99 * self._second + 0.01 * change**2
            change = self._first / (np.sqrt(self._second) + 1e-3)
        self.models.append(self.models[-1] + self.rate * change)
        self.buffers.append(self._averaged())
        self._memory.append((self._first, self._second))
        self.largest = max(self.largest, float(np.abs(self.models[-1]).max()))
        self._sum, self._taken, self._values = np.zeros(SIZE), 0, []
        for to in self._recoveries:
            if to.number == len(self.models) - 1:
                self.models[-1], self.buffers[-1] = self.models[to.version], self.buffers[to.version]
                self._memory[-1] = self._first, self._second = self._memory[to.version]
                self.factor = to.factor

    def _averaged(self) -> dict[str, np.ndarray]:
        """By the equations of `fedtempo.flower.buffers`."""
        old, total = self.buffers[-1], sum(weight for weight, _ in self._values)
        if not self._values:
            return old
        much = min(1.0, total)

        def mean(of):
            return (1 - much) * of(old) + much * sum(w * of(v) for w, v in self._values) / total

        first = mean(lambda v: v["bn.running_mean"])
        second = mean(lambda v: v["bn.running_var"] + v["bn.running_mean"] ** 2)
        return {
            "bn.running_mean": first,
            "bn.running_var": np.maximum(second - first**2, 0),
            "bn.num_batches_tracked": max(v["bn.num_batches_tracked"] for v in (old, *(v for _, v in self._values))),
        }


class Watch:
    """The training that runs, the jobs that it packs and the updates that it accepts."""

    def __init__(self, monkeypatch) -> None:
        self.packed, self.accepted = [], []
        self.found = []
        """What the last look found; training may end before the server has heard all of it."""
        self.kill_untold = False
        """Whether to kill the server after a save at which it has not been told who came or went."""
        watch = self

        class WatchedSaver(Saver):
            def write(self, snapshot, arrays, handler, *more, **named):
                super().write(snapshot, arrays, handler, *more, **named)
                if watch.kill_untold and set(snapshot["clients"]) != ready(handler):
                    raise Killed

        class Watched(Training):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                watch.training = self

            def _and_deadline(self, events, now):
                watch.found = events
                return super()._and_deadline(events, now)

        class WatchedHandler(ReplyHandler):
            def pack(self, job):
                message = super().pack(job)
                if message is not None:
                    watch.packed.append(job)
                return message

            def read(self, reply, now):
                events = super().read(reply, now)
                watch.accepted += [e.job for e in events if isinstance(e, Arrived)]
                return events

        monkeypatch.setattr(strategy_module, "Training", Watched)
        monkeypatch.setattr("fedtempo.flower.training.ReplyHandler", WatchedHandler)
        monkeypatch.setattr("fedtempo.flower.training.Saver", WatchedSaver)

    def untold(self, kind: type) -> set[int]:
        """Clients of the last moment's events that training may not have heard of before it ended."""
        return {event.client for event in [*self.found, *self.training._held] if isinstance(event, kind)}


def ready(handler: ReplyHandler) -> set[int]:
    """Who is connected and does not rest."""
    return {client for client in handler.registry.there if not handler.retries.resting(client)}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_order_of_events(shard, monkeypatch, tmp_path, caplog) -> None:
    caplog.set_level(logging.CRITICAL, "flwr")
    for case in range(shard, CASES, SHARDS):
        with monkeypatch.context() as patch:
            one_case(case, Watch(patch), tmp_path / f"{case}")


class FlakyDisk(files.Disk):
    """Refuses every fifth thing that it is asked for, once a run has its folder."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._calm = draw, 6

    def _refuse(self) -> None:
        self._calm -= 1
        if self._calm < 0 and self._draw.random() < 0.2:
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path, mode):
        self._refuse()
        return super().open(path, mode)

    def sync(self, file) -> None:
        self._refuse()
        super().sync(file)

    def replace(self, source, target) -> None:
        self._refuse()
        super().replace(source, target)


def check_what_is_saved(result, folder) -> None:
    """A disk that refuses costs nothing but what was not saved at the very end, which is said."""
    if not any(closed.updates for closed in result.rounds) or "not saved" in result.stopped:
        return
    there = recorded(folder)
    assert there.timeline.equals(recorded(result).timeline)
    assert there.weights.values.tolist() == recorded(result).weights.values.tolist()


def check_weights(rounds, training) -> None:
    """No weight is above its cap, none above 1, and no debt below 0."""
    assert all(0 <= weight <= 1 + 1e-12 for closed in rounds for weight in closed.weights)
    intervals = training._round_weights.online.intervals
    assert (intervals.debt >= -1e-9).all()
    assert np.isfinite(intervals.mean).all()


def one_case(case: int, watch: Watch, folder) -> None:
    draw = random.Random(f"flower {case}")
    world = World(draw)
    scheme = draw.randrange(len(SCHEMES))
    killed = draw.random() < 0.25
    options = {
        "message": make_message,
        "clock": world.grid.clock,
        "min_available_nodes": 1,
        "min_train_nodes": 1,
        "train_metrics_aggr_fn": tokens,
        "server": draw.choice(SERVERS),
        "server_lr": 0.5,
        "norm_limit": draw.choice([1e6, 1e6, 100.0]),
        "guard": draw.choice(["recover"] * 6 + ["stop", None]),
        "empty_waits": draw.choice([20, 5]),
        "max_failures": draw.choice([1, 2, 3]),
        "retry_after": draw.choice([2, 20]),
        "poll": draw.choice([0.25, 0.4]),
        "identity_key": "who" if world.named else None,
        "clip_norm": draw.choice([None, 1.0]),
        "checkpoint": folder if killed else None,
    }
    weigh = random.Random(f"weights {case}")
    measured = scheme in (1, 2, 3)
    if measured and weigh.random() < 0.4:
        options["weights"] = "own-time"
    refusing = not killed and weigh.random() < 0.15
    if refusing:
        options["checkpoint"] = folder
    initial = record_of({"theta": np.zeros(SIZE), **BUFFERS})
    end = {"num_rounds": draw.choice([5, 20]), "until": 60, "timeout": draw.choice([2, 5])}
    if killed:
        world.grid.kill_at = draw.randint(3, 120)
        watch.kill_untold = True
        with contextlib.suppress(Killed):
            SCHEMES[scheme](**options).start(world.grid, initial, **end)
        world.grid.kill_at = None
        watch.kill_untold = False
        for _ in range(2):  # after the last disturbance: the server waits for two nodes, for ever if none comes
            world.grid.at(21, lambda: world.connect(draw.randrange(6)))
        watch.packed.clear()
    with using(FlakyDisk(weigh)) if refusing else contextlib.nullcontext():
        result = SCHEMES[scheme](**options).start(world.grid, initial, resume=killed, **end)
    rounds = result.rounds
    if refusing:
        check_what_is_saved(result, folder)
    if measured:
        check_weights(rounds, watch.training)
    entered = {n: list(m["tokens"]) for n, m in result.train_metrics_clientapp.items()}

    # every update enters once, with the job and base version of its message; nothing bad enters
    flat = [token for taken in entered.values() for token in taken]
    assert len(flat) == len(set(flat))
    assert not set(flat) & world.bad
    for closed in rounds:
        taken = entered[closed.server_round] if closed.updates else []
        assert len(taken) == len(closed.updates)
        for token, update in zip(taken, closed.updates, strict=True):
            assert world.told[token][1:] == (update.job, update.base)
            assert update.sent < update.arrived <= closed.end

    # the model is what a plain loop makes of the record
    recoveries = result.journal.recoveries
    plain = PlainServer(options["server"], recoveries)
    for closed in rounds:
        for token, update in zip(entered.get(closed.server_round, ()), closed.updates, strict=False):
            assert update.clipped == pytest.approx(
                min(1.0, 1 / np.linalg.norm(world.steps[token])) if options["clip_norm"] else 1.0, rel=1e-6
            )
            plain.take(update, world.steps[token], world.values[token])
        plain.close()
    atol = 1e-12 * plain.largest * len(flat)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), plain.models[-1], rtol=0, atol=atol)
    for name, value in plain.buffers[-1].items():
        np.testing.assert_allclose(result.arrays[name].numpy(), value, rtol=1e-9, atol=1e-12)
    assert all((arrays["bn.running_var"] >= 0).all() for arrays in plain.buffers)
    assert (result.arrays["bn.running_var"].numpy() >= 0).all()
    check_recoveries(rounds, recoveries)
    if not flat:
        return
    if options["guard"] == "recover" and not world.costs:
        check_gaps(result, options["empty_waits"], WAIT if scheme == 2 else 0, end["timeout"] * SECOND)

    # rounds end when the rule says, when the same happens again
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    sizes = [len(closed.updates) for closed in rounds]
    left_out = {(told[2], told[3]) for told in record.events if told[1] == "refused"}
    if scheme == 1:
        assert set(sizes) <= {0, 1}
    if scheme == 3:
        assert max(sizes) <= 2
    if scheme == 2 and not world.costs and world.grid.clock.wakes:
        assert all(closed.end % WAIT == 0 for closed in rounds)
    if scheme != 2:
        assert sizes.count(0) <= len(left_out), "a round is empty only if what it had is left out"

    # nothing is left behind: what was accepted is in a round or waits, and models are the live ones
    training = watch.training
    if hasattr(training, "_server"):
        server, handler = training._server, training._handler
        untold = set(handler.contributions) - set(server.arrived.values())
        assert set(server.arrived.values()) <= set(handler.contributions)
        assert untold <= set(server.in_flight.values()), "only the last moment may end before all of it is told"
        assert training._versions.live <= len(server.in_flight) + 1
        check_clients(watch, server.clients, handler)
        if not killed:
            taken = {(u.client, u.job) for closed in rounds for u in closed.updates}
            waiting = {(job.client, job.number) for job in handler.contributions}
            assert {(job.client, job.number) for job in watch.accepted} == taken | waiting | left_out
            assert not left_out & (taken | waiting)
            if record.scheme.waiting.returns_to_contributors:
                check_receivers(watch, record, rounds)


def check_recoveries(rounds, recoveries) -> None:
    """Nothing that started from a version that was undone enters afterwards."""
    for place, to in enumerate(recoveries):
        same = max([to.version, *(r.number for r in recoveries[:place] if r.version == to.version)])
        changed = next((c.number + 1 for c in rounds if c.number >= same and c.updates), to.number + 1)
        for closed in rounds[to.number :]:
            for update in closed.updates:
                before = update.base < to.number or (update.base == to.number and update.sent < to.time)
                assert not (changed <= update.base and before)


def check_gaps(result, waits: int, wait: int, timeout: int) -> None:
    """Where no round takes updates for long, the guard speaks."""
    spoken = [fault.time * SECOND for fault in result.errors if fault.kind == "guard" and fault.client < 0]
    ends = [closed.end for closed in result.rounds if closed.updates]
    gaps: list[int] = []
    for begin, end in zip([0, *ends], [*ends, 60 * SECOND if "time is over" in result.stopped else 0], strict=True):
        recent = sorted(gaps[-21:])
        usual = wait or (recent[len(recent) // 2] if recent else 0)
        patience = max(waits * usual, 3 * max(recent, default=0))
        if len(recent) < (1 if wait else 5):
            patience = max(patience, timeout)
        if end - begin > patience + SECOND:
            assert any(begin < time <= end for time in spoken)
        gaps.append(end - begin)


def check_clients(watch: Watch, clients: set[int], handler: ReplyHandler) -> None:
    """Who is connected and does not rest takes part, also after a kill; nobody else does."""
    assert ready(handler) - clients <= watch.untold(Joined)
    assert clients - ready(handler) <= watch.untold(Left)


def check_receivers(watch: Watch, record, rounds) -> None:
    """Contributors get the new model; others only when they join, or when a job of theirs has failed."""
    again = {(told.client, told.time) for told in record.events if told.kind in ("failed", "joined", "refused")}
    contributed = {(update.client, closed.number + 1) for closed in rounds for update in closed.updates}
    for job in watch.packed:
        first = job.base == 0 and job.number == 0 and job.client in record.first
        assert first or (job.client, job.base) in contributed or (job.client, job.sent) in again, job
    sent = {(job.client, job.base) for job in watch.packed}
    gone = {told.client for told in record.events if told.kind == "left"} | watch.untold(Left)
    last = rounds[-1].number + 1
    assert {(c, base) for c, base in contributed if c not in gone and base < last} <= sent
