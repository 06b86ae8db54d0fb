"""``fedtempo run`` and ``fedtempo show`` as their users meet them: folders, files, flags, signals, messages."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.simulation.study_file import DEFAULT, merged

SMALL = """
until = 6
seeds = [0]
points = 4

[problem]
clients = 5

[local]
lr = [0.1, 0.3]

[[schemes]]
name = "fedavg"

[[schemes]]
name = "fedfix"
wait = "1/2"
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in a folder of its own; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtempo.cli.progress.LINE_SECONDS", 1e9)
    (tmp_path / "small.toml").write_text(SMALL)
    return partial(in_process, capsys, monkeypatch)


def test_a_study_from_a_file_then_shown(run, tmp_path) -> None:
    code, out, err = run("run small.toml --out results/x")
    assert (code, err) == (0, "")
    folder = tmp_path / "results" / "x"
    there = ["history.nc", "live.jsonl", "study.json", "study.png", "study.svg", "units"]
    assert sorted(p.name for p in folder.iterdir()) == there
    history = ft.History.load(folder / "history.nc")
    assert history.finished
    assert history.dataset.sizes["scheme"] == history.dataset.sizes["local_lr"] == history.dataset.sizes["weights"] == 2
    assert list(history.dataset.time.values) == [0, 2, 4, 6]
    assert "FedFix(1/2)" in out
    assert "study.png" in out
    (folder / "study.png").unlink()
    assert run("show results/x") == (0, out, "")
    assert (folder / "study.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    code, out, _ = run("show results/x --measure test_accuracy --out accuracy.pdf")
    assert (tmp_path / "accuracy.pdf").read_bytes()[:5] == b"%PDF-"


def test_flags_override_the_file(run, tmp_path) -> None:
    flags = (
        "--scheme async --lr 0.2 --seeds 2 --weights identical --times 1,2,3,4,5 --until 4 --steps 2 --batch-size all"
    )
    assert run(f"run small.toml {flags} --out y -q")[0] == 0
    found = ft.History.load(tmp_path / "y" / "history.nc").dataset
    assert list(found.scheme.values) == ["AsyncFedAvg"]
    assert list(found.weights.values) == ["identical"]
    assert list(found.seed.values) == [0, 1]
    assert float(found.local_lr) == 0.2
    assert int(found.local_steps) == 2
    assert np.isnan(float(found.batch_size))
    assert float(found.updates.isel(scheme=0, seed=0, time=-1)) == 4 + 2 + 1 + 1
    configuration = json.loads(found.attrs["configuration"])
    assert configuration["problem"]["arguments"]["clients"] == 5
    assert configuration["until"] == "4"


def test_quadratics_random_times_and_other_solvers(run, tmp_path) -> None:
    (tmp_path / "a.toml").write_text('[local]\nsolver = "adam"\nlr = 0.05\noptions = { b1 = [0.5, 0.9] }\n')
    words = "run a.toml --problem quadratics --clients 4 --law exponential --scheme fedbuff --buffer 2 --until 8"
    assert run(f"{words} --points 3 --seeds 0,7 --dtype float64 --out q -q")[0] == 0
    found = ft.History.load(tmp_path / "q" / "history.nc").dataset
    assert found.sizes["b1"] == 2
    assert found.attrs["dtype"] == "float64"
    assert list(found.seed.values) == [0, 7]


def test_a_problem_of_ones_own(run, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "import fedtempo as ft\n\ndef make(clients, shift=0.0):\n"
        "    return ft.problems.quadratics(clients, dimension=3, heterogeneity=shift)\n"
    )
    (tmp_path / "own.toml").write_text(
        'until = 3\nseeds = [0]\n[problem]\nname = "mine:make"\nclients = 3\nshift = 2.0\n'
    )
    assert run("run own.toml --scheme fedavg -q")[0] == 0
    assert (tmp_path / "results" / "make" / "history.nc").exists()


def test_a_folder_that_is_taken(run, tmp_path) -> None:
    assert run("run small.toml --out x -q")[0] == 0
    before = {p: p.read_bytes() for p in sorted((tmp_path / "x").rglob("*")) if p.is_file()}
    code, _, err = run("run small.toml --out x -q --lr 0.7")
    assert code == 4
    assert err == (
        "fedtempo: x holds a study, finished: fedtempo show x; to replace it add --overwrite, or choose another --out\n"
    )
    assert run("run small.toml --out x -q --overwrite --lr nonsense")[0] == 2
    assert run("run small.toml --out x -q --overwrite --times 1,2")[0] == 2
    assert {p: p.read_bytes() for p in sorted((tmp_path / "x").rglob("*")) if p.is_file()} == before
    assert run("run small.toml --out x -q --overwrite --lr 0.7")[0] == 0
    assert float(ft.History.load(tmp_path / "x" / "history.nc").dataset.local_lr) == 0.7
    assert run("run --resume x")[0] == 0
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("keep me")
    code, _, err = run("run small.toml --out notes -q")
    assert (code, len(err.splitlines())) == (4, 1)
    assert run("run small.toml --out notes -q --overwrite")[0] == 4
    assert [p.name for p in (tmp_path / "notes").iterdir()] == ["todo.txt"]


@pytest.mark.parametrize(
    ("file", "command", "code", "says"),
    [
        ("untill = 3", "run f.toml", 2, "did you mean until?"),
        ("[local]\nlearning_rate = 3", "run f.toml", 2, "'learning_rate' does not exist"),
        ("[times]\ntime = 'F80'", "run f.toml", 2, "did you mean times?"),
        ("[problem]\nname = 'digit'", "run f.toml", 2, "did you mean digits? Known: digits, mnist"),
        ("[problem]\nclient = 3", "run f.toml", 2, "the key 'client' does not exist"),
        ("[problem]\nname = 'nowhere:make'", "run f.toml", 2, "no module 'nowhere'"),
        ("[[schemes]]\nname = 'fedfx'", "run f.toml", 2, "did you mean fedfix?"),
        ("[[schemes]]\nname = 'fedfix'", "run f.toml", 2, "it needs wait"),
        ("[[schemes]]\nname = 'fedfix'\nwait = 1\nsize = 3", "run f.toml", 2, "'size' does not exist"),
        ("schemes = 'fedavg'", "run f.toml", 2, "give a list of tables"),
        ("local = 3", "run f.toml", 2, "is not a table"),
        ("until = [", "run f.toml", 2, "not TOML"),
        ("until = 'soon'", "run f.toml", 2, "'soon' is not a number"),
        ("[local]\nsolver = 'adm'", "run f.toml", 2, "'adm' is not one of Optax's"),
        ("[local]\nbatch_size = 0", "run f.toml", 2, "batch_size"),
        ("", "run nothere.toml", 3, "no such study file"),
        ("", "run --lr abc", 2, "--lr: 'abc' is not a number"),
        ("", "run --lr -1", 2, "above 0"),
        ("", "run --seeds 0", 2, "at least 1"),
        ("", "run --seeds x", 2, "neither a number of seeds"),
        ("", "run --clients 0", 2, "at least 1"),
        ("", "run --clients 20 --times 1,2,3", 2, "20 clients, but there are times of 3"),
        ("", "run --until 0.1 --scheme fedavg", 2, "no round ends by 1/10"),
        ("", "run --weights idnetical", 2, "time-based, identical, importance"),
        ("", "run --partition dirichlt:1", 2, "dirichlet:ALPHA"),
        ("", "run --engine fast", 2, "auto, events, waves, oracle"),
        ("", "run --engine oracle", 2, "use auto, events or waves"),
        ("", "run --dtype float16", 2, "float32, float64"),
        ("", "run --resume nothere", 3, "no study is there"),
        ("", "run --resume x --lr 1", 2, "leave the file and other flags out"),
        ("", "show nothere", 3, "no such file"),
        ("", "show .", 3, "no study is there"),
        ("not a netcdf file", "show f.toml", 2, "f.toml"),
    ],
)
def test_bad_input_gets_one_clear_line(run, tmp_path, file, command, code, says) -> None:
    (tmp_path / "f.toml").write_text(file)
    got, out, err = run(command)
    assert (got, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("fedtempo: ")
    assert says in err
    assert not (tmp_path / "results").exists()


def test_a_study_begun_from_python_is_not_resumed_by_the_command(run, tmp_path) -> None:
    problem = ft.problems.quadratics(3, dimension=2)
    ft.simulate(problem, ft.FedAvg(), ft.FixedTimes([1, 2, 3]), until=6, points=2, checkpoint=tmp_path / "py")
    code, _, err = run("run --resume py")
    assert code == 2
    assert "started from Python" in err


def test_the_default_study_is_the_one_in_the_guide() -> None:
    import re
    import tomllib

    guide = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    [block] = re.findall(r"^```toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    said = tomllib.loads(block)
    schemes = said.pop("schemes")
    assert merged(said) == DEFAULT | {"schemes": DEFAULT["schemes"]}
    assert all(scheme in [*DEFAULT["schemes"]] for scheme in schemes)
    every_line = tomllib.loads(re.sub(r"^# ", "", block, flags=re.MULTILINE))
    assert merged(every_line)["local"]["solver"] == "adam"


LONG = "run --clients 5 --scheme async --scheme fedavg --lr 0.1,0.2 --seeds 2 --until 4000 --points 401"


def begun(folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """A long study in a process of its own, when it has saved its first measures."""
    sooner = "import fedtempo.simulation.study as s; s.simulate.__kwdefaults__['save_every'] = 0.2"
    code = f"{sooner}; from fedtempo.cli import main; main()"
    command = [sys.executable, "-c", code, *shlex.split(LONG), "--out", "long"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 120
    saved = folder / "long" / "history.nc"
    while not saved.exists() or not ft.History.load(saved).dataset.loss.notnull().any():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_study_is_kept_and_goes_on(sent, run, tmp_path) -> None:
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    process = begun(tmp_path, env)
    process.send_signal(sent)
    _, said = process.communicate(timeout=120)
    if sent == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert said.splitlines()[-1] == (
            "fedtempo: stopped, and everything so far is kept: fedtempo show long, "
            "or go on with fedtempo run --resume long"
        )
    partial = ft.History.load(tmp_path / "long" / "history.nc")
    assert not partial.finished
    code, out, err = run("show long")
    assert (code, err) == (0, "")
    assert "not finished" in out
    code, _, err = run(LONG + " --out long -q")
    assert code == 4
    assert "fedtempo run --resume long" in err
    assert run("run --resume long -q")[0] == 0
    whole = ft.History.load(tmp_path / "long" / "history.nc")
    assert whole.finished
    done = ~np.isnan(partial.dataset.loss.values)
    assert done.any()
    assert np.array_equal(whole.dataset.loss.values[done], partial.dataset.loss.values[done])


def test_a_compiled_program_cut_short_on_disk_is_compiled_again_without_a_word(tmp_path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    kept = tmp_path / "cache"
    env = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(kept),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def losses(out: str) -> np.ndarray:
        flags = ["--scheme", "fedavg", "--lr", "0.1", "--weights", "identical", "--out", out, "-q"]
        command = [sys.executable, "-m", "fedtempo", "run", "small.toml", *flags]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return ft.History.load(tmp_path / out / "history.nc").dataset.loss.values

    whole = losses("whole")
    entries = list(kept.glob("*-cache"))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-20])
    assert np.array_equal(losses("again"), whole)


# -- data that every seed deals anew

EACH = """
until = 6
points = 4
seeds = [3, 0]
schemes = [{ name = "async" }]
weights = ["identical"]
times = { times = "F80" }
problem = { name = "digits", clients = 4, partition = "dirichlet:0.3", seed = "each" }
local = { lr = [0.1], batch_size = 8 }
"""


def test_a_study_whose_data_every_seed_deals_anew(run, tmp_path) -> None:
    (tmp_path / "each.toml").write_text(EACH)
    code, _, err = run("run each.toml --out each --quiet")
    assert (code, err) == (0, "")
    whole = ft.History.load(tmp_path / "each" / "history.nc")
    assert json.loads(whole.attrs["problem"])["arguments"]["seed"] == "each"
    for seed in (3, 0):
        alone = EACH.replace("seeds = [3, 0]", f"seeds = [{seed}]").replace('seed = "each"', f"seed = {seed}")
        (tmp_path / "alone.toml").write_text(alone)
        code, _, err = run("run alone.toml --out alone --overwrite --quiet")
        assert (code, err) == (0, "")
        alone = ft.History.load(tmp_path / "alone" / "history.nc").dataset["loss"]
        np.testing.assert_array_equal(whole.dataset["loss"].sel(seed=[seed]).values, alone.values)
    code, shown, err = run("show each")
    assert (code, err) == (0, "")
    assert "digits, 4 clients: 1 scheme × 1 weight rule × 1 local_lr × 2 seeds, each with its own data" in shown
    assert run("run --resume each --quiet")[0] == 0
    code, _, err = run("run each.toml --out each --set seed=0 --quiet")
    assert code != 0
    assert "each holds a study" in err


def test_flags_say_it_too_and_other_commands_refuse_it(run, tmp_path) -> None:
    flags = "--problem digits --clients 4 --set seed=each --lr 0.1"
    code, _, err = run(f"run {flags} --until 2 --seeds 2 --points 2 --scheme fedavg --out x --quiet")
    assert (code, err) == (0, "")
    for command in (
        f"plan {flags} --until 4 --times F80",
        "theory --problem digits --clients 4 --set seed=each --times F80",
    ):
        code, out, err = run(command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert 'problem: seed = "each" is for studies (fedtempo run)' in err
    (tmp_path / "each.toml").write_text(
        EACH.replace('"digits"', '"own:fixed"').replace(', partition = "dirichlet:0.3"', "")
    )
    (tmp_path / "own.py").write_text(
        "import fedtempo as ft\ndef fixed(clients=4):\n    return ft.problems.digits(clients)\n"
    )
    code, _, err = run("run each.toml --out y")
    assert (code, err.count("\n")) == (2, 1)
    assert "own:fixed takes no seed that could deal it anew" in err
