"""The federated problem: L(θ) = Σ_i p_i L_i(θ), with L_i the mean loss of client i's rows (section 2.1, equation 1).

θ is `params`, any pytree of floating arrays; p_i is `importance`; M is `num_clients`. A problem has two functions:
init(key) gives θ, and loss(params, batch) is the mean of ℓ(θ; row) over the batch's rows. forms.py has the forms of a
loss that also takes a key, or a key and a state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact, text
from fedtempo.errors import InputError
from fedtempo.problems.forms import (
    Loss,
    LossForm,
    first_line,
    is_function,
    metric_form,
    num_required,
    state_of,
    state_shapes,
)
from fedtempo.problems.mapped import blocks, by_place, mapped_again
from fedtempo.problems.rows import Ints, Tree, check_finite, deal, described, gather, leaf_names, like
from fedtempo.registry import MADE

Init = Callable[[jax.Array], Tree]
"""init(key) -> params"""


def shapes_of(init: Init) -> Tree:
    """The parameters' shapes, without making them."""
    try:
        shapes = jax.eval_shape(lambda: init(jax.random.key(0)))
    except Exception as error:
        raise InputError(
            f"init(key) fails ({first_line(error)}); it takes a jax.random key and returns a pytree of floating arrays"
        ) from error
    leaves = jax.tree.leaves(shapes)
    if not leaves:
        raise InputError("init(key) does not return arrays; return the parameters, a pytree of floating arrays")
    for name, leaf in zip(leaf_names(shapes), leaves, strict=True):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(f"init(key): {name} holds {leaf.dtype}; parameters are trained, so make it floating")
    return shapes


def _two_rows(leaf: Any) -> jax.ShapeDtypeStruct:
    """Of the type in which the rows are handed to the functions: floating ones in JAX's own."""
    kind = jnp.result_type(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
    return jax.ShapeDtypeStruct((2, *leaf.shape[1:]), kind)  # type: ignore[no-untyped-call]


def check_mean(function: Loss, params: Tree, rows: Tree, what: str, **more: Any) -> None:
    """Refuses a function that is not a scalar of (params, a batch of such rows), without running it.

    `more` are the arguments after these, by name: a key or None, the shapes of a state.
    """
    call = f"({', '.join(('params', 'batch', *more))})"
    if not callable(function):
        raise InputError(f"{what}: {function!r} is not a function of {call}")
    batch = jax.tree.map(_two_rows, rows)
    given = f"parameters {described(params)} and a batch {described(batch)}"
    call = f"{what}{call}"
    try:
        found = jax.eval_shape(function, params, batch, *more.values())
    except InputError:
        raise
    except Exception as error:
        without = " without a key" if "key" in more and more["key"] is None else ""
        raise InputError(f"{call} fails{without} on {given}: {first_line(error)}") from error
    if not isinstance(found, jax.ShapeDtypeStruct):
        raise InputError(
            f"{call} returns {len(jax.tree.leaves(found))} values in a "
            f"{type(found).__name__}; return one scalar, the mean over the batch's rows"
        )
    if found.shape != ():
        raise InputError(
            f"{call} is not a scalar: its shape is {found.shape} on {given}; return the mean over the batch's rows"
        )
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise InputError(f"{call} is a {found.dtype}; return a floating scalar, the mean over the rows")


Weighting = str | Iterable[Exact] | Importance
"""What is accepted for importance: "uniform", "rows", or one value per client."""


class Problem:
    """Clients' rows, a loss and the importance of each client.

    `init(key)` gives parameters, any pytree of floating arrays. `loss(params, batch)` is the mean loss of the batch's
    rows. `loss(params, batch, key)` may draw from `key`, in training; where a model is measured the key is None. With
    `state`, a pytree of arrays or a function of the key that `init` gets, `loss(params, batch, key, state)` returns
    (mean loss, new state): running statistics, which are averaged and not trained.

    `data` has one array, or one pytree of arrays, per client: rows first, lengths as they come. `test` is a tree of the
    same kind. `metrics` maps names to functions like `loss`, such as an accuracy, of (params, batch) or of (params,
    batch, state). `importance` is "uniform", "rows" (in proportion to row counts) or one value per client. `arguments`
    are those of the function that made a problem with this name; `spec` repeats them.

    The clients' rows lie end to end in `rows`, a tree of read-only NumPy arrays: client i owns rows `offsets[i]` up to
    `offsets[i + 1]`. Whole numbers of 64 bits are kept in 32. Memory-mapped arrays (``mmap_mode="r"``)
    in which rows lie client after client stay on disk, and a study reads the rows as its batches need them.

    Example:
        >>> import jax.numpy as jnp
        >>> def init(key):
        ...     return {"slope": jnp.zeros(()), "offset": jnp.zeros(())}
        >>> def loss(params, batch):
        ...     x, y = batch
        ...     return jnp.mean((params["slope"] * x + params["offset"] - y) ** 2)
        >>> x = np.linspace(-1, 1, 40)
        >>> problem = ft.Problem(init, loss, data=[(x[:10], 2 * x[:10]), (x[10:], 2 * x[10:] + 0.5)], importance="rows")
        >>> print(problem)
        Problem(problem: 2 clients, 40 rows, 2 parameters)
        >>> history = ft.simulate(problem, ft.FedFix(1), ft.FixedTimes([2, 1]), until=200, local=ft.LocalSGD(lr=0.3))
        >>> {name: round(float(value), 1) for name, value in history.model().params.items()}
        {'offset': 0.4, 'slope': 2.3}
    """

    framework: ClassVar[str] = "jax"
    """What its functions are written in."""
    init: Init
    loss: Loss
    form: LossForm
    """What the loss takes, and the loss as it is trained on and as it is measured."""
    metrics: dict[str, Loss]
    state: Any
    """The state to begin with, or a function of a key that makes one; None if there is none."""
    rows: Tree
    offsets: Ints
    test: Tree | None
    test_offsets: Ints | None
    """Where each client's test rows begin; None: they are everybody's."""
    importance: Importance
    name: str
    description: str | None

    _NOT_SENT: ClassVar[tuple[str, ...]] = ("form", "_fingerprint")
    """To other processes, where `_complete` makes it again."""

    def __init__(
        self,
        init: Init,
        loss: Loss,
        data: Iterable[Tree],
        *,
        test: Tree | None = None,
        importance: Weighting = "uniform",
        metrics: Mapping[str, Loss] | None = None,
        state: Any = None,
        name: str = "problem",
        description: str | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        self._set(
            init, loss, *gather(data, mapped=True), test, None, importance, metrics, state, name, description, arguments
        )

    @classmethod
    def from_rows(
        cls,
        init: Init,
        loss: Loss,
        rows: Tree,
        parts: Sequence[Any],
        *,
        test: Tree | None = None,
        test_parts: Sequence[Any] | None = None,
        importance: Weighting = "uniform",
        metrics: Mapping[str, Loss] | None = None,
        state: Any = None,
        name: str = "problem",
        description: str | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> Self:
        """From one tree of rows and, per client, the indices of its rows, as a partition gives them.

        With `test_parts`, the indices of each client's own test rows, test measures are means over clients, weighted by
        importance, of the means over their rows; without, means over all test rows.
        """
        made = cls.__new__(cls)
        sizes = None
        if test_parts is not None:
            if test is None or len(test_parts) != len(parts):
                raise InputError(
                    f"test_parts: {len(test_parts)} for {len(parts)} clients; give test rows, and one each"
                )
            test, sizes = deal(test, test_parts)
        made._set(init, loss, *deal(rows, parts), test, sizes, importance, metrics, state, name, description, arguments)
        return made

    def _set(
        self,
        init: Init,
        loss: Loss,
        rows: Tree,
        sizes: Ints,
        test: Tree | None,
        test_sizes: Ints | None,
        importance: Weighting,
        metrics: Mapping[str, Loss] | None,
        state: Any,
        name: str,
        description: str | None,
        arguments: Mapping[str, object] | None,
    ) -> None:
        self.init, self.loss, self.metrics, self.state = init, loss, dict(metrics or {}), state
        self.name, self.description = str(name), description
        self._arguments = None if arguments is None else {key: _plain(value) for key, value in arguments.items()}
        self._pooled = False
        self.rows = rows
        self.offsets = _bounds(sizes)
        check_finite(rows, self.offsets)
        self.test = None if test is None else like(test, rows, "test")
        self.test_offsets = None if test_sizes is None else _bounds(test_sizes)
        if test is not None:
            check_finite(self.test, None)
        self._weigh(importance, sizes)
        self._check_functions()

    def _check_functions(self) -> None:
        """Finds their forms, and refuses what is none, without running them."""
        check = partial(check_mean, params=self.parameter_shapes, rows=self.rows)
        self._complete()
        form = self.form
        state = {"state": self.state_shapes} if form.stateful else {}
        if form.plain:
            check(self.loss, what="loss")
        else:
            check(form.checked, what="loss", key=jax.eval_shape(lambda: jax.random.key(0)), **state)
            check(form.checked, what="loss", key=None, **state)
        for name, function in self.metrics.items():
            metric_form(function, name, self.state)
            check(function, what=f"metric {name!r}", **(state if num_required(function) == 3 else {}))

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        """Rows of all clients together."""
        return int(self.offsets[-1])

    @property
    def sizes(self) -> Ints:
        """Rows of each client."""
        return np.diff(self.offsets)

    @cached_property
    def parameter_shapes(self) -> Tree:
        """The parameters' tree, with a `jax.ShapeDtypeStruct` for each array."""
        return shapes_of(self.init)

    @property
    def num_parameters(self) -> int:
        """Numbers in one model."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.parameter_shapes))

    @cached_property
    def state_shapes(self) -> Tree:
        """The state's tree, with a `jax.ShapeDtypeStruct` for each array; () if there is none."""
        return state_shapes(self.state)

    def initial_state(self, key: jax.Array) -> Tree:
        """The state to begin with, by the key that `init` gets; () if there is none."""
        return state_of(self.state, key)

    @property
    def metric_forms(self) -> dict[str, Callable[[Tree, Tree, Tree], Any]]:
        """The metrics as functions of (params, batch, state), as `form.evaluation` is the loss."""
        return {name: metric_form(function, name, self.state) for name, function in self.metrics.items()}

    def plain_loss(self, who: str) -> Loss:
        """loss(params, batch), for what knows no other form."""
        if not self.form.plain:
            raise InputError(
                f"{who} needs a loss of (params, batch) only, but this problem's takes a key"
                f"{' and a state' if self.form.stateful else ''}; give a problem without"
            )
        return self.loss

    @property
    def module_names(self) -> dict[str, str] | None:
        """Of a PyTorch module: the names of its state dict, each with the one that it is kept under; else None."""
        return None

    def fixed_arrays(self, seeds: Sequence[int]) -> dict[str, tuple[bool, NDArray[Any]]]:
        """Arrays of a module that are not trained: whether there is one for each of the seeds, and it."""
        return {}

    @property
    def deals(self) -> tuple[Problem, ...]:
        """The ways in which its data are dealt: one, unless every seed deals them anew (redealt.py)."""
        return (self,)

    def for_seed(self, seed: int) -> Problem:
        """The problem of a run under a seed."""
        return self

    def deal_of(self, seeds: Sequence[int]) -> list[int] | None:
        """For each seed, which of `deals` is its own; None where there is one."""
        return None

    def client_data(self, client: int) -> Tree:
        """The rows of one client, as views."""
        if not 0 <= client < self.num_clients:
            raise InputError(f"there is no client {client}; clients are 0 to {self.num_clients - 1}")
        own = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        return jax.tree.map(lambda leaf: leaf[own], self.rows)

    def test_data(self) -> list[Tree]:
        """The test rows, as views: of each client where they have their own, else as one; none if there are none."""
        if self.test is None:
            return []
        bounds = self.test_offsets if self.test_offsets is not None else [0, len(jax.tree.leaves(self.test)[0])]
        return [jax.tree.map(lambda leaf: leaf[int(a) : int(b)], self.test) for a, b in pairwise(bounds)]  # noqa: B023

    def pooled(self) -> Self:
        """The same rows with a single owner: its loss is the federated one under importance "rows"."""
        made = self._copy()
        made.offsets = _bounds(np.array([self.num_rows]))
        made.test_offsets = None
        made.importance = Importance(None, 1)
        made._pooled = True
        return made

    def with_importance(self, importance: Weighting) -> Self:
        """The same problem with other p_i."""
        made = self._copy()
        made._weigh(importance, self.sizes)
        return made

    def _weigh(self, importance: Weighting, sizes: Ints) -> None:
        self.importance = _importance(importance, sizes)
        if self._arguments is not None:
            given = isinstance(importance, str)
            self._arguments["importance"] = importance if given else [text(p) for p in self.importance.exact]

    def _complete(self) -> None:
        """What follows from the rest."""
        self.form = LossForm.of(self.loss, self.state)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: by its name, where that makes it again, else its functions and all of its rows."""
        from fedtempo.problems.naming import made_again, spec_again

        spec = spec_again(self)
        if spec is not None:
            return made_again, (spec, self._pooled, self.fingerprint())
        state = {name: value for name, value in self.__dict__.items() if name not in self._NOT_SENT}
        return _unpickled, (type(self), {**state, "rows": by_place(self.rows)})

    def _copy(self) -> Self:
        made = self.__class__.__new__(self.__class__)
        made.__dict__ |= self.__dict__
        for name in ("_fingerprint", MADE):
            made.__dict__.pop(name, None)
        made._arguments = None if self._arguments is None else dict(self._arguments)
        made.metrics = dict(self.metrics)
        return made

    def spec(self) -> dict[str, object]:
        """The problem as a JSON object; `arguments` with the name make a built-in one again."""
        found: dict[str, object] = {"name": self.name}
        state = self.form.stateful
        if self.description is not None:
            found["description"] = self.description
        if self._arguments is not None:
            found["arguments"] = dict(self._arguments)
        if self._pooled:
            found["pooled"] = True
        return {
            **found,
            "clients": self.num_clients,
            "rows": self.num_rows,
            "test_rows": 0 if self.test is None else len(jax.tree.leaves(self.test)[0]),
            "parameters": self.num_parameters,
            **({"state": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.state_shapes))} if state else {}),
            "metrics": list(self.metrics),
        }

    def fingerprint(self) -> str:
        """A digest of rows, owners, test rows, importance, the parameters' shapes and a state; not of the functions."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for part in ("rows", "test"):
            for name, leaf in zip(leaf_names(getattr(self, part)), jax.tree.leaves(getattr(self, part)), strict=True):
                digest.update(f"{part}/{name}/{leaf.dtype.name}/{leaf.shape};".encode())
                for block in blocks(leaf):
                    octets: Any = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
                    digest.update(octets)
        for bounds in (self.offsets, self.test_offsets):
            digest.update(b"" if bounds is None else bounds.astype("<i8").tobytes())
        digest.update(",".join(map(text, self.importance.exact)).encode())
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.parameter_shapes)]
        digest.update(f"{leaf_names(self.parameter_shapes)}/{shapes}".encode())
        if self.form.stateful:
            shapes = [leaf.shape for leaf in jax.tree.leaves(self.state_shapes)]
            digest.update(f"state/{leaf_names(self.state_shapes)}/{shapes}".encode())
            for leaf in () if is_function(self.state) else jax.tree.leaves(self.state):
                digest.update(np.ascontiguousarray(leaf).tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        counts = ((self.num_clients, "client"), (self.num_rows, "row"), (self.num_parameters, "parameter"))
        said = ", ".join(f"{count} {what}{'s' if count != 1 else ''}" for count, what in counts)
        return f"{type(self).__name__}({self.name}: {said})"


def _unpickled(kind: type[Problem], state: Mapping[str, Any]) -> Problem:
    """A problem of what another process has sent."""
    made = kind.__new__(kind)
    made.__dict__ |= state
    made.rows = mapped_again(made.rows)
    made._complete()
    return made


def _plain(value: object) -> object:
    """A value as JSON can hold it."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, (Fraction, Decimal)) else value


def _importance(given: Weighting, sizes: Ints) -> Importance:
    clients = len(sizes)
    if isinstance(given, str) and given == "uniform":
        return Importance(None, clients)
    if isinstance(given, str):
        if given != "rows":
            raise InputError(f'importance: {given!r} is not known; give "uniform", "rows" or one value per client')
        total = int(sizes.sum())
        return Importance([Fraction(int(size), total) for size in sizes], clients)
    if isinstance(given, Importance):
        return Importance(given.exact, clients)
    try:
        return Importance(given, clients)
    except TypeError as error:
        raise InputError(f'importance: {given!r}; give "uniform", "rows" or one value per client') from error


def _bounds(sizes: Ints) -> Ints:
    """Where groups of these sizes begin, and the end; read-only."""
    found = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    found.setflags(write=False)
    return found
