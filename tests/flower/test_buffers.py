"""Arrays that are not trained: found, averaged as values, and never a variance below zero."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, compressing
from fedtempo.flower.buffers import Buffers
from fedtempo.flower.compressing import BUFFERS, MARKER
from fedtempo.flower.validator import Contribution, Refused, ReplyValidator
from fedtempo.training.compression import QSGD, LowRank, TopK
from support.flower_fake import SECOND, FakeGrid, answer, arrays_of, make_message, on, record_of

MODEL = {
    "fc.weight": np.ones((3, 2), dtype=np.float32),
    "bn.running_mean": np.zeros(2, dtype=np.float32),
    "bn.running_var": np.ones(2, dtype=np.float32),
    "bn.num_batches_tracked": np.array(0),
    "flag": np.array([True, False]),
}


def sent(weight=1.0, mean=0.0, var=1.0, count=0, flag=(True, False)) -> dict[str, np.ndarray]:
    return {
        "fc.weight": np.full((3, 2), weight, dtype=np.float32),
        "bn.running_mean": np.full(2, mean, dtype=np.float32),
        "bn.running_var": np.full(2, var, dtype=np.float32),
        "bn.num_batches_tracked": np.array(count),
        "flag": np.array(flag),
    }


# -- which


def test_they_are_found_by_type_and_by_the_names_of_pytorch_and_keras() -> None:
    floats = np.zeros(2)
    model = {
        "layer1.0.bn1.running_mean": floats,
        "layer1.0.bn1.running_var": floats,
        "layer1.0.bn1.num_batches_tracked": np.array(3),
        "batch_normalization/moving_mean:0": floats,
        "batch_normalization/moving_variance:0": floats,
        "steps": np.zeros(1, dtype=np.uint8),
        "mask": np.zeros(1, dtype=bool),
        "w": floats,
        "running_mean.weight": floats,
    }
    assert Buffers(model).names == tuple(model)[:7]
    assert list(Buffers(model).trained(model)) == ["w", "running_mean.weight"]
    assert Buffers(model, ()).names == ("layer1.0.bn1.num_batches_tracked", "steps", "mask")
    assert "w" in Buffers(model, ["w"])
    assert "w" not in Buffers(model, ["*.running_*"])
    assert "layer1.0.bn1.running_var" in Buffers(model, ["*.running_*"])


def test_wrong_ones_are_refused() -> None:
    with pytest.raises(InputError, match=r"buffers: no array of the model is called '\*.ema'; there are fc.weight, "):
        Buffers(MODEL, ["*.ema"])
    for given in ("running_mean", 3, [3]):
        with pytest.raises(InputError, match=r"buffers: .* are not names of arrays"):
            FedFix(1, buffers=given)
    with pytest.raises(InputError, match="it has no trainable arrays: flag are whole numbers"):
        Buffers.of({"flag": MODEL["flag"]}, "auto")
    assert Buffers.of({"w": np.zeros(2)}, ["w"]).names == ("w",), "whoever names all of them wants that"


def test_a_batchnorm_without_names_is_warned_of(caplog) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        Buffers.of({str(i): array for i, array in enumerate(MODEL.values())}, "auto")
    assert "1 and 2 look like the mean and the variance of a BatchNorm" in caplog.text
    assert "buffers=['1', '2', …]" in caplog.text


# -- what becomes of them


def test_they_are_averaged_as_values() -> None:
    """s ← (1 − A)s + A Σωv/Σω; variances by second moments."""
    given = [(0.3, sent(mean=2, var=4, count=7, flag=(False, True))), (0.1, sent(mean=-1, var=0, count=9))]
    found = Buffers(MODEL).averaged(MODEL, given)
    mean = 0.6 * 0 + 0.3 * 2 + 0.1 * -1
    second = 0.6 * (1 + 0) + 0.3 * (4 + 4) + 0.1 * (0 + 1)
    assert found["bn.running_mean"] == pytest.approx(np.full(2, mean))
    assert found["bn.running_var"] == pytest.approx(np.full(2, second - mean**2))
    assert found["bn.num_batches_tracked"] == 9
    assert found["flag"].tolist() == [True, False], "0.7 and 0.3 of them say so"
    assert {name: (a.dtype, a.shape) for name, a in found.items()} == {
        name: (a.dtype, a.shape) for name, a in MODEL.items() if name != "fc.weight"
    }


def test_weights_of_more_than_one_leave_nothing_of_the_old() -> None:
    found = Buffers(MODEL).averaged(MODEL, [(11.3, sent(mean=2, var=4)), (1.0, sent(mean=2, var=4))])
    assert found["bn.running_mean"].tolist() == [2, 2]
    assert found["bn.running_var"].tolist() == [4, 4]


def test_a_variance_alone_and_one_that_was_negative() -> None:
    model = {"w": np.zeros(1), "running_var": np.array([-3.0])}
    assert Buffers(model).averaged(model, [(0.5, {"running_var": np.array([4.0])})])["running_var"] == [2.0]
    assert Buffers(model).mended(model)["running_var"] == [0.0]


def test_no_weight_no_change() -> None:
    buffers = Buffers(MODEL)
    for given in ([], [(0.0, sent(mean=5, var=9, count=10**9))]):
        found = buffers.averaged(MODEL, given)
        assert all(found[name] is MODEL[name] for name in buffers.names)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8])
def test_whole_numbers_stay_in_their_type(dtype) -> None:
    most = np.iinfo(dtype).max
    model = {"w": np.zeros(1), "n": np.array([most, 0, most - 3], dtype=dtype)}
    sent = {"n": np.array([most, most, most - 3], dtype=dtype)}
    found = Buffers(model).averaged(model, [(0.5, sent)])["n"]
    assert found.dtype == dtype
    assert abs(float(found[1]) - most / 2) <= most * 1e-9 + 1
    assert float(found[0]) == pytest.approx(float(most))
    same = Buffers(model).averaged(model, [(1.0, sent)])["n"]
    assert same.tolist() == sent["n"].tolist(), "exactly, also beyond what a float holds"


def test_large_values_stay_finite() -> None:
    model = {"w": np.zeros(1), "running_mean": np.zeros(1, np.float32), "running_var": np.ones(1, np.float32)}
    sent = {"running_mean": np.full(1, 3e38, np.float32), "running_var": np.full(1, 3e38, np.float32)}
    found = Buffers(model).averaged(model, [(0.4, sent)])
    assert np.isfinite(found["running_mean"]).all()
    assert found["running_var"] == np.finfo(np.float32).max


# -- at admission


def admit(arrays, base=MODEL, *, validator=None, limit=100.0, clip=None):
    validator = validator or ReplyValidator("num-examples", clip_norm=clip, norm_limit=limit, buffers=Buffers(base))
    message = make_message(content=_content(base), dst_node_id=1, message_type="train")
    return validator.admit(answer(message, arrays, {"num-examples": 5}), base)


def _content(base):
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({"arrays": record_of(base), "config": ConfigRecord({"job": 0})})


def test_a_client_that_sends_what_no_statistic_can_be() -> None:
    negative, nan, inf = admit(sent(var=-1e-3)), admit(sent(mean=np.nan)), admit(sent(var=np.inf))
    assert isinstance(negative, Refused)
    assert negative.reason == "'bn.running_var' is a variance and contains -0.001; it must not be below zero"
    assert isinstance(nan, Refused)
    assert nan.reason == "'bn.running_mean' contains NaN in 2 of 2 entries"
    assert isinstance(inf, Refused)


def test_norms_and_clipping_are_of_what_is_trained() -> None:
    found = admit(sent(weight=3, mean=1e6, var=1e12, count=9), clip=1.0)
    assert isinstance(found, Contribution)
    assert found.norm == pytest.approx(2 * 6**0.5)
    assert found.clipped == pytest.approx(1 / found.norm)
    assert found.values["bn.running_mean"].tolist() == [1e6, 1e6]


def test_a_counter_that_jumps_is_refused() -> None:
    """Integer arrays used to bypass norm_limit."""
    validator = ReplyValidator("num-examples", clip_norm=None, norm_limit=100.0, buffers=Buffers(MODEL))
    assert isinstance(admit(sent(count=99_000), validator=validator), Contribution), "few enough for one job"
    wild = admit(sent(count=10**15), validator=validator)
    assert isinstance(wild, Refused)
    assert "a counter has grown by 1e+15 in one job, more than 100 times the usual, 9.9e+04" in wild.reason
    assert isinstance(admit(sent(count=10**15), limit=None), Contribution)
    down = admit(sent(count=-5))
    assert isinstance(down, Contribution), "the largest is taken: it does no harm"


# -- compressed replies


@pytest.mark.parametrize("method", [TopK(0.1), QSGD(3), LowRank(1)], ids=str)
def test_compressed_replies_carry_them_as_they_are(method) -> None:
    from flwr.app import Context, RecordDict

    new = sent(weight=2, mean=0.123, var=7.7, count=4, flag=(False, False))
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={})
    buffers = Buffers(MODEL)

    def reply(told):
        content = _content(MODEL)
        if told:
            content["config"][BUFFERS] = list(buffers.floating)
        message = make_message(content=content, dst_node_id=1, message_type="train")
        return compressing(method)(message, context, lambda m, c: answer(m, new, {"num-examples": 5}))

    validator = ReplyValidator("num-examples", clip_norm=None, norm_limit=None, buffers=buffers)
    found = validator.admit(reply(told=True), MODEL)
    assert isinstance(found, Contribution)
    for name in buffers.names:
        np.testing.assert_array_equal(found.values[name], new[name])
    assert found.delta.keys() == {"fc.weight"}
    old = validator.admit(reply(told=False), MODEL)
    assert isinstance(old, Contribution), "of a client of 0.6, which compresses statistics too"
    assert (old.values["bn.running_var"] >= 0).all()
    other = reply(told=True)
    other.content[MARKER][BUFFERS] = ["fc.weight"]
    assert isinstance(validator.admit(other, MODEL), Refused)


def test_the_server_says_which_they_are() -> None:
    grid = FakeGrid()
    seen = []

    def behave(message):
        seen.append(message.content["config"].get(BUFFERS))
        return wandering(1, 1)(message)

    grid.connect(100, behave)
    AsyncFedAvg(**on(grid)).start(grid, record_of(MODEL), num_rounds=2)
    assert seen[0] == ["bn.running_mean", "bn.running_var"]


# -- in every scheme


def wandering(seed: int, seconds: float):
    """A client whose statistics jump about: differences of variances have both signs."""
    rng = np.random.default_rng(seed)

    def behave(message):
        arrays = arrays_of(message)
        moved = {
            "fc.weight": (arrays["fc.weight"] * 0.9 + 0.1 * seed).astype(np.float32),
            "bn.running_mean": rng.normal(0, 5, 2).astype(np.float32),
            "bn.running_var": (rng.exponential(1, 2) * rng.choice([1e-3, 1e3])).astype(np.float32),
            "bn.num_batches_tracked": arrays["bn.num_batches_tracked"] + seed,
            "flag": arrays["flag"],
        }
        return [(int(seconds * SECOND), answer(message, moved, {"num-examples": 10}))]

    return behave


@pytest.mark.parametrize(
    ("server", "weights"),
    [(None, "time-based"), (None, "identical"), (ft.FedAdam(), "identical"), (ft.MixModels(), "time-based")],
    ids=["sum", "identical", "adam", "mix"],
)
@pytest.mark.parametrize(
    "strategy",
    [
        lambda **o: FedAvg(**o),
        lambda **o: AsyncFedAvg(**o),
        lambda **o: FedFix(1, **o),
        lambda **o: FedBuff(2, **o),
        lambda **o: TimedStrategy(ft.UniformSampling(2), **o),
    ],
    ids=["fedavg", "async", "fedfix", "fedbuff", "sampling"],
)
def test_a_variance_is_never_below_zero(strategy, server, weights, monkeypatch) -> None:
    """Stale and extrapolated steps (a client 17 times slower, a server rate of 3) included."""
    from fedtempo.flower.versions import Versions

    low, counts = [], []
    advance = Versions.advance

    def watched(self, steps):
        left = advance(self, steps)
        low.append(float(self.arrays["bn.running_var"].min()))
        counts.append(int(self.arrays["bn.num_batches_tracked"]))
        return left

    monkeypatch.setattr(Versions, "advance", watched)
    grid = FakeGrid()
    for node, seconds in enumerate((0.7, 1.3, 12)):
        grid.connect(100 + node, wandering(node + 1, seconds))
    lr = 0.1 if server else 3.0
    options = on(grid, server=server, server_lr=lr, weights=weights, guard=None, norm_limit=None, poll=1)
    result = strategy(**options).start(grid, record_of(MODEL), num_rounds=20)
    assert min(low) >= 0
    assert counts == sorted(counts), "the largest so far"
    assert counts[-1] <= 3 * 20, "and not the sum over clients"
    assert {name: a.numpy().dtype for name, a in result.arrays.items()} == {n: a.dtype for n, a in MODEL.items()}


def test_a_run_with_a_negative_variance_goes_on_without_it(tmp_path) -> None:
    """Older versions could leave one in a checkpoint."""
    from fedtempo.flower.state import RunFolder

    grid = FakeGrid()
    grid.connect(100, wandering(1, 1))
    AsyncFedAvg(**on(grid, checkpoint=tmp_path)).start(grid, record_of(MODEL), num_rounds=2)
    folder = RunFolder(tmp_path)
    state, arrays, _ = folder.resume()
    arrays["bn.running_var"] = np.array([-1, 2], dtype=np.float32)
    folder.write(state | {"memory": 0}, arrays, [])
    folder.release()
    got = []

    def behave(message):
        got.append(arrays_of(message)["bn.running_var"].tolist())
        return wandering(1, 1)(message)

    grid.nodes[100].behave = behave
    AsyncFedAvg(**on(grid, checkpoint=tmp_path)).start(grid, record_of(MODEL), num_rounds=3, resume=True)
    assert got[0] == [0, 2]
