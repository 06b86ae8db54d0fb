"""A run that goes wrong goes back to its last good version, or stops; it never goes on for ever for nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord, RecordDict

import fedtempo as ft
from fedtempo import files
from fedtempo.clock.events import Job
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded, replay
from fedtempo.flower.evaluation import Evaluated, Evaluator
from fedtempo.flower.guard import Good, Guard, Lengths
from fedtempo.flower.result import RoundRecord, UpdateRecord
from fedtempo.flower.training import Training
from fedtempo.flower.versions import Model
from support.flower_fake import (
    SECOND,
    FakeGrid,
    Killed,
    ProblemClients,
    answer,
    arrays_of,
    failure,
    on,
    record_of,
    shifting,
)

SCHEMES = {
    "fedavg": lambda **o: FedAvg(**o),
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(2, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


def pulling(aim: float, rate: float, *seconds: float, spoilt=None, throw: tuple[int, ...] = (), report=False):
    """A client that goes `rate` of the way to `aim`; far away it is `spoilt`; some of its answers throw the model."""
    times, count = list(seconds), iter(range(10**9))

    def behave(message):
        w = arrays_of(message)["w"]
        loss = float(np.mean((w - aim) ** 2) + 0.1)
        if message.metadata.message_type == MessageType.EVALUATE:
            content = RecordDict({"metrics": MetricRecord({"num-examples": 10, "eval-loss": loss})})
            return [(SECOND // 10, Message(content=content, reply_to=message))]
        time = times.pop(0) if len(times) > 1 else times[0]
        number = next(count)
        new = w + 1e6 if number in throw else w + rate * (aim - w)
        if spoilt is not None and np.abs(w).max() > 1e3:
            if spoilt == "silent":
                return []
            if spoilt == "error":
                return [(int(time * SECOND), failure(message))]
            new = np.full_like(w, np.nan)
        metrics = {"num-examples": 10, **({"train_loss": loss} if report else {})}
        return [(int(time * SECOND), answer(message, {"w": new}, metrics))]

    return behave


def federation(*clients) -> FakeGrid:
    grid = FakeGrid()
    for node, behave in enumerate(clients):
        grid.connect(100 + node, behave)
    return grid


def start(grid, strategy=SCHEMES["fedfix"], rounds=60, timeout=20, until=3000, evaluate_fn=None, resume=False, **more):
    options = on(grid, **{"norm_limit": None, "poll": 0.5, **more})
    first = record_of({"w": np.zeros(2)})
    return strategy(**options).start(
        grid, first, num_rounds=rounds, timeout=timeout, until=until, evaluate_fn=evaluate_fn, resume=resume
    )


def guards(result) -> list[str]:
    return [fault.reason for fault in result.errors if fault.kind == "guard" and fault.client < 0]


def holds(result) -> None:
    """The waiting rule makes the same rounds again."""
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    assert record.recoveries == tuple(result.journal.recoveries)


class AtOnce(Evaluator):
    """Evaluates when it is asked to, so that a run is the same each time."""

    def submit(self, server_round, arrays, *, must=False):
        self._done.append(Evaluated(server_round, self._evaluate(server_round, arrays), None))


@pytest.fixture
def at_once(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.flower.training.Evaluator", AtOnce)


# -- finding 2


def test_a_late_first_answer_neither_destroys_nor_freezes_a_run() -> None:
    """docs/deploy.md's own wait and timeout, three honest clients with fixed point 2, a first answer after 1 000 s."""
    grid = federation(pulling(1, 0.5, 20), pulling(2, 0.5, 25), pulling(3, 0.5, 1000, 22))
    result = start(grid, lambda **o: FedFix(30, **o), rounds=120, timeout=3600, until=None, norm_limit=100, poll=2)
    assert result.arrays["w"].numpy() == pytest.approx(np.full(2, 2.0), abs=0.01)
    assert result.stopped == "120 rounds are done"
    last = result.rounds[-40:]
    assert {client for closed in last for client in closed.contributors} == {"node 100", "node 101", "node 102"}
    assert all(fault.time < 1200 for fault in result.errors), "the honest are not blamed for ever"
    assert sum(not closed.updates for closed in result.rounds) < 5
    holds(result)


# -- lengths are judged after weights


def test_an_old_update_with_a_small_weight_may_be_long() -> None:
    lengths = Lengths(10.0)
    for _ in range(5):
        assert lengths.too_long(0.5, 1.0, lambda: 0.0) is None
    assert lengths.too_long(0.01, 100.0, lambda: 0.0) is None
    wild = lengths.too_long(11.3, 1.0, lambda: 0.0)
    assert wild == (
        "its norm 1 times its weight 11.3 is more than 10 times the usual 0.5; if that is right, raise norm_limit or "
        "set it to None"
    )
    assert len(lengths.snapshot()) == 6
    copy = Lengths(10.0)
    copy.restore(lengths.snapshot())
    assert copy.too_long(1.0, 6.0, lambda: 0.0) is not None


def test_before_the_usual_is_known_the_limit_is_by_the_model_and_the_longest_so_far() -> None:
    lengths = Lengths(10.0)
    wild = lengths.too_long(1.0, 56.0, lambda: 5.0)
    assert wild is not None
    assert "10 times the model's own norm, 5;" in wild
    assert lengths.too_long(1.0, 40.0, lambda: 5.0) is None
    assert lengths.too_long(1.0, 390.0, lambda: 5.0) is None
    wild = lengths.too_long(1.0, 5000.0, lambda: 5.0)
    assert wild is not None
    assert "10 times the longest so far, 390" in wild
    assert Lengths(None).too_long(1e9, 1e9, lambda: 1.0) is None


def test_clients_that_do_not_move_do_not_set_the_limit_and_what_is_taken_back_is_not_usual() -> None:
    lengths = Lengths(10.0)
    for _ in range(9):
        lengths.too_long(1.0, 0.0, lambda: 0.0)
    assert lengths.too_long(1.0, 1.0, lambda: 0.0) is None
    lengths.take_back(1.0, 1.0)
    lengths.take_back(1.0, 7.0)
    assert lengths.snapshot() == [0.0] * 9


def test_a_client_that_goes_on_being_too_long_is_set_aside() -> None:
    grid = federation(shifting(1, 1), shifting(1, 1.3), shifting(1, 1.1))
    grid.at(10.05, lambda: setattr(grid.nodes[102], "behave", shifting(1e6, 1.1)))
    result = start(grid, SCHEMES["async"], rounds=60, norm_limit=100, weights="identical", max_failures=2)
    kinds = [fault.kind for fault in result.errors if fault.client == 2]
    assert kinds[:3] == ["refused", "refused", "set aside"]
    assert float(result.arrays["w"].numpy()[0]) < 100, "nothing of it has entered"
    assert guards(result) == [], "one of three is no majority"
    holds(result)


# -- (a) most clients are refused


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_that_a_hostile_client_has_spoilt(scheme) -> None:
    honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
    grid = federation(*honest, pulling(2, 0.5, 1.1, spoilt="nan", throw=(12,)))
    result = start(grid, SCHEMES[scheme])
    [words] = guards(result)
    assert (
        "clients that answered are refused; the last reason: 'w' contains NaN in 2 of 2 entries; rolled back" in words
    )
    assert result.stopped == "60 rounds are done"
    assert result.arrays["w"].numpy() == pytest.approx(np.full(2, 2.0), abs=1.0)
    [recovery] = result.journal.recoveries
    assert recovery.factor == 0.5
    later = [w for closed in result.rounds[recovery.number + 8 :] for w in closed.weights]
    before = [w for closed in result.rounds[: recovery.version] for w in closed.weights]
    assert np.median(later) == pytest.approx(np.median(before) / 2, rel=0.3), "half the step, in the record"
    holds(result)


def test_what_started_from_undone_versions_is_not_taken() -> None:
    honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
    slow = pulling(2, 0.0, *[1.0] * 6, 9.0)  # it does not notice, and answers when all is over
    result = start(federation(*honest, slow, pulling(2, 0.5, 1.1, throw=(6,), spoilt="nan")), SCHEMES["async"])
    [recovery] = result.journal.recoveries
    lost = [fault for fault in result.errors if fault.kind == "guard" and fault.client == 3]
    assert len(lost) == 1
    assert "which was rolled back; it is sent again" in lost[0].reason
    undone = range(recovery.version + 1, recovery.number)
    for closed in result.rounds[recovery.number :]:
        assert not any(update.base in undone for update in closed.updates)
    assert np.abs(result.arrays["w"].numpy()).max() < 10
    holds(result)


def test_three_times_without_a_good_version_are_enough() -> None:
    honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
    always = pulling(2, 0.5, 1.1, throw=tuple(range(12, 10**4)))
    result = start(federation(*honest, always), rounds=10**4, until=None)
    assert result.stopped.startswith("the guard stopped the run: ")
    assert result.stopped.endswith("rolling back 3 times has not helped")
    assert len(guards(result)) == 4
    assert np.abs(result.arrays["w"].numpy()).max() < 10, "what is left is the good version"
    assert len(result.rounds) < 200
    holds(result)


def test_clients_that_are_wrong_from_the_start_end_the_run() -> None:
    def nonsense(message):
        return [(SECOND, answer(message, {"w": np.full(2, np.nan)}, {"num-examples": 1}))]

    result = start(federation(nonsense, nonsense), rounds=10, until=None)
    assert "2 of the 2 clients that answered are refused; the last reason: 'w' contains NaN" in result.stopped
    assert [recovery.factor for recovery in result.journal.recoveries] == [1.0] * 4, "no step has done any harm"


def test_clients_whose_updates_grow_for_a_reason_are_let_in() -> None:
    """A warm-up of the learning rate: what was usual is no measure any more."""
    grid = federation(shifting(1e-6, 1), shifting(1e-6, 1.2), shifting(1e-6, 1.4))
    for node in grid.nodes:
        grid.at(30, lambda node=node: setattr(grid.nodes[node], "behave", shifting(1e-2, 1)))
    result = start(grid, rounds=60, norm_limit=100)
    assert result.stopped == "60 rounds are done"
    assert 1 <= len(guards(result)) <= 3
    assert {client for closed in result.rounds[-5:] for client in closed.contributors} == {
        f"node {node}" for node in grid.nodes
    }


# -- (b) losses


def test_a_loss_of_the_server_that_explodes(at_once) -> None:
    clients = [pulling(aim, 0.05, time) for aim, time in ((1, 1), (2, 1.3))]
    grid = federation(*clients, pulling(3, 0.05, 1.7, throw=(9,)))

    def evaluate(number, arrays):
        return MetricRecord({"accuracy": 0.1, "loss": float(np.mean((arrays["w"].numpy() - 2) ** 2) + 1)})

    result = start(grid, evaluate_fn=evaluate)
    [words] = guards(result)
    assert "(evaluate_fn, round " in words
    assert "and its best was" in words
    [recovery] = result.journal.recoveries
    thrown = next(c for c in result.rounds if max((abs(u.job) for u in c.updates if u.client == 2), default=0) >= 9)
    assert recovery.number == thrown.number + 1, "at once"
    assert recovery.version == thrown.number, "and to the version before"
    assert np.abs(result.arrays["w"].numpy()).max() < 4
    holds(result)


@pytest.mark.parametrize("source", ["clients' evaluation", "clients report"])
def test_losses_of_clients_that_explode(source) -> None:
    report = source == "clients report"
    clients = [pulling(aim, 0.05, time, report=report) for aim, time in ((1, 1), (2, 1.3))]
    grid = federation(*clients, pulling(3, 0.05, 1.7, throw=(9,), report=report))
    result = start(grid, fraction_evaluate=0.0 if report else 1.0)
    assert len(guards(result)) == 1
    assert source in guards(result)[0]
    assert np.abs(result.arrays["w"].numpy()).max() < 10
    holds(result)


def test_one_client_that_reports_nonsense_raises_no_alarm() -> None:
    grid = federation(*[shifting(0.01, time, train_loss=1.0) for time in (1, 1.2)], shifting(0.01, 1, train_loss=1.0))
    for number, loss in enumerate((math.nan, 1e30, math.inf)):
        change = shifting(0.01, 1, train_loss=loss)
        grid.at(20 + 20 * number, lambda change=change: setattr(grid.nodes[102], "behave", change))
    assert guards(start(grid)) == []


@pytest.mark.parametrize(
    ("losses", "alarms"),
    [
        ([3.0, 2.0, math.nan], 1),
        ([3.0, 0.1, 0.9], 0),
        ([3.0, 0.1, 1.1], 1),
        ([3.0, 0.001, 0.2], 0),
        ([-3.0, -5.0, 4.0], 0),
        ([math.nan, math.nan], 0),
        ([1.0, math.inf], 1),
    ],
)
def test_what_is_a_bad_loss(losses, alarms) -> None:
    """Ten times its best, and above a tenth of the first; of a source that never was finite nothing is known."""
    guard = Guard("recover", loss_limit=10.0, empty_waits=20, wait=1, timeout=1)
    guard.begin(_good(0), 0)
    for number, loss in enumerate(losses):
        guard.asked(number, lambda: _good(0), set())
        guard.evaluated("evaluate_fn", number, {"eval-loss": loss, "other": 3})
    assert (guard.alarm(0, list) is not None) == bool(alarms)
    quiet = Guard("recover", loss_limit=None, empty_waits=20, wait=1, timeout=1)
    quiet.begin(_good(0), 0)
    quiet.asked(0, lambda: _good(0), set())
    quiet.evaluated("evaluate_fn", 0, {"loss": losses[-1]})
    assert quiet.alarm(0, list) is None


def _good(version: int) -> Good:
    return Good(version, Model({"w": np.full(1, float(version))}), (), [])


def test_a_version_is_good_when_all_have_been_accepted_since() -> None:
    guard = Guard("recover", loss_limit=10.0, empty_waits=20, wait=1, timeout=1)
    guard.begin(_good(0), 0)
    versions = []
    updates = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 3), (1, 2), (1, 4), (0, 5), (1, 7), (0, 8)]
    for n, (client, base) in enumerate(updates):
        guard.accepted(Job(client, n, base, 0), {})
        update = UpdateRecord(client, n, base, 0, 1, 1.0, 1.0)
        guard.closed(RoundRecord(n, n + 1, n, (update,), ("a",)), {0, 1}, lambda n=n: _good(n + 1))
        assert guard.good is not None
        versions.append(guard.good.version)
    assert versions == [0, 0, 0, 0, 1, 1, 1, 1, 5, 5]


# -- (c) nothing is taken


@pytest.mark.parametrize("scheme", ["fedfix", "async"])
def test_clients_that_fail_on_a_spoilt_model(scheme) -> None:
    honest = [pulling(aim, 0.5, time, spoilt="error") for aim, time in ((1, 1), (2, 1.3))]
    result = start(federation(*honest, pulling(3, 0.5, 1.1, spoilt="error", throw=(5,))), SCHEMES[scheme])
    [words] = guards(result)
    assert words.startswith("no round has taken updates for ")
    assert "the last answer was error" in words
    assert result.stopped == "60 rounds are done"
    assert np.abs(result.arrays["w"].numpy()).max() < 10
    holds(result)


def test_a_round_that_waits_for_one_client_is_no_fault_of_the_model() -> None:
    """FedAvg, one client that hangs until its time-out, and one that was refused before it answered well."""
    grid = federation(shifting(1, 1), shifting(1, 1.5), shifting(1, 1))
    grid.at(20.2, lambda: setattr(grid.nodes[102], "behave", lambda message: []))
    bad = iter([True])

    def once(message):
        if next(bad, False):
            return [(SECOND, answer(message, {"w": np.full(2, np.nan)}, {"num-examples": 1}))]
        return shifting(1, 1)(message)

    grid.at(20.2, lambda: setattr(grid.nodes[100], "behave", once))
    result = start(grid, SCHEMES["fedavg"], rounds=30, timeout=200)
    assert result.journal.recoveries == []
    assert any("the model is not the cause" in words for words in guards(result))
    assert result.stopped == "30 rounds are done"


def test_an_outage_is_said_and_waited_out() -> None:
    grid = federation(shifting(1, 1), shifting(1, 1.5))
    grid.at(20, lambda: [setattr(node, "behave", lambda message: []) for node in grid.nodes.values()])
    grid.at(150, lambda: [setattr(node, "behave", shifting(1, 1)) for node in grid.nodes.values()])
    result = start(grid, timeout=30)
    [words] = guards(result)
    assert words.startswith("no round has taken updates for 40")
    assert words.endswith("the model is not the cause, so the run keeps waiting; it waits for node 100, node 101")
    assert result.stopped == "60 rounds are done"
    assert result.journal.recoveries == []


def test_an_outage_stops_a_run_that_is_to_stop() -> None:
    grid = federation(shifting(1, 1), shifting(1, 1.5))
    grid.at(20, lambda: [setattr(node, "behave", lambda message: []) for node in grid.nodes.values()])
    result = start(grid, timeout=60, guard="stop", until=None)
    assert result.stopped.startswith("the guard stopped the run: no round has taken updates for 60.")
    holds(result)


def test_a_slow_start_is_no_alarm() -> None:
    grid = federation(shifting(1, 70, 10), shifting(1, 80))
    for mode in ("recover", "stop"):
        assert guards(start(grid, rounds=4, timeout=100, guard=mode)) == [], "35 waits, and a job may take 100 s"


# -- stopping, and options


def test_stopping_leaves_the_model_as_it_is() -> None:
    honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
    grid = federation(*honest, pulling(2, 0.5, 1.1, spoilt="nan", throw=(12,)))
    result = start(grid, guard="stop", until=None)
    assert "clients that answered are refused" in result.stopped
    assert np.abs(result.arrays["w"].numpy()).max() > 1e3
    assert result.journal.recoveries == []
    holds(result)


def test_without_a_guard_nothing_is_done() -> None:
    honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
    result = start(federation(*honest, pulling(2, 0.5, 1.1, spoilt="nan", throw=(12,))), guard=None, until=300)
    assert guards(result) == []
    assert result.stopped == "the time is over: 300 s"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guard": "panic"}, "guard: 'panic' is not a mode"),
        ({"loss_limit": 0}, "loss_limit"),
        ({"empty_waits": -1}, "empty_waits"),
    ],
)
def test_wrong_options_are_refused(options, words) -> None:
    with pytest.raises(InputError, match=words):
        FedFix(1, **options)


# -- the record, and crashes


PROBLEM = ft.problems.quadratics(3, dimension=4, noise=0.5, rows=[6, 9, 12], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)


@pytest.mark.parametrize(
    ("server", "lr"), [(None, 1.0), (ft.FedAdam(), 0.05), (ft.MixModels(), 0.8)], ids=["sum", "adam", "mix"]
)
def test_the_oracle_makes_the_same_model(server, lr, at_once, tmp_path) -> None:
    """Two alarms, by a loss that jumps; memory and rate of the server rule go back too."""
    clients = ProblemClients(PROBLEM, LOCAL, ft.FixedTimes(["1", "0.7", "2.25"]))
    grid = clients.grid()
    evaluate = lambda number, arrays: MetricRecord({"loss": 50.0 if number in (9, 10, 21) else 1.0})  # noqa: E731
    options = on(grid, server=server, server_lr=lr, norm_limit=None, checkpoint=tmp_path, poll=0.05)
    result = AsyncFedAvg(**options).start(grid, clients.initial, num_rounds=40, evaluate_fn=evaluate)
    recoveries = [(to.number, to.version, to.factor) for to in result.journal.recoveries]
    assert recoveries == [(9, 8, 0.5), (10, 8, 0.25), (21, 20, 0.125)]
    for source in (result, tmp_path):
        record = recorded(source)
        assert record.replay_events().equals(record.timeline)
        np.testing.assert_allclose(
            result.arrays["theta"].numpy(), replay(PROBLEM, record, LOCAL), rtol=1e-10, atol=1e-12
        )


def test_a_run_killed_in_the_middle_of_a_recovery_goes_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files.disk, "sync", lambda file: file.flush())  # a kill is not a power cut
    monkeypatch.setattr(files.disk, "sync_folder", lambda path: None)

    def world():
        honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
        return federation(*honest, pulling(2, 0.5, 1.1, spoilt="nan", throw=(6,)))

    whole = start(world(), rounds=25, checkpoint=tmp_path / "whole")
    [recovery] = whole.journal.recoveries
    killed = 0
    for calls in range(60, 130, 10):
        grid, folder = world(), tmp_path / str(calls)
        grid.kill_at = calls
        try:
            start(grid, rounds=25, checkpoint=folder)
        except Killed:
            killed += 1
        grid.kill_at = None
        result = start(grid, rounds=25, checkpoint=folder, resume=True)
        holds(result)
        recovered = result.journal.recoveries
        assert result.stopped == "25 rounds are done" or "has not helped" in result.stopped
        if result.stopped == "25 rounds are done":
            assert np.abs(result.arrays["w"].numpy()).max() < 10
        assert len({to.time for to in recovered}) == len(recovered)
    assert killed == 7
    assert recovery.factor == 0.5


def test_what_the_guard_knows_is_kept(tmp_path, at_once) -> None:
    grid = federation(shifting(0.01, 1), shifting(0.01, 1.2))
    losses = {5: 40.0, 12: 40.0}
    for rounds in (8, 20):
        result = start(
            grid,
            rounds=rounds,
            checkpoint=tmp_path,
            resume=True,
            evaluate_fn=lambda number, arrays: MetricRecord({"loss": losses.get(number, 2.0 if number < 8 else 19.0)}),
        )
    assert [to.factor for to in result.journal.recoveries] == [0.5, 0.25], "19 is not ten times the best of before"
    assert recorded(tmp_path).recoveries == tuple(result.journal.recoveries)


@pytest.mark.parametrize("after", [True, False], ids=["after it is saved", "before"])
def test_a_kill_when_a_recovery_is_saved(after, tmp_path, monkeypatch) -> None:
    """What is saved is the good version; before that the spoilt one is all that there is, and the run says so."""
    write = Training._write

    def killing(self, snapshot):
        if self._journal.recoveries and not after:
            raise Killed
        write(self, snapshot)
        if self._journal.recoveries:
            raise Killed

    honest = [pulling(aim, 0.5, time, spoilt="nan") for aim, time in ((1, 1), (2, 1.3), (3, 1.7))]
    grid = federation(*honest, pulling(2, 0.5, 1.1, spoilt="nan", throw=(6,)))
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_write", killing)
        with pytest.raises(Killed):
            start(grid, rounds=25, checkpoint=tmp_path)
    result = start(grid, rounds=25, checkpoint=tmp_path, resume=True, until=None)
    holds(result)
    if after:
        assert [to.factor for to in result.journal.recoveries] == [0.5]
        assert result.stopped == "25 rounds are done"
        assert result.arrays["w"].numpy() == pytest.approx(np.full(2, 2.0), abs=1.0)
    else:
        assert result.stopped.endswith("rolling back 3 times has not helped")
