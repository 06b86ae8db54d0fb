"""Plans and commands for clients that come, go and fail: what it costs, and what is said of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedtempo as ft
from fedtempo.cli.app import app
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.time_use import work_of
from fedtempo.errors import InputError
from fedtempo.simulation.study_file import merged, times_of

PLAIN = ft.FixedTimes([1, 2, "5/2", 4])


@pytest.fixture(autouse=True)
def short_runs(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_AVAILABLE_UPDATES", 200)
    monkeypatch.setattr("fedtempo.clock.time_use.UPDATES", 2000)


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    return str(error.value)


def test_what_it_costs_is_set_beside_clients_always_there() -> None:
    times = PLAIN.available(failure=0.2, on=10, off=5)
    moving, plain = ft.compare(times), ft.compare(PLAIN)
    assert [s.scheme for s in moving.schemes] == [s.scheme for s in plain.schemes]
    for one, other in zip(moving.schemes, plain.schemes, strict=True):
        assert other.costs is None
        costs = one.costs
        assert (costs.rounds_per_time, costs.updates_per_time) == (other.rounds_per_time, other.updates_per_time)
        assert (costs.idle_share, costs.mean_delay) == (other.idle_share, other.mean_delay)
        assert one.updates_per_time < 0.75 * other.updates_per_time
        assert costs.work.present == pytest.approx(2 / 3, abs=0.05)
        assert costs.work.failed > 0.1
        assert costs.work.lost > 0.05
    assert "availability" not in plain.to_dict()


def test_idle_and_lost_time_are_those_of_a_run() -> None:
    """Asynchronous clients are never idle; what fails and what is lost follow from the stays."""
    work = work_of(ClockConfig.of(ft.AsyncFedAvg().waiting, PLAIN.available(failure=0.25), seed=1), 20_000)
    assert (work.present, work.lost) == (1.0, 0.0)
    assert work.idle == pytest.approx(0.0, abs=1e-12)
    assert work.failed == pytest.approx(0.25, abs=0.02)
    half = work_of(ClockConfig.of(ft.AsyncFedAvg().waiting, PLAIN.available(absences={3: [(3, 6)]}, period=6)), 4000)
    assert half.present == pytest.approx(7 / 8, abs=0.001)
    assert half.lost == pytest.approx(3 / 21, abs=0.001)  # client 3 works half of the time, all for nothing
    fedavg = work_of(ClockConfig.of(ft.FedAvg().waiting, PLAIN), 4000)
    assert fedavg.idle == pytest.approx(1 - (1 + 2 + 2.5 + 4) / 16, abs=0.001)


def test_clients_that_never_stay_long_enough_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.generate._MAX_QUIET", 300)
    times = ft.FixedTimes([5, 5]).available(absences={0: [(1, 2)], 1: [(1, 2)]}, period=2)
    for scheme in (ft.FedAvg(), ft.FedBuff(2), ft.UniformSampling(1)):
        with pytest.raises(InputError, match="does not end"):
            ft.compare(times, scheme)
    with pytest.raises(InputError, match="no client has taken part"):
        ft.compare(times, ft.FedFix(2))


def test_plan_command() -> None:
    said = command("plan", "--times", "1,2,3", "--failure", "0.1", "--on", "10", "--off", "5", "--scheme", "async")
    assert "What it costs that clients come, go and fail: failure 0.1, on 10, off 5" in said
    assert "always there" in said
    flags = ["--failure", "0.1,0.2,0", "--on", "10", "--off", "5", "--scheme", "fedfix", "--wait", "1/2", "--json"]
    document = json.loads(command("plan", "--times", "1,2,3", *flags))
    assert document["availability"] == {"failure": ["1/10", "1/5", "0"], "on": "10", "off": "5"}
    assert document["law"] == "fixed"
    [scheme] = document["schemes"]
    assert scheme["availability"]["always_there"]["rounds_per_time"] == 2
    assert scheme["participation_source"] == "estimate"
    assert "What it costs" not in command("plan", "--times", "1,2,3", "--scheme", "async")


def test_plan_command_with_clients_that_leave_for_good(tmp_path) -> None:
    file = tmp_path / "away.csv"
    file.write_text("client,leaves,returns\n0,0,12\n2,25,\n")
    flags = ["plan", "--times", "1,2,3", "--absences", str(file), "--scheme", "fedavg"]
    said = command(*flags)
    assert "absences of 2 clients" in said
    assert "the numbers are those from 25 on, when 2 of 3 are there" in said
    [scheme] = json.loads(command(*flags, "--json"))["schemes"]
    assert [stage["first_time"] for stage in scheme["stages"]] == ["0", "12", "25"]
    assert scheme["stages"][1]["weights"] == pytest.approx([1 / 3] * 3)
    file.write_text("client,leaves,returns\n0,0,12\n")
    assert "absences of 1 client, every 24" in command(*flags, "--period", "24")


def test_timeline_command() -> None:
    flags = ["--times", "1,2,3", "--scheme", "fedfix", "--wait", "1", "--until", "8"]
    moving = json.loads(command("timeline", *flags, "--failure", "0.5", "--json"))["rounds"]
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([1, 2, 3]).available(failure=0.5), until=8)
    assert [r["participants"] for r in moving] == [list(r.participants) for r in line.rounds]
    assert moving != json.loads(command("timeline", *flags, "--json"))["rounds"]


def test_study_table(tmp_path) -> None:
    table = {"times": "F80", "failure": 0.1, "on": 10, "off": [5, 5, 5], "absences": {"1": [[0, 12], [40]]}}
    found = times_of(merged({"times": table})["times"], 3)
    assert found == ft.FixedTimes.spread(3, 80).available(
        failure=0.1, on=10, off=5, absences={1: [(0, 12), (40, None)]}
    )
    again = times_of(merged({"times": {"times": "F80", "absences": {"1": [[0, 6]]}, "period": 24}})["times"], 3)
    assert again.availability.period == 24
    with pytest.raises(InputError, match="did you mean failure"):
        merged({"times": {"failures": 0.1}})


def test_run_command(tmp_path) -> None:
    out = tmp_path / "study"
    flags = [
        "--problem",
        "quadratics",
        "--clients",
        "3",
        "--until",
        "6",
        "--seeds",
        "1",
        "--points",
        "3",
        "--lr",
        "0.1",
    ]
    command(
        "run", *flags, "--scheme", "async", "--failure", "0.2", "--on", "10", "--off", "5", "--out", str(out), "--quiet"
    )
    kept = json.loads((out / "study.json").read_text())
    assert "failure 1/5, on 10, off 5" in json.dumps(kept)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--failure", "1"], "every job would fail"),
        (["--failure", "0.1,0.2"], "2 values for 3 clients"),
        (["--off", "3"], "with on="),
        (["--on", "-1", "--off", "3"], "not above zero"),
        (["--period", "5"], "give absences="),
    ],
)
def test_commands_refuse_what_cannot_work(flags, said) -> None:
    assert said in refused("plan", "--times", "1,2,3", *flags)


def test_planning_loads_no_jax() -> None:
    program = (
        "import sys; from fedtempo.cli.app import app\n"
        "try: app(['plan', '--times', '1,2', '--failure', '0.1', '--scheme', 'async', '--json'])\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def test_the_pages_example(monkeypatch, capsys) -> None:
    monkeypatch.undo()  # as printed, with runs as long as a user's
    page = (Path(__file__).parents[2] / "docs" / "availability.md").read_text()
    program, printed = re.search(r"```python\n(import numpy.*?)```\n\n(    .*?)\n\n", page, re.DOTALL).groups()
    exec(program, {})
    assert capsys.readouterr().out.split() == printed.split()
