"""What benchmarks/others.py and benchmarks/growth.py ask for and print; nothing is measured here."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_others_have_a_lap_for_every_work_and_a_function_that_exists() -> None:
    others = script("others")
    for name, contestant in others.CONTESTANTS.items():
        source = (ROOT / "benchmarks" / f"{contestant.module}.py").read_text(encoding="utf-8")
        assert f"def {contestant.function}(" in source, name
        assert pickle.loads(pickle.dumps(contestant)) == contestant  # it goes to a process of its own
        assert set(contestant.sizes) <= {others.LOGISTIC, others.CNN}
    for work in (others.LOGISTIC, others.CNN):
        assert work in others.CONTESTANTS[others.PLAIN].sizes


def test_others_table_is_in_times_of_the_plain_loop_and_says_why_one_is_missing() -> None:
    others = script("others")
    lines = others.table(
        {others.PLAIN: [100, 200, 400], "a": [50, 50, 50]},
        {others.PLAIN: 210, "a": 55},
        {others.PLAIN: 1.0, "a": 1.1},
        {"b": "no"},
        2.3,
    )
    assert lines[2:] == [
        "| PyTorch loop | 200 (100 to 400) | 1.0 | 210 | 1.00 |",
        "| a | 50 (50 to 50) | 0.25 | 55 | 1.10 |",
        "| b | no | | | |",
    ]
    of = {"appfl": "1.12.0", "flgo": "0.4.4"}
    names = {others.named(name, contestant, of) for name, contestant in others.CONTESTANTS.items()}
    assert {"FLGo 0.4.4", "APPFL 1.12.0, `optimize_memory: False`", "fedtempo, one run"} <= names


def test_others_are_pinned_exactly() -> None:
    lines = (ROOT / "requirements" / "others.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    known = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line
    )
    assert {"flgo", "appfl"} <= set(pins)
    assert {name: pin for name, pin in pins.items() if name in known} == {
        name: known[name] for name in pins if name in known
    }


def test_growth_has_a_case_for_every_size() -> None:
    growth = script("growth")
    for axis, sizes in growth.SIZES.items():
        for size in sizes:
            case = growth.case_of(f"{axis}:{size}")
            assert growth.updates_in(case, 1.0, processor=True) >= 8
            if axis == "parameters":
                assert case.parameters == pytest.approx(size, rel=0.02)
    assert growth.case_of("clients:1000").clients == 1000
    assert growth.case_of("parameters:100000000:50")[1:3] == (100_000_000, 50)
    with pytest.raises(SystemExit, match="axis:size"):
        growth.case_of("rows:3")


def test_growth_prints_and_draws_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    growth = script("growth")
    one = {
        "rates": [1000.0, 2000.0, 4000.0], "cpu_us": [600.0], "host_us": [4.0, 5.0, 6.0], "slots": 8,
        "held_bytes": 32_000, "model_bytes": 4_000, "peak_gib": 0.5,
    }  # fmt: skip
    two = {**one, "held_bytes": 3_200_000, "device_peak_gib": 2.0, "device_limit_gib": 139.0}
    found = {
        "machine": {"gbps": 20.0, "device": "cpu", "caches": {"L2": 2**20}},
        "axes": {"parameters": {"1000": one, "100000": two, "1000000": {"failed": "exit status -9"}}},
    }
    file = tmp_path / "growth.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    growth.main(["--from", str(file), "--figure", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| 1 000 | 2 000 (1 000 to 4 000) | 500 | 600 | 5 | 8 | 32 kB | 2.5e+03 | 0.50 |" in printed
    assert "2.00 of 139" in printed
    assert re.search(r"1 000 000 \| exit status -9", printed)
    assert "</svg>" in (tmp_path / "growth.svg").read_text(encoding="utf-8")
