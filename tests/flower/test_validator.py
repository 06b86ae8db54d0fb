"""Replies become contributions: types, counters, norms. What is refused is in test_flower_faults."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedtempo.errors import InputError
from fedtempo.flower.arrays import finite, model_of, read, record_of
from fedtempo.flower.validator import Contribution, Refused, ReplyValidator
from support.flower_fake import answer, make_message

BASE = {
    "half": np.full(4, 0.5, dtype=np.float16),
    "single": np.arange(6, dtype=np.float32).reshape(2, 3),
    "double": np.array(2.0),
    "count": np.array([5, 7], dtype=np.int64),
    "byte": np.array([250], dtype=np.uint8),
}


def admit(arrays, base=BASE, limit=None, clip=None, validator=None):
    message = make_message(content=None or _empty(), dst_node_id=1, message_type="train")
    validator = validator or ReplyValidator("num-examples", clip_norm=clip, norm_limit=limit)
    return validator.admit(answer(message, arrays, {"num-examples": 5, "loss": 1.5}), base)


def _empty():
    from flwr.app import RecordDict

    return RecordDict()


def test_a_contribution_is_the_difference_in_the_models_own_types() -> None:
    sent = {
        "half": np.full(4, 1.0, dtype=np.float16),
        "single": BASE["single"].astype(np.float64) + 0.25,
        "double": np.array(3, dtype=np.int32),
        "count": np.array([6, 6], dtype=np.int32),
        "byte": np.array([240], dtype=np.uint8),
    }
    found = admit(sent)
    assert isinstance(found, Contribution)
    assert {name: delta.tolist() for name, delta in found.delta.items()} == {
        "half": [0.5] * 4,
        "single": [[0.25] * 3] * 2,
        "double": 1.0,
        "count": [1, -1],
        "byte": [-10],
    }
    assert found.delta["half"].dtype == np.float16
    assert found.delta["single"].dtype == np.float32
    assert (found.examples, found.metrics["loss"], found.clipped) == (5.0, 1.5, 1.0)
    assert list(found.content) == ["metrics"], "arrays are let go of"


def test_the_base_and_the_message_are_not_changed() -> None:
    before = {name: array.copy() for name, array in BASE.items()}
    admit({name: array + array.dtype.type(1) for name, array in BASE.items()})
    for name, array in BASE.items():
        np.testing.assert_array_equal(array, before[name])


def test_norms_are_clipped_to_the_largest_that_is_wanted() -> None:
    base = {"a": np.zeros(3, dtype=np.float32), "b": np.zeros(1), "n": np.zeros(1, dtype=np.int64)}
    sent = {"a": np.full(3, 2, dtype=np.float32), "b": np.full(1, 2.0), "n": np.array([10**6])}
    found = admit(sent, base, clip=1.0)
    assert isinstance(found, Contribution)
    assert found.clipped == pytest.approx(1 / 4), "counters are no part of the norm"


def test_the_limit_is_a_multiple_of_what_is_usual_once_that_is_known() -> None:
    validator = ReplyValidator("num-examples", clip_norm=None, norm_limit=10.0)
    base = {"a": np.zeros(1)}
    for norm in (1000.0, 1.0, 1.2, 0.9, 1.1):
        assert isinstance(admit({"a": np.array([norm])}, base, validator=validator), Contribution)
    assert isinstance(admit({"a": np.array([12.0])}, base, validator=validator), Refused)
    assert isinstance(admit({"a": np.array([10.5])}, base, validator=validator), Contribution)
    copy = ReplyValidator("num-examples", clip_norm=None, norm_limit=10.0)
    copy.restore(validator.snapshot())
    assert isinstance(admit({"a": np.array([13.0])}, base, validator=copy), Refused)


def test_before_the_usual_norm_is_known_the_limit_is_by_the_model_and_the_longest_so_far() -> None:
    validator = ReplyValidator("num-examples", clip_norm=None, norm_limit=10.0)
    base = {"a": np.array([3.0, 4.0]), "n": np.array([10**9])}
    wild = admit({**base, "a": np.array([3.0, 60.0])}, base, validator=validator)
    assert isinstance(wild, Refused)
    assert wild.reason == (
        "its norm 56 is more than 10 times the model's own, 5; if that is right, raise norm_limit or set it to None"
    )
    assert isinstance(admit({**base, "a": np.array([3.0, 50.0])}, base, validator=validator), Contribution)
    assert isinstance(admit({**base, "a": np.array([3.0, 400.0])}, base, validator=validator), Contribution)
    wild = admit({**base, "a": np.array([3.0, 5000.0])}, base, validator=validator)
    assert isinstance(wild, Refused)
    assert "10 times the longest so far, 396" in wild.reason


def test_clients_that_do_not_move_do_not_set_the_limit() -> None:
    validator = ReplyValidator("num-examples", clip_norm=None, norm_limit=10.0)
    base = {"a": np.zeros(2)}
    for _ in range(9):
        admit(base, base, validator=validator)
    assert isinstance(admit({"a": np.ones(2)}, base, validator=validator), Contribution)


def test_finite_numbers_whose_squares_are_not() -> None:
    base = {"a": np.zeros(2, dtype=np.float32), "b": np.zeros(2)}
    found = admit({"a": np.full(2, 3e30, dtype=np.float32), "b": np.full(2, 1e250)}, base, clip=1.0)
    assert isinstance(found, Contribution)
    assert found.clipped == pytest.approx(1e-250 / np.sqrt(2))
    assert isinstance(admit({"a": np.full(2, 1e300), "b": np.zeros(2)}, base), Refused), "too large for float32"


def test_arrays_are_read_as_flower_reads_them() -> None:
    for array in (
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(5, dtype=">f4"),
        np.zeros((0, 3)),
        np.array(7),
        np.array([True, False]),
    ):
        for carried in (Array(array), record_of({"a": array})["a"]):
            np.testing.assert_array_equal(read(carried), array)
            np.testing.assert_array_equal(carried.numpy(), array)
            assert read(carried).dtype == array.dtype
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        read(Array("object", (1,), "numpy.ndarray", _pickled()))


def _pickled() -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def test_a_model_that_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(InputError, match="there are no arrays"):
        model_of(ArrayRecord())
    with pytest.raises(InputError, match="'names' has dtype <U1, which cannot be averaged"):
        model_of(ArrayRecord({"names": Array(np.array(["a"]))}))
    with pytest.raises(InputError, match="initial_arrays: a dict is no ArrayRecord; give ArrayRecord"):
        model_of({"w": np.zeros(2)})
    for wrong in (np.nan, -np.inf):
        with pytest.raises(InputError, match="initial_arrays: 'w' holds NaN or Inf"):
            model_of(record_of({"w": np.array([0.0, wrong])}))
    for dtype in (np.float16, np.float32, np.float64):
        full = np.full(9, -np.finfo(dtype).max)
        assert model_of(record_of({"w": full, "empty": full[:0], "one": full[0]})), "its sum is not finite, it is"
        for wrong in (np.nan, np.inf, -np.inf):
            full[4] = wrong
            assert not finite(full)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i8", ">c8"])
def test_a_model_is_in_the_computers_own_byte_order(dtype) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
    base = model_of(record_of({"w": array}))
    assert base["w"].dtype.isnative
    assert base["w"].flags.c_contiguous
    np.testing.assert_array_equal(base["w"], array)
    found = admit({"w": array + array.dtype.type(2)}, base)
    assert isinstance(found, Contribution)
    assert found.delta["w"].tolist() == np.full((2, 3), 2).tolist()
    assert found.delta["w"].flags.c_contiguous


def test_arrays_without_dimensions_stay_arrays() -> None:
    found = admit({name: array + array.dtype.type(1) for name, array in BASE.items()})
    assert isinstance(found, Contribution)
    assert {type(delta) for delta in found.delta.values()} == {np.ndarray}


def test_what_is_taken_back_is_not_usual() -> None:
    validator = ReplyValidator("num-examples", clip_norm=None, norm_limit=10.0)
    base = {"a": np.zeros(1)}
    for norm in (1.0, 1e9, 1.0, 1e9, 1.0, 1e9, 1e9, 1.0, 1.0):
        found = admit({"a": np.array([norm])}, base, validator=validator)
        if isinstance(found, Contribution) and found.norm > 1:
            validator.take_back(found.norm)
    assert validator.snapshot() == [1.0] * 5
    validator.take_back(7.0)
    assert isinstance(admit({"a": np.array([11.0])}, base, validator=validator), Refused)
