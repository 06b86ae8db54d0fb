"""Shakespeare: each client is a speaking role, its rows the windows of what it says (LEAF, Caldas et al., 2018).

    row = 80 characters of the role's text, and the one that follows; windows begin at every character

Characters are numbered by their place in LEAF's alphabet of 80, any other one by 80. Roles: of those with at least
`least` windows the first M in an order drawn once for all, so that 20 clients are among 50. Of each role's windows the
last tenth are test rows, and the 80 before them are left out so that no character is in both; of the rest, and of the
test rows, at most `windows` and a fifth of that many are taken, evenly spaced. p_i = 1/M.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.ticks import positive_int
from fedtempo.errors import InputError
from fedtempo.problems.data import load_shakespeare
from fedtempo.problems.models import lstm
from fedtempo.problems.partitions import shuffled
from fedtempo.problems.problem import Problem, Weighting

LENGTH = 80
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's."""

Bytes = NDArray[np.uint8]


def shakespeare(
    clients: int = 10,
    *,
    windows: int = 1000,
    least: int | None = None,
    compute: str = "float32",
    importance: Weighting = "uniform",
    data_dir: str | Path | None = None,
) -> Problem:
    """`clients` roles with `windows` training windows each, at most; the network is an LSTM of two layers.

    `least` is how many windows a role must have to be taken: as many as are asked for, and their test rows, unless
    said. `data_dir` is where the files are, unless they are in the cache.

    Where the files are not there, a DataMissing says which command downloads them.

    Example:
        >>> problem = ft.problems.shakespeare(clients=2, windows=10, data_dir="data")  # where data/shakespeare is
        >>> problem.num_clients, problem.num_parameters
        (2, 132829)
    """
    clients, windows = positive_int(clients, "clients"), positive_int(windows, "windows")
    least = positive_int(least if least is not None else windows * 5 // 4 + LENGTH, "least")
    names, texts = load_shakespeare(data_dir)
    fitting = [k for k, text in enumerate(texts) if len(text) - LENGTH >= max(least, 2 * LENGTH)]
    if len(fitting) < clients:
        raise InputError(
            f"clients: {clients} roles with at least {least} windows are asked for, and there are {len(fitting)}; "
            "ask for fewer clients or windows"
        )
    chosen = [fitting[k] for k in shuffled(len(fitting), "roles", 0)[:clients]]
    parts = [_windows(texts[k], windows) for k in chosen]
    train, test = zip(*parts, strict=True)
    model = lstm(len(ALPHABET) + 1, compute=compute)
    arguments: dict[str, Any] = {"clients": clients, "windows": windows, "least": least}
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


def _windows(text: str, most: int) -> tuple[tuple[Bytes, Bytes], tuple[Bytes, Bytes]]:
    """A role's training rows and test rows."""
    codes = encoded(text)
    count = len(codes) - LENGTH
    held = max(1, count // 10)
    train = _spaced(0, max(1, count - held - LENGTH), most)
    test = _spaced(count - held, count, max(1, most // 5))
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
