"""The server's bookkeeping under any order of events, lawful or not."""

from __future__ import annotations

import json
import os
import random
from fractions import Fraction

import pytest

from fedtempo.clock.events import Arrived, Deadline, Failed, Job, Joined, Left
from fedtempo.clock.rules import (
    FastestClients,
    FixedInterval,
    IntervalStages,
    MultinomialSample,
    UniformSample,
    WaitForAll,
    WaitForNext,
    WaitForSome,
)
from fedtempo.clock.server import Server
from fedtempo.errors import InputError

CASES = int(os.environ.get("FEDTEMPO_CASES", "400"))
SEQUENCES_PER_CASE = 5
RULES = [
    IntervalStages(((Fraction(5), 3), (Fraction(7), None))),
    FastestClients(2),
    WaitForAll(),
    WaitForNext(),
    WaitForSome(2),
    WaitForSome(3),
    FixedInterval(Fraction(5)),
    UniformSample(2),
    MultinomialSample(3),
]


def any_event(draw: random.Random, server: Server, known: list[Job]):
    """An answer in time, late, double or invented; a client that leaves, joins or fails."""
    kind = draw.random()
    if kind < 0.55 and server.in_flight:
        return Arrived(draw.choice(sorted(server.in_flight.values())))
    if kind < 0.70 and known:
        return draw.choice([Arrived, Failed])(draw.choice(known))
    if kind < 0.75:
        return Arrived(Job(draw.randrange(6), draw.randrange(9), draw.randrange(9), 0))
    if kind < 0.82:
        return Left(draw.randrange(6))
    return Joined(draw.randrange(6))


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_accepted_update_enters_one_round_with_the_base_it_was_sent(rule) -> None:
    for case in range(SEQUENCES_PER_CASE * CASES // len(RULES) + 1):
        draw = random.Random(f"server {case}")
        server = Server(rule, range(draw.randint(3, 6)), unit=Fraction(1), seed=case)
        sent = dict.fromkeys(server.start(), 0)
        current: dict[int, Job] = {job.client: job for job in sent}
        accepted: set[Job] = set()
        taken: list[Job] = []
        now = 0
        for _ in range(120):
            now += draw.randint(0, 2)
            due = server.deadline
            event = Deadline() if due is not None and due <= now else any_event(draw, server, list(sent))
            in_time = isinstance(event, Arrived) and server.in_flight.get(event.job.client) == event.job
            if in_time:
                accepted.add(event.job)
            version = server.version
            closed, jobs = server.handle(event, now)
            if closed is not None:
                assert closed.number == version
                assert server.version == version + 1
                assert closed.end == now
                assert [job.client for job in closed.jobs] == sorted({job.client for job in closed.jobs})
                taken += closed.jobs
                assert closed.sent_to == tuple(job.client for job in jobs)
                if rule.returns_to_contributors:
                    assert set(closed.sent_to) == {j.client for j in closed.jobs} & server.clients
            else:
                assert server.version == version
            for job in jobs:
                assert job.base == server.version
                assert job.sent == now
                assert job not in sent
                sent[job] = now
                current[job.client] = job
            assert not set(server.in_flight) & set(server.arrived)
            if rule.returns_to_contributors:
                assert server.clients <= set(server.in_flight) | set(server.arrived), "nobody is left without a job"
            assert set(server.in_flight) <= server.clients
        assert len(taken) == len(set(taken))
        assert set(taken) | set(server.arrived.values()) == accepted, "each accepted update is taken once or waits"
        assert all(job in sent for job in taken), "an update is taken with the base version that was sent"


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_restored_server_answers_as_the_one_that_was_saved(rule) -> None:
    for case in range(20):
        draw = random.Random(f"restore {case}")
        server = Server(rule, range(5), unit=Fraction(1), seed=case)
        known = list(server.start())
        now = 0
        for step in range(80):
            now += draw.randint(0, 2)
            due = server.deadline
            event = Deadline() if due is not None and due <= now else any_event(draw, server, known)
            copy = Server.restore(rule, json.loads(json.dumps(server.snapshot())))
            answer = server.handle(event, now)
            assert copy.handle(event, now) == answer, (case, step)
            assert copy.snapshot() == server.snapshot()
            known += answer[1]


def test_late_and_double_answers_are_ignored() -> None:
    server = Server(WaitForNext(), range(2), unit=Fraction(1))
    first, _ = server.start()
    closed, [again] = server.handle(Arrived(first), 3)
    assert closed is not None
    assert again == Job(0, 1, 1, 3)
    assert server.handle(Arrived(first), 4) == (None, ())
    assert server.handle(Failed(first), 4) == (None, ())


def test_a_lost_job_is_sent_again_from_the_current_version() -> None:
    server = Server(WaitForNext(), range(2), unit=Fraction(1))
    first, other = server.start()
    server.handle(Arrived(first), 1)
    closed, jobs = server.handle(Failed(other, "died"), 2)
    assert closed is None
    assert jobs == (Job(1, 1, 1, 2),)


def test_fedavg_does_not_wait_for_who_has_left() -> None:
    server = Server(WaitForAll(), range(3), unit=Fraction(1))
    jobs = server.start()
    server.handle(Arrived(jobs[0]), 1)
    server.handle(Arrived(jobs[1]), 2)
    closed, sent = server.handle(Left(2), 5)
    assert closed is not None
    assert [job.client for job in closed.jobs] == [0, 1]
    assert [job.client for job in sent] == [0, 1]


def test_a_client_that_left_still_counts_but_gets_no_model() -> None:
    server = Server(WaitForSome(2), range(3), unit=Fraction(1))
    jobs = server.start()
    server.handle(Arrived(jobs[0]), 1)
    server.handle(Left(0), 2)
    closed, sent = server.handle(Arrived(jobs[1]), 3)
    assert closed is not None
    assert [job.client for job in closed.jobs] == [0, 1]
    assert [job.client for job in sent] == [1]


def test_a_late_server_skips_missed_ticks_and_does_not_drift() -> None:
    server = Server(FixedInterval(Fraction(10)), range(1), unit=Fraction(1))
    server.start(now=7)
    assert server.deadline == 17
    server.handle(Deadline(), 41)
    assert server.deadline == 47


def test_time_does_not_go_back() -> None:
    server = Server(WaitForNext(), range(1), unit=Fraction(1))
    [job] = server.start(5)
    with pytest.raises(InputError, match="went back"):
        server.handle(Arrived(job), 4)


def test_rules_hear_of_measures() -> None:
    server = Server(FastestClients(1), range(3), unit=Fraction(1), measures={"mean_time": {0: 3, 1: 2, 2: 5}})
    [job] = server.start()
    assert job.client == 1
    server.note("mean_time", 2, 1)
    restored = Server.restore(FastestClients(1), server.snapshot(), measures={"mean_time": {0: 3, 1: 2, 2: 5}})
    for answering in (server, restored):
        _, [following] = answering.handle(Arrived(job), 4)
        assert following.client == 2


def test_another_sample_is_drawn_when_all_of_one_have_failed() -> None:
    server = Server(UniformSample(1), range(6), unit=Fraction(1), seed=1)
    [job] = server.start()
    tried = [job.client]
    for now in range(1, 30):
        _, [job] = server.handle(Failed(job), now)
        assert job.base == 0
        tried.append(job.client)
    assert set(tried) == set(range(6))


def test_a_snapshot_of_another_format_is_refused() -> None:
    server = Server(WaitForNext(), range(1), unit=Fraction(1))
    server.start()
    with pytest.raises(InputError, match="format 99"):
        Server.restore(WaitForNext(), {**server.snapshot(), "format": 99})
