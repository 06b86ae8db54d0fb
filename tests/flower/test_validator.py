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
    }
    assert {name: value.tolist() for name, value in found.values.items()} == {"count": [6, 6], "byte": [240]}
    assert found.values["count"].dtype == np.int64
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
    with pytest.raises(InputError, match="initial_arrays: a dict is not an ArrayRecord; give ArrayRecord"):
        model_of({"w": np.zeros(2)})
    for wrong in (np.nan, -np.inf):
        with pytest.raises(InputError, match="initial_arrays: 'w' contains NaN or Inf"):
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
    if array.dtype.kind == "i":
        np.testing.assert_array_equal(found.values["w"], array + 2)
    else:
        assert found.delta["w"].tolist() == np.full((2, 3), 2).tolist()
        assert found.delta["w"].flags.c_contiguous


def test_arrays_without_dimensions_stay_arrays() -> None:
    found = admit({name: array + array.dtype.type(1) for name, array in BASE.items()})
    assert isinstance(found, Contribution)
    assert {type(delta) for delta in found.delta.values()} == {np.ndarray}
