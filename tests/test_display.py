"""Objects print and plot themselves, and load what draws them only then."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import numpy as np, xarray as xr
from fedtempo.simulation.history.history import History
def loaded():
    return [name for name in ("fedtempo.report", "rich", "matplotlib") if name in sys.modules]
loss = xr.DataArray(np.linspace(2.0, 1.0, 5).reshape(1, 1, 1, 5), dims=("scheme", "weights", "seed", "time"))
history = History(xr.Dataset({"loss": loss}, coords={
    "scheme": ["FedAvg"], "weights": ["time-based"], "seed": [0], "time": np.arange(5.0)}))
assert history.summary().row("FedAvg").loss == 1.0
assert loaded() == [], loaded()
assert "1 scheme" in repr(history)
assert loaded() == ["fedtempo.report", "rich"], loaded()
assert ">FedAvg</td>" in history._repr_html_()
assert "FedAvg" in str(history)
assert history.plot().axes
assert "matplotlib" in loaded()
"""


def test_a_history_loads_the_report_when_it_is_shown() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
