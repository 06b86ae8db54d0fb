"""The command line as its users meet it: documents, tables, pictures, messages and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from fractions import Fraction
from functools import partial

import pytest

import fedtempo
from fedtempo.cli import main


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command in this process; its exit code, output and errors."""
    return partial(in_process, capsys, monkeypatch)


def in_process(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, given as words or as one line."""
    split = shlex.split(words[0]) if len(words) == 1 and " " in words[0] else words
    monkeypatch.setattr(sys, "argv", ["fedtempo", *split])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def outside(*words: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "fedtempo", *words], capture_output=True, text=True, **options)


def test_a_plan_for_twenty_clients(run) -> None:
    code, out, err = run("plan", "--clients", "20", "--times", "F80")
    assert (code, err) == (0, "")
    for label in ("FedAvg", "AsyncFedAvg", "FedFix(1/5)", "FedFix(1/2)", "FedBuff(5)", "FedBuff(10)"):
        assert label in out
    assert "20 clients, fixed times from 0.2 to 1" in out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_plan_as_json(run) -> None:
    words = [
        "plan",
        "--times",
        "1,2,2.5,7",
        "--scheme",
        "fedfix",
        "--wait",
        "0.5",
        "--wait",
        "1",
        "--scheme",
        "async",
        "--json",
    ]
    code, out, _ = run(*words)
    document = json.loads(out)
    assert code == 0
    assert [s["scheme"] for s in document["schemes"]] == [
        {"name": "fedfix", "wait": "1/2"},
        {"name": "fedfix", "wait": "1"},
        {"name": "async"},
    ]
    assert document["schemes"][2]["weights_exact"] == [str(Fraction(143, 280) * t) for t in (1, 2, Fraction(5, 2), 7)]


def test_a_plan_for_exponential_clients(run) -> None:
    code, out, _ = run(*shlex.split("plan --times 1,2,2.5,7 --law exponential --scheme fedbuff --buffer 2 --json"))
    [scheme] = json.loads(out)["schemes"]
    assert code == 0
    assert scheme["participation_source"] == "closed form"
    assert sum(scheme["participation"]) == pytest.approx(2)
    assert scheme["window"] == 1


def test_a_timeline_as_json(run) -> None:
    code, out, _ = run(*shlex.split("timeline --scheme fedfix --wait 1/2 --times 1,0.5 --until 3/2 --json"))
    assert code == 0
    assert json.loads(out) == {
        "format": 1,
        "scheme": {"name": "fedfix", "wait": "1/2"},
        "clients": 2,
        "until": "3/2",
        "rounds": [
            {"end": "1/2", "participants": [1], "base_versions": [0]},
            {"end": "1", "participants": [0, 1], "base_versions": [0, 1]},
            {"end": "3/2", "participants": [1], "base_versions": [2]},
        ],
    }


def test_multinomial_rounds_list_their_draws(run) -> None:
    _, out, _ = run(*shlex.split("timeline --scheme multinomial --sample 4 --times 1,2,3 --until 9 --json"))
    for entry in json.loads(out)["rounds"]:
        assert sum(entry["draws"]) == 4
        assert len(entry["draws"]) == len(entry["participants"])


def test_a_timeline_as_a_table(run) -> None:
    code, out, _ = run("timeline --scheme async --times 1,2 --until 100")
    assert code == 0
    assert "AsyncFedAvg: 150 rounds" in out
    assert "110 more rounds" in out


@pytest.mark.parametrize(
    ("ending", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("SVG", b"<?xml")]
)
def test_a_picture_by_its_ending(run, tmp_path, ending, begins) -> None:
    path = tmp_path / f"timeline.{ending}"
    words = f"timeline --scheme fedbuff --buffer 5 --clients 10 --times F80 --until 20 --out {path}".split()
    code, out, _ = run(*words)
    assert code == 0
    assert path.read_bytes().startswith(begins)
    assert str(path) in out
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_picture_of_clients_that_come_and_go(run, tmp_path) -> None:
    path = tmp_path / "away.svg"
    code, out, _ = run(
        *f"timeline --scheme async --times 1,2 --until 9 --failure 0.2 --on 3 --off 2 --out {path}".split()
    )
    assert code == 0
    assert out.startswith(f"{path}: ")
    assert path.read_text().startswith("<?xml")


def test_stages_sampling_details_and_discounts(run) -> None:
    words = (
        "plan --times 1,1/2,1/3 --scheme stages --stage 1/4:3 --stage 1/2 --scheme uniform --scheme fastest --sample 2"
    )
    code, out, _ = run(*words.split(), "--details", "--weights", "identical", "--discount", "polynomial:0.5")
    assert code == 0
    for words in ("FedFix(1/4→1/2)", "UniformSampling(2)", "FastestSampling(2)", "q/p"):
        assert words in out


def test_a_trace_file(run, tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,duration\na,1\nb,2\na,3/2\n")
    code, out, _ = run("plan", "--times", str(path), "--scheme", "fedfix", "--wait", "1", "--json")
    assert code == 0
    assert json.loads(out)["times"] == ["5/4", "2"]
    assert json.loads(out)["schemes"][0]["participation_exact"] == ["2/3", "1/2"]
    code, out, _ = run("plan", "--times", str(path), "--law", "bootstrap", "--scheme", "async", "--json")
    assert code == 0


BAD = {
    "plan --clients 0 --times F80": "--clients: 0",
    "plan --times F80": "add --clients",
    "plan --clients 3 --times F100": "below 100",
    "plan --clients 3 --times F-5": "F<X>",
    "plan --clients 3 --times 1,2": "--times lists 2",
    "plan --times ,": "no clients",
    "plan --times ''": "no clients",
    "plan --times 1,,2": "not a number",
    "plan --times 1,0": "client 1: 0 is not above zero",
    "plan --times 1,-2": "not above zero",
    "plan --times 1,inf": "not finite",
    "plan --times nan": "not finite",
    "plan --times 1,abc": "'abc' is not a number",
    "plan --times 1e999999,1": "too many digits",
    "plan --times hello": "neither F<X>",
    "plan --times 1,2 --law weibull": "use one of fixed",
    "plan --times 1,2 --law exponentail": "did you mean exponential",
    "plan --times 1,2 --law replay": "trace file",
    "plan --times 1,2 --spread 0.5": "--law lognormal",
    "plan --times 1,2 --law uniform:2": "between 0 and 1",
    "plan --times 1,2 --law lognormal:0": "sigma",
    "plan --times 1,2 --law pareto:1": "shape: 1 must lie between",
    "plan --times 1,2 --law fixed:1": "fixed takes no number",
    "plan --times tifl": "add --clients",
    "plan --times tifl --clients 5 --law uniform": "has its own law",
    "plan --times 1,2 --law exponential --resolution 5": "resolution",
    "plan --times 1,2 --resolution 1/10": "exact already",
    "plan --times 1,2 --scheme fedfx": "did you mean fedfix",
    "plan --times 1,2 --scheme fedfix --wait 0": "not above zero",
    "plan --times 1,2 --scheme fedfix --wait -1": "not above zero",
    "plan --times 1,2 --scheme fedfix --wait nan": "not finite",
    "plan --times 1,2 --scheme async --wait 1": "--wait: it belongs to --scheme fedfix",
    "plan --times 1,2 --wait 1": "--wait: it belongs to --scheme fedfix",
    "plan --times 1,2 --buffer 1": "--buffer: it belongs to --scheme fedbuff",
    "plan --times 1,2 --scheme fedbuff": "add --buffer",
    "plan --times 1,2 --scheme fedbuff --buffer 3": "at most 2",
    "plan --times 1,2 --scheme fedbuff --buffer 0": "at least 1",
    "plan --times 1,2 --scheme uniform --sample 3": "make it smaller",
    "plan --times 1,2 --scheme centralized": "one client",
    "plan --times 1,2 --scheme stages --stage 1/2:3": "the last is just a wait",
    "plan --times 1,2 --scheme stages --stage 1/2 --stage 1": "for how many windows",
    "plan --times 1,2 --scheme stages --stage 1/2:0 --stage 1": "at least 1",
    "plan --times 1,2 --importance 0.5,0.6": "sums to 1.1",
    "plan --times 1,2 --importance 1": "1 values for 2 clients",
    "plan --times 1,2 --importance 1,0": "not above zero",
    "plan --times 1,2 --importance a,b": "not a number",
    "plan --times 1,2 --weights fair": "time-based",
    "plan --times 1,2 --discount wild": "polynomial",
    "plan --times 1,2 --out /no/such/folder/plan.html": "create it first",
    "plan --times 1,2 --problem digits --until 5 --figure /no/such/folder/plan.svg": "create it first",
    "plan --times 1/3,1/1000000007,1/998244353": "round them",
    "timeline --times 1,2 --until 0.5 --scheme async": "at least 1",
    "timeline --times 1,2 --until 0 --scheme async": "not above zero",
    "timeline --times 1,2 --until -3 --scheme async": "not above zero",
    "timeline --times 1,2 --until soon --scheme async": "not a number",
    "timeline --times 1,2 --until 5": "one scheme, not none",
    "timeline --times 1,2 --until 5 --scheme async --scheme fedavg": "AsyncFedAvg, FedAvg",
    "timeline --times 1,2 --until 5 --scheme fedfix": "one scheme",
    "timeline --times 1,2 --until 5 --scheme async --out x.bmp": "svg, png, pdf",
    "timeline --times 1,2 --until 5 --scheme async --out /no/such/folder/x.svg": "create it first",
    "timeline --times 1,2 --until 1e40 --scheme async": "make it at most",
    "timeline --times 1,2 --until 1e9 --scheme async": "--out timeline.parquet",
    "timeline --times 1,2 --until 100 --scheme fedfix --wait 1e-9": "make it at most",
    "timeline --times 1,2 --until 1e5 --scheme async --out x.svg": "readable",
    "timeline --times 1e-15,1 --until 1e4 --scheme fedavg": "make it at most",
    "timeline --times 0.1234567891234567,1e5 --until 1e6 --scheme fedavg": "64-bit",
    "timeline --times 1,2 --scheme async": "--until",
    "plan": "--times",
    "plan --times 1,2 --scheme fedbuff --buffer two": "two",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_gets_one_message_and_exit_code_2(run, words) -> None:
    code, out, err = run(words)
    assert code == 2
    assert out == ""
    assert BAD[words] in err
    assert err.startswith("fedtempo: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("client,duration\n0,1\n1,zero\n", "line 3: duration: 'zero' is not a number"),
        ("client,duration\n0,1\n1,0\n", "line 3: duration: 0 is not above zero"),
        ("client,duration\n0,1,2\n", "line 2: 3 fields"),
        ("who,what\n0,1\n", "line 1"),
        ("client,duration\n", "no rows"),
        ("", "line 1"),
    ],
)
def test_a_malformed_trace_is_named_with_its_line(run, tmp_path, content, words) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    code, _, err = run("plan", "--times", str(path))
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_missing_trace_is_missing_data(run) -> None:
    code, _, err = run("plan", "--times", "nowhere.csv")
    assert code == 3
    assert "nowhere.csv" in err


def test_a_failed_picture_leaves_the_old_one(run, tmp_path) -> None:
    path = tmp_path / "timeline.svg"
    path.write_text("precious")
    code, _, _ = run(*f"timeline --times 1,2 --until 0.5 --scheme async --out {path}".split())
    assert code == 2
    assert path.read_text() == "precious"


HEAVY = ("jax", "xarray", "sklearn", "scipy.stats", "matplotlib", "pandas", "pyarrow")
PARTS = ("scipy", "optax", "fedtempo.simulation", "fedtempo.problems", "fedtempo.training", "importlib.metadata")
"""What planning with fixed times does without, beside what is heavy."""


@pytest.mark.parametrize(
    "words",
    [
        "plan --clients 4 --times F80",
        "plan --times 1,2,3 --law exponential --scheme fedbuff --buffer 2 --json",
        "plan --times 1,2 --law lognormal --scheme fedfix --wait 1",
        "timeline --times 1,2 --until 5 --scheme async",
        "timeline --times 1,2 --until 5 --scheme fedfix --wait 1 --json",
    ],
)
def test_planning_loads_nothing_heavy(words) -> None:
    code = (
        "import sys; from fedtempo.cli import main\n"
        f"sys.argv = ['fedtempo', *{words.split()!r}]\n"
        "try:\n    main()\nfinally:\n"
        f"    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("words", ["--help", "plan --help", "plan --clients 4 --times F80"])
def test_fixed_times_need_no_more_than_the_clock(words, tmp_path) -> None:
    code = (
        "import sys; from fedtempo.cli import main\n"
        f"sys.argv = ['fedtempo', *{words.split()!r}]\n"
        "try:\n    main()\nfinally:\n"
        f"    print([m for m in {(*HEAVY, *PARTS)!r} if m in sys.modules], file=sys.stderr)"
    )
    environment = os.environ | {"FEDTEMPO_CACHE": str(tmp_path)}
    for _ in range(2):  # also with what the first has left
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.returncode == 0
        assert done.stderr.strip() == "[]"


def test_version_help_and_module_run() -> None:
    assert outside("--version").stdout == f"fedtempo {fedtempo.__version__}\n"
    for words in (["--help"], ["plan", "--help"], ["timeline", "-h"]):
        done = outside(*words)
        assert done.returncode == 0
        assert "Usage" in done.stdout
    assert outside("plam").returncode == 2


def test_a_reader_that_goes_away_is_no_error() -> None:
    words = [
        sys.executable,
        "-m",
        "fedtempo",
        *shlex.split("timeline --times 1,2 --until 200000 --scheme async --json"),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_long_list_of_times_is_no_file_name(run) -> None:
    code, out, _ = run("plan", "--times", ",".join(["0.125"] * 1000), "--scheme", "fedavg", "--json")
    assert code == 0
    assert json.loads(out)["clients"] == 1000
    assert run("plan", "--times", "a/" * 3000)[0] in (2, 3)


def test_output_that_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedtempo", "plan", "--times", "1,2", "--scheme", "async"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("fedtempo: cannot write the output (No space left")
    assert len(done.stderr.splitlines()) == 1
    ascii_only = outside("plan", "--times", "1,2", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ascii_only.returncode == 0
    closed = subprocess.run(["sh", "-c", f"{sys.executable} -m fedtempo plan --times 1,2 >&-"], capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_the_same_wait_twice_is_one_scheme(run) -> None:
    _, out, _ = run("plan --times 1,2 --scheme fedfix --wait 1 --wait 1.0 --json")
    assert len(json.loads(out)["schemes"]) == 1


def test_names_of_a_trace_are_kept(run, tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,duration\nalice,1\nbob,2\n")
    _, out, _ = run("plan", "--times", str(path), "--scheme", "fedavg", "--details")
    assert "alice" in out
    assert "bob" in out


def test_extreme_times_answer_quickly(run) -> None:
    for words in ("plan --times 1e12,1 --scheme fedfix --wait 1", "plan --times 1,2 --scheme fedfix --wait 1e-12"):
        assert run(words)[0] == 0


def test_an_interrupt_exits_with_130() -> None:
    """The signal comes when the document's first rounds have been read, so in the midst of work."""
    words = shlex.split("timeline --clients 1000 --times F80 --until 20000 --scheme async --json")
    command = [sys.executable, "-m", "fedtempo", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.read(100_000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "fedtempo: interrupted\n"


def test_colour_only_where_it_is_wanted() -> None:
    """Through a pseudo terminal, with and without NO_COLOR."""
    import pty

    def on_a_terminal(**extra: str) -> str:
        parent, child = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **extra}
        process = subprocess.Popen(
            [sys.executable, "-m", "fedtempo", *shlex.split("plan --times 1,2 --scheme async")], stdout=child, env=env
        )
        process.wait(60)
        os.close(child)
        out = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:
                break
            if not part:
                break
            out += part
        os.close(parent)
        return out.decode()

    plain_env = {k: "" for k in ("NO_COLOR",) if k in os.environ}
    assert "\x1b[1m" in on_a_terminal(**plain_env)
    assert "AsyncFedAvg" in on_a_terminal(NO_COLOR="1")
    assert "\x1b[3" not in on_a_terminal(NO_COLOR="1")


def test_verbose_and_quiet(run) -> None:
    words = shlex.split("plan --times 1,2 --scheme async --json")
    assert "planning" in run("-v", *words)[2]
    assert "planning" in run(*words, "-v")[2]
    assert run(*words)[2] == ""
    assert run("-q", *words)[2] == ""


def test_a_plan_as_a_page_and_as_a_picture(run, tmp_path) -> None:
    page, picture = tmp_path / "plan.html", tmp_path / "plan.svg"
    code, out, err = run("plan", "--times", "1,2", "--out", str(page), "--out", str(picture))
    assert (code, err) == (0, "")
    assert out.endswith(f"{page}: open it in a browser\n\n{picture}\n")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "<svg" in picture.read_text(encoding="utf-8")
    code, out, _ = run("plan", "--times", "1,2", "--out", str(page), "--json")
    assert code == 0
    assert json.loads(out)["clients"] == 2


def test_a_plan_is_not_written_as_text(run, tmp_path) -> None:
    code, out, err = run("plan", "--times", "1,2", "--out", str(tmp_path / "plan.txt"))
    assert (code, out) == (2, "")
    assert "must end in .html (a page), .svg, .png or .pdf" in err
    assert list(tmp_path.iterdir()) == []
