"""A problem that every seed deals anew: what it is made of, and what it refuses."""

from __future__ import annotations

import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems.naming import EACH
from fedtempo.problems.redealt import EachSeed, Redealt, problem_of

SIZES = (5, 9, 3, 7)
BOUNDS = np.cumsum(SIZES)[:-1]


def init(key):
    return {"w": 0.1 * jax.random.normal(key, (3,))}


def loss(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) - batch["y"]) ** 2)


def error(params, batch):
    return jnp.mean(jnp.abs(batch["x"] @ params["w"] - batch["y"]))


def rows(seed, count=24):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(count, 3)), "y": rng.normal(size=count)}


def dealt(seed, tested="none", **changed):
    """Clients of unlike sizes; test rows of nobody, of everybody, or of each client."""
    more = {} if tested == "none" else {"test": rows(seed + 100, 11)}
    if tested == "own":
        more["test_parts"] = np.split(np.arange(11), [2, 5, 6])
    given = {"init": init, "loss": loss, "rows": rows(seed), "parts": np.split(np.arange(24), BOUNDS)}
    given |= {"importance": "rows", "metrics": {"error": error}, **more, **changed}
    return ft.Problem.from_rows(given.pop("init"), given.pop("loss"), given.pop("rows"), given.pop("parts"), **given)


def test_each_deal_is_the_problem_of_its_seed():
    made = Redealt.of(dealt, [3, 0, 5])
    assert made.deal_of([5, 3]) == [2, 0]
    for seed in (3, 0, 5):
        assert made.for_seed(seed).fingerprint() == dealt(seed).fingerprint()
    assert [deal.fingerprint() for deal in made.deals] == [dealt(seed).fingerprint() for seed in (3, 0, 5)]


def test_the_fingerprint_is_that_of_all_deals_and_seeds():
    whole = Redealt.of(dealt, [0, 1, 2]).fingerprint()
    assert Redealt.of(dealt, [0, 1, 2]).fingerprint() == whole
    assert Redealt.of(lambda seed: dealt(9 if seed == 2 else seed), [0, 1, 2]).fingerprint() != whole
    assert Redealt.of(lambda seed: dealt(2 - seed), [0, 1, 2]).fingerprint() != whole
    assert Redealt.of(dealt, [0, 1]).fingerprint() != whole
    assert Redealt.of(lambda seed: dealt(seed - 5), [5, 6, 7]).fingerprint() != whole


def test_it_says_what_makes_it_again():
    def digits(seed):
        return ft.problems.digits(clients=4, partition="dirichlet:0.3", seed=seed)

    spec = Redealt.of(digits, [0, 7]).spec()
    assert (spec["name"], spec["arguments"]["seed"], spec["arguments"]["clients"]) == ("digits", EACH, 4)
    for other in (
        lambda seed: ft.problems.digits(clients=4, seed=7),
        lambda seed: ft.problems.digits(clients=4, partition=("iid", "dirichlet:0.3")[seed], seed=seed),
    ):
        spec = Redealt.of(other, [0, 1]).spec()
        assert "arguments" not in spec
        assert spec["seed"] == EACH
    assert Redealt.of(dealt, [0, 1]).spec()["seed"] == EACH
    assert "description" not in Redealt.of(lambda seed: dealt(seed, description=f"deal {seed}"), [0, 1]).spec()


def test_it_is_sent_to_other_processes():
    made = Redealt.of(dealt, [4, 2])
    again = pickle.loads(pickle.dumps(made))
    assert isinstance(again, Redealt)
    assert again.fingerprint() == made.fingerprint()
    assert again.deal_of([2]) == [1]


# -- what cannot be trained together


def shifted(by):
    """A loss that holds a number inside a compiled function."""
    inner = jax.jit(lambda x: x - by)
    return lambda params, batch: jnp.mean((inner(batch["x"]) @ params["w"]) ** 2)


def with_own_gradient(factor):
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (factor * g * x,))
    return lambda params, batch: jnp.mean(square(batch["x"] @ params["w"]))


def with_state(start):
    return {
        "loss": lambda params, batch, key, state: (loss(params, batch), state),
        "state": start,
        "metrics": {},
    }


FEWER = "deal equally many to each client, or run the partitions one by one"
FUNCTIONS = "its functions compute something else under the seeds 0 and 1; only the rows may depend on the seed"
REFUSED = {
    "clients": (
        lambda s: ft.problems.quadratics(clients=4 + s),
        "4 and 5 clients under the seeds 0 and 1; make as many",
    ),
    "rows": (
        lambda s: dealt(s, parts=np.split(np.arange(24), [5, 14 + s, 17])),
        f"client 1 has 9 and 10 rows under the seeds 0 and 1; {FEWER}",
    ),
    "test rows": (
        lambda s: dealt(s, test=rows(9, 4 + s)),
        f"there are 4 and 5 test rows under the seeds 0 and 1; {FEWER}",
    ),
    "own test rows": (
        lambda s: dealt(s, test=rows(9, 8), test_parts=np.split(np.arange(8), [2, 4 + s, 6])),
        f"client 1 has 2 and 3 test rows under the seeds 0 and 1; {FEWER}",
    ),
    "test rows of one": (
        lambda s: dealt(s, ("none", "all")[s]),
        f"there are not as many test rows under the seeds 0 and 1; {FEWER}",
    ),
    "whose test rows": (lambda s: dealt(s, ("all", "own")[s]), "there are not as many test rows"),
    "importance": (
        lambda s: dealt(s, importance=("uniform", "rows")[s]),
        "clients are not as important under the seeds 0 and 1; give the same importance",
    ),
    "penalty": (lambda s: ft.problems.digits(clients=4, l2=0.1 * s), FUNCTIONS),
    "first model": (lambda s: dealt(s, init=lambda key: {"w": jnp.full(3, float(s))}), FUNCTIONS),
    "number inside": (lambda s: dealt(s, loss=shifted(np.arange(3.0) + s)), FUNCTIONS),
    "gradient": (lambda s: dealt(s, loss=with_own_gradient(2.0 + s)), FUNCTIONS),
    "metric": (lambda s: dealt(s, metrics={"m": lambda params, batch: s * loss(params, batch)}), FUNCTIONS),
    "metric's name": (lambda s: dealt(s, metrics={f"m{s}": loss}), FUNCTIONS),
    "state": (lambda s: dealt(s, **with_state({"m": np.float32(s)})), FUNCTIONS),
    "type of the rows": (lambda s: dealt(s, rows={**rows(s), "y": np.zeros(24, ("f4", "i4")[s])}), FUNCTIONS),
    "names of the rows": (
        lambda s: dealt(s, rows={"xu"[s]: rows(s)["x"]}, loss=lambda p, b: jnp.mean(b["xu"[s]] @ p["w"]), metrics={}),
        FUNCTIONS,
    ),
    "nothing": (lambda s: None, "a function was given, and for seed 0 it returns None; let it return an ft.Problem"),
    "nothing later": (lambda s: None if s else dealt(0), "for seed 1 it returns None"),
    "no seed": (lambda: dealt(0), "the function takes no seed; call it, or give one from a seed to a problem"),
    "not called": (
        ft.problems.digits,
        "digits was not called; give ft.problems.digits(), or lambda seed: ft.problems.digits(seed=seed)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_only_rows_may_differ_in(what):
    make, said = REFUSED[what]
    with pytest.raises(ft.InputError, match=re.escape(said)) as refused:
        Redealt.of(make, [0, 1])
    assert "\n" not in str(refused.value)


def test_equal_functions_may_be_other_objects():
    for given in (
        lambda s: {"loss": shifted(np.arange(3.0))},
        lambda s: {"loss": with_own_gradient(2.0)},
        lambda s: with_state({"m": np.zeros((), "f4")}),
        lambda s: {"metrics": {"m": lambda params, batch: loss(params, batch)}},
    ):
        assert len(Redealt.of(lambda s, given=given: dealt(s, **given(s)), [0, 1]).deals) == 2


def test_rows_on_disk_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", rows(0)["x"])
    whole = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(ft.InputError, match="made of JAX functions and rows in memory; give a function that"):
        Redealt.of(lambda s: ft.Problem(init, lambda p, b: jnp.mean(b @ p["w"]), np.split(whole, BOUNDS)), [0, 1])


class Foreign(ft.Problem):
    framework = "other"


def test_functions_of_another_framework_are_refused():
    with pytest.raises(ft.InputError, match="made of JAX functions and rows in memory; give a function that"):
        Redealt.of(lambda seed: Foreign(init, loss, [rows(seed, 4)]), [0, 1])


def test_modules_are_refused():
    torch = pytest.importorskip("torch")

    def make(seed):
        data = [(rng.normal(size=(4, 3)), rng.integers(0, 2, 4)) for rng in (np.random.default_rng(seed),)]
        return ft.torch.problem(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, data)

    with pytest.raises(ft.InputError, match="made of JAX functions and rows in memory; give a function that"):
        Redealt.of(make, [0, 1])


# -- tables of study files


def test_a_table_whose_seed_is_each_is_a_function_of_the_seed():
    table = {"name": "digits", "clients": 4, "partition": "dirichlet:0.3", "seed": EACH}
    each = problem_of(table)
    assert isinstance(each, EachSeed)
    assert each.num_clients == 4
    assert each(3).fingerprint() == ft.problems.digits(clients=4, partition="dirichlet:0.3", seed=3).fingerprint()
    assert problem_of({**table, "seed": 3}).fingerprint() == each(3).fingerprint()
    several = problem_of({k: v for k, v in table.items() if k != "clients"}, 6)
    assert several.num_clients == several(1).num_clients == 6
    with pytest.raises(ft.InputError, match=re.escape('seed = "each" is for studies (fedtempo run)')):
        ft.problems.named(table)


def test_a_table_of_what_takes_no_seed_is_refused(tmp_path, monkeypatch):
    (tmp_path / "without_seed.py").write_text(
        "import fedtempo as ft\ndef fixed(clients=4):\n    return ft.problems.digits(clients)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ft.InputError, match=r'without_seed:fixed takes no seed .* leave seed = "each" out'):
        problem_of({"name": "without_seed:fixed", "seed": EACH})
