"""Which rows a job trains on: they depend on (seed, client, job) alone (randomness is named); and keys for the rest.

    uniform   row = ⌊bits · n_i / 2³²⌋ for fresh 32-bit words, with replacement
    epochs    the client's rows in the order of a permutation, a new one each epoch; jobs go on where the last one ended

K is `steps`, B is `batch_size`, n_i is `size`. The words are Threefry's, the same in 32 and 64 bits, on CPU and GPU.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedtempo.clock.streams import stream_key

Draw = Literal["uniform", "epochs"]
DRAWS: tuple[Draw, ...] = ("uniform", "epochs")

_FEISTEL_ROUNDS = 10


def batch_key(seed: int) -> jax.Array:
    """The key of all batches under `seed`."""
    return _key("batches", seed)


def compression_key(seed: int) -> jax.Array:
    """The key of all compression under `seed`."""
    return _key("compression", seed)


def noise_key(seed: int) -> jax.Array:
    """The key of all that losses draw in training under `seed`: dropout, noise."""
    return _key("noise in training", seed)


def step_key(key: jax.Array, step: jax.Array | int) -> jax.Array:
    """The key of one step, of the key of its job."""
    return jax.random.fold_in(key, step)


def job_key(key: jax.Array, client: jax.Array | int, job: jax.Array | int) -> jax.Array:
    """The key of one job of one client."""
    return jax.random.fold_in(jax.random.fold_in(key, client), job)


def init_key(seed: int) -> jax.Array:
    """The key of the initial model under `seed`."""
    return _key("model", seed)


def _key(name: str, seed: int) -> jax.Array:
    words = jnp.asarray(np.array(stream_key(name, seed), dtype=np.uint32))
    key: jax.Array = jax.random.wrap_key_data(words, impl="threefry2x32")
    return key


def job_rows(
    key: jax.Array, client: jax.Array, job: jax.Array, size: jax.Array, *, steps: int, batch_size: int, draw: Draw
) -> jax.Array:
    """[steps, batch_size] which of its `size` rows a job of a client trains on."""
    own = jax.random.fold_in(key, client)
    if draw == "epochs":
        return _in_epochs(own, job, size, steps, batch_size)
    with jax.threefry_partitionable(True):
        bits = jax.random.bits(jax.random.fold_in(own, job), (steps, batch_size), jnp.uint32)
    rows: jax.Array = scaled(bits, size.astype(jnp.uint32)).astype(jnp.int32)
    return rows


def scaled(bits: jax.Array, size: jax.Array) -> jax.Array:
    """⌊bits · size / 2³²⌋, the high word of a 64-bit product made of 16-bit halves."""
    low, high = bits & 0xFFFF, bits >> 16
    size_low, size_high = size & 0xFFFF, size >> 16
    middle = (low * size_low >> 16) + (high * size_low & 0xFFFF) + (low * size_high & 0xFFFF)
    return high * size_high + (high * size_low >> 16) + (low * size_high >> 16) + (middle >> 16)


def _in_epochs(key: jax.Array, job: jax.Array, size: jax.Array, steps: int, batch_size: int) -> jax.Array:
    """Rows number job·K·B … of the client's endless sequence of permutations."""
    size = size.astype(jnp.uint32)
    place = jnp.arange(steps * batch_size, dtype=jnp.uint32)
    per_job = jnp.uint32(steps * batch_size)
    epoch, start = _times(job.astype(jnp.uint32), per_job, size)
    epoch, place = epoch + (start + place) // size, (start + place) % size
    keys = jax.vmap(lambda e: jax.random.key_data(jax.random.fold_in(key, e)))(epoch)
    rows = jax.vmap(permuted, (0, 0, None))(keys, place, size)
    return rows.astype(jnp.int32).reshape(steps, batch_size)


def _times(a: jax.Array, b: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a·b as (quotient, remainder) by `size`, by doubling: exact while the quotient fits 32 bits and size < 2³¹."""

    def bit(k: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        quotient, rest = carry[0] * 2, carry[1] * 2
        quotient, rest = quotient + rest // size, rest % size
        add = (a >> (31 - k) & 1) * b
        rest = rest + add % size
        return quotient + add // size + rest // size, rest % size

    zero = jnp.zeros_like(size)
    product: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(0, 32, bit, (zero, zero))
    return product


def permuted(key: jax.Array, place: jax.Array, size: jax.Array) -> jax.Array:
    """Where a keyed permutation of 0 … size − 1 sends `place`: a Feistel network on the next power of four, walked
    along its cycle until it is back inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    half = (34 - jax.lax.clz(jnp.maximum(size, 2) - 1).astype(jnp.uint32) - 1) // 2  # 4^half ≥ size
    mask = (jnp.uint32(1) << half) - 1

    def once(x: jax.Array) -> jax.Array:
        left, right = x >> half, x & mask
        for turn in range(_FEISTEL_ROUNDS):
            word = key[turn % 2] + jnp.uint32(0x9E3779B9 * (turn + 1) % 2**32)
            left, right = right, left ^ (_mixed(right ^ word) & mask)
        joined: jax.Array = (left << half) | right
        return joined

    inside: jax.Array = jax.lax.while_loop(lambda x: x >= size, once, once(place.astype(jnp.uint32)))
    return inside


def _mixed(x: jax.Array) -> jax.Array:
    """A 32-bit finaliser: every input bit moves every output bit (constants of Mueller's hash)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x45D9F3B)
    x = (x ^ (x >> 16)) * jnp.uint32(0x45D9F3B)
    return x ^ (x >> 16)
