"""Shakespeare's roles as clients: windows, their labels, which roles, and test rows that share no character."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.problems import shakespeare
from fedtempo.problems.data import Roles, load_shakespeare
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


@pytest.fixture
def many(monkeypatch):
    """Forty roles of 20 to 2 000 windows, whose characters say whose they are and where."""
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(100, 2080, 34).tolist(), 238, 239, 240, 241, 242, 170]
    texts = tuple("".join(ALPHABET[k % 80] for k in rng.integers(0, 80, n)) for n in lengths)
    roles = Roles(tuple(f"role {k}" for k in range(40)), texts)
    monkeypatch.setattr("fedtempo.problems.roles.load_shakespeare", lambda data_dir: roles)
    return roles


def test_leafs_roles_are_those_of_its_own_sampling_and_splitting(many):
    """As LEAF's tools do it: shuffle under seed 0, take roles until a fifth of all samples, split each 80 to 20."""
    order = list(zip(many.names, many.texts, strict=True))
    random.Random(0).shuffle(order)
    samples = {name: [(text[k : k + 80], text[k + 80]) for k in range(len(text) - 80)] for name, text in order}
    wanted, taken = int(0.2 * sum(map(len, samples.values()))), 0
    clients = {}
    for name, _ in order:
        if taken >= wanted:
            break
        own = samples[name][: wanted - taken]
        taken += len(own)
        train = max(1, int(0.8 * len(own)))
        if len(own) >= 2 and len(own[train + 79 :]):
            clients[name] = own[:train], own[train + 79 :]
    problem = shakespeare(len(clients), windows="all", roles="leaf")
    assert len(clients) > 3
    assert problem.spec()["description"] == f"the roles {', '.join(clients)}"
    for client, (train, test) in enumerate(clients.values()):
        for (x, y), expected in ((problem.client_data(client), train), (problem.test_data()[client], test)):
            assert [(decoded(a), decoded([b])) for a, b in zip(x, y, strict=True)] == expected
    few = shakespeare(2, windows=30, roles="leaf")
    assert [len(few.client_data(k)[1]) for k in range(2)] == [30, 30]
    assert few.spec()["arguments"] == {"clients": 2, "windows": 30, "roles": "leaf", "importance": "uniform"}
    with pytest.raises(InputError, match=f"roles as LEAF takes them are asked for, and there are {len(clients)}"):
        shakespeare(40, windows="all", roles="leaf")


def test_the_seed_draws_the_roles(many):
    def drawn(**given):
        return shakespeare(3, **{"windows": 30, **given}).spec()["description"]

    assert drawn(seed=0) == drawn()
    assert len({drawn(seed=seed) for seed in range(4)}) == 4
    leaf = list(many.names)
    random.Random(5).shuffle(leaf)
    taken = drawn(roles="leaf", windows="all", seed=5).removeprefix("the roles ").split(", ")
    assert [leaf.index(name) for name in taken] == sorted(leaf.index(name) for name in taken)
    assert leaf.index(taken[-1]) < 8
    said = shakespeare(3, windows=30, seed=2).spec()["arguments"]
    assert (said["seed"], "seed" in shakespeare(3, windows=30).spec()["arguments"]) == (2, False)
    with pytest.raises(InputError, match="seed"):
        shakespeare(3, windows=30, seed="each")


def test_a_least_of_nothing_is_as_if_it_were_not_said(many):
    assert shakespeare(3, windows=30, least=0).spec() == shakespeare(3, windows=30).spec()
    assert shakespeare(2, windows=30, roles="leaf", least=0).num_clients == 2
    with pytest.raises(InputError, match="say how many windows a role must have"):
        shakespeare(3, windows="all", least=0)
    with pytest.raises(InputError, match="least: -1 is not"):
        shakespeare(3, windows=30, least=-1)


def test_long_roles_have_as_many_windows_as_are_asked_for_and_twice_the_length_of_one(many):
    for least in (1, 150, 160, 161, 1500):
        wanted = sum(len(text) - 80 >= max(least, 160) for text in many.texts)
        with pytest.raises(InputError, match=f"with at least {least} windows are asked for, and there are {wanted};"):
            shakespeare(41, least=least, windows=5)


def test_all_windows_of_long_roles(many):
    problem = shakespeare(3, windows="all", least=1500)
    some = shakespeare(3, windows=10_000, least=1500)
    assert problem.sizes.tolist() == some.sizes.tolist()
    assert "roles" not in problem.spec()["arguments"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"roles": "tiny"}, "roles: 'tiny' is not known; use one of long, leaf"),
        ({"windows": "all"}, 'least: with windows = "all" say how many windows a role must have'),
        ({"roles": "leaf", "least": 3}, "least: roles = leaf takes short roles too"),
        ({"windows": "some"}, "windows: 'some'"),
    ],
)
def test_roles_and_windows_that_do_not_fit_are_refused(given, said, folder):
    with pytest.raises(InputError, match=said):
        shakespeare(2, data_dir=folder, **given)
