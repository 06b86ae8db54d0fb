"""MNIST and CIFAR-10 as problems: bytes, partitions of training and test images alike, models by name."""

from __future__ import annotations

from itertools import pairwise

import jax
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import DataMissing, InputError
from fedtempo.problems import cifar10, mnist
from fedtempo.problems.data import load_cifar10, load_mnist
from support import true_formats


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    true_formats.mnist(made, rows=(600, 200))
    return true_formats.cifar10(made, rows=(200, 60))


def counts(labels, offsets):
    return np.array([np.bincount(labels[a:b], minlength=10) for a, b in pairwise(offsets)])


def test_mnist_stays_bytes_and_uses_every_image_once(folder):
    problem = mnist(10, data_dir=folder)
    x, y = problem.rows
    assert (x.dtype, x.shape, y.dtype) == (np.uint8, (600, 784), np.uint8)
    assert problem.sizes.tolist() == [60] * 10
    assert np.diff(problem.test_offsets).tolist() == [20] * 10
    assert problem.num_parameters == 7850
    whole = load_mnist(folder)
    assert sorted(map(bytes, x)) == sorted(bytes(image) for image in whole.train_x.reshape(600, -1))


def test_test_images_are_dealt_in_the_proportions_of_the_training_images(folder):
    problem = mnist(5, "dirichlet:0.3", data_dir=folder, seed=3)
    train = counts(problem.rows[1], problem.offsets)
    test = counts(problem.test[1], problem.test_offsets)
    assert (train.sum(axis=1) == 120).all()
    assert (test.sum(axis=1) == 40).all()
    correlation = np.corrcoef(train.ravel(), test.ravel())[0, 1]
    assert correlation > 0.9
    other = counts(mnist(5, "dirichlet:0.3", data_dir=folder, seed=4).test[1], problem.test_offsets)
    assert np.corrcoef(train.ravel(), other.ravel())[0, 1] < correlation


def test_rows_takes_a_part_evenly_drawn_and_the_same_for_every_seed(folder):
    some = mnist(4, data_dir=folder, rows=60)
    assert some.num_rows == 60
    assert len(some.test[1]) == 20
    again = mnist(4, data_dir=folder, rows=60, seed=9)
    assert sorted(map(bytes, some.rows[0])) == sorted(map(bytes, again.rows[0]))
    with pytest.raises(InputError, match=r"rows: 601 of 600 images; give a number from 1 to 600"):
        mnist(4, data_dir=folder, rows=601)


def test_a_federated_test_loss_is_the_weighted_mean_over_clients(folder):
    problem = mnist(4, "dirichlet:0.1", data_dir=folder, importance=["1/2", "1/4", "1/8", "1/8"])
    run = {"until": 2, "local": ft.LocalSGD(lr=0.1, batch_size=8), "points": 2, "dtype": "float64"}
    times = ft.FixedTimes([1, 1, "1/2", "1/3"])
    compiled = ft.simulate(problem, ft.AsyncFedAvg(), times, engine="events", **run)
    plain = ft.simulate(problem, ft.AsyncFedAvg(), times, engine="oracle", **run)
    for name in ("loss", "test_loss", "test_accuracy"):
        np.testing.assert_allclose(compiled.dataset[name], plain.dataset[name], rtol=1e-10)
    theta = compiled.model(scheme="AsyncFedAvg").parameters
    means = [float(problem.loss(theta, part)) for part in problem.test_data()]
    assert len(means) == 4
    found = float(compiled.dataset["test_loss"].isel(time=-1).values.item())
    assert found == pytest.approx(np.dot(problem.importance.values, means), rel=1e-6)


def test_pooled_clients_share_their_test_images(folder):
    pooled = mnist(4, data_dir=folder).pooled()
    assert pooled.test_offsets is None
    assert len(pooled.test_data()) == 1
    assert pooled.fingerprint() != mnist(4, data_dir=folder).fingerprint()


def test_cifar_by_both_networks_lowers_its_loss(folder):
    problem = cifar10(2, "iid", data_dir=folder, rows=40)
    assert problem.rows[0].shape == (40, 32, 32, 3)
    assert problem.num_parameters == 122570
    history = ft.simulate(
        problem, ft.FedAvg(), ft.FixedTimes([1, 1]), until=4, local=ft.LocalSGD(lr=0.05, batch_size=8), points=2
    )
    first, last = history.dataset["loss"].values.ravel()
    assert last < first
    assert cifar10(2, "iid", data_dir=folder, model="fedavg-cifar").num_parameters == 1068298
    assert mnist(2, data_dir=folder, model="fedavg-mnist").num_parameters == 1663370


def test_a_study_can_name_them(folder):
    problem = ft.problems.named({"name": "cifar10", "clients": 4, "rows": 40, "data_dir": str(folder)})
    spec = problem.spec()
    assert spec["arguments"] == {
        "clients": 4,
        "partition": {"name": "dirichlet", "alpha": 0.1, "sizes": "equal"},
        "model": "authors",
        "seed": 0,
        "rows": 40,
        "importance": "uniform",
    }
    assert "data_dir" not in str(spec)


@pytest.mark.parametrize("make", [mnist, cifar10])
def test_what_cannot_work_is_refused(make, folder, tmp_path):
    with pytest.raises(InputError, match=r"model: 'resnet' is not known; use one of .*authors"):
        make(2, data_dir=folder, model="resnet")
    with pytest.raises(InputError, match=r"compute: 'float8' is not known"):
        make(2, data_dir=folder, model="authors", compute="float8")
    with pytest.raises(DataMissing, match=r"fedtempo data get"):
        make(2, data_dir=tmp_path)


def test_rows_drawn_with_replacement_are_the_authors_way(folder):
    labels = load_cifar10(folder).train_y
    parts = ft.Dirichlet(0.1, "replacement").split(labels, 10, seed=1)
    assert [len(part) for part in parts] == [20] * 10
    together = np.concatenate(parts)
    assert len(np.unique(together)) < len(together)
    assert ft.problems.parse_partition("dirichlet:0.1:replacement") == ft.Dirichlet(0.1, "replacement")
    assert str(ft.Dirichlet(0.1, "replacement")) == "dirichlet:0.1:replacement"
    many = np.repeat(np.arange(10), 6000)
    replaced = counts(many[np.concatenate(ft.Dirichlet(0.5, "replacement").split(many, 10))], np.arange(0, 60001, 6000))
    equal = counts(many[np.concatenate(ft.Dirichlet(0.5).split(many, 10))], np.arange(0, 60001, 6000))
    assert np.corrcoef(replaced.ravel(), equal.ravel())[0, 1] > 0.8  # the same draw of proportions


def test_a_label_that_the_test_rows_lack_changes_nothing_for_the_others():
    labels = np.repeat(np.arange(10), 300)
    rule = ft.Dirichlet(0.3)
    train = counts(labels[np.concatenate(rule.split(labels, 5, classes=10))], np.arange(0, 3001, 600))
    for lacking in (0, 9):
        some = labels[labels != lacking][::2]
        parts = rule.split(some, 5, classes=10)
        test = np.array([np.bincount(some[part], minlength=10) for part in parts])
        assert not test[:, lacking].any()
        others = np.delete(np.arange(10), lacking)
        assert np.corrcoef(train[:, others].ravel(), test[:, others].ravel())[0, 1] > 0.9
        for sizes in ("unequal", "replacement"):
            assert sum(map(len, ft.Dirichlet(0.3, sizes).split(some, 5, classes=10))) == len(some)


def test_messages_say_when_test_rows_are_meant(folder):
    with pytest.raises(InputError, match="test rows: 20 clients cannot share 10 rows"):
        mnist(20, data_dir=folder, rows=30)
    with pytest.raises(InputError, match="compute: 'bfloat16' is for networks"):
        mnist(2, data_dir=folder, compute="bfloat16")
    with pytest.raises(InputError, match="rows"):
        mnist(2, data_dir=folder, rows=2.5)


SPREADS = {
    ("mnist", "unit"): (0.0, 1.0),
    ("mnist", "standardised"): (0.1307, 0.3081),
    ("mnist", "authors"): (0.1307, 0.3081),
    ("cifar10", "unit"): (0.0, 1.0),
    ("cifar10", "standardised"): ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("cifar10", "authors"): ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}


@pytest.mark.parametrize(("name", "pixels"), [key for key in SPREADS if key[0] == "mnist"])
def test_pixels_are_the_numbers_that_their_name_says(name, pixels, folder):
    problem = mnist(10, pixels=pixels, data_dir=folder)
    x, y = (part[:7] for part in problem.rows)
    mean, deviation = SPREADS[name, pixels]
    weights = np.random.default_rng(0).normal(size=(784, 10)) / 28
    z = ((x / 255.0 - mean) / deviation) @ weights + np.arange(10.0)
    expected = np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(7), y])
    params = {"weights": weights.astype(np.float32), "bias": np.arange(10.0, dtype=np.float32)}
    assert float(problem.loss(params, (x, y))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("network", ["mnist", "cifar10"])
def test_pixels_of_a_network_are_moved_and_scaled_a_colour_at_a_time(network, folder):
    make = {
        "mnist": lambda pixels: mnist(2, model="fedavg-mnist", pixels=pixels, data_dir=folder),
        "cifar10": lambda pixels: cifar10(2, "iid", pixels=pixels, data_dir=folder),
    }[network]
    unit, *others = (make(pixels) for pixels in ("unit", "standardised", "authors"))
    params = unit.init(jax.random.key(0))
    x, y = (part[:4] for part in unit.rows)
    for problem, pixels in zip(others, ("standardised", "authors"), strict=True):
        mean, deviation = (np.asarray(v) for v in SPREADS[network, pixels])
        # the first layer takes (x − mean)/deviation as kernels over the deviation, and x less the mean
        moved = {**params, "conv0": dict(params["conv0"])}
        kernel = params["conv0"]["weights"] / deviation.reshape(-1, 1)
        moved["conv0"] = {
            "weights": kernel,
            "bias": params["conv0"]["bias"] - (kernel * mean.reshape(-1, 1)).sum((0, 1, 2)),
        }
        same = network == "mnist"  # padded with zeros, which are other pixels then
        if not same:
            assert float(problem.loss(params, (x, y))) == pytest.approx(float(unit.loss(moved, (x, y))), rel=1e-4)
        assert float(problem.loss(params, (x, y))) != pytest.approx(float(unit.loss(params, (x, y))), rel=1e-4)


def test_pixels_that_are_not_known_are_refused(folder):
    for make in (mnist, cifar10):
        with pytest.raises(InputError, match=r"pixels: 'white' is not known; use one of \w+, \w+, authors"):
            make(10, pixels="white", data_dir=folder)


def test_the_usual_pixels_are_not_written_down_so_that_old_descriptions_stay_true(folder):
    assert mnist(10, data_dir=folder).spec() == mnist(10, pixels="unit", data_dir=folder).spec()
    assert "pixels" not in mnist(10, data_dir=folder).spec()["arguments"]
    assert "pixels" not in cifar10(10, pixels="standardised", data_dir=folder).spec()["arguments"]
    said = mnist(10, pixels="standardised", data_dir=folder)
    assert said.spec()["arguments"]["pixels"] == "standardised"


def test_the_partition_of_the_authors_deals_training_and_test_images_in_the_same_shares(folder):
    problem = mnist(5, "dirichlet:0.3:authors", seed=42, data_dir=folder)
    shares = np.random.RandomState(42).dirichlet([0.3] * 10, size=5)
    for rows, offsets, each in (
        (problem.rows, problem.offsets, 120),
        (problem.test, problem.test_offsets, 40),
    ):
        assert np.abs(counts(rows[1], offsets)[:, :9] - (shares * each).astype(int)[:, :9]).max() == 0
        assert np.diff(offsets).tolist() == [each] * 5
