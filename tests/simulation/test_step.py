"""The server's step in studies: stable by default, the paper's where a study was begun with it, a scheme's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError, ResultsConflict

PROBLEM = ft.problems.quadratics(4, dimension=3, noise=0.5, seed=0)
TIMES = ft.FixedTimes(["1", "0.7", "0.5", "2"])
LOCAL = ft.LocalSGD(lr=0.1, batch_size=2)


def end(schemes, **more) -> list[float]:
    history = ft.simulate(PROBLEM, schemes, TIMES, until=10, local=LOCAL, points=3, dtype="float64", **more)
    return history.dataset["loss"].values[..., -1].ravel().tolist()


def test_the_stable_step_is_the_papers_at_a_smaller_rate() -> None:
    for scheme in (ft.AsyncFedAvg(), ft.FedBuff(2)):
        [rate] = ft.weights(scheme, TIMES, step="stable").steps
        np.testing.assert_allclose(end(scheme), end(scheme, step="paper", server_lr=rate), rtol=1e-9)
    others = [ft.FedAvg(), ft.UniformSampling(2), ft.published.FedAsync(), ft.published.FedBuff(2)]
    assert end(others) == end(others, step="paper"), "nothing is stale there, or the step is the authors'"


def test_a_scheme_has_a_step_of_its_own() -> None:
    fix = ft.FedFix("1/2")
    both = end([fix, fix.using(step="paper")])
    assert both == [*end(fix), *end(fix, step="paper")]
    assert fix.using(step="paper").label == "FedFix(1/2) + paper step"
    with pytest.raises(InputError, match="step: 'raw' is not known"):
        fix.using(step="raw")
    with pytest.raises(InputError, match="step: 'raw' is not known"):
        end(fix, step="raw")


def test_a_study_goes_on_with_the_step_that_it_was_begun_with(tmp_path) -> None:
    schemes = [ft.FedFix("1/2"), ft.published.FedBuff(2)]
    raw = end(schemes, step="paper", checkpoint=tmp_path / "raw")
    configuration = json.loads((tmp_path / "raw" / "study.json").read_text())["configuration"]
    assert "step" not in json.dumps(configuration["schemes"]) + str(list(configuration)), "as 0.6 wrote it"
    (tmp_path / "raw" / "units" / "0000.npz").unlink()
    assert end(schemes, checkpoint=tmp_path / "raw") == raw
    with pytest.raises(ResultsConflict, match='its step is null, here it is "stable"'):
        end(schemes, step="stable", checkpoint=tmp_path / "raw")
    new = end(schemes, checkpoint=tmp_path / "new")
    assert new[0] != raw[0]
    with pytest.raises(ResultsConflict, match='its step is "stable", here it is null'):
        end(schemes, step="paper", checkpoint=tmp_path / "new")
    assert end(schemes, checkpoint=tmp_path / "new") == new


def test_steps_by_stage_and_by_stretch() -> None:
    staged = ft.weights(ft.StagedFedFix([("1/2", 6), ("1", None)]), TIMES, step="stable")
    assert staged.steps == pytest.approx([1 / np.mean([2, 2, 1, 4]), 1 / np.mean([1, 1, 1, 2])])
    line = ft.timeline(ft.StagedFedFix([("1/2", 6), ("1", None)]), TIMES, rounds=20)
    whole = staged.applied(line)
    np.testing.assert_allclose(
        whole[line.round_of_update >= 6], np.array([1, 1, 1, 2])[line.client[line.round_of_update >= 6]] / 5
    )
    leaving = TIMES.available(absences={3: [(10, None)]})
    parts = ft.weights(ft.FedFix("1/2"), leaving, step="stable")
    assert parts.steps == pytest.approx([1 / np.mean([2, 2, 1, 4]), 1 / np.mean([2, 2, 1])])
