"""A field of runs: in stretches, with fewer and fewer of them, each comes to what it has in a study of all.

Bit by bit while as many columns are computed; a program for another number of runs rounds otherwise.
"""

from __future__ import annotations

import signal
import time
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.engine.session import Session
from fedtempo.simulation.field import Field, Run
from fedtempo.simulation.study import study_of
from support.stateful import normed_problem

UNTIL, POINTS = 16, 9
FIXED = ft.FixedTimes(["1", "2/3", "1/2"])
RANDOM = ft.ExponentialTimes(["1", "2/3", "1/2"])
QUADRATICS = ft.problems.quadratics(3, dimension=4, noise=0.5, rows=[6, 9, 12], seed=1, importance="rows")
RATES = (0.02, 0.05, 0.1, 0.2)
ASYNC, BUFFER = ft.AsyncFedAvg(), ft.FedBuff(2)


def asked(schemes, problem=QUADRATICS, times=FIXED, *, rates=RATES, steps=2, seeds=(0, 1), **more):
    """The arguments of `simulate` and of `study_of`."""
    local = ft.LocalSGD(steps=steps, lr=list(rates), batch_size=4)
    given = {"until": UNTIL, "points": POINTS, "dtype": "float64", "engine": "events", "per_client": True}
    return (problem, schemes, times), {"local": local, "seeds": seeds} | given | more


def entered(*given, **more):
    """A field with all runs of a study at time 0, and its runs."""
    positional, named = asked(*given, **more)
    field = Field()
    return field, field.enter(study_of(*positional, **named))


def simulated(*given, **more):
    """The history of a study whose runs go together, however many cores there are."""
    positional, named = asked(*given, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtempo.simulation.study.cores", lambda: 1)
        return ft.simulate(*positional, **named).dataset


def at_rates(runs, *rates):
    return [run for run in runs if run.rate in rates]


def same(field, runs, dataset, points=POINTS, bits=POINTS, rtol=1e-11):
    """These runs have measured so many points, and what the study of all has there; bit by bit at the first `bits`."""
    for run in runs:
        found = field.found[run]
        here = dataset.sel(scheme=run.scheme, local_lr=run.rate, seed=run.seed).squeeze("weights", drop=True)
        here["bytes"] = here["bytes_up"] + here["bytes_down"]
        assert found.points == points, run
        assert found.diverged == bool(here["diverged_at"] <= found.times[points - 1]), run
        np.testing.assert_array_equal(found.times, here["time"])
        assert {"loss", "client_loss", "rounds", "updates", "bytes"} <= set(found.measures)
        for name, values in found.measures.items():
            wanted = here[name].transpose("time", ...).values
            assert values.shape == wanted.shape
            assert np.isnan(values[points:]).all()
            which = f"{run}: {name}"
            exact = points if name in ("rounds", "updates", "bytes") else min(bits, points)
            np.testing.assert_array_equal(values[:exact], wanted[:exact], err_msg=which)
            np.testing.assert_allclose(values[exact:points], wanted[exact:points], rtol=rtol, err_msg=which)


def counted(runs, points, schemes=(ASYNC, BUFFER), problem=QUADRATICS):
    """Client updates of each of these runs up to a measuring point, by its timeline."""
    until, named = Fraction(UNTIL * (points - 1), POINTS - 1), {scheme.label: scheme for scheme in schemes}
    given = {"until": until, "importance": problem.importance.exact}
    return [ft.timeline(named[run.scheme], FIXED, seed=run.seed, **given).num_updates for run in runs]


CASES = {
    "plain": ([ASYNC, BUFFER], {}),
    "in 32 bits": ([ASYNC], {"dtype": "float32"}),
    "random times": ([ASYNC, ft.UniformSampling(2)], {"times": RANDOM}),
    "server with a state": ([ASYNC.using(server=ft.FedAdam())], {}),
    "clients with a memory": ([BUFFER.using(correction=ft.Scaffold())], {}),
    "compression": ([ASYNC.using(compression=ft.TopK(0.5))], {}),
    "problem with a state": ([BUFFER], {"problem": normed_problem()}),
}


@pytest.fixture
def short_pieces(monkeypatch) -> None:
    """Programs come in pieces of 16 events, so that waves, which are trained a piece at a time, can be cut too."""
    monkeypatch.setattr("fedtempo.simulation.engine.machine.MOST_EVENTS", 16)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("engine", ["events", "waves"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_beside_fewer_and_fewer_others_keeps_its_bits(case, engine) -> None:
    schemes, more = CASES[case]
    field, runs = entered(schemes, engine=engine, **more)
    assert len(runs) == len(schemes) * len(RATES) * 2
    some, few = at_rates(runs, 0.02, 0.1, 0.2), at_rates(runs, 0.02, 0.2)
    for wanted, points in ((runs, 3), (some, 5), (few, POINTS)):  # in 4, 4 and 2 columns
        before = dict(field.found)
        assert field.train(wanted, points)
        come = {field.found[run].points for run in wanted}
        assert come == {points} if engine == "events" else points <= min(come) <= max(come) <= min(points + 3, POINTS)
        assert all(run in field for run in wanted)
    assert not any(run in field for run in set(runs) - set(few))
    whole = simulated(schemes, engine=engine, **more)
    for run in runs:
        bits = before[run].points
        same(field, [run], whole, field.found[run].points, bits, 1e-4 if case == "in 32 bits" else 1e-11)


def test_runs_of_a_rule_that_chooses_by_losses_keep_their_bits() -> None:
    """Each of them has rounds of its own."""
    scheme = ft.HighestLossSampling(2)
    field, runs = entered(scheme, weights="identical")
    assert field.train(runs, 3)
    assert field.train(at_rates(runs, 0.05, 0.2), 6)
    assert field.train(at_rates(runs, 0.2), POINTS)
    whole = simulated(scheme, weights="identical")
    for rate, points in ((0.02, 3), (0.05, 6), (0.1, 3), (0.2, POINTS)):
        same(field, at_rates(runs, rate), whole, points)
    assert field.updates == sum(found.measures["updates"][found.points - 1] for found in field.found.values())


WILD = (0.05, 0.2, 2.5, 1e30)


def test_runs_that_diverge_do_not_touch_those_beside_them() -> None:
    whole = simulated(ASYNC, rates=WILD)
    field, runs = entered(ASYNC, rates=WILD)
    assert field.train(runs, 5)
    slow, at_once = at_rates(runs, 2.5), at_rates(runs, 1e30)
    assert not any(field.found[run].diverged for run in at_rates(runs, 0.05, 0.2, 2.5))
    assert all(field.found[run].diverged for run in at_once)
    assert field.train(at_rates(runs, 0.2, 2.5, 1e30), 6)
    assert field.train(at_rates(runs, 0.2, 2.5), POINTS)
    same(field, at_rates(runs, 0.2) + slow, whole, bits=6)
    same(field, at_rates(runs, 0.05), whole, 5)
    same(field, at_once, whole, 6)
    assert all(field.found[run].diverged for run in slow)


def test_where_all_have_diverged_nothing_more_is_trained() -> None:
    field, runs = entered(ASYNC, rates=WILD)
    assert field.train(runs, 3)
    gone = at_rates(runs, 1e30)
    assert field.train(gone, POINTS)  # there is nothing to wait for
    spent = field.updates
    assert field.train(gone, POINTS)
    assert field.updates == spent
    same(field, gone, simulated(ASYNC, rates=WILD), field.found[gone[0]].points, bits=3)


@pytest.mark.parametrize("kept", [(0.2,), (0.05, 0.2), (0.02, 0.05, 0.2)], ids=["one", "two", "three"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "from the start"])
def test_any_number_of_runs_is_trained_as_all_are(kept, begun) -> None:
    """Programs are there for powers of two; runs that fill up are not counted."""
    schemes = [ASYNC, BUFFER]
    field, runs = entered(schemes)
    if begun:
        assert field.train(runs, 3)
    some = at_rates(runs, *kept)
    assert field.train(some, POINTS)
    same(field, some, simulated(schemes), bits=POINTS if len(kept) == 3 else 3 if begun else 0)
    trained = sum(counted(some, POINTS))
    others = [run for run in runs if run not in some]
    assert field.updates == trained + (sum(counted(others, 3)) if begun else 0)
    assert all((run in field.found) == begun for run in others)


def test_updates_are_at_most_a_step_of_the_engine_beyond_a_rung() -> None:
    """Local work of one step is taken up to 16 updates at a time."""
    field, runs = entered([ASYNC, BUFFER], steps=1)
    stages = ((2, RATES), (4, (0.05, 0.1, 0.2)), (7, (0.1,)))
    for stage, (points, rates) in enumerate(stages):
        assert field.train(at_rates(runs, *rates), points)
        furthest = {rate: max(p for p, of in stages[: stage + 1] if rate in of) for rate in RATES}
        assert all(furthest[run.rate] <= field.found[run].points <= furthest[run.rate] + 2 for run in runs)
        exact = sum(counted([run], furthest[run.rate])[0] for run in runs)
        assert exact <= field.updates < exact + 16 * len(runs)
        assert sum(found.measures["updates"][found.points - 1] for found in field.found.values()) <= field.updates
    whole = simulated([ASYNC, BUFFER], steps=1)
    for run in runs:
        same(field, [run], whole, field.found[run].points, bits=4)


def test_seeds_that_share_a_timeline_stay_together() -> None:
    field, runs = entered(ASYNC, engine="waves")
    assert field.train([Run(ASYNC.label, 0.1, 0)], POINTS)
    both = at_rates(runs, 0.1)
    assert set(field.found) == set(both)
    same(field, both, simulated(ASYNC, engine="waves"), bits=0)
    assert field.updates == sum(counted(both, POINTS))


def test_every_scheme_is_measured_at_times_of_its_own() -> None:
    times = {ASYNC.label: (0, 4, 8), BUFFER.label: (2, 6, 16)}
    positional, named = asked([ASYNC, BUFFER])
    field = Field()
    runs = field.enter(
        study_of(*positional, **named), {label: tuple(map(Fraction, some)) for label, some in times.items()}
    )
    assert field.train(runs, 3)
    whole = simulated([ASYNC, BUFFER])
    for label, some in times.items():
        same(field, [run for run in runs if run.scheme == label], whole.sel(time=list(some)), 3)
    assert field.updates == sum(counted(runs[: len(runs) // 2], 5)) + sum(counted(runs[len(runs) // 2 :], POINTS))


# -- stopped on the way


@pytest.fixture
def slow(monkeypatch) -> None:
    """A call of the engine takes a tenth of a second, and trains eight updates."""
    train = Session.train

    def slowly(self, piece, before=None):
        time.sleep(0.1)
        self._events_per_call = 8
        return train(self, piece, before)

    monkeypatch.setattr(Session, "train", slowly)


def stopped(field, runs) -> None:
    """They came further than to the third point and not to the end; from where they are they come to the same bits."""
    come = {field.found[run].points for run in runs}
    assert 3 <= min(come) <= max(come) < POINTS
    whole = simulated(ASYNC)
    for run in runs:
        same(field, [run], whole, field.found[run].points)
    assert field.train(runs, POINTS)
    same(field, runs, whole)
    assert field.updates == sum(counted(runs, POINTS))


@pytest.mark.usefixtures("slow")
def test_a_deadline_that_is_over_stops_training_and_what_was_known_stays(monkeypatch) -> None:
    field, runs = entered(ASYNC)
    assert field.train(runs, 3)
    assert not field.train(runs, POINTS, deadline=time.monotonic() - 1)
    assert field.train(runs, 3, deadline=time.monotonic() - 1)  # there they are
    monkeypatch.undo()
    stopped(field, runs)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("by", ["an exception", "a signal"])
def test_an_interrupt_keeps_what_is_known(by, monkeypatch) -> None:
    field, runs = entered(ASYNC)
    assert field.train(runs, 3)

    def tell() -> None:
        if by == "a signal":
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        field.train(runs, POINTS, tell=tell)
    monkeypatch.undo()
    stopped(field, runs)


def test_a_failure_in_one_lane_ends_all_and_is_told(monkeypatch) -> None:
    field, runs = entered([ASYNC, BUFFER])
    assert field.train(runs, 3)

    def fail(self, piece, before=None):
        raise RuntimeError("no more")

    monkeypatch.setattr(Session, "train", fail)
    with pytest.raises(RuntimeError, match="no more"):
        field.train(runs, POINTS)
    assert all(field.found[run].points == 3 for run in runs)


# -- leaving and entering


def test_a_run_that_left_may_enter_again_and_begins_anew() -> None:
    field, runs = entered(ASYNC)
    gone, kept = at_rates(runs, 0.05, 0.1), at_rates(runs, 0.02, 0.2)
    assert field.train(runs, 5)
    field.leave(kept)
    spent = sum(counted(runs, 5))
    assert field.updates == spent
    assert all(run in field for run in kept)
    assert not any(run in field for run in gone)
    assert field.train(gone, POINTS)  # none of them is there
    assert field.updates == spent
    field.leave([])
    assert not any(run in field for run in kept)
    whole = simulated(ASYNC)
    same(field, runs, whole, 5)

    positional, named = asked(ASYNC, rates=(0.05, 0.1))
    again = field.enter(study_of(*positional, **named))
    assert set(again) == set(gone)
    assert all(run in field for run in gone)
    assert field.train(gone, 3)
    same(field, gone, whole, 5)  # what was known is more
    assert field.train(gone, POINTS)
    same(field, gone, whole, bits=0)
    same(field, kept, whole, 5)
    assert field.updates == spent + sum(counted(gone, POINTS))
