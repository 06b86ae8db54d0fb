"""Recurrent layers of PyTorch as a loop over time, which torchax would write out step by step.

    LSTM    i, f, g, o = σ(z_i), σ(z_f), tanh(z_g), σ(z_o);    c' = f c + i g;    h' = o tanh(c')
    GRU     r, u = σ(x_r + h_r), σ(x_u + h_u);    n = tanh(x_n + r h_n);    h' = (1 − u) n + u h
    RNN     h' = tanh(x + h)  or  max(0, x + h)

with x = W_ih x_t + b_ih for all times at once and h_· = W_hh h + b_hh, z = x + h. Layers follow one another, in one
direction or both, with dropout between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

State = tuple[jax.Array, ...]
Cell = Callable[[jax.Array, jax.Array, State], State]
"""(x_t's part, h's part, state) -> new state, whose first is h."""


def lstm_cell(x: jax.Array, h: jax.Array, state: State) -> State:
    """One step of an LSTM."""
    i, f, g, o = jnp.split(x + h, 4, axis=-1)
    c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru_cell(x: jax.Array, h: jax.Array, state: State) -> State:
    """One step of a GRU."""
    (x_r, x_u, x_n), (h_r, h_u, h_n) = jnp.split(x, 3, axis=-1), jnp.split(h, 3, axis=-1)
    u = jax.nn.sigmoid(x_u + h_u)
    return ((1 - u) * jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n) + u * state[0],)


def tanh_cell(x: jax.Array, h: jax.Array, state: State) -> State:
    """One step of a plain network."""
    return (jnp.tanh(x + h),)


def relu_cell(x: jax.Array, h: jax.Array, state: State) -> State:
    """One step of a plain network that bends by max(0, ·)."""
    return (jax.nn.relu(x + h),)


def walk(cell: Cell, x: jax.Array, start: State, weights: Sequence[jax.Array], backwards: bool) -> tuple[Any, State]:
    """[length, rows, hidden] and the last state, of inputs [length, rows, features] and W_ih, W_hh, b_ih, b_hh."""
    into, over, *biases = weights
    first, second = biases if biases else (jnp.zeros((), x.dtype),) * 2

    def step(state: State, now: jax.Array) -> tuple[State, jax.Array]:
        state = cell(now, state[0] @ over.T + second, state)
        return state, state[0]

    last, h = lax.scan(step, start, x @ into.T + first, reverse=backwards)
    return h, last


def layers(cell: Cell) -> Callable[..., Any]:
    """The function of torchax's tensors that has the arguments of torch.lstm, torch.gru and the like."""

    def run(
        x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if not isinstance(params, (list, tuple)):
            raise NotImplementedError("packed sequences are not supported; use padded ones")
        env, several = x._env, isinstance(hx, (list, tuple))
        h, starts, weights = env.t2j_iso((x, list(hx) if several else [hx], list(params)))
        if batch_first:
            h = h.swapaxes(0, 1)
        each, ways = 4 if has_biases else 2, 2 if bidirectional else 1
        if len(weights) != each * ways * num_layers:
            raise NotImplementedError("proj_size is not supported; use a linear layer after it")
        lasts: list[State] = []
        for layer in range(num_layers):
            found = []
            for way in range(ways):
                k = layer * ways + way
                own = weights[each * k : each * (k + 1)]
                out, last = walk(cell, h, tuple(start[k] for start in starts), own, way == 1)
                found.append(out)
                lasts.append(last)
            h = jnp.concatenate(found, axis=-1)
            if train and dropout > 0 and layer < num_layers - 1:
                kept = jax.random.bernoulli(env.get_and_rotate_prng_key(), 1 - dropout, h.shape)
                h = jnp.where(kept, h / (1 - dropout), 0) if dropout < 1 else jnp.zeros_like(h)
        ends = [jnp.stack(parts) for parts in zip(*lasts, strict=True)]
        return env.j2t_iso((h.swapaxes(0, 1) if batch_first else h, *ends))

    return run
