"""``fedtempo theory`` as its users meet it: quantities, assumptions, every term of the bound, refusals, messages."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import fedtempo as ft
from cli.test_cli import HEAVY, in_process

QUADRATIC = "--problem quadratics --set noise=0.1 --set dimension=4"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in a folder of its own; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    return partial(in_process, capsys, monkeypatch)


def document(run, words: str) -> dict:
    """The JSON document of a command that succeeds; what JSON has no word for is refused."""
    code, out, err = run(f"theory {words} --json")
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["format"] == 1
    return found


def test_the_long_run_of_several_schemes(run) -> None:
    found = document(run, "--times F80 --clients 10 --scheme fedavg --scheme async --scheme fedfix --wait 0.5")
    assert found["problem"] is None
    assert found["until"] is None
    assert [s["label"] for s in found["schemes"]] == ["FedAvg", "AsyncFedAvg", "FedFix(1/2)"]
    times = ft.FixedTimes.spread(10, 80)
    for part, scheme in zip(found["schemes"], (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2")), strict=True):
        assert part["source"] == "stationary"
        assert part["quantities"] == ft.theory.quantities(scheme=scheme, times=times).to_dict()
        assert (part["assumptions"], part["bound"], part["refused"]) == ([], None, None)


def test_a_horizon_is_its_timeline_and_random_times_are_their_law(run) -> None:
    [fixed] = document(run, "--times 1,2,5/2 --scheme fedfix --wait 1 --until 7")["schemes"]
    assert fixed["source"] == "timeline"
    assert fixed["quantities"]["num_rounds"] == 7
    words = "--times 1,2,5/2 --law exponential --scheme async --until 50"
    [law] = document(run, words)["schemes"]
    assert law["source"] == "stationary"
    assert (law["quantities"]["co_participation"], law["quantities"]["max_delay"]) == (0.0, None)
    [drawn] = document(run, f"{words} --seed 3")["schemes"]
    line = ft.timeline(ft.AsyncFedAvg(), ft.ExponentialTimes([1, 2, "5/2"]), until=50, seed=3)
    assert drawn["source"] == "timeline"
    assert drawn["quantities"]["num_rounds"] == line.num_rounds
    [endless] = document(run, "--times 1,2 --scheme async --until 1e12")["schemes"]
    assert endless["source"] == "stationary"
    assert endless["quantities"]["num_rounds"] == 1_500_000_000_000


def test_every_term_of_the_bound(run) -> None:
    found = document(run, f"--times F80 --clients 5 --scheme fedfix --wait 0.5 {QUADRATIC} --steps 3 --until 20")
    [part] = found["schemes"]
    problem = ft.problems.quadratics(5, dimension=4, noise=0.1)
    times, scheme = ft.FixedTimes.spread(5, 80), ft.FedFix("1/2")
    line, weights = ft.timeline(scheme, times, until=20), ft.weights(scheme, times)
    lr = part["ceiling"]["corrected"]
    bound = ft.theory.bound(problem, timeline=line, weights=weights, local=ft.LocalSGD(steps=3, lr=lr))
    assert lr == bound.ceiling.corrected
    assert part["ceiling"]["largest"] == bound.ceiling.largest
    assert part["ceiling"]["binding"] == bound.ceiling.binding
    assert part["bound"]["terms"] == bound.terms
    assert part["bound"]["theorem_1"] == bound.theorem_1
    assert part["bound"]["theorem_1_as_printed"] == bound.as_printed.total < bound.theorem_1
    assert part["bound"]["theorem_2"] is None  # U was not measured
    assert [a["number"] for a in part["assumptions"]] == [1, 2, 3, 4, 5, 6, 7]
    known = ft.theory.constants(problem)
    assert found["problem"]["constants"]["heterogeneity"] == known.heterogeneity
    assert found["problem"]["constants"]["max_noise"] == known.noise.max()
    assert found["problem"]["rows_read"]["smoothness"] == problem.num_rows


def test_measured_terms_complete_the_theorems(run) -> None:
    words = f"--times F80 --clients 5 --scheme fedfix --wait 0.5 --scheme uniform --sample 2 {QUADRATIC} --until 20"
    for part in document(run, f"{words} --measure")["schemes"]:
        bound, met = part["bound"], part["bound"]["measured"]
        assert None not in bound["terms"].values()
        for theorem in ("theorem_1", "theorem_2", "theorem_3"):
            assert 0 < met[theorem] < bound[theorem]


def test_without_times_for_each_the_problem_says_how_many(run) -> None:
    found = document(run, f"--times F80 --scheme fedavg {QUADRATIC} --set clients=3")
    assert found["clients"] == found["problem"]["clients"] == 3
    assert found["until"] == "100"
    listed = document(run, f"--times 1,2 --scheme fedavg {QUADRATIC}")
    assert listed["problem"]["clients"] == 2


def test_the_tables(run) -> None:
    code, out, err = run(f"theory --times F80 --clients 5 --law exponential {QUADRATIC} --until 20")
    assert (code, err) == (0, "")
    for words in ("AsyncFedAvg", "co_participation", "memoryless", "heterogeneity", "six conditions", "descent"):
        assert words in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    for symbol in ("R", "ε_F", "ε_K", "ε_α", "ε_β", "ε_W", "P", "U"):
        assert len([float(value) for value in rows[symbol][-3:]]) == 3
    assert float(rows["ε_β"][-2]) > float(rows["ε_β"][-3]) == 0
    assert "delays have no bound under this law" in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "\x1b" not in out


@pytest.mark.parametrize("schemes", ["--scheme fedavg", "--scheme fedavg --scheme async --scheme fedfix --wait 1/2"])
def test_a_narrow_terminal_cuts_nothing(schemes) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    words = f"theory --times F80 --clients 10 --until 100 {schemes}".split()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "fedtempo", *words], stdout=theirs, env=environment) as process:
        os.close(theirs)
        out = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            out += piece
    os.close(ours)
    assert process.returncode == 0
    assert "…" not in out.decode()
    assert "max |q̃_i/p_i − 1|" in out.decode()


def test_a_problem_without_a_minimiser_keeps_its_quantities(run) -> None:
    code, out, err = run("theory --times F80 --clients 2 --scheme fedavg --problem digits --partition one-label")
    assert (code, err) == (0, "")
    assert "co_participation" in out
    assert "no minimiser" in out
    assert out.rstrip().endswith("--set l2=0.01.")
    assert "term by term" not in out


OWN = """
import jax.numpy as jnp
import numpy as np
import fedtempo as ft

def made(loss):
    rows = np.random.default_rng(0).normal(size=(2, 5, 2)).astype("float32")
    return ft.Problem(lambda key: {"w": jnp.ones(2)}, loss, [(one,) for one in rows], name="own")

def wavy():
    return made(lambda p, b: jnp.mean(jnp.cos(b[0] @ p["w"])))

def kinked():
    return made(lambda p, b: jnp.mean(jnp.abs(b[0] @ p["w"])))
"""


@pytest.mark.parametrize(("name", "reason"), [("wavy", "not convex"), ("kinked", "not smooth")])
def test_a_bound_that_is_refused_is_no_error(run, tmp_path, name, reason) -> None:
    (tmp_path / f"own_{name}.py").write_text(OWN)
    [part] = document(run, f"--times 1,2 --scheme async --problem own_{name}:{name}")["schemes"]
    assert reason in part["refused"]
    assert part["bound"] is part["ceiling"] is None
    assert part["quantities"]["num_clients"] == 2
    assert False in [a["holds"] for a in part["assumptions"][:2]]


def test_times_that_remember_have_a_bound_on_a_timeline_alone(run) -> None:
    words = f"--times 1,2 --law lognormal --scheme async --scheme fedavg {QUADRATIC} --until 20"
    slow, synchronous = document(run, words)["schemes"]
    assert slow["refused"].endswith("--seed 0")
    assert slow["bound"] is None
    assert synchronous["refused"] is None
    assert synchronous["bound"]["theorem_1"] > 0
    for part in document(run, f"{words} --seed 0")["schemes"]:
        assert math.isfinite(part["bound"]["theorem_1"])


BAD = {
    "--times 1,2 --scheme fedfx": "did you mean fedfix",
    "--times F80": "add --clients",
    f"--times F80 --clients 0 {QUADRATIC}": "at least 1",
    f"--times 1,2 --clients 3 {QUADRATIC}": "--times lists 2",
    f"--times 1,2 {QUADRATIC} --set clients=3": "quadratics has 3 clients, but there are times of 2",
    f"--times 1,2 --scheme async {QUADRATIC} --lr 1": "--lr: 1 is above",
    f"--times 1,2 --scheme async {QUADRATIC} --lr 0": "not above zero",
    f"--times 1,2 --scheme async {QUADRATIC} --server-lr nan": "not finite",
    f"--times 1,2 --scheme async {QUADRATIC} --steps 0": "local_steps: 0",
    f"--times 1,2 --scheme async {QUADRATIC} --batch-size few": "--batch-size: 'few'",
    f"--times 1,2 --scheme async {QUADRATIC} --set noise": "is not KEY=VALUE",
    f"--times 1,2 --scheme async {QUADRATIC} --set nois=1": "the key 'nois' does not exist",
    f"--times 1,2 --scheme async {QUADRATIC} --importance 1/2,1/2": "the problem has its own",
    f"--times 1,2 --scheme async {QUADRATIC} --until 1/2": "make it at least 1",
    "--times 1,2 --problem nothing": "use one of digits",
    "--times 1,2 --lr 0.1": "--lr: it belongs to a problem",
    "--times 1,2 --measure": "--measure: it belongs to a problem",
    "--times 1,2 --seed 0": "add --until",
    "--times 1,2 --until 1e9 --seed 0": "leave --seed out",
    "--times 1,2 --wait 1": "it belongs to --scheme fedfix",
    "--times 1,2 --weights fair": "time-based",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_gets_one_message_and_exit_code_2(run, words) -> None:
    code, out, err = run(f"theory {words}")
    assert (code, out) == (2, "")
    assert BAD[words] in err
    assert err.startswith("fedtempo: ")
    assert len(err.splitlines()) == 1


def test_missing_data_exits_with_3(run, tmp_path) -> None:
    code, _, err = run(f"theory --times F80 --problem mnist --data-dir {tmp_path}")
    assert code == 3
    assert "mnist" in err


def test_settings_are_numbers_lists_or_text(run) -> None:
    words = "--times 1,2 --scheme fedavg --problem quadratics --set centers=[[0],[3]] --set importance=rows"
    found = document(run, f"{words} --set rows=[1,3] --batch-size all")
    assert np.isclose(found["problem"]["constants"]["optimal_loss"], 0.5 * (0.25 * 2.25**2 + 0.75 * 0.75**2))


def test_quantities_load_nothing_heavy() -> None:
    code = (
        "import sys; from fedtempo.cli import main\n"
        "sys.argv = ['fedtempo', *'theory --times 1,2 --scheme fedfix --wait 1 --until 9'.split()]\n"
        "try:\n    main()\nfinally:\n"
        f"    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
