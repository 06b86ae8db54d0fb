"""What users write works wherever ours does, by its place; and no folder of somebody else's runs code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import optax
import pytest
from flwr.app import ConfigRecord

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.errors import InputError
from fedtempo.flower import TimedStrategy, compressing, recorded, replay
from fedtempo.flower.compressing import MARKER, decompressed
from fedtempo.problems.naming import PROBLEMS
from fedtempo.registry import NotImported, only_named, own_label, own_spec
from fedtempo.schemes.table import SCHEMES, registry_of, scheme_of
from fedtempo.training.compression import COMPRESSIONS
from fedtempo.training.corrections import CORRECTIONS
from fedtempo.training.server_rules import SERVERS
from flower.test_compression import Site, simulated
from flower.test_compression import train as train_sites
from support import own_parts as mine
from support.flower_fake import ProblemClients, on, record_of

HERE = "support.own_parts"
RULE, SERVER, COMPRESSION = f"{HERE}:EveryFew:2", f"{HERE}:Halving:0.5", f"{HERE}:UpperHalf"
SCHEME = ft.Scheme(mine.EveryFew(2), name="EveryFew")
WHOLE = SCHEME.using(server=mine.Halving(0.5), compression=mine.UpperHalf())
TIMES = ft.FixedTimes([1, 2, 4])
STUDY = f"""
until = 6
seeds = [0]
points = 4
weights = ["time-based", "{HERE}:Evenly"]
[problem]
name = "{HERE}:points"
[times]
times = [1, 2, 4]
[local]
lr = 0.1
batch_size = "all"
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtempo.cli.progress.LINE_SECONDS", 1e9)
    return partial(in_process, capsys, monkeypatch)


# -- commands


def test_plan_timeline_and_theory(run) -> None:
    code, out, err = run(f"plan --times 1,2,4 --scheme {RULE} --scheme {HERE}:few --scheme {HERE}:THREE --json")
    assert (code, err) == (0, "")
    planned = json.loads(out)["schemes"]
    assert [one["scheme"]["name"] for one in planned] == [f"{HERE}:EveryFew", f"{HERE}:few"]
    assert planned[0]["scheme"] == {"name": f"{HERE}:EveryFew", "size": 2, "pace": "1/3"}
    assert ft.compare(TIMES, [SCHEME]).schemes[0].rounds_per_time == planned[0]["rounds_per_time"]
    code, out, _ = run(f"timeline --times 1,2,4 --until 9 --scheme {RULE} --json")
    told = json.loads(out)
    line = ft.timeline(SCHEME, TIMES, until=9)
    assert [one["participants"] for one in told["rounds"]] == [list(one.participants) for one in line.rounds]
    assert scheme_of(told["scheme"]).waiting == mine.EveryFew(2)
    code, out, _ = run(f"theory --times 1,2,4 --scheme {RULE} --weights {HERE}:Evenly:0.5")
    assert code == 0
    assert "EveryFew" in out
    assert "0.5" in out


def test_run_by_flag_and_by_file_resume_and_show(run, tmp_path) -> None:
    (tmp_path / "flags.toml").write_text(STUDY)
    table = f'[[schemes]]\nname = "{HERE}:EveryFew"\nsize = 2\nserver = {{name = "{HERE}:Halving", scale = 0.5}}\n'
    (tmp_path / "file.toml").write_text(STUDY + table + f'compression = "{COMPRESSION}"\n')
    assert run(f"run flags.toml -q --out flags --scheme {RULE} --server {SERVER} --compression {COMPRESSION}")[0] == 0
    code, out, _ = run("run file.toml -q --out file")
    assert code == 0
    assert "EveryFew + Halving(0.5) + UpperHalf" in out
    one, other = (ft.History.load(tmp_path / name / "history.nc").dataset for name in ("flags", "file"))
    assert one.equals(other)
    problem = mine.points()
    local = ft.LocalSGD(lr=0.1, batch_size=None)
    rules = ("time-based", mine.Evenly())
    same = ft.simulate(problem, WHOLE, TIMES, until=6, points=4, local=local, weights=rules).dataset
    np.testing.assert_array_equal(same.loss.values.ravel(), one.loss.values.ravel())
    configuration = json.loads((tmp_path / "file" / "study.json").read_text())["configuration"]
    assert configuration["schemes"] == [json.loads(json.dumps(WHOLE.spec()))]
    assert scheme_of(configuration["schemes"][0]) == WHOLE
    for path in [*(tmp_path / "file" / "units").iterdir(), tmp_path / "file" / "history.nc"]:
        path.unlink()  # as if it had been killed at once
    assert run(f"run --resume file -q --problem {HERE}:points")[0] == 0
    assert ft.History.load(tmp_path / "file" / "history.nc").dataset.loss.equals(one.loss)
    code, out, _ = run("show file")
    assert code == 0
    assert "EveryFew + Halving(0.5) + UpperHalf" in out


def test_what_resume_may_name(run, tmp_path) -> None:
    (tmp_path / "own.toml").write_text(STUDY + f'[[schemes]]\nname = "{HERE}:Pairs"\n')
    assert run("run own.toml -q --out x")[0] == 0
    for flags in ("--scheme fedavg", f"--scheme {HERE}:Pairs --lr 1", f"--scheme {HERE}:Pairs --wait 1"):
        assert "leave the file and other flags out" in run(f"run --resume x {flags}")[2]
    assert "my_module has something" in run(f"run --resume x --scheme {own_module(tmp_path)}:Nothing")[2]
    assert "belongs to --resume" in run("run own.toml --trust")[2]


def own_module(folder: Path) -> str:
    (folder / "my_module.py").write_text("def something():\n    return 3\n")
    return "my_module"


def test_solvers_corrections_and_optax_by_name(run, tmp_path) -> None:
    own = STUDY.replace("[local]", f'[local]\nsolver = "{HERE}:solver"').replace("points = 4", "points = 2")
    (tmp_path / "own.toml").write_text(own)
    command = (
        f"run own.toml -q --out own --scheme fedavg --correction {HERE}:Pull:0.2 --server {HERE}:solver:slowdown=4"
    )
    code, out, err = run(command)
    assert (code, err) == (0, "")
    assert "FedAvg + Pull(0.2) + support.solver(slowdown=4)" in out
    scheme = ft.FedAvg().using(correction=ft.FedProx(0.2), server=ft.ServerOptax(optax.sgd))
    local = ft.LocalOptax(solver=mine.solver, lr=0.1, batch_size=None)
    rules = ("time-based", mine.Evenly())
    same = ft.simulate(mine.points(), scheme, TIMES, until=6, points=2, local=local, weights=rules, server_lr=0.25)
    found = ft.History.load(tmp_path / "own" / "history.nc").dataset
    np.testing.assert_allclose(same.dataset.loss.values.ravel(), found.loss.values.ravel(), rtol=1e-6)


# -- on Flower

PROBLEM = ft.problems.quadratics(3, dimension=4, noise=0.5, rows=[6, 9, 12], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)


def federated(folder: Path, rounds: tuple[int, ...], scheme=SCHEME):
    clients = ProblemClients(PROBLEM, LOCAL, ft.FixedTimes(["1.0004", "0.7", "2.25"]))
    result = None
    for count in rounds:
        grid = clients.grid()
        strategy = TimedStrategy(scheme, **on(grid, server=mine.Halving(0.5), checkpoint=folder))
        result = strategy.start(grid, clients.initial, num_rounds=count, resume=count != rounds[0])
    return result


def test_a_rule_and_a_server_on_flower_replay_and_go_on(tmp_path, run) -> None:
    result = federated(tmp_path / "run", (12,))
    for record in (recorded(result), recorded(tmp_path / "run"), recorded(str(tmp_path / "run"), scheme=RULE)):
        assert record.scheme.waiting == mine.EveryFew(2)
        assert record.scheme.options.server == mine.Halving(0.5)
        assert record.replay_events().equals(record.timeline)
        np.testing.assert_allclose(replay(PROBLEM, record, LOCAL), result.arrays["theta"].numpy(), rtol=1e-10)
    with pytest.raises(InputError, match=r'the record is of .*"size": 2, .* but .*"size": 3, .* was given'):
        recorded(tmp_path / "run", scheme=ft.Scheme(mine.EveryFew(3), name="three"))
    stopped = federated(tmp_path / "stopped", (5, 12))
    assert len(recorded(stopped).replay_events().ends) == len(stopped.rounds)
    np.testing.assert_allclose(
        replay(PROBLEM, recorded(tmp_path / "stopped"), LOCAL), stopped.arrays["theta"].numpy(), rtol=1e-10
    )
    code, out, _ = run(f"show {tmp_path / 'run'}")
    assert code == 0
    assert "EveryFew + Halving(0.5) on Flower" in out
    assert "Reality and simulation" in out
    assert run(f"plan --times {tmp_path / 'run'} --scheme {RULE}")[0] == 0


def test_a_compression_on_the_wire_is_the_simulations() -> None:
    methods = [mine.UpperHalf(True), mine.UpperHalf(), None]
    mods = [[] if method is None else [compressing(method)] for method in methods]
    sites = [Site(i, mod, seconds) for i, (mod, seconds) in enumerate(zip(mods, (1, 0.75, 2.5), strict=True))]
    result = train_sites(sites, rounds=10)
    assert not result.errors
    theta = simulated(result, sites, methods)
    for name, array in theta.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array, atol=2e-4)


def test_a_client_cannot_make_the_server_import(tmp_path, monkeypatch) -> None:
    trap(tmp_path, monkeypatch, "trap_client")
    base = {"w": np.zeros(3, np.float32)}
    for name in ("trap_client:Rule", "os:system", f"{HERE}:points", f"{HERE}:Halving"):
        with pytest.raises(NotImported, match="nothing is imported only because a folder or a message names it"):
            decompressed(ConfigRecord({"name": name}), record_of({"w": np.zeros(3)}), base, ())
    assert not (tmp_path / "sprung").exists()
    assert MARKER == "fedtempo.compression", "what older clients send"


# -- somebody else's folder


def trap(folder: Path, monkeypatch, module: str) -> None:
    """A module in the current directory that writes a file when it is imported."""
    code = "from pathlib import Path\nPath('sprung').write_text('!')\nfrom support.own_parts import *\n"
    (folder / f"{module}.py").write_text(code)
    monkeypatch.chdir(folder)


PLACES = ("schemes", "server", "correction", "compression", "scheme_weights", "weights", "solver", "problem", "nested")


@pytest.mark.parametrize("place", PLACES)
def test_a_study_from_somebody_else_runs_no_code(place, run, tmp_path, monkeypatch) -> None:
    (tmp_path / "own.toml").write_text(STUDY + '[[schemes]]\nname = "fedavg"\n')
    assert run("run own.toml -q --out x")[0] == 0
    module = f"trap_{place}"
    trap(tmp_path, monkeypatch, module)
    file = tmp_path / "x" / "study.json"
    document = json.loads(file.read_text())
    told = document["description"]
    [scheme] = told["schemes"]
    if place == "schemes":
        scheme["name"] = f"{module}:EveryFew"
    elif place == "nested":
        scheme |= {"name": "fedau", "scheme": {"name": f"{module}:few"}}
    elif place in ("server", "correction", "compression"):
        scheme[place] = f"{module}:Halving"
    elif place == "scheme_weights":
        scheme["weights"] = {"name": f"{module}:Evenly"}
    elif place == "weights":
        told["weights"] = [f"{module}:Evenly"]
    elif place == "solver":
        told["local"]["solver"] = f"{module}:solver"
    else:
        told["problem"]["name"] = f"{module}:points"
    file.write_text(json.dumps(document))
    assert run("show x")[0] == 0
    code, _, err = run(f"run --resume x --problem {HERE}:points")
    assert code == 2
    assert f"the study in x names {module}:" in err
    assert "add --trust" in err
    assert not (tmp_path / "sprung").exists()
    assert module not in sys.modules
    run("run --resume x --trust")
    assert (tmp_path / "sprung").exists()


def test_a_run_from_somebody_else_runs_no_code(tmp_path, monkeypatch, run) -> None:
    federated(tmp_path / "run", (6,))
    trap(tmp_path, monkeypatch, "trap_run")
    with np.load(tmp_path / "run" / "state.npz") as saved:
        arrays = dict(saved)
    document = json.loads(arrays.pop("document").tobytes())
    document["about"]["scheme"]["name"] = "trap_run:EveryFew"
    document["about"]["scheme"]["server"]["name"] = "trap_run:Halving"
    text = np.frombuffer(json.dumps(document).encode(), np.uint8)
    np.savez(tmp_path / "run" / "state.npz", document=text, **arrays)
    code, out, err = run("show run --out run.svg")
    assert (code, err) == (0, "")
    assert "trap_run:EveryFew(2, 1/3) + trap_run:Halving on Flower" in out
    assert "the folder names trap_run:EveryFew" in out
    assert run("plan --times run --scheme fedavg")[0] == 0
    record = recorded(tmp_path / "run")
    with pytest.raises(InputError, match=r"trap_run:EveryFew is written there and was not imported; give it"):
        record.replay_events()
    with pytest.raises(InputError, match="trap_run:Halving is named there but was not imported"):
        replay(PROBLEM, record, LOCAL)
    assert not (tmp_path / "sprung").exists()
    assert "trap_run" not in sys.modules
    code, out, _ = run("show run --scheme trap_run:EveryFew --out run.svg")
    assert (tmp_path / "sprung").exists(), "the user has named it"
    assert "Reality and simulation" in out


def test_trust_imports_what_a_run_names(tmp_path) -> None:
    """In a process of its own, which has not loaded the module."""
    federated(tmp_path / "run", (6,))
    code = (
        "import sys\nfrom fedtempo.flower import recorded\n"
        "named = recorded('run').scheme\nassert 'support.own_parts' not in sys.modules\n"
        "made = recorded('run', trust=True).scheme\n"
        "print(type(named.waiting).__name__, repr(made.waiting), made.label)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "NamedRule EveryFew(size=2, pace=Fraction(1, 3)) EveryFew + Halving(0.5)\n"


# -- names and specs

ALL = {
    "server": [
        *(ft.SlowMo(0.5), ft.FedAdam(0.8), ft.FedYogi(), ft.FedAdaGrad(), ft.MixModels()),
        *(ft.CoordinateMedian(), ft.CoordinateMedian(7), ft.TrimmedMean(trim=0.1), ft.NormClipping(8, 2.0)),
        *(ft.Krum(), ft.Krum(9, hostile=3, chosen=1)),
    ],
    "correction": [ft.FedProx(0.1), ft.FedDANE(0.1), ft.FedDyn(1), ft.Scaffold()],
    "compression": [ft.TopK(0.01), ft.QSGD(3, bucket=7, norm="euclidean"), ft.LowRank(2, error_feedback=False)],
    "scheme": [
        *(ft.FedAvg(), ft.AsyncFedAvg(), ft.Centralized(), ft.FedFix("1/3"), ft.FedBuff(3), ft.UniformSampling(2)),
        *(ft.MultinomialSampling(2), ft.FastestSampling(2), ft.HighestLossSampling(2, candidates=4)),
        ft.CuredSampling(ft.FastestSampling(2), window=8, biased=2),
        ft.StagedFedFix([("1/4", 3), ("1/2", None)]),
    ],
}
OWN = {
    "server": [
        mine.Halving(),
        mine.Halving(0.5),
        ft.ServerOptax(optax.adam),
        ft.ServerOptax(optax.sgd, {"nesterov": True}),
    ],
    "correction": [mine.Pull(0.3)],
    "compression": [mine.UpperHalf(True)],
    "scheme": [SCHEME, WHOLE, mine.Pairs(3), ft.Scheme(mine.THREE, name="mine"), scheme_of(f"{HERE}:few:4")],
    "weights": [mine.Evenly(0.3)],
}


@pytest.mark.parametrize("kind", ALL | OWN)
def test_everything_named_comes_back(kind) -> None:
    for thing in [*ALL.get(kind, []), *OWN.get(kind, [])]:
        spec = own_spec(thing) if kind == "weights" else thing.spec()
        read = scheme_of if kind == "scheme" else registry_of(kind).from_spec
        again = read(json.loads(json.dumps(spec)))
        assert again == thing
        assert again.label == thing.label
        assert hash(again) == hash(thing)


def test_texts_are_tables() -> None:
    assert scheme_of("fedfix:1/3") == ft.FedFix("1/3")
    assert scheme_of(RULE).waiting == mine.EveryFew(2)
    assert scheme_of(f"{HERE}:EveryFew:pace=1/7").waiting == mine.EveryFew(2, Fraction(1, 7))
    assert scheme_of({"name": f"{HERE}:EveryFew", "pace": 0.2}).waiting == mine.EveryFew(2, Fraction(1, 5))
    assert scheme_of({"name": f"{HERE}:THREE"}).waiting is mine.THREE
    stages = [{"wait": "1/4", "rounds": 3}, {"wait": "1/2"}]
    for name in ("stages", "fedfix-stages"):
        assert scheme_of({"name": name, "stages": stages}) == ft.StagedFedFix([("1/4", 3), ("1/2", None)])
    assert SERVERS.from_spec("slowmo:0.5") == ft.SlowMo(0.5)
    assert SERVERS.from_spec("median") == ft.CoordinateMedian()
    assert SERVERS.from_spec("trimmed-mean:10:0.1") == ft.TrimmedMean(10, 0.1)
    assert SERVERS.from_spec("krum:hostile=2") == ft.Krum(hostile=2)
    assert SERVERS.from_spec("optax:adam:b1=0.8") == ft.ServerOptax(optax.adam, {"b1": 0.8})
    assert SERVERS.from_spec(f"{HERE}:solver:4") == ft.ServerOptax(mine.solver, {"slowdown": 4})
    assert COMPRESSIONS.from_spec("qsgd:4:512:euclidean") == ft.QSGD(4, bucket=512, norm="euclidean")
    assert COMPRESSIONS.from_spec("topk:1/10:false") == ft.TopK("1/10", error_feedback=False)
    assert CORRECTIONS.from_spec("fedprox:1").spec() == {"name": "fedprox", "mu": 1}
    assert PROBLEMS.from_spec(f"{HERE}:points:4").num_clients == 4
    assert own_label(mine.EveryFew(pace=Fraction(1, 2))) == "EveryFew(pace=1/2)"
    assert own_label(mine.EveryFew(5)) == "EveryFew(5)"


BAD = [
    ("fedfx", r"'fedfx' is not known; did you mean fedfix\? Known: fedavg.*, or \"package.module:attribute\""),
    (
        f"{HERE}:EveryFews",
        r"EveryFews is not in it; did you mean EveryFew\? support.own_parts has EveryFew, Pairs, few, THREE",
    ),
    (f"{HERE}:EveryFew:2:1/2:3", "has 3 numbers; it takes size, pace"),
    (f"{HERE}:EveryFew:two", "'two' is not a number"),
    (f"{HERE}:EveryFew:1/0", "it takes|'1/0' is not a number"),
    (f"{HERE}:EveryFew:sise=2", r"the key 'sise' does not exist; did you mean size\?"),
    (f"{HERE}:THREE:2", "is already an object"),
    (f"{HERE}:UPPER", "is a uint32; it must be a fedtempo.Scheme or a fedtempo.WaitingRule"),
    (f"{HERE}:points", "points returned a Quadratics; it must return a fedtempo.Scheme or a fedtempo.WaitingRule"),
    ("nowhere:Rule", "there is no module 'nowhere'"),
    ("no where:Rule", "is not an import path"),
    ({"wait": 1}, "has no name; give name = one of fedavg"),
    (3, "has no name"),
    ({"name": 3}, "3 is not known"),
]


@pytest.mark.parametrize(("given", "says"), BAD)
def test_what_cannot_be_had_says_why(given, says) -> None:
    with pytest.raises(InputError, match=says):
        scheme_of(given)


def test_what_has_no_place_is_kept_by_its_repr() -> None:
    class Local(mine.WaitingRule):
        def decide(self, state, event, view):
            return state, None

    scheme = ft.Scheme(Local(), name="local")
    written = scheme.spec()
    assert written["name"] == "Local"
    assert "Local" in written["repr"]
    assert " at 0x" not in written["repr"]
    with pytest.raises(InputError, match="it cannot be imported"):
        scheme_of(written)
    server = ft.ServerOptax(lambda learning_rate: optax.sgd(learning_rate))
    with pytest.raises(InputError, match="it cannot be imported"):
        SERVERS.from_spec(server.spec())


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", f"{HERE}:solver", f"{HERE}:Halving", "nowhere:Rule"])
def test_a_strangers_word_takes_loaded_classes_of_the_kind_alone(name) -> None:
    SERVERS.load(f"{HERE}:solver")  # named by the user, as a server
    with only_named():
        assert scheme_of(f"{HERE}:EveryFew:4").waiting == mine.EveryFew(4)
        with pytest.raises(NotImported, match="if you trust it, name it yourself"):
            SCHEMES.from_spec(name)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ft.ServerOptax("adam"), "'adam' cannot be called"),
        (lambda: ft.ServerOptax(optax.adam, {"learning_rate": 1}), "is set by server_lr; give it there"),
        (lambda: ft.ServerOptax(optax.adam, {"beta": 1}), "cannot be made .*beta"),
        (lambda: ft.ServerOptax(lambda learning_rate: 3), "does not make an Optax transformation"),
        (lambda: SERVERS.from_spec("optax:adm"), r"optax:adm is not in it; did you mean adam\?"),
        (lambda: SERVERS.from_spec("optax:adam:beta=1"), "the key 'beta' does not exist"),
    ],
)
def test_a_solver_that_does_not_do_is_refused(make, says) -> None:
    with pytest.raises(InputError, match=says):
        make()
