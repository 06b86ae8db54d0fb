"""Shakespeare's roles as clients: windows, their labels, which roles, and test rows that share no character."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.problems import shakespeare
from fedtempo.problems.data import load_shakespeare
from fedtempo.problems.roles import ALPHABET, encoded
from support import true_formats


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return true_formats.shakespeare_leaf(tmp_path_factory.mktemp("data"), roles=5)


def decoded(codes):
    return "".join((ALPHABET + "\ufffd")[code] for code in codes)


def test_rows_are_windows_and_the_character_that_follows(folder):
    problem = shakespeare(3, windows=50, data_dir=folder)
    x, y = problem.rows
    assert (x.dtype, x.shape[1], y.dtype) == (np.uint8, 80, np.uint8)
    assert problem.importance.values.tolist() == pytest.approx([1 / 3] * 3)
    texts = load_shakespeare(folder).texts
    for client in range(3):
        windows, following = problem.client_data(client)
        own = next(text for text in texts if decoded(windows[0]) in text)
        for window, label in zip(windows, following, strict=True):
            assert decoded([*window, label]) in own


def test_test_rows_come_after_the_training_rows_and_share_nothing(folder):
    problem = shakespeare(3, windows=10_000, least=200, data_dir=folder)
    texts = load_shakespeare(folder).texts
    for client, (windows, _) in enumerate(problem.test_data()):
        train, _ = problem.client_data(client)
        own = max(texts, key=lambda text: text.startswith(decoded(train[0])))
        count = len(own) - 80
        held = max(1, count // 10)
        assert (len(train), len(windows)) == (count - held - 80, min(held, 2000))
        assert decoded(windows[0]) == own[count - held :][:80]
        assert (
            len(train) + 80 + 80 - 1 <= count - held + 80
        )  # the last training window ends before the first test window


def test_fewer_clients_are_among_more(folder):
    few, many = (shakespeare(n, windows=50, data_dir=folder).spec()["description"] for n in (2, 4))
    assert many.startswith(few)
    assert few.startswith("the roles ")


def test_windows_are_evenly_spaced(folder):
    whole = shakespeare(2, windows=10_000, least=200, data_dir=folder)
    some = shakespeare(2, windows=10, least=200, data_dir=folder)
    everything = [bytes(row) for row in whole.client_data(0)[0]]
    taken = [bytes(row) for row in some.client_data(0)[0]]
    assert taken == [everything[k * len(everything) // 10] for k in range(10)]


def test_characters_outside_the_alphabet_have_a_number_of_their_own():
    assert encoded("aé}\n€’?").tolist() == [ALPHABET.index("a"), 80, 79, 0, 80, 80, ALPHABET.index("?")]
    assert len(set(ALPHABET)) == len(ALPHABET) == 80


def test_too_many_roles_are_refused(folder):
    with pytest.raises(InputError, match=r"clients: 9 roles with at least \d+ windows are asked for, and there are 5"):
        shakespeare(9, windows=50, data_dir=folder)


def test_it_learns(folder):
    problem = shakespeare(2, windows=20, data_dir=folder)
    history = ft.simulate(
        problem, ft.FedFix("1/2"), ft.FixedTimes([1, "1/2"]), until=3, local=ft.LocalSGD(lr=1.0, batch_size=8), points=2
    )
    first, last = history.dataset["loss"].values.ravel()
    assert last < first
    assert {"test_loss", "test_accuracy"} <= set(history.measures)
