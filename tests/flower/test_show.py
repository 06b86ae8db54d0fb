"""`fedtempo show` of a run on Flower: reality, simulation and plan; and plans from recorded runs."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import MetricRecord

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, recorded
from fedtempo.flower.comparison import compared, durations
from fedtempo.flower.run_figure import READABLE, _real_jobs, run_figure
from fedtempo.flower.run_tables import show_run
from support.flower_fake import FakeGrid, failure, on, record_of, shifting

SECONDS = {100: "1.0000004", 101: 0.7, 102: 2.25}
EXAMPLES = {100: 10, 101: 20, 102: 30}
STRATEGIES = {
    "fedavg": lambda **o: FedAvg(**o),
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(0.8, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


def train(name, grid, rounds=20, **options):
    strategy = STRATEGIES[name](**on(grid, **options))
    return strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=rounds, timeout=5)


def three() -> FakeGrid:
    grid = FakeGrid()
    for node, seconds in SECONDS.items():
        grid.connect(node, shifting(1, seconds, examples=EXAMPLES[node]))
    return grid


def failing(good, every: int):
    """A client that fails its second job of each few."""
    count = 0

    def behave(message):
        nonlocal count
        count += 1
        return [(10**8, failure(message))] if count % every == 2 else good(message)

    return behave


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A run in which a client fails, one comes late, one leaves, and one never answers well."""
    folder = tmp_path_factory.mktemp("faulty")
    grid = FakeGrid()
    grid.connect(100, failing(shifting(1, 1), 4))
    grid.connect(101, shifting(1, 0.7))
    grid.connect(102, shifting(1, 2.25))
    grid.connect(104, lambda message: [(10**8, failure(message))])
    grid.at(6, lambda: grid.connect(103, shifting(1, 1.4)))
    grid.at(30, lambda: grid.disconnect(101))
    return train("fedfix", grid, rounds=50, checkpoint=folder, retry_after=5), folder


@pytest.fixture
def run(capsys, monkeypatch):
    return lambda *words: in_process(capsys, monkeypatch, *words)


def test_schemes_that_choose_their_clients_are_simulated_with_what_was_known(run, tmp_path) -> None:
    grid = three()
    importance = {"node 100": 1, "node 101": 2, "node 102": 3}
    strategy = TimedStrategy(ft.MultinomialSampling(3), **on(grid, importance=importance, seed=5))
    result = strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=12)
    assert compared(recorded(result)).first_difference is None
    grid = FakeGrid()
    for node in range(3):
        grid.connect(node, shifting(0, 1 + node, loss=float(node)))
    scheme = ft.CuredSampling(ft.HighestLossSampling(1), window=6, biased=1)
    strategy = TimedStrategy(scheme, **on(grid, loss_key="loss", checkpoint=tmp_path))
    strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=12)
    assert compared(recorded(tmp_path)).simulated is None
    code, out, _ = run("show", str(tmp_path))
    assert code == 0
    assert "no simulation and no plan: the scheme chooses clients by the losses of trained models" in out


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_simulation_of_a_faultless_run_is_the_run(name) -> None:
    """Also where a duration is no whole number of milliseconds."""
    run = compared(recorded(train(name, three())))
    assert run.first_difference is None
    assert run.simulation == run.reality
    assert all(client.share[0] == client.share[1] for client in run.clients)
    assert run.plan.rounds == pytest.approx(run.reality.rounds, rel=0.1)
    assert run.plan.updates == pytest.approx(run.reality.updates, rel=0.15)


@pytest.mark.parametrize("name", STRATEGIES)
def test_numbers_are_a_plain_count_of_the_rounds(name) -> None:
    result = train(name, three())
    run = compared(recorded(result))
    stale = [late for closed in result.rounds for late in closed.staleness]
    assert run.reality.rounds == len(result.rounds)
    assert run.reality.empty_rounds == sum(not closed.updates for closed in result.rounds)
    assert run.reality.updates == len(stale)
    assert run.reality.updates_per_round == len(stale) / len(result.rounds)
    assert run.reality.mean_staleness == pytest.approx(np.mean(stale))
    assert run.reality.max_staleness == max(stale)
    used, lasted = defaultdict(list), defaultdict(list)
    for closed in result.rounds:
        for who, weight, duration in zip(closed.contributors, closed.weights, closed.durations, strict=True):
            used[who].append(weight)
            lasted[who].append(duration)
    total = sum(map(sum, used.values()))
    for client in run.clients:
        assert client.jobs == len(used[client.name])
        assert client.seconds == pytest.approx(np.mean(lasted[client.name]))
        assert client.share[0] == client.jobs / len(result.rounds)
        assert client.weight == pytest.approx(np.mean(used[client.name]))
        assert client.counted == pytest.approx(sum(used[client.name]) / total)
        assert client.importance == pytest.approx(EXAMPLES[int(client.name.removeprefix("node "))] / 60)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_plan_is_that_of_the_mean_times(name) -> None:
    record = recorded(train(name, three()))
    run = compared(record)
    times = ft.FixedTimes(["1.001", "0.7", "2.25"])
    plan = ft.compare(times, record.scheme, importance=record.importance).schemes[0]
    length = float(record.timeline.duration)
    assert (run.plan.rounds, run.plan.updates) == (plan.rounds_per_time * length, plan.updates_per_time * length)
    assert (run.plan.mean_staleness, run.plan.max_staleness) == (plan.mean_delay, plan.max_delay)
    assert [client.planned_weight for client in run.clients] == (plan.weights.values[-1] * plan.step).tolist()
    assert [client.share[2] for client in run.clients] == plan.run.participation.share.tolist()


def test_durations_are_those_of_the_record() -> None:
    record = recorded(train("async", three()))
    assert durations(record, resolution=Fraction(1, 1000)) == record.times
    assert durations(record).exact_mean_time[0] == Fraction("1.0000004")
    assert durations(record).names == record.times.names == ("node 100", "node 101", "node 102")


def test_faults_are_counted_and_make_the_difference(faulty) -> None:
    result, folder = faulty
    run = compared(recorded(folder))
    there = Counter((fault.identity, fault.kind) for fault in result.errors)
    assert Counter({(c.name, kind): k for c in run.clients for kind, k in c.faults.items()}) == there
    assert {kind for _, kind in there} >= {"error", "joined", "left", "set aside", "tried again"}
    assert recorded(folder).faults == tuple(result.errors)
    assert run.first_difference is not None
    assert run.simulation.updates > run.reality.updates
    never = run.clients[recorded(folder).names.index("node 104")]
    assert (never.jobs, never.seconds, never.weight, never.importance) == (0, None, None, None)
    assert never.share == (0.0, None, None)
    assert sum(client.importance or 0 for client in run.clients) == pytest.approx(1)
    assert sum(client.counted for client in run.clients) == pytest.approx(1)


def test_a_run_that_stops_amid_rounds_that_end_together() -> None:
    grid = FakeGrid()
    for node in (100, 101, 102):
        grid.connect(node, shifting(1, 2))
    run = compared(recorded(train("async", grid, rounds=7)))
    assert run.simulation == run.reality
    assert run.first_difference is None


def test_fewer_clients_than_a_buffer() -> None:
    grid = FakeGrid()
    for node in (100, 101):
        grid.connect(node, shifting(1, node - 99))
    grid.connect(102, lambda message: [(10**8, failure(message))])
    result = FedBuff(3, **on(grid)).start(grid, record_of({"w": np.zeros(2)}), num_rounds=4)
    run = compared(recorded(result))
    assert (run.scheme, run.record.scheme) == (ft.FedAvg(), ft.FedBuff(3))
    assert run.reality.updates == 8


def test_a_client_that_says_that_it_has_next_to_nothing() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, examples=5e-324))
    grid.connect(101, shifting(1, 1, examples=1000))
    grid.connect(102, shifting(1, 1, examples=1000))
    numbers = compared(recorded(train("fedavg", grid)))
    assert [client.importance for client in numbers.clients] == pytest.approx([0, 0.5, 0.5], abs=1e-9)
    assert numbers.simulation is not None


def test_the_figure_shows_the_jobs_and_what_was_lost(faulty) -> None:
    run = compared(recorded(faulty[1]))
    above, below = run_figure(run).axes
    assert f"the last {READABLE} rounds are shown" in above.get_title(loc="left")
    begin, end = below.get_xlim()
    line = run.record.timeline
    assert (begin, end) == (float(line.ends[-READABLE - 1]) / 1e9, float(line.ends[-1]) / 1e9)
    ends = line.ends[line.round_of_update] / 1e9
    drawn = {(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in above.patches if bar.get_height() > 0.5}
    sent, lasted = run.record.sent / 1e9, (run.record.arrived - run.record.sent) / 1e9
    for a, b, taken in zip(sent, lasted, ends, strict=True):
        assert ((round(a, 6), round(b, 6)) in drawn) == (taken > begin)
    names = [label.get_text() for label in above.get_yticklabels()]
    assert names == ["server", "node 100", "node 101", "node 102", "node 103"]
    legend = [text.get_text() for text in above.figure.legends[0].get_texts()]
    assert legend[-1] == "job lost, or client left"


def test_the_stretch_is_long_enough_for_all_clients() -> None:
    grid = FakeGrid()
    for node in range(100, 150):
        grid.connect(node, shifting(1, f"{(node - 60) / 100 + node / 10000:.4f}"))
    run = compared(recorded(train("async", grid, rounds=300)))
    above, _ = run_figure(run).axes
    assert "the last 100 rounds are shown" in above.get_title(loc="left")
    assert len(above.get_yticklabels()) == 51


@pytest.mark.parametrize("name", STRATEGIES)
def test_jobs_that_are_out_at_the_end_are_those_of_the_simulation(name) -> None:
    """Of a run in which everything went well."""
    from fedtempo.clock.config import ClockConfig
    from fedtempo.report.jobs import jobs_of

    run = compared(recorded(train(name, three())))
    config = ClockConfig.of(run.scheme.waiting, run.times)
    real, virtual = _real_jobs(run.record), jobs_of(config, run.simulated, float(run.length))

    def rows(jobs):
        return sorted(zip(*(part.tolist() for part in vars(jobs).values()), strict=True))

    np.testing.assert_allclose(rows(real), rows(virtual), atol=1e-9)


def test_show(faulty, run, tmp_path) -> None:
    folder = faulty[1]
    code, out, err = run("show", str(folder), "--out", str(tmp_path / "a.svg"))
    assert (code, err) == (0, "")
    rounds = recorded(folder).timeline.num_rounds
    assert "FedFix(4/5) on Flower: 4 clients took part" in out
    assert f"rounds                       {rounds}          {rounds}" in out
    assert "Reality and simulation differ from round" in out
    assert "node 104" in out
    assert "set aside" in out
    assert "Measures of the model" not in out, "there are none"
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    assert not (folder / "run.png").exists()
    code, out, err = run("show", str(folder))
    assert (code, err) == (0, "")
    assert (folder / "run.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "run.svg").exists()
    code, _, err = run("show", str(folder), "--measure", "loss")
    assert (code, "holds a run on Flower, not a study" in err) == (2, True)


def losses(folder, values, **server):
    """A run whose client reports these losses, and whose server measures those."""
    grid = FakeGrid()
    sent = iter(values)
    grid.connect(100, lambda message: shifting(1, 1, loss=next(sent, 0.5), accuracy=0.5, **{"[red]x": 1.0})(message))
    measured = server.get("loss", [])

    def evaluate(number, arrays):
        return MetricRecord({"loss": measured[number]}) if number < len(measured) else None

    strategy = AsyncFedAvg(**on(grid, checkpoint=folder, evaluation="wait"))
    strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=len(values), evaluate_fn=evaluate)


def rows(out: str) -> list[list[str]]:
    table = out.partition("Measures of the model")[2].partition("\n\n")[0]
    return [line.split() for line in table.splitlines()[2:]]


def test_the_last_and_the_best_of_measures(capsys, tmp_path) -> None:
    losses(tmp_path, [0.5, 0.25, 0.75], loss=[2.0, 1.0, 0.5, 0.625])
    show_run(compared(recorded(tmp_path)))
    assert rows(capsys.readouterr().out) == [
        ["loss", "server", "4", "0.5", "2", "0.625", "3"],
        ["loss", "clients'", "training", "3", "0.25", "2", "0.75", "3"],
        ["accuracy", "clients'", "training", "3", "0.5", "1", "0.5", "3"],
        ["[red]x", "clients'", "training", "3", "–", "–", "1", "3"],
    ]
    assert recorded(tmp_path).measured["server"][2]["loss"] == 0.5


def test_a_run_that_is_sick_looks_sick(capsys, tmp_path) -> None:
    nan, inf = float("nan"), float("inf")

    def shown(name, *values, **server):
        losses(tmp_path / name, values, **server)
        show_run(compared(recorded(tmp_path / name)))
        return capsys.readouterr().out

    out = shown("a", 0.5, nan, 0.25, nan, nan, loss=[0.5, 0.125, 0.5, inf, 0.5, 2.0])
    assert "loss (server) is 2 in round 5, 16 times its best, 0.125 in round 1." in out
    assert "loss (clients' training) is NaN since round 4; its best was 0.25 in round 3." in out
    out = shown("b", nan, nan, loss=[1.0, 0.5, inf])
    assert "loss (server) is infinite in round 2; its best was 0.5 in round 1." in out
    assert "loss (clients' training) is NaN since round 1." in out
    assert "its best" not in shown("c", 0.5, 0.125, 1.0), "8 times"


def test_a_plan_from_a_recorded_run(faulty, run) -> None:
    folder = str(faulty[1])
    code, out, err = run("plan", "--times", folder, "--scheme", "fedfix", "--wait", "0.8", "--details")
    assert (code, err) == (0, "")
    assert "4 clients, trace times from 0.7 to 2.25" in out
    assert "node 103" in out
    code, out, _ = run("timeline", "--times", folder, "--scheme", "async", "--until", "3")
    assert (code, "of 4 clients" in out) == (0, True)
    code, _, _ = run("plan", "--times", folder, "--law", "bootstrap", "--resolution", "0.1", "--scheme", "fedavg")
    assert code == 0
    code, _, err = run("plan", "--times", folder, "--law", "exponential")
    assert (code, "replayed or bootstrapped" in err) == (2, True)


def test_a_study_with_the_times_of_a_recorded_run(faulty, run, tmp_path) -> None:
    words = ["run", "--problem", "quadratics", "--clients", "4", "--times", str(faulty[1]), "--scheme", "async"]
    more = ["--until", "3", "--lr", "0.1", "--seeds", "1", "--points", "3", "--weights", "time-based"]
    code, out, _ = run(*words, *more, "--out", str(tmp_path / "study"), "-q")
    assert (code, "AsyncFedAvg" in out) == (0, True)


@pytest.mark.parametrize(
    ("files", "words", "code", "said"),
    [
        ({}, "show {}", 3, "no study is there, and no run of fedtempo.flower; check the path"),
        ({}, "plan --times {}", 2, "is a folder without a run of fedtempo.flower"),
        ({"rounds.jsonl": b""}, "show {}", 3, "no round of the run there is saved yet"),
        ({"rounds.jsonl": b""}, "plan --times {}", 3, "no round of the run there is saved yet"),
        ({"rounds.jsonl": b"", "state.npz": b"x"}, "show {}", 2, "state.npz: cannot be read"),
        ({"state.npz": b"x"}, "plan --times {}", 2, "state.npz: cannot be read"),
    ],
)
def test_folders_that_hold_something_else(files, words, code, said, run, tmp_path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found, out, err = run(*words.format(tmp_path).split())
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_flower(faulty, run, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedtempo.flower.") or name == "fedtempo.flower"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    for words in (["show", str(faulty[1])], ["plan", "--times", str(faulty[1])]):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert "fedtempo.flower needs Flower: pip install 'fedtempo[flower]'" in err
