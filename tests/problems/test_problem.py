"""Problem: ragged rows end to end, the importance asked for, problems by name, and what is refused."""

import json
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.clock.importance import Importance
from fedtempo.errors import InputError
from fedtempo.problems import Problem, digits, named

cases = settings(derandomize=True, deadline=None, max_examples=40)
sizes_of_clients = st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=6)


def init(key):
    return {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def error_rate(params, batch):
    return jnp.mean(jnp.abs(batch["y"]))


def client(rows, *, start=0, width=3, kind=np.float32):
    numbers = np.arange(start, start + rows)
    return {"x": np.outer(numbers, np.ones(width)).astype(kind), "y": numbers.astype(kind)}


def ragged(sizes):
    starts = np.cumsum([0, *sizes])
    return [client(size, start=int(start)) for size, start in zip(sizes, starts, strict=False)]


@cases
@given(sizes_of_clients)
def test_ragged_clients_lie_end_to_end(sizes):
    data = ragged(sizes)
    problem = Problem(init, loss, data)
    assert problem.sizes.tolist() == sizes
    assert problem.offsets.tolist() == np.cumsum([0, *sizes]).tolist()
    assert (problem.sizes.dtype, problem.offsets.dtype) == (np.int64, np.int64)
    assert (problem.num_clients, problem.num_rows) == (len(sizes), sum(sizes))
    assert problem.rows["y"].tolist() == list(range(sum(sizes)))
    for i, own in enumerate(data):
        held = problem.client_data(i)
        assert np.array_equal(held["x"], own["x"])
        assert np.shares_memory(held["x"], problem.rows["x"])


@cases
@given(sizes_of_clients, st.randoms(use_true_random=False))
def test_rows_dealt_by_their_indices_are_those_of_the_clients(sizes, shuffler):
    order = list(range(sum(sizes) + 2))  # two rows belong to nobody
    shuffler.shuffle(order)
    bounds = np.cumsum([0, *sizes])
    parts = [order[low:high] for low, high in pairwise(bounds)]
    rows = client(sum(sizes) + 2)
    dealt = Problem.from_rows(init, loss, rows, parts, importance="rows")
    apart = Problem(init, loss, [{k: v[part] for k, v in rows.items()} for part in parts], importance="rows")
    assert dealt.fingerprint() == apart.fingerprint()
    assert [dealt.client_data(i)["y"].tolist() for i in range(len(sizes))] == parts


def test_a_large_client_beside_small_ones_costs_no_padding():
    data = [np.zeros((100_000, 2), np.float32), *(np.zeros((10, 2), np.float32) for _ in range(999))]
    problem = Problem(lambda key: jnp.zeros(2), lambda p, b: jnp.mean(b @ p), data)
    assert problem.rows.nbytes == 8 * (100_000 + 9_990)


def test_parameters_are_known_without_being_made():
    problem = Problem(init, loss, [client(2)], name="line", description="a line through points")
    assert problem.num_parameters == 4
    assert problem.parameter_shapes["w"].shape == (3,)
    assert problem.parameter_shapes["b"].shape == ()
    assert repr(problem) == "Problem(line: 1 client, 2 rows, 4 parameters)"
    assert problem.spec() == {
        "name": "line",
        "description": "a line through points",
        "clients": 1,
        "rows": 2,
        "test_rows": 0,
        "parameters": 4,
        "metrics": [],
    }


def test_a_problem_is_the_same_in_double_precision():
    with jax.enable_x64(True):
        inside = Problem(init, loss, ragged([2, 3]), test=client(2))
        params = inside.init(jax.random.key(0))
    assert params["w"].dtype == np.float64
    assert inside.fingerprint() == Problem(init, loss, ragged([2, 3]), test=client(2)).fingerprint()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("uniform", ["1/2", "1/2"]),
        ("rows", ["2/5", "3/5"]),
        (["1/3", "2/3"], ["1/3", "2/3"]),
        (np.array([0.1, 0.9]), ["1/10", "9/10"]),
        (Importance([0.25, 0.75], 2), ["1/4", "3/4"]),
    ],
)
def test_importance_is_exact(given, expected):
    exact = tuple(map(Fraction, expected))
    problem = Problem(init, loss, ragged([2, 3]), importance=given)
    assert isinstance(problem.importance, Importance)
    assert problem.importance.exact == exact
    assert Problem(init, loss, ragged([2, 3])).with_importance(given).importance.exact == exact


def test_pooled_rows_have_one_owner_and_are_not_copied():
    problem = Problem(init, loss, ragged([2, 3]), importance=[0.9, 0.1], test=client(2), metrics={"error": error_rate})
    before = problem.fingerprint()
    pooled = problem.pooled()
    assert pooled.sizes.tolist() == [5]
    assert pooled.importance.exact == (1,)
    assert np.shares_memory(pooled.rows["x"], problem.rows["x"])
    assert pooled.spec()["pooled"] is True
    assert pooled.metrics == problem.metrics
    assert problem.sizes.tolist() == [2, 3]
    prints = {before, pooled.fingerprint(), problem.with_importance("rows").fingerprint()}
    assert len(prints) == 3
    assert problem.with_importance([0.9, 0.1]).fingerprint() == before


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (np.int64, np.int32),
        (np.uint64, np.int32),
        (np.int32, np.int32),
        (np.uint8, np.uint8),
        (np.int8, np.int8),
        (np.bool_, np.bool_),
        (np.float16, np.float16),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (">f4", np.float32),
        (">i8", np.int32),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
def test_rows_keep_their_type_but_for_long_whole_numbers(kind, kept):
    data = [np.array([[1], [0]]).astype(kind), np.array([[1]]).astype(kind)]
    for problem in (
        Problem(lambda key: jnp.ones(1), lambda p, b: jnp.mean(b * p), data, test=data[0]),
        Problem.from_rows(lambda key: jnp.ones(1), lambda p, b: jnp.mean(b * p), np.concatenate(data), [[0, 1], [2]]),
    ):
        assert problem.rows.dtype == np.dtype(kept)
        assert problem.rows.dtype.isnative
        assert problem.rows[:, 0].astype(int).tolist() == [1, 0, 1]
        assert len(problem.fingerprint()) == 32


def test_rows_are_read_only_and_not_those_given():
    own, test = client(3), client(2)
    problem = Problem(init, loss, [own], test=test)
    before = problem.fingerprint()
    own["x"][0, 0] = test["x"][0, 0] = 99.0
    assert problem.rows["x"][0, 0] == problem.test["x"][0, 0] == 0.0
    assert own["x"].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        problem.client_data(0)["x"][0, 0] = 1.0
    assert Problem(init, loss, [client(3)], test=client(2)).fingerprint() == before


def test_every_part_of_a_problem_shows_in_its_fingerprint():
    def other_shape(key):
        return {"w": jnp.zeros(3), "b": jnp.zeros((1,))}

    base = {"init": init, "data": ragged([2, 3]), "test": client(2), "importance": "uniform"}
    changes = [
        {},
        {"data": ragged([3, 2])},
        {"data": [client(2), client(3)]},
        {"data": [client(2, kind=np.float64), client(3, start=2, kind=np.float64)], "test": client(2, kind=np.float64)},
        {"test": None},
        {"test": client(3)},
        {"test": client(2, start=1)},
        {"importance": "rows"},
        {"init": other_shape},
    ]

    def line(params, batch):
        return jnp.mean(batch["x"] @ params["w"] + params["b"] - batch["y"])

    prints = [Problem(**{**base, **change, "loss": line}).fingerprint() for change in changes]
    assert len(set(prints)) == len(prints)
    assert prints[0] == Problem(**base, loss=line, name="another name").fingerprint()


def _with(leaf, value):
    changed = client(3)
    changed[leaf] = value
    return changed


def _nan(row):
    return _with("x", np.where(np.arange(3)[:, None] == row, np.nan, np.ones((3, 3))).astype(np.float32))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "no clients"),
        (client(3), "data: a dict was given"),
        (5, "data: int is not a list"),
        ([client(3), client(2), client(0)], "client 2 has no rows"),
        ([client(3), client(2, width=4)], r"client 1: leaf x has shape \(2, 4\), that of client 0 has shape \(3, 3\)"),
        ([client(3), client(2, kind=np.float64)], "client 1: leaf x holds float64, that of client 0 holds float32"),
        ([client(3), (1, 2)], r"client 1 holds \(\*, \*\), client 0 holds \{'x': \*, 'y': \*\}"),
        ([client(3), _with("y", np.ones(4, np.float32))], "client 1: leaf y has 4 rows, leaf x has 3"),
        ([client(3), _nan(2)], "client 1: leaf x holds nan in row 2"),
        ([_with("y", np.array([1, -np.inf, 2], np.float32))], "client 0: leaf y holds -inf in row 1"),
        ([_with("y", np.array(["a", "b", "c"]))], "client 0: leaf y holds <U1"),
        ([_with("y", np.array([1, None, {}]))], "client 0: leaf y holds object"),
        ([_with("y", np.ones(3, complex))], "client 0: leaf y holds complex128"),
        ([_with("y", np.array([0, 1, 2**31]))], "client 0: leaf y holds 2147483648, beyond 32 bits"),
        ([_with("y", np.array([0, 1, -(2**31) - 1]))], "client 0: leaf y holds -2147483649"),
        ([{"x": [[1.0, 2.0, 3.0]], "y": [1.0]}], "leaf x.0.0 is a single value"),
        ([{"x": None, "y": None}], "client 0 holds no arrays"),
    ],
)
def test_data_that_cannot_work_are_refused(data, said):
    with pytest.raises(InputError, match=said):
        Problem(init, loss, data)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"test": (1, 2)}, r"test holds \(\*, \*\), the clients hold"),
        ({"test": client(2, width=2)}, r"test: leaf x has shape \(2, 2\), that of the clients"),
        ({"test": client(2, kind=np.float64)}, "test: leaf x holds float64"),
        ({"test": client(0)}, "test has no rows"),
        ({"test": _nan(1)}, "test: leaf x holds nan in row 1"),
        ({"importance": "row"}, "importance: 'row' is not known"),
        ({"importance": [1]}, "importance: 1 values for 2 clients"),
        ({"importance": 3}, "importance: 3; give"),
        ({"init": lambda key: None}, r"init\(key\) does not return arrays"),
        ({"init": lambda key: {"w": jnp.arange(3)}}, "leaf w holds int32"),
        ({"init": lambda key: "w"}, r"init\(key\) fails"),
        ({"init": lambda: 0.0}, r"init\(key\) fails \(TypeError"),
        ({"loss": lambda p, b: (b["x"] @ p["w"]) ** 2}, r"loss\(params, batch\) is not a scalar: its shape is \(2,\)"),
        ({"loss": lambda p, b: (0.0, 1.0)}, "returns 2 values in a tuple"),
        ({"loss": lambda p, b: jnp.sum(b["x"] > 0)}, "is a int32"),
        ({"loss": 3}, "loss: 3 is not a function"),
        ({"metrics": {"hits": lambda p, b: b["x"]}}, r"metric 'hits'\(params, batch\) is not a scalar"),
    ],
)
def test_functions_and_settings_that_cannot_work_are_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        Problem(**{"init": init, "loss": loss, "data": ragged([2, 3]), **arguments})


def test_a_loss_that_fails_is_named_with_its_shapes_and_its_cause():
    with pytest.raises(
        InputError, match=r"w: float32\[3\].* a batch \(x: float32\[2, 4\], y: float32\[2\]\)"
    ) as caught:
        Problem(init, loss, [client(2, width=4)])
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "no clients"),
        ([[0, 1], []], "client 1 has no rows"),
        ([[0], [5]], "parts of client 1: there is no row 5; rows are 0 to 4"),
        ([[0], [-1]], "parts of client 1: there is no row -1"),
        ([[True, False]], "parts of client 0: an array bool"),
        ([[[0, 1]]], "parts of client 0"),
    ],
)
def test_parts_that_cannot_work_are_refused(parts, said):
    with pytest.raises(InputError, match=said):
        Problem.from_rows(init, loss, client(5), parts)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_client_that_is_not_there_is_refused(wrong):
    with pytest.raises(InputError, match="clients are 0 to 1"):
        Problem(init, loss, ragged([2, 3])).client_data(wrong)


def test_large_finite_numbers_are_accepted():
    data = [np.full((4, 1), 3e38, np.float32)]  # their sum is not finite
    assert Problem(lambda key: jnp.ones(1), lambda p, b: jnp.mean(b * p), data).num_rows == 4


_OWN = """
import jax.numpy as jnp
import numpy as np
from fedtempo.problems import Problem

constant = 3

def points(rows, shift=0.0):
    return Problem(lambda key: jnp.zeros(1), lambda p, b: jnp.mean((b - p) ** 2), [np.full((rows, 1), shift)])

def nothing():
    return 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_points.py").write_text(_OWN)
    (tmp_path / "my_broken.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "my_mistake.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("my_points", "my_broken", "my_mistake"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own_module")
def test_a_function_of_ones_own_makes_the_problem():
    path = list(sys.path)
    problem = named({"name": "my_points:points", "rows": 4, "shift": 2.0})
    assert problem.num_rows == 4
    assert float(problem.rows[0, 0]) == 2.0
    assert sys.path == path


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "has no name; give name = one of digits, mnist, cifar10, shakespeare, quadratics"),
        ({"name": "digit"}, r"'digit' is not known; did you mean digits\? Known: digits, mnist, cifar10"),
        (
            {"name": "digits", "client": 3},
            r"digits: the key 'client' does not exist; did you mean clients\? Known: clients, partition, seed, test",
        ),
        ({"name": "my_points:points"}, "my_points:points: it needs rows; .* it takes rows, shift"),
        ({"name": "my_points:points", "rows": 1, "shape": 2}, "the key 'shape' does not exist; use one of rows, shift"),
        ({"name": "my_points:nothing"}, "returned a int; it must return a fedtempo.Problem"),
        ({"name": "my_points:constant"}, "my_points:constant is a int; it must be a fedtempo.Problem, or make one"),
        ({"name": "my_points:lines"}, "my_points:lines is not in it; my_points has"),
        ({"name": "my_pointz:points"}, "there is no module 'my_pointz'"),
        ({"name": "my_broken:points"}, "importing my_broken fails: No module named 'a_module_that_is_not_there'"),
        ({"name": "my_mistake:points"}, "importing my_mistake fails: ZeroDivisionError"),
        ({"name": "my points:points"}, "is not an import path"),
        ({"name": ":points"}, "is not an import path"),
    ],
)
def test_a_problem_that_cannot_be_found_is_refused(spec, said):
    with pytest.raises(InputError, match=said):
        named(spec)


def test_a_built_in_problem_by_name():
    problem = named({"name": "digits", "clients": 3, "partition": "dirichlet:0.5", "seed": 2})
    assert problem.fingerprint() == digits(3, "dirichlet:0.5", seed=2).fingerprint()
    assert json.loads(json.dumps(problem.spec())) == problem.spec()
    other = problem.with_importance("rows")
    assert named({"name": "digits", **other.spec()["arguments"]}).fingerprint() == other.fingerprint()
    assert problem.spec()["arguments"]["importance"] == "uniform"


def test_problems_are_imported_without_scikit_learn():
    code = "import sys, fedtempo.problems as p; print(callable(p.digits), callable(p.quadratics), *sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    said = found.stdout.split()
    assert said[:2] == ["True", "True"]
    assert "jax" in said
    assert "sklearn" not in said
