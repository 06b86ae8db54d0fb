"""Problem, times, schemes and local work are said with the same flags, and refused in the same words, everywhere."""

from __future__ import annotations

import re
from functools import partial

import pytest
import typer

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.cli.app import app
from fedtempo.schemes.table import SCHEMES, scheme_of
from fedtempo.simulation.study_file import merged, times_of

GROUP = typer.main.get_command(app)
TIMES = "--times --clients --law --spread --resolution"
AVAILABILITY = "--failure --on --off --absences --period"
SCHEME = "--scheme --wait --buffer --sample --stage"
PROBLEM = "--problem --partition --set --data-dir --lr --steps --batch-size --server-lr --weights --until"
HAS = {
    "plan": f"{TIMES} {AVAILABILITY} {SCHEME} {PROBLEM} --seed --step",
    "run": f"{TIMES} {AVAILABILITY} {SCHEME} {PROBLEM} --seeds --step --solver --momentum --clip --draw --schedule",
    "theory": f"{TIMES} {SCHEME} {PROBLEM} --seed",
    "timeline": f"{TIMES} {AVAILABILITY} {SCHEME} --until --seed",
}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in a folder of its own; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtempo.cli.progress.LINE_SECONDS", 1e9)
    return partial(in_process, capsys, monkeypatch)


def flags(command: str) -> dict[str, str]:
    """The flags of a command, each with its help."""
    return {flag: one.help for one in GROUP.commands[command].params for flag in one.opts if flag.startswith("--")}


@pytest.mark.parametrize("command", HAS)
def test_the_flags_are_there(command) -> None:
    assert set(HAS[command].split()) <= set(flags(command))


def test_a_flag_is_explained_in_the_same_words() -> None:
    own = {"--until", "--seed"}  # each command ends at a time of another meaning
    for flag in set(f"{TIMES} {AVAILABILITY} {SCHEME} {PROBLEM}".split()) - own:
        said = {flags(command)[flag].removesuffix(" Repeat it to compare.") for command in HAS if flag in HAS[command]}
        assert len(said) == 1, said


@pytest.mark.parametrize("command", HAS)
def test_help_reads_at_80_columns(run, monkeypatch, command) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    code, out, _ = run(f"{command} --help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    for panel in ("Client times", "Schemes"):
        assert f"─ {panel} ─" in out
    assert not re.search("does not do|is no |rows a step", out)


LOCAL = {
    "--lr abc": "--lr: 'abc' is not a number; write it as",
    "--lr 0.1,auto": "give auto alone",
    "--lr 1/0": "--lr: '1/0' is not a number",
    "--steps 1.5": "--steps: '1.5' is not a whole number; write it as 5 or 1,5",
    "--batch-size few": "--batch-size: 'few' is not a whole number of rows; write it as 32, 16,64 or all",
    "--server-lr fast": "--server-lr: 'fast' is not a number; write it as 1 or 0.5,1",
    "--set noise": "--set: 'noise' is not KEY=VALUE",
    "--set name=digits": "--set: the name of the problem is --problem digits",
    "--set nois=1": "the key 'nois' does not exist; did you mean noise",
    "--set clients=3": "quadratics has 3 clients, but there are times of 2",
}


@pytest.mark.parametrize("words", LOCAL)
def test_what_cannot_work_is_refused_in_the_same_words(run, words) -> None:
    said = set()
    for command in ("plan", "run", "theory"):
        code, out, err = run(f"{command} --problem quadratics --times 1,2 --until 9 --scheme fedavg {words}")
        assert (code, out) == (2, "")
        assert LOCAL[words] in err
        assert len(err.splitlines()) == 1
        said.add(err)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("plan --times 1,2 --steps 2", "--steps: it belongs to a problem; add one, as --problem digits"),
        ("theory --times 1,2 --steps 2", "--steps: it belongs to a problem; add one, as --problem digits"),
        (
            "plan --times 1,2 --until 9 --problem quadratics --steps 1,5",
            "plan takes one; fedtempo run compares several",
        ),
        ("theory --times 1,2 --problem quadratics --lr 0.1,0.2", "theory takes one; fedtempo run compares several"),
        ("theory --times 1,2 --failure 0.1", "clients that are always there); fedtempo plan, timeline, run and app"),
        ("plan --times 1,2 --momentum 0.9", "--momentum: it belongs to a problem; add one, as --problem digits"),
        ("plan --times 1,2 --schedule cosine", "a plan looks for one learning rate that stays); fedtempo run has it"),
        (
            "theory --times 1,2 --momentum 0.9",
            "plain local SGD and weighted sums of updates); fedtempo plan and run have",
        ),
        ("timeline --times 1,2 --until 3 --scheme async --problem digits", "fedtempo plan, theory and run have it"),
        ("run --seed 3", "--seeds 3 or --seeds 0,5,7"),
        ("plan --times 1,2 --details --nonsense", "No such option '--nonsense'"),
        ("theory --times 1,2 --problem quadratics --scheme fedasync", "plain local SGD"),
        ("plan --times 1,2 --scheme fedasinc", "did you mean fedasync? Known: fedavg, async"),
        ("plan --times 1,2 --scheme fednova:1,x", "give the local steps of each client, as fednova:1,2,5"),
    ],
)
def test_a_flag_that_is_elsewhere_or_alone(run, words, says) -> None:
    code, out, err = run(words)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_mistyped_command_is_suggested_once(run) -> None:
    code, _, err = run("plna")
    assert code == 2
    assert err.count("Did you mean 'plan'?") == 1


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("fedasync:0.3", ft.published.FedAsync(0.3)),
        ("fedasync:0.6:hinge(10,4)", ft.published.FedAsync(0.6, "hinge:10:4")),
        ("fedasync:staleness=constant(1)", ft.published.FedAsync(staleness="constant:1")),
        ("fedbuff-published:2", ft.published.FedBuff(2)),
        ("fednova:1,2,5", ft.published.FedNova([1, 2, 5])),
        ("cutoff:fedfix(1/2):20", ft.published.CutOff(ft.FedFix("1/2"), 20)),
        ("fedau:async:200", ft.published.FedAU(ft.AsyncFedAvg(), 200)),
    ],
)
def test_published_schemes_by_name(text, scheme) -> None:
    assert scheme_of(text) == scheme
    assert scheme_of(text).label == scheme.label
    assert text.split(":")[0] in SCHEMES.names


def test_a_published_buffer_takes_its_size_from_the_flag(run) -> None:
    code, out, _ = run("plan --times 1,2,3 --scheme fedbuff-published --scheme fedbuff --buffer 2")
    assert code == 0
    assert "FedBuff(2) as published" in out
    assert "\nFedBuff(2) " in out


def test_flags_of_the_local_work_are_the_keys_of_a_file(run, tmp_path) -> None:
    words = "run --problem quadratics --set dimension=3 --times 1,2,3 --until 4 --points 2 --seeds 1 --scheme fedavg"
    assert (
        run(f"{words} --lr 0.1 --momentum 0,0.9 --clip 1 --draw epochs --steps 2 --batch-size 4,all -q --out x")[0] == 0
    )
    found = ft.History.load(tmp_path / "x" / "history.nc").dataset
    assert (found.sizes["momentum"], found.sizes["batch_size"]) == (2, 2)
    assert '"dimension": 3' in found.attrs["configuration"]
    assert '"epochs"' in found.attrs["configuration"]


def test_times_that_are_listed_say_how_many_clients_a_study_has() -> None:
    listed = merged({"times": {"times": [1, 2, 3]}})
    assert "clients" not in listed["problem"]
    assert [one["size"] for one in listed["schemes"] if "size" in one] == [3]
    assert merged({})["problem"]["clients"] == 20
    assert merged({"times": {"times": "1,2"}, "problem": {"clients": 5}})["problem"]["clients"] == 5


def test_a_law_has_its_number_in_a_file_too() -> None:
    law = times_of({"times": "1,2", "law": "lognormal:0.3"}, 0)
    with pytest.warns(FutureWarning, match=r'\[times\] spread = 0.3 is called law = "lognormal:0.3"'):
        old = times_of({"times": "1,2", "law": "lognormal", "spread": 0.3}, 0)
    assert old == law == ft.LogNormalTimes([1, 2], sigma=0.3)


def test_a_history_file_is_drawn_only_where_it_is_asked_for(run, tmp_path) -> None:
    problem = ft.problems.quadratics(3, dimension=2)
    history = ft.simulate(problem, ft.FedAvg(), ft.FixedTimes([1, 2, 3]), until=6, points=3)
    history.save(tmp_path / "mine.nc")
    code, out, _ = run("show mine.nc")
    assert code == 0
    assert "FedAvg" in out
    assert out.endswith("Nothing is drawn; add --out study.svg for a picture.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.nc"]
    assert run("show mine.nc --measure loss")[0] == 2
    code, out, _ = run("show mine.nc --measure loss --out loss.svg")
    assert out.endswith("\nloss.svg\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.svg", "mine.nc"]


def test_clients_of_a_trace_keep_their_names_in_a_timeline(tmp_path) -> None:
    (tmp_path / "trace.csv").write_text("client,duration\nphone,2\nserver,1/4\n")
    line = ft.timeline(ft.AsyncFedAvg(), ft.TraceTimes.read(tmp_path / "trace.csv"), until=2)
    assert "1/4  server" in str(line)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--set l2=1 --set l2=2", "--set: l2 is given twice"),
        ("--set partition=iid", "--set: partition has a flag of its own; write --partition iid"),
        ("--clients 4 --set clients=3", "--clients: 4 given, but also --set clients=3"),
    ],
)
def test_what_contradicts_itself_is_refused(run, flags, said) -> None:
    for command in ("plan --times F80 --until 9 --problem digits", "theory --times F80 --problem digits", "run"):
        code, _, err = run(f"{command} {flags}")
        assert code == 2
        assert said in err
