"""What must hold on an accelerator as on a processor: the same batches, the same answers, and a study that goes on.

    batches    the rows of some jobs, by a digest: the same on every device
    engines    every scheme on digits: waves and events against the oracle, in 32 and 64 bits
    resume     a study stopped several times ends like one that was left alone, within float32 tolerance

Ends with an error if anything is off. `--save` keeps final models, to compare with another machine's by `--against`.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedtempo as ft
from fedtempo.training.batches import batch_key, job_rows

TIMES = ft.FixedTimes.spread(10, 80)
SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("1/20"),
    ft.FedBuff(3),
    ft.UniformSampling(3),
    ft.MultinomialSampling(4),
]


def batches() -> str:
    rows = []
    for draw in ("uniform", "epochs"):
        jobs = jax.jit(jax.vmap(partial(job_rows, steps=3, batch_size=16, draw=draw), (None, 0, 0, None)))
        found = jobs(batch_key(7), jnp.arange(20), jnp.arange(20) * 31, jnp.int32(6000))
        rows.append(np.asarray(found).astype("<i4").tobytes())
    return hashlib.blake2b(b"".join(rows), digest_size=8).hexdigest()


def models(history: ft.History) -> np.ndarray:
    found = [v for v in history.dataset if str(v).startswith("parameter:")]
    count = len(SCHEMES)
    return np.concatenate([history.dataset[v].values.reshape(count, -1) for v in found], axis=1)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest relative distance over schemes."""
    return float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max())


def engines(steps: int, dtype: str, engine: str, until: int = 30) -> np.ndarray:
    local = ft.LocalSGD(steps=steps, lr=[0.03, 0.1], batch_size=16)
    problem = ft.problems.digits(10)
    weights = ("time-based", "identical")
    run = partial(ft.simulate, problem, SCHEMES, TIMES, until=until, local=local, weights=weights, seeds=[0, 1])
    return models(run(dtype=dtype, engine=engine, points=3))


def resume() -> float:
    local = ft.LocalSGD(steps=1, lr=[0.03, 0.1], batch_size=16)
    run = partial(ft.simulate, ft.problems.digits(10), SCHEMES, TIMES, until=100, local=local, seeds=[0, 1])
    whole = models(run())
    with tempfile.TemporaryDirectory() as folder:
        for stop_at in (0.2, 0.5, 0.8):
            try:
                run(checkpoint=Path(folder) / "study", on_progress=partial(_stop, stop_at), save_every=0.1)
            except KeyboardInterrupt:
                print(f"stopped at {stop_at:.0%}")
        return distance(models(run(checkpoint=Path(folder) / "study")), whole)


def _stop(at: float, progress: ft.Progress) -> None:
    if progress.done >= at:
        raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, help="an .npz for the final models")
    parser.add_argument("--against", type=Path, help="such a file of another machine")
    parser.add_argument("--no-oracle", action="store_true", help="leave the oracle out: it is slow on accelerators")
    options = parser.parse_args()
    print(jax.__version__, jax.devices())
    wrong = []
    digest = batches()
    print("batches", digest)
    kept = {"batches": np.array(digest)}
    for steps in (1, 5):
        oracle = None if options.no_oracle else engines(steps, "float64", "oracle")
        for dtype, limit in (("float64", 1e-9), ("float32", 1e-4)):
            for engine in ("events", "waves"):
                kept[f"{engine}-{steps}-{dtype}"] = found = engines(steps, dtype, engine)
                if oracle is None:
                    continue
                apart = distance(found, oracle)
                print(f"K = {steps}, {dtype}, {engine} against the oracle: {apart:.1e}", flush=True)
                wrong += [f"{engine} {dtype} {apart}"] if not apart < limit else []
    apart = resume()
    print(f"resumed against left alone: {apart:.1e}")
    wrong += [f"resume {apart}"] if not apart < 1e-4 else []
    if options.save:
        np.savez(options.save, **kept)
    if options.against:
        with np.load(options.against) as there:
            same = str(there["batches"]) == digest
            print("same batches as the other machine" if same else "OTHER batches than the other machine")
            wrong += [] if same else ["batches"]
            for name in sorted(set(there.files) - {"batches"}):
                apart = distance(there[name], kept[name])
                print(f"{name} against the other machine: {apart:.1e}")
                wrong += [f"{name} {apart}"] if not apart < (1e-9 if "64" in name else 1e-4) else []
    if wrong:
        raise SystemExit("off: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
