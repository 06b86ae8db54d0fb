"""Training with clients that come, go and fail: several engines, one answer."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import stream
from fedtempo.simulation.engine.program import pieces

PROBLEM = ft.problems.quadratics(5, dimension=3, noise=0.5, rows=[6, 9, 12, 5, 8], seed=1, importance="rows")
PLAIN = ft.FixedTimes(["1", "2/3", "1/2", "3/4", "5/4"])
COMING = {
    "failures": PLAIN.available(failure=[0.3, 0.1, 0, 0.2, 0.5]),
    "on/off": PLAIN.available(on=4, off=2),
    "absences": PLAIN.available(absences={1: [(0, 3), (8, "35/4")], 3: [(6, None)]}),
    "all": ft.ExponentialTimes(["1", "2/3", "1/2", "3/4", "5/4"]).available(
        failure=0.1, on=6, off=3, absences={0: [(0, 2)], 4: [(1, 4)]}, period=7
    ),
}
SCHEMES = (
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("1/5"),  # rounds without any update
    ft.FedBuff(2),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
    ft.FastestSampling(2),
)


@pytest.fixture(autouse=True)
def short_estimates(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_AVAILABLE_UPDATES", 20)


def trained(times: ft.ClientTimes, engine: str) -> dict[str, np.ndarray]:
    history = ft.simulate(
        PROBLEM,
        SCHEMES,
        times,
        until=8,
        local=ft.LocalSGD(steps=2, lr=[0.05, 0.2], batch_size=3),
        weights="identical",
        seeds=(1,),
        points=5,
        dtype="float64",
        engine=engine,
    )
    return {name: np.asarray(values) for name, values in history.dataset.items() if values.dtype.kind in "fi"}


@pytest.mark.parametrize("coming", COMING)
def test_engines_agree(coming) -> None:
    expected = trained(COMING[coming], "oracle")
    assert np.isfinite(expected["loss"]).all()
    assert np.ptp(expected["loss"]) > 0.01
    for engine in ("events", "waves"):
        found = trained(COMING[coming], engine)
        assert found.keys() == expected.keys()
        for name in expected:
            if name not in ("run_seconds", "compile_seconds"):
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("coming", COMING)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_update_reads_the_version_that_it_started_from(scheme, coming) -> None:
    """Slots are followed by hand: what is in the one that is read is the base version, and few are held."""
    config = ClockConfig.of(scheme.waiting, COMING[coming], PROBLEM.importance.values, seed=2)
    lines = list(stream(config, until=30))
    made = {n: n for n in range(1 + sum(line.num_rounds for line in lines))}
    for line in lines:
        for n in np.flatnonzero(np.diff(line.offsets) == 0).tolist():
            made[line.first_round + n + 1] = made[line.first_round + n]  # an empty round makes no model
    bases = np.concatenate([line.base for line in lines]).tolist()
    ends = np.concatenate([line.round_of_update for line in lines]).tolist()
    weights = ft.weights(scheme, COMING[coming], importance=PROBLEM.importance.exact, rule="identical")
    content, update, most = {2: 0}, 0, 0
    for piece in pieces(config, [weights], until=30, times=[], capacity=37, max_points=8):
        for read, write, closes in zip(piece.read.tolist(), piece.write.tolist(), piece.closes.tolist(), strict=True):
            assert content[read] == made[bases[update]]
            if closes:
                content[write] = ends[update] + 1
            update += 1
        most = max(most, piece.num_slots)
    assert update == len(bases)
    assert most <= 4 + 5  # nobody's, the one in the making, the current one, and one a client at most


def test_seeds_have_timelines_of_their_own_where_anything_is_drawn() -> None:
    for coming, differ in (("failures", True), ("absences", False)):
        history = ft.simulate(
            PROBLEM, ft.AsyncFedAvg(), COMING[coming], until=8, seeds=(0, 1), points=3, engine="waves"
        )
        updates = history.dataset["updates"]
        assert bool((updates.isel(seed=0) != updates.isel(seed=1)).any()) == differ


def test_results_of_other_clients_are_not_gone_on_with(tmp_path) -> None:
    given = {"until": 4, "points": 3, "checkpoint": tmp_path / "study"}
    ft.simulate(PROBLEM, ft.AsyncFedAvg(), COMING["failures"], **given)
    again = ft.simulate(PROBLEM, ft.AsyncFedAvg(), COMING["failures"], **given)
    assert again.finished
    with pytest.raises(ft.ResultsConflict):
        ft.simulate(PROBLEM, ft.AsyncFedAvg(), COMING["failures"].available(failure=0.1), **given)
