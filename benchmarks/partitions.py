"""A study of MNIST and MNIST-shard over many partitions: for what is said of a data set, not of one draw.

    python benchmarks/partitions.py --setting authors > partitions.toml
    fedtempo run partitions.toml --out results/partitions-authors          # --resume results/partitions-authors goes on

Each partition is a problem of its own, MNIST beside MNIST-shard under the same seed. Partition seeds are 42,
that of the authors' scripts, then 1, 2, 3, …
"""

from __future__ import annotations

import argparse

RATES = {"text": "0.02, 0.05, 0.1", "authors": "0.005, 0.01, 0.02"}
PARTITIONS = {
    "text": {"mnist": "iid", "mnist-shard": "dirichlet:0.1"},
    "authors": {"mnist": "dirichlet:10000:authors", "mnist-shard": "dirichlet:0.1:authors"},
}
PIXELS = {"text": "unit", "authors": "standardised"}


def study(setting: str, partitions: int, until: int, seeds: int, rates: str | None = None) -> str:
    """The study file."""
    lines = [
        f"until = {until}",
        "points = 101",
        f"seeds = {list(range(seeds))}",
        'step = "paper"',
        'weights = ["identical", "time-based"]',
        'schemes = [{ name = "async" }]',
        'times = { times = "F80" }',
        f"local = {{ steps = 1, batch_size = 64, lr = [{rates or RATES[setting]}] }}",
    ]
    for seed in [42, *range(1, partitions)]:
        for name, partition in PARTITIONS[setting].items():
            lines += [
                "",
                f"[problem.{name}-{seed}]",
                'name = "mnist"',
                "clients = 10",
                f'partition = "{partition}"',
                f"seed = {seed}",
                f'pixels = "{PIXELS[setting]}"',
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setting", choices=sorted(RATES), default="text")
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--until", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lr", help="learning rates, as 0.01,0.02")
    given = parser.parse_args()
    print(study(given.setting, given.partitions, given.until, given.seeds, given.lr))


if __name__ == "__main__":
    main()
