"""Flower's wrappers of strategies, and its mods in the ClientApp: they work, or say why not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp, mod
from flwr.serverapp import strategy as flower

from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix
from support.flower_fake import SECOND, FakeGrid, answer, arrays_of, failure, on, record_of

INITIAL = {"w": np.zeros(4), "n": np.zeros((), dtype=np.int64)}
FIXED = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 2}
ADAPTIVE = {"noise_multiplier": 0.05, "num_sampled_clients": 2}
WRAPPERS = {
    "DifferentialPrivacyServerSideFixedClipping": FIXED,
    "DifferentialPrivacyClientSideFixedClipping": FIXED,
    "DifferentialPrivacyServerSideAdaptiveClipping": ADAPTIVE,
    "DifferentialPrivacyClientSideAdaptiveClipping": ADAPTIVE,
}
STRATEGIES = [
    lambda **o: FedAvg(**o),
    lambda **o: AsyncFedAvg(**o),
    lambda **o: FedBuff(2, **o),
    lambda **o: FedFix(2, **o),
]


def test_all_wrappers_of_flower_are_known() -> None:
    assert sorted(name for name in flower.__all__ if name.startswith("DifferentialPrivacy")) == sorted(WRAPPERS)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_refused_before_anything_is_sent(name) -> None:
    for ours in STRATEGIES:
        grid = FakeGrid()
        grid.connect(100, client())
        wrapped = getattr(flower, name)(ours(**on(grid)), **WRAPPERS[name])
        with pytest.raises(TypeError, match=r"Remove the wrapper, and call start of .*clip_norm= clips.*LocalDpMod"):
            wrapped.start(grid, record_of(INITIAL), num_rounds=1)
        assert not grid.calls
        assert not grid.nodes[100].got


@pytest.mark.parametrize("hook", ["initialize_parameters", "configure_fit", "aggregate_fit"])
def test_secure_aggregation_is_refused_before_anything_is_sent(hook) -> None:
    """These are what Flower's DefaultWorkflow and SecAggPlusWorkflow call first."""
    with pytest.raises(TypeError, match="Secure aggregation cannot work here: the server weighs each update") as no:
        getattr(FedFix(2), hook)(client_manager=None)
    assert str(no.value).startswith(f"{hook} of FedFix was called, as Flower's older servers and workflows do")


# -- mods


def client(*mods, step: float = 3.0):
    """A ClientApp as users write it, called as a SuperNode calls it."""
    app = ClientApp(mods=[])

    @app.train(mods=list(mods))
    def train(message, context):
        arrays = {name: array + np.asarray(step).astype(array.dtype) for name, array in arrays_of(message).items()}
        return answer(message, arrays, {"num-examples": 10, "loss": 0.5})

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})

    def behave(message):
        try:
            return [(SECOND, app(message, context))]
        except Exception as error:  # in Flower's words
            return [(SECOND, failure(message, 2, f"{type(error)}:<'{error}'>"))]

    return behave


def train(strategy, *mods, config=None, rounds=4, initial=INITIAL, **options):
    grid = FakeGrid()
    for node in (100, 101):
        grid.connect(node, client(*mods))
    given = None if config is None else ConfigRecord(config)
    return strategy(**on(grid, **options)).start(
        grid, record_of(initial), num_rounds=rounds, until=60, train_config=given
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["arrays_size_mod", "message_size_mod"])
def test_mods_that_only_look_change_nothing(strategy, name) -> None:
    plain, with_mod = train(strategy), train(strategy, getattr(mod, name))
    assert not with_mod.errors
    assert with_mod.arrays["w"].numpy().tolist() == plain.arrays["w"].numpy().tolist()
    assert [closed.weights for closed in with_mod.rounds] == [closed.weights for closed in plain.rounds]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_clipping_by_clients_needs_the_norm_in_the_config_alone(strategy, name) -> None:
    initial = {"w": np.zeros(4)}
    result = train(strategy, getattr(mod, name), config={"clipping_norm": 0.5}, initial=initial)
    assert not result.errors
    counted = sum(sum(closed.weights) for closed in result.rounds)
    assert np.linalg.norm(result.arrays["w"].numpy()) == pytest.approx(0.5 * counted)
    bits = [record.get("norm_bit") for record in result.train_metrics_clientapp.values()]
    assert set(bits) == ({1.0} if name == "adaptiveclipping_mod" else {None})


@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_clipping_by_clients_without_the_norm_says_what_to_give(name) -> None:
    result = train(STRATEGIES[3], getattr(mod, name))
    reasons = {fault.reason for fault in result.errors if fault.kind == "error"}
    assert reasons
    assert all("give start(train_config=ConfigRecord({'clipping_norm': …})), and no wrapper" in why for why in reasons)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_local_differential_privacy(strategy) -> None:
    np.random.seed(5)  # noqa: NPY002  the mod draws from it
    clip, epsilon, delta = 0.5, 0.8, 1e-5
    mods = mod.LocalDpMod(clipping_norm=clip, sensitivity=2 * clip, epsilon=epsilon, delta=delta)
    initial = {"w": np.zeros(2000)}
    result = train(strategy, mods, rounds=1, initial=initial)
    assert not result.errors
    deviation = 2 * clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    noise = math.sqrt(sum(weight**2 for weight in result.rounds[0].weights)) * deviation
    assert result.arrays["w"].numpy().std() == pytest.approx(noise, rel=0.1), (
        "weights are applied to what has the noise"
    )


def test_what_clients_clip_may_be_clipped_by_the_server_too() -> None:
    initial = {"w": np.zeros(4)}
    result = train(STRATEGIES[0], mod.fixedclipping_mod, config={"clipping_norm": 1.0}, initial=initial, clip_norm=0.25)
    assert np.linalg.norm(result.arrays["w"].numpy()) == pytest.approx(4 * 0.25)


def test_secure_aggregation_in_the_client_app_says_why_it_cannot_work() -> None:
    result = train(STRATEGIES[3], secaggplus_mod)
    reasons = [fault.reason for fault in result.errors if fault.kind == "error"]
    assert (
        "Its ClientApp uses Flower's secure aggregation, which cannot work here: the server weighs each" in reasons[0]
    )
    assert "Remove the mod from the ClientApp" in reasons[0]
    assert result.arrays["w"].numpy().tolist() == [0] * 4


# -- what the page says


def spent(updates: int, epsilon: float, delta: float) -> float:
    rho = epsilon**2 / (4 * math.log(1.25 / delta))
    return updates * rho + 2 * math.sqrt(updates * rho * math.log(1 / delta))


def test_the_accounting_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    for strategy, time in (("FedAvg", 180), ("FedFix(60)", 60), ("AsyncFedAvg", 40)):
        [row] = [line for line in page.splitlines() if line.startswith(f"| {strategy}") and " and " in line]
        fast, slow = 8 * 3600 // time, 8 * 3600 // 180
        assert f"| {fast} and {slow} | {spent(fast, 0.1, 1e-5):.2f} and {spent(slow, 0.1, 1e-5):.2f} |" in row


def test_arrays_without_dimensions_are_left_alone_by_the_mods() -> None:
    """As the page warns; where this fails, Flower has mended it."""
    dp = mod.LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=0.5, delta=1e-5)
    result = train(STRATEGIES[0], dp, rounds=1, initial={"w": np.zeros(4), "temperature": np.zeros(())})
    assert result.arrays["temperature"].numpy() == 3.0
