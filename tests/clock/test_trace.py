"""Recorded times: reading them, replaying them, drawing from them."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import fedtempo as ft
from fedtempo.clock.streams import stream_key, uniforms

cases = settings(derandomize=True, deadline=None, max_examples=150)
small = st.builds(Fraction, st.integers(min_value=1, max_value=60), st.integers(min_value=1, max_value=12))
tables = st.lists(st.lists(small, min_size=1, max_size=6), min_size=1, max_size=5)

ROWS = [[1, 2, "5/2"], ["1/3"], [4, 4, 4, 7]]


@pytest.fixture
def written(tmp_path):
    """Write a CSV trace and return its path."""

    def write(content):
        path = tmp_path / "trace.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def stored(tmp_path):
    """Write a Parquet trace and return its path."""

    def store(name="trace.parquet", **columns):
        path = tmp_path / name
        parquet.write_table(pa.table(columns), path)
        return path

    return store


def _clients(times):
    """Each client's label and durations, in the clients' order."""
    longest = int(max(times.job_period))
    drawn = times.draw(np.arange(times.num_clients)[:, None], np.arange(longest))
    lists = [[int(t) * times.unit for t in row[:n]] for row, n in zip(drawn, times.job_period, strict=True)]
    return dict(zip(times.names, lists, strict=True))


# --- reading CSV


def test_csv_is_read_row_by_row_in_order(written):
    times = ft.TraceTimes.read(written("client,duration\n0,1.5\n1,1/3\n0,2\n0,1e-1\n"))
    assert _clients(times) == {"0": [Fraction(3, 2), Fraction(2), Fraction(1, 10)], "1": [Fraction(1, 3)]}


@pytest.mark.parametrize(
    "content",
    [
        "duration,client\n3,a\n5,b\n",
        "host,client,x,duration\nh,a,1,3\nh,b,,5\n",
        " Client , DURATION\n a , 3\nb,5 \n",
        "\ufeffclient,duration\na,3\nb,5\n",
        "client,duration\r\na,3\r\nb,5\r\n",
        "client,duration\n\na,3\n\n\nb,5\n\n",
        "client,duration\r\n\r\na,3\r\nb,5",
        '"client","duration"\n"a","3"\n"b","5"\n',
        'note,client,duration\n"two\nlines, one row",a,3\nx,b,5\n',
    ],
    ids=["order", "extra", "spaces and case", "BOM", "CRLF", "blank lines", "CRLF blank", "quotes", "quoted newline"],
)
def test_csv_may_be_written_in_many_ways(written, content):
    assert _clients(ft.TraceTimes.read(written(content))) == {"a": [3], "b": [5]}


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "9", "-1", "9"], ["-1", "9", "10"]),
        (["007", "8", "6"], ["6", "007", "8"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["b", "a", "b", "A"], ["b", "a", "A"]),
        (["phone 2", "phone 1"], ["phone 2", "phone 1"]),
        (["2.0", "1.0"], ["2.0", "1.0"]),
        (["5", "--3", "1"], ["5", "--3", "1"]),
        (["5", "-", "1"], ["5", "-", "1"]),
        (["5", "²", "1"], ["5", "²", "1"]),
    ],
)
def test_clients_stand_in_the_order_of_whole_labels_else_of_appearance(written, labels, order):
    content = "client,duration\n" + "".join(f"{label},{k + 1}\n" for k, label in enumerate(labels))
    times = ft.TraceTimes.read(written(content))
    assert list(times.names) == order
    assert _clients(times) == {name: [k + 1 for k, x in enumerate(labels) if x == name] for name in order}


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ("", "line 1", "the header is ''"),
        ("\nclient,duration\n1,2\n", "line 1", "the header is ''"),
        ("1,2\n3,4\n", "line 1", "the header is '1,2'; it must name the columns client and duration"),
        ("client,time\n1,2\n", "line 1", "the header is 'client,time'"),
        ("client;duration\n1;2\n", "line 1", "the header is 'client;duration'"),
        ("client,duration\n1,2\n3\n", "line 3", "1 fields where the header has 2"),
        ("client,duration\n1,2,3\n", "line 2", "3 fields where the header has 2"),
        ("client,duration\n1,2\n\n   \n", "line 4", "1 fields where the header has 2"),
        ("client,duration\n1,2\n\n1,fast\n", "line 4", "duration: 'fast' is not a number"),
        ("client,duration\r\n1,2\r\n1,\r\n", "line 3", "duration: '' is not a number"),
        ("client,duration\n1,nan\n", "line 2", "duration: 'nan'"),
        ("client,duration\n1,1/0\n", "line 2", "duration: '1/0'"),
        ("client,duration\n1,2\n1,0\n", "line 3", "duration: 0 is not above zero"),
        ("client,duration\n1,-0.5\n", "line 2", "duration: -0.5 is not above zero"),
        ("client,duration\n1,2\n,3\n", "line 3", "the client is empty"),
        ("client,duration\n1,2\n  ,3\n", "line 3", "the client is empty"),
        ('client,duration\n1,2\n2,"3\n', "line 3", "not CSV"),
        ('client,duration\n1,2\n"2"x,3\n', "line 3", "not CSV"),
        ('"client,duration\n', "line 1", "not CSV"),
    ],
)
def test_what_is_wrong_in_a_csv_is_named_with_its_line(written, content, place, words):
    path = written(content)
    with pytest.raises(ft.InputError) as caught:
        ft.TraceTimes.read(path)
    assert str(caught.value).startswith(f"{path}, {place}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"client,duration\n\xff\xfe,2\n", "client,duration\n1,2\n".encode("utf-16")], ids=["byte", "UTF-16"]
)
def test_a_trace_that_is_not_utf8_is_refused(written, content):
    path = written(content)
    with pytest.raises(ft.InputError, match="not a text file in UTF-8") as caught:
        ft.TraceTimes.read(path)
    assert str(path) in str(caught.value)


def test_a_trace_with_a_header_alone_is_refused(written):
    path = written("client,duration\n\n")
    with pytest.raises(ft.InputError, match="the trace has no rows") as caught:
        ft.TraceTimes.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_missing_file_is_missing_data(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(ft.DataMissing, match="no such trace file") as caught:
        ft.TraceTimes.read(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_not_a_trace(tmp_path):
    with pytest.raises(ft.InputError, match="not a file"):
        ft.TraceTimes.read(tmp_path)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_path_is_text_or_a_path(written, kind):
    path = written("client,duration\n1,2\n")
    assert ft.TraceTimes.read(kind(path), mode="bootstrap").mode == "bootstrap"


# --- reading Parquet


@pytest.mark.parametrize("name", ["trace.parquet", "trace.pq", "TRACE.PARQUET"])
def test_parquet_is_read_like_csv(stored, name):
    path = stored(name, x=[0, 0, 0], duration=[0.2, 2.0, 0.3], client=[10, 9, 10])
    assert _clients(ft.TraceTimes.read(path)) == {"9": [2], "10": [Fraction(1, 5), Fraction(3, 10)]}


@pytest.mark.parametrize(
    "duration",
    [
        pa.array([1.5, 0.2]),
        pa.array([1.5, 0.2], pa.float32()),
        pa.array([Decimal("1.50"), Decimal("0.20")]),
        pa.array(["3/2", "0.2"]),
        pa.array(["3/2", " 1/5 "]).dictionary_encode(),
    ],
    ids=["float64", "float32", "decimal", "text", "dictionary"],
)
def test_parquet_durations_of_every_type_are_exact(stored, duration):
    path = stored(client=["a", "b"], duration=duration)
    assert _clients(ft.TraceTimes.read(path)) == {"a": [Fraction(3, 2)], "b": [Fraction(1, 5)]}


def test_parquet_labels_are_trimmed_as_in_csv(stored):
    path = stored(client=["a", " a ", "b"], duration=[1, 2, 3])
    assert _clients(ft.TraceTimes.read(path)) == {"a": [1, 2], "b": [3]}


@pytest.mark.parametrize(
    ("client", "duration", "words"),
    [
        (["a", None], [1.0, 2.0], "row 2: "),
        (["a", ""], [1.0, 2.0], "row 2: "),
        (["a", "a"], [1.0, None], "row 2: "),
        (["a", "a", "b"], [1.0, 2.0, 0.0], "row 3: duration: 0.0 is not above zero"),
        (["a"], [-1.0], "row 1: duration: -1.0 is not above zero"),
        (["a"], [float("nan")], "row 1: duration: nan is not finite"),
        (["a"], ["fast"], "row 1: duration: 'fast' is not a number"),
        (["a"], [True], "row 1: duration: True is not a number"),
    ],
)
def test_what_is_wrong_in_parquet_is_named_with_its_row(stored, client, duration, words):
    path = stored(client=client, duration=duration)
    with pytest.raises(ft.InputError) as caught:
        ft.TraceTimes.read(path)
    assert str(caught.value).startswith(f"{path}, {words}")


def test_parquet_without_the_columns_is_refused(stored):
    path = stored(client=[1], time=[2.0])
    with pytest.raises(ft.InputError, match="columns client, duration") as caught:
        ft.TraceTimes.read(path)
    assert str(path) in str(caught.value)


def test_parquet_without_rows_is_refused(stored):
    path = stored(client=pa.array([], pa.int64()), duration=pa.array([], pa.float64()))
    with pytest.raises(ft.InputError, match="the trace has no rows"):
        ft.TraceTimes.read(path)


@pytest.mark.parametrize("content", [b"", b"client,duration\n1,2\n"], ids=["empty", "CSV"])
def test_what_is_not_parquet_is_refused(tmp_path, content):
    path = tmp_path / "trace.parquet"
    path.write_bytes(content)
    with pytest.raises(ft.InputError, match="not a Parquet file") as caught:
        ft.TraceTimes.read(path)
    assert str(path) in str(caught.value)


# --- making one


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {}, "no clients: the trace is empty"),
        ([[1], []], {}, "client 1 has no durations"),
        ([[1], [2, 0]], {}, "duration of client 1: 0 is not above zero"),
        ([[1], [2, "x"]], {}, "duration of client 1: 'x' is not a number"),
        ([[1]], {"mode": "shuffle"}, "mode: 'shuffle' is not known"),
        ([[1]], {"resolution": 0}, "resolution: 0 is not above zero"),
    ],
)
def test_a_wrong_trace_is_refused_and_named(rows, options, words):
    with pytest.raises(ft.InputError) as caught:
        ft.TraceTimes(rows, **options)
    assert words in str(caught.value)


def test_durations_with_too_many_digits_overflow_unless_rounded():
    rows = [["0.123456789012345678", 10]]
    with pytest.raises(ft.ClockOverflow):
        ft.TraceTimes(rows)
    assert ft.TraceTimes(rows, resolution="0.001").exact_mean_time == ((Fraction(124, 1000) + 10) / 2,)


@cases
@given(tables, small)
def test_a_resolution_rounds_every_duration_up_to_its_multiple(rows, step):
    times = ft.TraceTimes(rows, resolution=step)
    for found, row in zip(_clients(times).values(), rows, strict=True):
        assert found == [math.ceil(d / step) * step for d in row]


# --- replay


@cases
@given(tables)
def test_replay_goes_through_the_durations_in_order_and_again(rows):
    times = ft.TraceTimes(rows)
    assert not times.random
    assert times.job_period.tolist() == [len(row) for row in rows]
    for i, row in enumerate(rows):
        drawn = times.draw(np.array([i]), np.arange(3 * len(row) + 1), seed=i)
        assert [int(t) * times.unit for t in drawn] == [*row, *row, *row, row[0]]


def test_replay_does_not_depend_on_the_shape_of_the_batch():
    times = ft.TraceTimes(ROWS)
    table = times.draw(np.arange(3)[:, None], np.arange(9))
    assert np.array_equal(times.draw(np.arange(3), np.arange(9)[:, None]), table.T)
    assert times.draw(np.array(2), np.array(7)).tolist() == table[2, 7] == 7 / times.unit


# --- bootstrap


@pytest.mark.parametrize("seed", [0, -3, 2**80])
def test_bootstrap_takes_the_recorded_value_at_the_place_of_its_uniform(seed):
    times = ft.TraceTimes(ROWS, mode="bootstrap")
    assert times.random
    assert times.job_period is None
    client, job = np.arange(3)[:, None], np.arange(200)
    shares = uniforms(stream_key("times", seed), client, job)
    rows = [[Fraction(d) for d in row] for row in ROWS]
    expected = [[row[math.floor(u * len(row))] for u in line] for row, line in zip(rows, shares.tolist(), strict=True)]
    drawn = times.draw(client, job, seed=seed)
    assert [[int(t) * times.unit for t in line] for line in drawn] == expected
    assert np.array_equal(times.draw(client[::-1], job, seed=seed), drawn[::-1])
    assert times.draw(np.array([1]), np.array([17]), seed=seed).tolist() == [drawn[1, 17]]


def test_bootstrap_draws_every_recorded_value_as_often_as_it_was_recorded():
    count = 40_000
    times = ft.TraceTimes(ROWS, mode="bootstrap")
    drawn = times.draw(np.arange(3)[:, None], np.arange(count), seed=99)
    for line, row in zip(drawn, ROWS, strict=True):
        values, found = np.unique(line, return_counts=True)
        recorded = sorted(Fraction(d) for d in row)
        assert [int(v) * times.unit for v in values] == sorted(set(recorded))
        for value, times_seen in zip(sorted(set(recorded)), found.tolist(), strict=True):
            share = recorded.count(value) / len(recorded)
            assert abs(times_seen / count - share) <= 4 * math.sqrt(share * (1 - share) / count)


# --- what follows from a trace

both_modes = pytest.mark.parametrize("mode", ["replay", "bootstrap"])


@both_modes
@cases
@given(rows=tables, wait=small)
def test_means_rounds_and_extremes_are_exact(mode, rows, wait):
    times = ft.TraceTimes(rows, mode=mode)
    assert times.num_clients == len(rows)
    assert times.exact_mean_time == tuple(sum(row) / Fraction(len(row)) for row in rows)
    assert times.mean_time.tolist() == [float(sum(row) / Fraction(len(row))) for row in rows]
    needed = tuple(Fraction(sum(math.ceil(d / wait) for d in row), len(row)) for row in rows)
    assert times.exact_expected_rounds(wait) == needed
    assert times.expected_rounds(wait).tolist() == [float(n) for n in needed]
    assert times.longest() == tuple(max(row) for row in rows)
    assert all((d / times.unit).denominator == 1 for row in rows for d in row)


@both_modes
@cases
@given(rows=tables)
def test_the_distribution_is_the_empirical_one(mode, rows):
    times = ft.TraceTimes(rows, mode=mode)
    moments = sorted({d for row in rows for d in row})
    between = [(a + b) / 2 for a, b in zip([Fraction(0), *moments], moments, strict=False)]
    for moment in [*moments, *between, Fraction(0), Fraction(61)]:
        done = [sum(d <= moment for d in row) / len(row) for row in rows]
        assert times.distribution(float(moment)).tolist() == done


def test_decimal_durations_are_over_at_their_own_moment():
    times = ft.TraceTimes([["0.1", "0.2", "0.3"]])
    assert [float(times.distribution(moment)[0]) for moment in (0.1, 0.2, 0.3)] == [1 / 3, 2 / 3, 1.0]
    assert times.kinks().tolist() == [0.1, 0.2, 0.3]


def test_equal_traces_hash_alike_and_different_ones_differ():
    assert ft.TraceTimes([[1, "0.5"], [2]]) == ft.TraceTimes([["1", Fraction(1, 2)], [2.0]])
    assert hash(ft.TraceTimes([[1, "0.5"], [2]])) == hash(ft.TraceTimes([["1", Fraction(1, 2)], [2.0]]))
    different = [
        ft.TraceTimes([[1, 2], [3]]),
        ft.TraceTimes([[2, 1], [3]]),
        ft.TraceTimes([[1], [2, 3]]),
        ft.TraceTimes([[2, 4], [6]]),
        ft.TraceTimes([[1, 2], [3]], mode="bootstrap"),
    ]
    for i, one in enumerate(different):
        assert [one == other for other in different] == [i == j for j in range(len(different))]
    assert len(set(map(hash, different))) == len(different)
    assert ft.TraceTimes([[1], [2]]) != ft.FixedTimes([1, 2])
