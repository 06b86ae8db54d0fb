"""The forms of a loss: what it takes is found from its signature.

    loss(params, batch)               → mean loss
    loss(params, batch, key)          → mean loss                   dropout, noise
    loss(params, batch, key, state)   → mean loss, new state        running statistics, as BatchNorm's
    metric(params, batch), metric(params, batch, state)             → mean over the batch's rows

In training `key` is a jax.random key; where a model is measured it is None, and what a loss then says of its state is
not looked at. A state is a pytree of arrays that are not trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedtempo.errors import InputError
from fedtempo.problems.rows import Tree, described, leaf_names

Loss = Callable[..., Any]
"""loss(params, batch), or with a key, or with a key and a state; metrics are of the same kind."""

_LOSSES = "loss(params, batch), loss(params, batch, key) or loss(params, batch, key, state)"


def num_required(function: Loss) -> int:
    """How many positional arguments a function must be given; 2 where that cannot be seen."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


@dataclass(frozen=True, eq=False)
class LossForm:
    """A loss, and which of the forms it has."""

    function: Loss
    keyed: bool = False
    stateful: bool = False

    @classmethod
    def of(cls, function: Loss, state: Any) -> LossForm:
        """The form of a loss; `state` is the problem's, None if it has none."""
        given = max(2, num_required(function))
        if given > 4:
            raise InputError(f"loss takes {given} arguments; write {_LOSSES}")
        if given == 4 and state is None:
            raise InputError("loss(params, batch, key, state) needs an initial state; give Problem(..., state=...)")
        if given < 4 and state is not None:
            raise InputError(
                f"state: the loss takes {given} arguments and no state; write loss(params, batch, key, state) -> (mean "
                "loss, new state), or leave out state="
            )
        return cls(function, given > 2, given == 4)

    @property
    def plain(self) -> bool:
        """Whether it is loss(params, batch)."""
        return not self.keyed

    def training(self, params: Tree, batch: Tree, key: jax.Array | None, state: Tree) -> tuple[Any, Tree]:
        """The loss of a step, and the state after it."""
        if self.stateful:
            value, new = self.function(params, batch, key, fresh(state))
            return value, jax.tree.map(lambda old, x: jnp.asarray(x, dtype=old.dtype), state, new)
        return (self.function(params, batch, key) if self.keyed else self.function(params, batch)), state

    def evaluation(self, params: Tree, batch: Tree, state: Tree) -> Any:
        """The loss of a model as it is measured: without a key."""
        if not self.stateful:
            return self.function(params, batch, None) if self.keyed else self.function(params, batch)
        found = self.function(params, batch, None, fresh(state))
        return found[0] if isinstance(found, tuple) else found

    def checked(self, params: Tree, batch: Tree, key: jax.Array | None, state: Tree = ()) -> Any:
        """The loss, refused where it does not return what its form says."""
        if key is None:
            return self.evaluation(params, batch, state)
        if not self.stateful:
            return self.function(params, batch, key)
        found = self.function(params, batch, key, fresh(state))
        if not (isinstance(found, tuple) and len(found) == 2):
            raise InputError("loss(params, batch, key, state) does not return a pair; return (mean loss, new state)")
        if not _alike(found[1], state):
            was, now = (described(jax.tree.map(jnp.asarray, tree)) for tree in (state, found[1]))
            raise InputError(
                f"loss(params, batch, key, state) was given a state {was} and returns {now}; return the same arrays, "
                "with new values"
            )
        return found[0]


def metric_form(function: Loss, name: str, state: Any) -> Callable[[Tree, Tree, Tree], Any]:
    """A metric as a function of (params, batch, state)."""
    given = max(2, num_required(function))
    if given > 3 or (given == 3 and state is None):
        why = f"takes {given} arguments" if given > 3 else "takes a state, and the problem has none"
        raise InputError(
            f"metric {name!r} {why}; write metric(params, batch), or metric(params, batch, state) beside a state="
        )
    if given == 3:
        return lambda params, batch, state: function(params, batch, fresh(state))
    return lambda params, batch, state: function(params, batch)


def fresh(state: Tree) -> Tree:
    """The same state in containers of its own: functions may change, or use up, those that they are given."""
    return jax.tree.map(lambda x: x, state)


def state_shapes(state: Any) -> Tree:
    """The shapes of a state, given as a pytree or as a function of a key; () of none."""
    if state is None:
        return ()
    try:
        shapes = jax.eval_shape(lambda: state_of(state, jax.random.key(0)))
    except Exception as error:
        raise InputError(
            f"state: making it fails ({first_line(error)}); give a pytree of arrays, or a function of a jax.random "
            "key that makes one"
        ) from error
    leaves = jax.tree.leaves(shapes)
    if not leaves:
        raise InputError("state: there are no arrays in it; give a pytree of arrays, or leave it out")
    for name, leaf in zip(leaf_names(shapes), leaves, strict=True):
        numbers = any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
        if not numbers:
            raise InputError(f"state: {name} holds {leaf.dtype}; give numbers, and use the key for random values")
    return shapes


def state_of(state: Any, key: jax.Array) -> Tree:
    """The state to begin with; () of none."""
    if state is None:
        return ()
    made = state(key) if is_function(state) else state
    return jax.tree.map(jnp.asarray, made)


def is_function(state: Any) -> bool:
    """Whether it makes a state: a pytree that can be called is a state itself."""
    return callable(state) and jax.tree.leaves(state) == [state]


def _alike(one: Tree, other: Tree) -> bool:
    """Whether two states have the same arrays, but for the precision of floating ones."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (one, other)]
    return structures[0] == structures[1] and all(
        jnp.shape(a) == b.shape
        and jnp.issubdtype(jnp.result_type(a), jnp.floating) == jnp.issubdtype(b.dtype, jnp.floating)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def first_line(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
