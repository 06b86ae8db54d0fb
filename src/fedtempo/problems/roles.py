"""Shakespeare: each client is a speaking role, its rows the windows of what it says (LEAF, Caldas et al., 2018).

    row = 80 characters of the role's text, and the one that follows; windows begin at every character

Characters are numbered by their place in LEAF's alphabet of 80, any other one by 80; p_i = 1/M. Which roles, and how
their windows are divided, is named by `roles`; 20 clients are among 50 either way:

    long    of the roles with at least `least` windows the first M in an order drawn by `seed`; the last tenth of the
            windows are test rows, and the 80 before them are left out so that no character is in both
    leaf    as LEAF's own tools sample and split with the options of the authors' scripts: all roles, long and short, in
            the order of Python's random.Random(seed).shuffle (theirs is 0), as far as a fifth of all windows reach; the
            first 80 % of a role's windows are training rows, 79 are left out, and a role without a window beyond is no
            client

Of training rows at most `windows` are taken, of test rows a fifth of that many, evenly spaced; "all" takes all. The
order of LEAF's roles is that of the file, which LEAF writes in the order in which a disk lists its files.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.ticks import positive_int
from fedtempo.errors import InputError
from fedtempo.problems.data import load_shakespeare
from fedtempo.problems.models import lstm
from fedtempo.problems.partitions import check_seed, shuffled
from fedtempo.problems.problem import Problem, Weighting

LENGTH = 80
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's."""

ROLES = ("long", "leaf")
_LEAF_SHARE = 0.2
_LEAF_TRAIN = 0.8

Bytes = NDArray[np.uint8]
_Cut = tuple[int, int, int]
"""Where training windows end, where test windows begin, and where they end."""


def shakespeare(
    clients: int = 10,
    *,
    windows: int | str = 1000,
    least: int | None = None,
    roles: str = "long",
    seed: int = 0,
    compute: str = "float32",
    importance: Weighting = "uniform",
    data_dir: str | Path | None = None,
) -> Problem:
    """`clients` roles with `windows` training windows each, at most, or "all"; the network is an LSTM of two layers.

    `seed` draws the roles. `least` is how many windows a role must have to be taken: as many as are asked for, and
    their test rows, unless said (0: not said); with `windows="all"` it must be said. `roles="leaf"` takes long and
    short roles as LEAF's own tools do, without `least`: with ``windows="all"`` as the paper's authors. `data_dir` is
    where the files are, unless they are in the cache.

    Where the files are not there, a DataMissing says which command downloads them.

    Example:
        >>> problem = ft.problems.shakespeare(clients=2, windows=10, data_dir="data")  # where data/shakespeare is
        >>> problem.num_clients, problem.num_parameters
        (2, 132829)
    """
    clients = positive_int(clients, "clients")
    check_seed(seed)
    most = None if windows == "all" else positive_int(windows, "windows")
    if roles not in ROLES:
        raise InputError(f"roles: {roles!r} is not known; use one of {', '.join(ROLES)}")
    least = least or None
    arguments: dict[str, Any] = {"clients": clients, "windows": windows, **({"seed": seed} if seed else {})}
    if roles == "leaf":
        if least is not None:
            raise InputError("least: roles = leaf takes short roles too; leave one of the two out")
        arguments["roles"] = roles
    elif least is None and most is None:
        raise InputError('least: with windows = "all" say how many windows a role must have, as least = 1000')
    else:
        least = positive_int(least if least is not None else (most or 0) * 5 // 4 + LENGTH, "least")
        arguments["least"] = least
    names, texts = load_shakespeare(data_dir)
    counts = [max(0, len(text) - LENGTH) for text in texts]
    cuts = _as_leaf(counts, seed) if least is None else _long(counts, least, seed)
    if len(cuts) < clients:
        asked = "as LEAF takes them" if least is None else f"with at least {least} windows"
        raise InputError(
            f"clients: {clients} roles {asked} are asked for, and there are {len(cuts)}; "
            "ask for fewer clients or windows"
        )
    chosen = list(cuts)[:clients]
    parts = [_windows(texts[k], cuts[k], most) for k in chosen]
    train, test = zip(*parts, strict=True)
    model = lstm(len(ALPHABET) + 1, compute=compute)
    return Problem.from_rows(
        model.init,
        model.loss,
        _joined(train),
        _parts(train),
        test=_joined(test),
        test_parts=_parts(test),
        importance=importance,
        metrics={"accuracy": model.accuracy},
        name="shakespeare",
        description=f"the roles {', '.join(names[k] for k in chosen)}",
        arguments=arguments | ({} if compute == "float32" else {"compute": compute}),
    )


def encoded(text: str) -> Bytes:
    """The characters by their numbers."""
    table = np.full(129, len(ALPHABET), dtype=np.uint8)
    table[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET), dtype=np.uint8)
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    found: Bytes = table[np.minimum(points, 128)]
    return found


def _long(counts: Sequence[int], least: int, seed: int) -> dict[int, _Cut]:
    """The roles with at least that many windows, in a drawn order."""
    fitting = [k for k, count in enumerate(counts) if count >= max(least, 2 * LENGTH)]
    cuts = {}
    for k in (fitting[place] for place in shuffled(len(fitting), "roles", seed)):
        held = max(1, counts[k] // 10)
        cuts[k] = max(1, counts[k] - held - LENGTH), counts[k] - held, counts[k]
    return cuts


def _as_leaf(counts: Sequence[int], seed: int) -> dict[int, _Cut]:
    """The roles that LEAF samples, in its order; the last one is cut where a fifth of all windows is reached."""
    order = list(range(len(counts)))
    random.Random(seed).shuffle(order)
    limit = int(_LEAF_SHARE * sum(counts))
    before = accumulate((counts[k] for k in order), initial=0)
    cuts = {}
    for k, reached in zip(order, before, strict=False):
        count = min(counts[k], limit - reached)
        train = max(1, int(_LEAF_TRAIN * count))
        if train + LENGTH - 1 < count:
            cuts[k] = train, train + LENGTH - 1, count
    return cuts


def _windows(text: str, cut: _Cut, most: int | None) -> tuple[tuple[Bytes, Bytes], tuple[Bytes, Bytes]]:
    """A role's training rows and test rows."""
    codes = encoded(text)
    end, first, last = cut
    train = _spaced(0, end, end if most is None else most)
    test = _spaced(first, last, last - first if most is None else max(1, most // 5))
    rows = [(codes[place[:, None] + np.arange(LENGTH)], codes[place + LENGTH]) for place in (train, test)]
    return rows[0], rows[1]


def _spaced(first: int, end: int, most: int) -> NDArray[np.int64]:
    """At most that many whole numbers from `first` to before `end`, evenly spaced."""
    taken = min(most, end - first)
    return first + np.arange(taken, dtype=np.int64) * (end - first) // taken


def _joined(rows: tuple[tuple[Bytes, Bytes], ...]) -> tuple[Bytes, Bytes]:
    return np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows])


def _parts(rows: tuple[tuple[Bytes, Bytes], ...]) -> list[NDArray[np.int64]]:
    ends = np.cumsum([len(y) for _, y in rows])
    return np.split(np.arange(ends[-1]), ends[:-1])
