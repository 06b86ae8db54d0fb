"""`fedtempo plan --problem`: its flags, its progress, how it is stopped, and what it takes of a run on Flower."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.cli import progress
from fedtempo.planning.progress import RaceProgress
from support.recommendations import recommendation

RACED = RaceProgress(0.42, "training to 1/4 of the time", 36, 1200, 8.0, "FedFix(1/4) at lr 0.5")
WORDS = "training to 1/4 of the time, 36 cells left, FedFix(1/4) at lr 0.5 leads"
TINY = "plan --problem quadratics --set dimension=3 --times 1,2,3,4,5 --until 40"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in a folder of its own; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    return partial(in_process, capsys, monkeypatch)


class Asked:
    """What stands for `recommend`: it keeps what it was asked."""

    def __init__(self) -> None:
        self.problem: ft.Problem | None = None
        self.given: dict = {}
        self.made = recommendation()
        self.error: BaseException | None = None

    def __call__(self, problem, times, **given):
        self.problem, self.times, self.given = problem, times, given
        if given["on_progress"] is not None:
            given["on_progress"](RACED)
        if self.error is not None:
            raise self.error
        return self.made


@pytest.fixture
def asked(monkeypatch) -> Asked:
    found = Asked()
    monkeypatch.setattr("fedtempo.planning.recommend.recommend", found)
    return found


def labels(asked: Asked) -> list[str]:
    return [scheme.label for scheme in asked.given["schemes"]]


# -- what is asked


def test_what_is_not_said_is_left_to_recommend(run, asked) -> None:
    code, out, _ = run(TINY)
    assert code == 0
    assert "with local learning rate" in out
    assert asked.given.keys() <= {"schemes", "local", "until", "weights", "step", "share", "seed", "on_progress"}
    assert (asked.given["until"], asked.given.get("schemes")) == ("40", None)
    assert asked.times == ft.FixedTimes([1, 2, 3, 4, 5])
    local = asked.given["local"]
    assert (local.lr, local.steps, local.batch_size, local.momentum) == ("auto", 1, 32, None)


def test_the_flags_of_the_race(run, asked) -> None:
    words = "--budget 60s --tolerance 0.2 --objective time-to:0.3 --dtype float64 --engine events --pilot 0.1 --seed 3"
    assert run(f"{TINY} {words}")[0] == 0
    race = ("budget", "tolerance", "objective", "dtype", "engine", "share", "seed")
    assert [asked.given[key] for key in race] == ["60s", 0.2, "time-to:0.3", "float64", "events", 0.1, 3]


def test_the_local_work(run, asked) -> None:
    words = "--steps 4 --batch-size all --momentum 0.9 --clip 2 --draw epochs --lr 0.1,0.3 --server-lr 0.5"
    assert run(f"{TINY} {words}")[0] == 0
    local = asked.given["local"]
    assert (local.steps, local.batch_size, local.momentum, local.clip, local.draw) == (4, None, 0.9, 2.0, "epochs")
    assert (asked.given["rates"], asked.given["server_lr"]) == ([0.1, 0.3], 0.5)
    assert run(f"{TINY} --solver adam --lr 0.01")[0] == 0
    assert asked.given["local"].solver.__name__ == "adam"
    assert asked.given["rates"] == [0.01]


def test_options_of_all_schemes(run, asked) -> None:
    words = "--correction fedprox:0.1 --server fedadam --compression topk:0.1 --scheme fedavg --scheme fedfix --wait 2"
    assert run(f"{TINY} {words}")[0] == 0
    used = {"correction": ft.FedProx(0.1), "server": ft.FedAdam(), "compression": ft.TopK("1/10")}
    assert asked.given["schemes"] == [ft.FedAvg().using(**used), ft.FedFix(2).using(**used)]
    assert run(f"{TINY} --compensate rate")[0] == 0
    assert labels(asked)[:2] == ["FedAvg + by rate", "AsyncFedAvg + by rate"]
    assert len(labels(asked)) > 5
    assert run(f"{TINY} --scheme fedasync:0.3 --scheme cutoff:fedavg:5")[0] == 0
    assert labels(asked) == ["FedAsync(0.3, polynomial:0.5)", "FedAvg, cut-off 5"]


def test_clients_may_come_and_go(run, asked) -> None:
    assert run(f"{TINY} --failure 0.1 --on 10 --off 2")[0] == 0
    assert asked.times.availability is not None


def test_weights_and_discount(run, asked) -> None:
    assert run(f"{TINY} --weights identical --discount hinge:10:4 --step paper")[0] == 0
    assert asked.given["weights"] == ft.Discounted(ft.Identical(), ft.HingeDiscount(10, 4))
    assert asked.given["step"] == "paper"


def test_a_document(run, asked) -> None:
    code, out, err = run(f"{TINY} --json -q")
    assert (code, err) == (0, "")
    assert json.loads(out)["best"]["label"] == asked.made.best.scheme.label
    assert "from_run" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--momentum 0,0.9", "--momentum: 0.0,0.9: fedtempo plan takes one; fedtempo run compares several"),
        ("--clip few", "--clip: 'few' is not a number; write it as 1 or 1,10"),
        ("--solver adem", "solver 'adem' is not one of Optax's"),
        ("--draw sometimes", "draw: 'sometimes' is not known"),
        ("--correction fedpix", "correction: 'fedpix' is not known; did you mean fedprox"),
        ("--server fedadem", "server: 'fedadem' is not known; did you mean fedadam"),
        ("--compression top", "compression: 'top' is not known"),
        ("--compensate luck", "compensate: 'luck' is not known"),
        ("--weights fair", "weights: 'fair' is not known"),
        ("--discount never", "discount: 'never' is not known"),
        ("--lr 0.1,0", "--lr: 0 is not a learning rate; give numbers above zero, as 0.1,0.3"),
        ("--lr nan", "--lr: nan is not a learning rate"),
        ("--pilot 2", "--pilot: 2 is not a share of the client updates"),
        ("--noise 1", "--noise: it belongs to a plan without a problem"),
    ],
)
def test_what_cannot_work_is_refused(run, asked, words, said) -> None:
    code, out, err = run(f"{TINY} {words}")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert asked.problem is None


FLAGS = {
    "until": "9",
    "budget": "100%",
    "tolerance": "0",
    "objective": "loss",
    "momentum": "0.9",
    "clip": "1",
    "solver": "sgd",
    "draw": "uniform",
    "correction": "scaffold",
    "server": "fedadam",
    "compression": "qsgd:4",
    "compensate": "rate",
    "dtype": "float32",
    "engine": "auto",
    "pilot": "0.1",
    "figure": "x.svg",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_need_a_problem(run, flag) -> None:
    code, out, err = run(f"plan --times 1,2 --{flag} {FLAGS[flag]}")
    assert (code, out) == (2, "")
    assert err == f"fedtempo: --{flag}: it belongs to a problem; add one, as --problem digits\n"


def test_who_gives_no_times_is_told_how(run) -> None:
    code, _, err = run("plan --problem digits --until 9")
    assert code == 2
    assert err.startswith("fedtempo: --times: how long do the clients take? Give it, as --times F80 --clients 20, or")


def test_planning_without_a_problem_stays_light() -> None:
    heavy = ["jax", "optax", "flwr", "fedtempo.simulation", "fedtempo.training", "fedtempo.flower", "matplotlib"]
    code = f"""
import sys
sys.argv = ["fedtempo", "plan", "--clients", "20", "--times", "F80"]
from fedtempo.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


# -- progress, and how it is stopped


def test_progress_is_told_in_lines_now_and_then(run, asked, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    assert run(f"{TINY} --json")[2] == f"fedtempo: 42%, {WORDS}\n"
    assert run(f"{TINY} --json -q")[2] == ""
    assert asked.given["on_progress"] is None
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e9)
    assert run(f"{TINY} --json")[2] == ""


def test_progress_in_words() -> None:
    assert progress.race_words(RACED) == WORDS
    assert progress.race_words(replace(RACED, cells=1, leader="")) == "training to 1/4 of the time, 1 cell left"
    assert progress.race_words(replace(RACED, cells=0, leader="", stage="the pilot")) == "the pilot"


def test_progress_is_a_bar_on_a_terminal(run, asked, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    with progress.racing(quiet=False) as tell:
        tell(RACED)
        tell(replace(RACED, leader="FedFix[1/4] [bold]"))
    err = capsys.readouterr().err
    assert "planning" in err
    assert "FedFix[1/4] [bold] leads" in err


def test_stopped_with_the_best_so_far(run, asked) -> None:
    asked.made = replace(asked.made, ended="stopped")
    code, out, err = run(f"{TINY} -q --figure plan.svg")
    assert code == 130
    assert "with local learning rate" in out
    assert Path("plan.svg").is_file()
    assert err.startswith("fedtempo: stopped, and this is the best so far")
    code, out, err = run(f"{TINY} -q --json")
    assert (code, json.loads(out)["ended"]) == (130, "stopped")


def test_stopped_with_nothing_to_compare(run, asked) -> None:
    asked.error = KeyboardInterrupt()
    code, out, err = run(f"{TINY} -q")
    assert (code, out) == (130, "")
    assert err.startswith("fedtempo: stopped before any two cells")


def test_sigterm_is_ctrl_c(run, asked) -> None:
    def stopped(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    asked.error = None
    before = signal.getsignal(signal.SIGTERM)
    asked.__class__ = type("Stopped", (Asked,), {"__call__": stopped})
    code, _, err = run(f"{TINY} -q")
    assert code == 130
    assert "nothing is recommended" in err
    assert signal.getsignal(signal.SIGTERM) is before


# -- after a run on Flower


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of four clients by FedFix(3)."""
    return trained(tmp_path_factory.mktemp("ran") / "run", ft.FedFix(3))


def trained(path: Path, scheme: ft.Scheme, seconds=(1, 2, 2.5, 4), rounds: int = 12, **options) -> Path:
    flower = pytest.importorskip("fedtempo.flower")
    from support.flower_fake import FakeGrid, on, record_of, shifting

    grid = FakeGrid()
    for k, each in enumerate(seconds):
        grid.connect(100 + k, shifting(1, each, examples=10 * (k + 1)))
    strategy = flower.TimedStrategy(scheme, **on(grid, checkpoint=path, **options))
    strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=rounds, timeout=50)
    return path


RACE = "--problem quadratics --set dimension=3"


def test_a_run_says_how_long_clients_take_and_what_was_used(run, asked, folder) -> None:
    code, out, _ = run(f"plan {folder} {RACE}")
    assert code == 0
    first = out.splitlines()[0]
    label, length = "FedFix(3), 36 s of training", Fraction(36)
    assert first == f"From the run in {folder} ({label}): times of 4 clients, time-based weights, stable step."
    assert asked.times.num_clients == asked.problem.num_clients == 4
    assert asked.times.mean_time == pytest.approx([1, 2, 2.5, 4], rel=0.01)
    assert (asked.given["until"], asked.given["step"], asked.given["server_lr"]) == (length, "stable", 1.0)
    assert asked.given["weights"] == ft.TimeBased()
    assert ft.FedFix(3) in asked.given["schemes"]
    assert len(asked.given["schemes"]) > 6


def test_flags_go_before_the_run(run, asked, folder) -> None:
    words = "--times 1,2 --until 50 --weights identical --step paper --server-lr 0.5 --scheme fedavg --json"
    code, out, _ = run(f"plan {folder} {RACE} {words}")
    assert code == 0
    assert json.loads(out)["from_run"] == [f"From the run in {folder} (FedFix(3), 36 s of training): its scheme."]
    assert (asked.times, asked.given["until"], asked.given["step"]) == (ft.FixedTimes([1, 2]), "50", "paper")
    assert (asked.given["weights"], asked.given["server_lr"]) == (ft.Identical(), 0.5)
    assert labels(asked) == ["FedAvg", "FedFix(3)"]
    assert run(f"plan {folder} {RACE} --law bootstrap")[0] == 0
    assert asked.times.law != "fixed"


def test_a_server_rule_goes_with_its_rate_to_all(run, asked, tmp_path) -> None:
    path = trained(tmp_path / "run", ft.FedBuff(2), server=ft.FedAdam(), server_lr=0.01, weights="identical")
    assert run(f"plan {path} {RACE} --scheme fedavg")[0] == 0
    adam = {"server": ft.FedAdam()}
    assert asked.given["schemes"] == [ft.FedAvg().using(**adam), ft.FedBuff(2).using(**adam)]
    assert (asked.given["server_lr"], asked.given["weights"]) == (0.01, ft.Identical())
    assert run(f"plan {path} {RACE} --scheme fedavg --server slowmo")[0] == 0
    assert [one.options.server for one in asked.given["schemes"]] == [ft.SlowMo()] * 2
    assert "server_lr" not in asked.given


def test_a_run_that_needs_more_clients_than_answered(run, asked, tmp_path) -> None:
    path = trained(tmp_path / "run", ft.FedFix(3))
    code, out, _ = run(f"plan {path} {RACE} --times 1,2")
    assert code == 0
    path = trained(tmp_path / "other", ft.FedBuff(3), server=ft.CoordinateMedian(last=9))
    code, out, _ = run(f"plan {path} {RACE} --times 1,2")
    assert code == 0
    assert out.splitlines()[1].endswith("is not compared: it needs 3 clients, and there are times of 2.")
    assert {one.options.server for one in asked.given["schemes"]} == {ft.CoordinateMedian()}


def test_what_a_run_names_is_not_imported(run, asked, tmp_path) -> None:
    (tmp_path / "ran_rules.py").write_text(
        "import fedtempo as ft\n"
        "from dataclasses import dataclass\n"
        "from support.own_parts import EveryFew, Halving\n"
        "class Rule(ft.Scheme):\n"
        "    def __init__(self, size=2):\n"
        "        self.size = size\n"
        "        super().__init__(EveryFew(size), name='mine', label=f'Mine({size})')\n"
        "@dataclass(frozen=True)\n"
        "class Half(Halving):\n"
        "    pass\n"
    )
    code = (
        "from cli.test_plan_race import trained; from pathlib import Path; import ran_rules;"
        "trained(Path('run'), ran_rules.Rule(), server=ran_rules.Half())"
    )
    tests = str(Path(__file__).parents[1])
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, str(tmp_path)])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=where, check=True, capture_output=True)
    code, out, _ = run(f"plan run {RACE}")
    assert code == 0
    assert "ran_rules" not in sys.modules
    notes = out.splitlines()[1:3]
    assert notes[0].startswith("ran_rules:Rule(2) + ran_rules:Half is not compared: its rule is code of somebody")
    assert "name it, as --scheme" in notes[0]
    assert "name it, as --server" in notes[1]
    assert all(one.options.plain for one in asked.given["schemes"])
    code, out, _ = run(f"plan run {RACE} --scheme ran_rules:Rule --server ran_rules:Half")
    assert code == 0
    assert out.splitlines()[1] == ""
    assert [type(one.options.server).__name__ for one in asked.given["schemes"]] == ["Half"]
    sys.modules.pop("ran_rules", None)


def test_without_a_problem_the_run_is_planned(run, folder) -> None:
    code, out, err = run(f"plan {folder}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"From the run in {folder} (FedFix(3), 36 s of training): times of 4 clients")
    assert any(line.startswith("FedFix(3) ") for line in lines)
    code, out, _ = run(f"plan {folder} --json --scheme fedavg")
    document = json.loads(out)
    assert [one["label"] for one in document["schemes"]] == ["FedAvg", "FedFix(3)"]
    assert document["importance"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert document["from_run"]
    assert run(f"plan {folder} --problem digits --clients 7 --until 9")[0] == 2


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("nowhere", 3, "nowhere: no such folder of a run on Flower; check the path"),
        ("F80", 3, "F80: no such folder of a run on Flower; check the path (times are given as --times F80)"),
        ("empty", 2, "empty: it is a folder without a run of fedtempo.flower; give the checkpoint folder"),
        ("file", 2, "file: it is a file; give the checkpoint folder"),
        ("begun", 3, "begun: no round of the run there is saved yet; wait for its first"),
        ("several", 2, "several: it holds 2 runs on Flower; give one of them, as several/one"),
    ],
)
@pytest.mark.parametrize("problem", ["", "--problem digits"])
def test_folders_that_are_no_run(run, tmp_path, place, code, said, problem) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("begun", "several/one", "several/two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rounds.jsonl").write_text("")
    found, out, err = run(f"plan {place} {problem}")
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_flower(folder, run, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedtempo.flower.") or name == "fedtempo.flower"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, out, err = run(f"plan {folder}")
    assert (code, out) == (2, "")
    assert "fedtempo.flower needs Flower: pip install 'fedtempo[flower]'" in err


# -- nothing stands for anything: a real race, as small as can be


RACED_FOR_REAL = "--times 1,2,3,4,5 --until 12 --scheme fedavg --scheme fedfix --wait 2 -q"
REAL = f"plan --problem quadratics --set dimension=2 {RACED_FOR_REAL}"


def test_a_real_race(run) -> None:
    code, out, err = run(f"{REAL} --lr 0.05,0.1 --budget 400 --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert {one["label"] for one in document["schemes"]} == {"FedAvg", "FedFix(2)"}
    assert document["best"]["local_lr"] in (0.05, 0.1)
    assert document["ended"] in ("sure", "budget", "alone")
    assert "# clients: lr=" in document["strategy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--budget 0", "budget: '0' is not known; give client updates as 50000"),
        ("--budget 5x", "budget: '5x' is not known"),
        ("--objective nope", "objective: 'nope' is not known; give loss, worst, metric:NAME"),
        ("--tolerance -1", "tolerance: -1.0 is not allowed"),
        ("--tolerance 0", "tolerance: 0.0 is not allowed"),
        ("--engine oracle", "engine: the oracle"),
        ("--dtype float8", "dtype: 'float8' is not known"),
    ],
)
def test_what_a_real_race_refuses(run, words, said) -> None:
    code, out, err = run(f"{REAL} {words}")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
