"""Models as Flower carries them."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedtempo.flower.arrays import finite, read, record_of, room_for

MODEL = {
    "a": np.arange(6.0).reshape(2, 3).T,
    "b": np.array(True),
    "c": np.zeros((0, 4), dtype=np.float16),
    "d": np.array([1 + 2j, 3], dtype=np.complex64),
    "e": np.array([[7.0]]),
    "f": np.array(3.5),
    "g": np.array([1 + 2j, 3], dtype=np.complex64),
}


def test_records_are_those_that_flower_makes() -> None:
    ours, theirs = record_of(MODEL), ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in MODEL.items()})
    theirs["b"], theirs["f"] = Array(MODEL["b"]), Array(MODEL["f"])
    assert ours == theirs
    assert ours.object_id == theirs.object_id
    again = record_of({**MODEL, "e": np.array([[8.0]])})
    assert again["e"].numpy().tolist() == [[8.0]]
    assert again.object_id != ours.object_id
    assert record_of(MODEL).object_id == ours.object_id
    assert ours["e"].is_dirty is False
    assert record_of(MODEL)["e"].is_dirty is True


@pytest.mark.parametrize(
    "other",
    [
        np.arange(6.0),
        np.arange(6.0).reshape(3, 2),
        np.arange(6),
        np.asfortranarray(np.ones((2, 3))),
        np.ones((2, 3), ">f8"),
    ],
)
def test_what_is_not_alike_is_read_all_the_same(other) -> None:
    like = np.zeros((2, 3))
    found = read(Array(other), like)
    assert (found.shape, found.dtype) == (other.shape, other.dtype)
    assert np.array_equal(found, other)


@pytest.mark.parametrize("cut", [8, -8])
def test_data_of_another_length_than_it_says_is_an_error(cut) -> None:
    array = Array(np.zeros(3))
    array.data = array.data[:cut] if cut < 0 else array.data + bytes(cut)
    with pytest.raises(ValueError, match="cannot reshape"):
        read(array, np.zeros(3))
    with pytest.raises(ValueError, match="cannot reshape"):
        read(array)


def test_arrays_of_one_type_share_a_memory() -> None:
    room, memories = room_for(MODEL)
    assert list(room) == list(MODEL)
    for name, array in room.items():
        assert (array.shape, array.dtype) == (MODEL[name].shape, MODEL[name].dtype)
        np.copyto(array, MODEL[name])
    for name, array in room.items():  # none lies on another
        assert np.array_equal(array, MODEL[name])
    assert [memory.size for memory in memories] == [8, 1, 0, 2, 2]
    memories[0][:] = 1
    assert all((room[name] == 1).all() for name in ("a", "e", "f"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_finite_numbers_are_told_from_others(dtype, shape) -> None:
    array = np.full(shape, np.finfo(dtype).max, dtype)  # whose squares and sums are not finite
    assert finite(array)
    for wrong in (np.nan, np.inf, -np.inf):
        array.flat[3] = wrong
        assert not finite(array)
