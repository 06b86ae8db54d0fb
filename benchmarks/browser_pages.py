"""How large a study's page is, how long it takes to make, and how long Chromium takes to show it.

    python benchmarks/browser_pages.py [--runs 300] [--times 5]

The study is made up, nothing is trained: five schemes, two weight rules, ten rates and three seeds are 300 runs of 101
points each, with seven measures, rounds, updates and bytes. Loading ends when every chart is drawn and two frames have
passed. It needs Playwright and Chromium, as make test-browser installs them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr
from playwright.sync_api import sync_playwright

from fedtempo.simulation.history.history import History

SCHEMES = ("FedAvg", "AsyncFedAvg", "FedFix(1/5)", "FedFix(1/2)", "FedBuff(5)")
RULES = ("time-based", "identical")
MEASURES = (
    "loss",
    "loss_deviation",
    "surrogate_loss",
    "surrogate_deviation",
    "test_loss",
    "test_accuracy",
    "worst_loss",
)
DRAWN = (
    """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"""
)


def made_up(runs: int, points: int = 101, seeds: int = 3) -> History:
    """A study of so many runs, or a few more."""
    rates = np.geomspace(0.001, 1.0, max(2, round(runs / (len(SCHEMES) * len(RULES) * seeds))))
    times = np.linspace(0.0, 100.0, points)
    shape = (len(SCHEMES), len(RULES), len(rates), seeds)
    noise = np.random.default_rng(0)
    pace = (rates * 3)[:, None, None] * noise.uniform(0.5, 2.0, (*shape[:2], 1, 1, 1))
    loss = 0.3 + 2.0 * np.exp(-np.sqrt(pace * times)) + 0.01 * noise.standard_normal((*shape, points))
    over = ("scheme", "weights", "local_lr", "seed", "time")
    measured = {name: (over, loss * (1 + 0.1 * k)) for k, name in enumerate(MEASURES)}
    measured["test_accuracy"] = (over, 1 - loss / 3)
    counts = np.floor(times * noise.uniform(1, 9, (len(SCHEMES), seeds, 1)))
    measured |= {"rounds": (("scheme", "seed", "time"), counts), "updates": (("scheme", "seed", "time"), 4 * counts)}
    measured["bytes_up"] = (over, np.broadcast_to((1000 * counts)[:, None, None], loss.shape))
    coords = {"scheme": list(SCHEMES), "weights": list(RULES), "local_lr": rates, "seed": range(seeds), "time": times}
    return History(xr.Dataset(measured, coords=coords, attrs={"finished": 1}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    history = made_up(given.runs)
    begin = time.perf_counter()
    page = history.to_html()
    took = time.perf_counter() - begin
    runs = history.diverged.size
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        path = page.save(Path(folder) / "report.html")
        print(f"{runs} runs of {history.dataset.sizes['time']} points, {len(history.measures)} measures")
        print(f"page: {path.stat().st_size / 1e6:.2f} MB, made in {took:.2f} s")
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        loads, all_rates = [], []
        for _ in range(given.times):
            tab = browser.new_page(viewport={"width": 1300, "height": 900})
            tab.goto(path.as_uri())
            loads.append(tab.evaluate(DRAWN))
            begin = time.perf_counter()
            tab.get_by_label("runs").select_option(label="all rates")
            tab.evaluate(DRAWN)
            all_rates.append(1000 * (time.perf_counter() - begin))
            tab.close()
        browser.close()
    print(
        f"Chromium: shown after {statistics.median(loads):.0f} ms (median of {given.times}, {max(loads):.0f} at most)"
    )
    print(f"a switch to all rates: {statistics.median(all_rates):.0f} ms")


if __name__ == "__main__":
    main()
