"""Partitions: every row to at most one client, no client empty, and the label proportions that each one promises."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.errors import InputError
from fedtempo.problems.partitions import (
    _BLOCK,
    IID,
    Dirichlet,
    LabelShards,
    NaturalKey,
    OneLabel,
    by_label,
    parse_partition,
)

cases = settings(derandomize=True, deadline=None, max_examples=60)
alphas = st.sampled_from([1e-6, 0.01, 0.1, 1.0, 30.0, 1e6])
label_lists = st.lists(st.integers(min_value=-3, max_value=6), min_size=1, max_size=80)
seeds = st.integers(min_value=-(2**40), max_value=2**40)
ten = np.repeat(np.arange(10), 100)


def _counts(labels, parts):
    kinds = np.unique(labels)
    return np.array([[(labels[part] == k).sum() for k in kinds] for part in parts])


def _disjoint(parts):
    rows = np.concatenate(parts)
    return len(set(rows.tolist())) == len(rows)


@cases
@given(label_lists, st.data(), seeds, alphas)
def test_every_row_goes_to_one_client_and_equal_means_equal(labels, data, seed, alpha):
    clients = data.draw(st.integers(min_value=1, max_value=len(labels)))
    for partition in (IID(), Dirichlet(alpha), Dirichlet(alpha, sizes="unequal"), LabelShards(per_client=1)):
        parts = partition.split(labels, clients, seed=seed)
        assert len(parts) == clients
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
        assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)
        if "unequal" not in str(partition):
            sizes = [len(part) for part in parts]
            assert max(sizes) - min(sizes) <= 1


def _one_by_one(labels, clients, alpha, seed):
    """Clients in turn draw a label from their proportions over the labels that still have rows."""
    logits = Dirichlet(alpha)._logits(clients, len(np.unique(labels)), seed)
    order, bounds = by_label(labels, seed)
    piles = [order[low:high].tolist() for low, high in pairwise(bounds)]
    parts = [[] for _ in range(clients)]
    for turn in range(len(labels)):
        client = turn % clients
        open_labels = [k for k, pile in enumerate(piles) if pile]
        share = np.exp(logits[client, open_labels] - logits[client, open_labels].max())
        share /= share.sum()
        drawn = float(uniforms(stream_key("partition/labels", seed), client, turn // clients))
        place = min(int((np.cumsum(share) <= drawn).sum()), len(open_labels) - 1)
        parts[client].append(piles[open_labels[place]].pop(0))
    return [sorted(part) for part in parts]


@cases
@given(label_lists, st.data(), seeds, alphas)
def test_equal_dirichlet_is_the_loop_that_takes_a_row_at_a_time(labels, data, seed, alpha):
    clients = data.draw(st.integers(min_value=1, max_value=len(labels)))
    labels = np.array(labels)
    found = Dirichlet(alpha).split(labels, clients, seed=seed)
    assert [part.tolist() for part in found] == _one_by_one(labels, clients, alpha, seed)


def test_equal_dirichlet_is_that_loop_across_blocks_too():
    labels = np.arange(3000) * 900 // 3000
    assert len(labels) > 2 * _BLOCK // 900
    found = Dirichlet(0.1).split(labels, 7, seed=3)
    assert [part.tolist() for part in found] == _one_by_one(labels, 7, 0.1, 3)


@pytest.mark.parametrize(
    ("partition", "owners"),
    [
        (IID(), "223131300021"),
        (Dirichlet(0.1), "222300101331"),
        (Dirichlet(0.1, sizes="unequal"), "212222223030"),
        (LabelShards(2), "220301301132"),
        (OneLabel(), "300111112222"),
    ],
    ids=str,
)
def test_owners_are_pinned(partition, owners):
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    found = np.full(12, -1)
    for client, part in enumerate(partition.split(labels, 4, seed=0)):
        found[part] = client
    assert "".join(map(str, found)) == owners


@pytest.mark.parametrize(
    "partition", [IID(), Dirichlet(0.5), Dirichlet(0.5, "unequal"), LabelShards(3), OneLabel()], ids=str
)
def test_the_seed_alone_decides(partition):
    first, again, other = (partition.split(ten, 20, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_large_alpha_gives_every_client_the_labels_of_all(sizes):
    rows = np.repeat([0, 1, 2], [3000, 6000, 3000])
    counts = _counts(rows, Dirichlet(1e6, sizes=sizes).split(rows, 10, seed=0))
    shares = counts / counts.sum(axis=1, keepdims=True)
    # Equal sizes: π_i is uniform over labels until the two rare ones run out, so the common label is short at first;
    # over all of a client's rows the proportions are those of the data set.
    assert np.abs(shares - [0.25, 0.5, 0.25]).max() < 0.06
    assert np.abs(counts.sum(axis=1) - 1200).max() <= (0 if sizes == "equal" else 10)


def test_small_alpha_gives_every_client_few_labels():
    kinds = {
        a: (_counts(ten, Dirichlet(a).split(ten, 20, seed=0)) > 0).sum(axis=1).mean() for a in (0.001, 0.1, 1, 1000)
    }
    assert kinds[0.001] < 3 < kinds[0.1] < 7 < kinds[1] < 9.5 < kinds[1000]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 4.0])
def test_proportions_have_the_moments_of_a_dirichlet_vector(alpha):
    logits = Dirichlet(alpha)._logits(20_000, 4, 5)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    variance = 3 / 16 / (4 * alpha + 1)
    assert np.abs(share.mean(axis=0) - 0.25).max() < 4 * np.sqrt(variance / 20_000)
    assert np.allclose(share.var(axis=0), variance, rtol=0.05)
    assert np.corrcoef(share.T)[0, 1] == pytest.approx(-1 / 3, abs=0.03)


def test_no_client_is_favoured_by_its_place():
    """Averaged over seeds first and last clients are equally mixed: nobody is left with what others did not take."""
    first, last = [], []
    for seed in range(150):
        counts = _counts(ten, Dirichlet(0.1).split(ten, 10, seed=seed)) / 100
        first.append((counts[0] ** 2).sum())
        last.append((counts[-1] ** 2).sum())
    error = np.hypot(np.std(first), np.std(last)) / np.sqrt(len(first))
    assert abs(np.mean(first) - np.mean(last)) < 4 * error


def test_unequal_dirichlet_cuts_each_label_in_its_proportions():
    partition = Dirichlet(1.0, sizes="unequal")
    counts = _counts(ten, partition.split(ten, 5, seed=4))
    logits = partition._logits(10, 5, 4)
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.abs(counts - 100 * share.T).max() <= 1
    assert counts.sum(axis=1).std() > 10


def test_unequal_dirichlet_leaves_no_client_without_rows():
    sizes = [len(part) for part in Dirichlet(0.001, sizes="unequal").split(ten, 300, seed=0)]
    assert min(sizes) == 1
    assert sum(sizes) == 1000


def test_shards_are_runs_of_rows_sorted_by_label():
    parts = LabelShards(per_client=2).split(ten, 20, seed=0)
    counts = _counts(ten, parts)
    assert {len(part) for part in parts} == {50}
    assert set(np.unique(counts)) <= {0, 25, 50}  # four shards of 25 rows a label, and none across labels
    assert ((counts > 0).sum(axis=1) <= 2).all()
    assert ((counts > 0).sum(axis=1) == 2).any()


@cases
@given(st.integers(min_value=1, max_value=40), seeds)
def test_one_label_spreads_clients_evenly_over_labels(clients, seed):
    parts = OneLabel().split(ten, clients, seed=seed)
    assert _disjoint(parts)
    own = [np.unique(ten[part]).tolist() for part in parts]
    assert own == [[i % 10] for i in range(clients)]
    for label in range(min(clients, 10)):
        sizes = [len(part) for part, mine in zip(parts, own, strict=True) if mine == [label]]
        assert sum(sizes) == 100
        assert max(sizes) - min(sizes) <= 1


@cases
@given(st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=5))
def test_one_label_says_how_many_clients_are_possible(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    most = max(
        m
        for m in range(1, len(labels) + 1)
        if all((np.arange(m) % len(counts) == k).sum() <= n for k, n in enumerate(counts))
    )
    assert len(OneLabel().split(labels, most, seed=0)) == most
    if most < len(labels):
        with pytest.raises(InputError, match=f"ask for at most {most} clients"):
            OneLabel().split(labels, most + 1, seed=0)


def test_a_natural_key_makes_a_client_of_each_key():
    keys = np.array(["romeo", "juliet", "romeo", "nurse", "juliet", "romeo"])
    partition = NaturalKey(keys)
    assert [p.tolist() for p in partition.split(np.zeros(6, int), None, seed=0)] == [[1, 4], [3], [0, 2, 5]]
    assert [p.tolist() for p in partition.split(np.zeros(6, int), 2, seed=9)] == [[1, 4], [3]]
    assert partition.names.tolist() == ["juliet", "nurse", "romeo"]
    part = partition.only(np.array([0, 2, 3]))
    assert [p.tolist() for p in part.split([0, 0, 0], None)] == [[2], [0, 1]]
    with pytest.raises(InputError, match="4 clients, but only 3 keys"):
        partition.split(np.zeros(6, int), 4)
    with pytest.raises(InputError, match="keys: 6 for 5 rows"):
        partition.split(np.zeros(5, int), 3)


@pytest.mark.parametrize(
    "partition", [IID(), Dirichlet(0.25), Dirichlet(3, sizes="unequal"), LabelShards(3), OneLabel()], ids=str
)
def test_text_and_spec_say_the_partition_again(partition):
    assert (
        parse_partition(str(partition)) == parse_partition(partition.spec()) == parse_partition(partition) == partition
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dirichlett:0.1", r"'dirichlett' is not known; known are iid, dirichlet:ALPHA"),
        ("dirichlet", "dirichlet needs alpha"),
        ("dirichlet:0", "alpha: 0 is not a number between"),
        ("dirichlet:nan", "alpha: nan"),
        ("dirichlet:few", "alpha: 'few'"),
        ("dirichlet:0.1:same", "sizes: 'same' is not known"),
        ("dirichlet:0.1:equal:3", "has too many parts"),
        ("shards:0", "shards per client: 0"),
        ("shards:1.5", "shards per client: 1.5"),
        ("natural-key", "pass NaturalKey"),
        ({"alpha": 0.1}, "has no name"),
        ({"name": "dirichlet", "alfa": 0.1}, "dirichlet has no alfa; it takes alpha, sizes"),
        ({"name": "iid", "alpha": 0.1}, "iid has no alpha; it takes nothing else"),
        (3, "3 is not known"),
    ],
)
def test_a_partition_that_is_none_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        parse_partition(given)


def test_the_draw_of_the_authors_is_that_of_numpys_older_generator_row_by_row():
    labels = np.tile(np.arange(10), 30)
    parts = Dirichlet(0.5, "authors").split(labels, clients=4, seed=42, classes=10)
    draws = np.random.RandomState(42)
    for part, shares in zip(parts, draws.dirichlet([0.5] * 10, size=4), strict=True):
        counts = [int(75 * share) for share in shares]
        counts[9] = 75 - sum(counts[:9])
        rows = [draws.choice(np.flatnonzero(labels == label), counts[label]) for label in range(10)]
        assert part.tolist() == sorted(np.concatenate(rows).tolist())
    assert len({row for part in parts for row in part.tolist()}) < len(labels)  # some are drawn twice
    few = Dirichlet(0.1, "authors").split(np.repeat([0, 1], 5), clients=2, seed=42)
    assert [part.tolist() for part in few] == [[6, 7, 8, 8, 9], [0, 1, 3, 4, 8]]
    assert str(Dirichlet(0.1, "authors")) == "dirichlet:0.1:authors"
    many = Dirichlet(10_000, "authors").split(np.tile(np.arange(10), 1000), clients=2, seed=42)
    assert all(abs(np.bincount(part % 10) - 500).max() < 50 for part in many)


def test_the_draw_of_the_authors_refuses_what_it_cannot_draw():
    with pytest.raises(InputError, match="draws rows of label 2, which has none; use dirichlet:10"):
        Dirichlet(10, "authors").split(np.repeat([0, 1], 50), clients=2, classes=3)
    with pytest.raises(InputError, match="seed: -1 is not one of NumPy's older generator"):
        Dirichlet(10, "authors").split(np.repeat([0, 1], 50), clients=2, seed=-1)


@pytest.mark.parametrize(
    ("partition", "labels", "clients", "said"),
    [
        (IID(), [0, 1], 3, "3 clients cannot share 2 rows"),
        (IID(), [0, 1], 0, "clients: 0"),
        (IID(), [0, 1], None, "clients: None"),
        (IID(), [], 1, "one whole number per row"),
        (IID(), [0.5], 1, "one whole number per row"),
        (IID(), [[0, 1]], 1, "one whole number per row"),
        (LabelShards(2), [0, 1, 1], 2, "need 4 rows, there are 3"),
        (OneLabel(), [0, 1, 1, 1], 3, "label 0 has 1 rows for 2 clients"),
    ],
)
def test_what_cannot_be_split_is_refused(partition, labels, clients, said):
    with pytest.raises(InputError, match=said):
        partition.split(labels, clients, seed=0)


def test_a_seed_is_a_whole_number():
    with pytest.raises(InputError, match=r"seed: 0\.5 is not a whole number"):
        IID().split([0, 1], 1, seed=0.5)
