"""A compression of one's own: of every float32 its upper 16 bits are sent, and what is cut off is remembered.

In the folder of this file: ``fedtempo run --compression own_compression:UpperHalf``. On Flower a ClientApp takes it as
``mods=[compressing(UpperHalf())]``, and the server's app imports this module too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.training.compression.method import ERROR
from fedtempo.training.compression.wire import decode, encode, job_key

UPPER = np.uint32(0xFFFF0000)


@dataclass(frozen=True)
class UpperHalf(ft.Compression):
    """C(x): sign, exponent and the first 7 digits of each entry, towards zero; two bytes an entry."""

    error_feedback: bool = True

    def layout(self, shape: tuple[int, ...], dtype: Any) -> dict[str, int]:
        """How many bytes a payload holds of an array."""
        return {"halves": 2 * int(np.prod(shape))}

    def keep(self, shape: tuple[int, ...], dtype: Any, place: int) -> dict[str, Any]:
        """What a client keeps from job to job: what it has not sent yet."""
        return {ERROR: np.zeros(shape, np.float32)} if self.error_feedback else {}

    def send(self, x: Any, kept: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        """C(x) in JAX, for simulation."""
        import jax
        import jax.numpy as jnp

        bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
        return jax.lax.bitcast_convert_type(bits & UPPER, jnp.float32).astype(x.dtype), {}

    def pack(self, x: Any, kept: Any, key: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """C(x) as bytes, for the wire."""
        upper = (x.astype("<f4").view("<u4") >> 16).astype("<u2")
        return {"halves": np.frombuffer(upper.tobytes(), np.uint8)}, {}

    def unpack(self, parts: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """C(x), of which `pack` made the bytes."""
        upper = np.frombuffer(parts["halves"].tobytes(), "<u2").astype(np.uint32)
        return (upper << 16).view(np.float32).reshape(shape)


if __name__ == "__main__":
    change = np.array([1.0, -0.3, 1e-3], np.float32)
    payload, memory = encode(UpperHalf(), [change], key=job_key(0, 0, 0))
    print(payload.num_bytes, "bytes:", decode(payload)[0], "and to be sent later:", memory["0"][ERROR])

    problem = ft.problems.quadratics(5, dimension=4, heterogeneity=2.0)
    times = ft.FixedTimes.spread(clients=5, slowdown=80)
    schemes = [ft.FedFix("1/2").using(compression=method) for method in (None, UpperHalf())]
    history = ft.simulate(problem, schemes, times, until=20, local=ft.LocalSGD(lr=0.05))
    for scheme in schemes:
        row = history.dataset.sel(scheme=scheme.label).squeeze()
        print(f"{scheme}: loss {float(row.loss[-1]):.3f} after {int(row.bytes_up[-1])} bytes from the clients")
