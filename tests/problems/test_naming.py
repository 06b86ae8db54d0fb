"""Problems by name: what a function of one's own is given, what is checked, what goes wrong in it; the guide."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.errors import InputError
from fedtempo.problems.naming import named, num_clients

GUIDE = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")
OWN = """
import fedtempo as ft


def made(clients):
    return ft.problems.quadratics(clients, dimension=2, noise=0.5)


def counted(clients=8, seed=0):
    return made(clients)


def fixed():
    return made(6)


def kept(**given):
    assert "partition" not in given
    return made(given.get("clients", 6))


def stubborn(**given):
    return made(6)


def raising(clients=3):
    return {}["nothing"]


def pair(clients=3):
    return made, clients


def nothing(clients=3):
    made(clients)


def wrong_loss(clients=3):
    return ft.Problem(lambda key: 0.0 * key, None, [])


def needing(clients, strength):
    return made(clients)


ready = made(4)


def helper():
    raise ValueError("deep down\\nand more")


def nested(clients=3):
    return helper()
"""


@pytest.fixture
def own(tmp_path, monkeypatch, request):
    """The name of a module with these functions; one for each test, since modules are kept."""
    name = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return name


def test_clients_go_to_a_function_that_takes_them(own) -> None:
    assert named({"name": f"{own}:counted"}).num_clients == 8
    assert named({"name": f"{own}:counted"}, 3).num_clients == 3
    assert named({"name": f"{own}:kept"}, 5).num_clients == 5
    assert named({"name": f"{own}:kept", "clients": 2}).num_clients == 2
    assert named({"name": f"{own}:fixed"}, 6).num_clients == 6
    assert named({"name": f"{own}:fixed", "clients": 6}, 6).num_clients == 6
    assert named({"name": f"{own}:ready"}, 4).num_clients == 4
    assert named({"name": "quadratics"}, 3).num_clients == 3


def test_how_many_clients_there_are_is_known_without_making_the_problem_where_the_signature_says(own) -> None:
    assert num_clients({"name": f"{own}:raising"}) == 3
    assert num_clients({"name": f"{own}:raising", "clients": 5}) == 5
    assert num_clients({"name": f"{own}:fixed"}) == 6
    assert num_clients({"name": "quadratics"}) == 10


@pytest.mark.parametrize(
    ("function", "keys", "clients", "says"),
    [
        ("fixed", {}, 3, "fixed has 6 clients, but there are times of 3; .*let own_\\d+:fixed take clients"),
        ("stubborn", {}, 3, "stubborn has 6 clients, but there are times of 3; .*make as many clients"),
        ("fixed", {"clients": 5}, None, "fixed has 6 clients, but 5 were asked for"),
        ("counted", {"clients": 5}, 3, "counted has 5 clients, but there are times of 3; .*ask for 3 clients"),
        ("ready", {}, 3, "ready has 4 clients, but there are times of 3"),
        ("fixed", {"partition": "iid"}, None, "the key 'partition' does not exist; it takes no arguments"),
        ("counted", {"sed": 1}, None, "did you mean seed"),
        ("kept", {"partition": "iid"}, 3, "it fails with .*clients=3.*: AssertionError \\(line 18 of own_\\d+.py\\)"),
        ("raising", {}, 2, "raising: it fails with clients=2: KeyError: 'nothing' \\(line 27 of own_\\d+.py\\)"),
        ("nested", {}, 3, "it fails with clients=3: ValueError: deep down \\(line 50 of own_\\d+.py\\)$"),
        ("pair", {}, None, "pair returned a tuple; it must return a fedtempo.Problem"),
        ("nothing", {}, None, "nothing returned None; it must return a fedtempo.Problem"),
        ("wrong_loss", {}, None, "wrong_loss: .* \\(line 39 of own_\\d+.py\\)"),
        ("needing", {}, 3, "it needs strength; write own_\\d+:needing:strength=…"),
        ("countd", {}, None, "did you mean counted\\?"),
    ],
)
def test_what_goes_wrong_is_said_with_the_function_and_the_line(own, function, keys, clients, says) -> None:
    with pytest.raises(InputError, match=says):
        named({"name": f"{own}:{function}", **keys}, clients)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("import not_there\n", r"No module named 'not_there' \(line 1 of {}.py\); install it"),
        ("\n1 / 0\n", r"ZeroDivisionError: division by zero \(line 2 of {}.py\)"),
        ("def p(clients)\n", r"SyntaxError: expected ':' \({}.py, line 1\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(tmp_path, monkeypatch, content, says) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"bad_{len(content)}"
    (tmp_path / f"{name}.py").write_text(content)
    with pytest.raises(InputError, match=f"importing {name} fails: {says.format(name)}$"):
        named({"name": f"{name}:p"})


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtempo.cli.progress.LINE_SECONDS", 1e9)
    return partial(in_process, capsys, monkeypatch)


COMMANDS = {
    "plan": "plan --until 300 --scheme fedavg --lr 0.1",
    "run": "run --until 4 --points 2 --seeds 1 --scheme fedavg --lr 0.1 -q --overwrite",
    "theory": "theory --until 8 --scheme fedavg",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_calls_a_problem_in_the_same_way(run, own, command) -> None:
    words = COMMANDS[command]
    assert run(f"{words} --problem {own}:fixed --times 1,2,3,1/2,1,4")[0] == 0
    assert run(f"{words} --problem {own}:counted --times 1,2,3 --set seed=3")[0] == 0
    assert "6 clients" in run(f"{words} --problem {own}:kept --times F50")[1] or command == "plan"
    code, out, err = run(f"{words} --problem {own}:fixed --times F50 --clients 5")
    assert (code, out) == (2, "")
    assert err == (
        f"fedtempo: problem {own}:fixed has 6 clients, but 5 were asked for; leave the number out, or let {own}:fixed "
        "take clients as an argument\n"
    )
    code, out, err = run(f"{words} --problem {own}:raising --times 1,2")
    assert (code, out) == (2, "")
    assert err == (
        f"fedtempo: problem {own}:raising: it fails with clients=2: KeyError: 'nothing' (line 27 of {own}.py); add -v "
        "for the traceback\n"
    )
    code, _, err = run(f"{words} --problem {own}:raising --times 1,2 -v".replace(" -q", ""))
    assert code == 2
    assert "Traceback" in err
    assert 'return {}["nothing"]' in err


def test_a_file_calls_a_problem_as_the_flags_do(run, own, tmp_path) -> None:
    study = 'until = 4\npoints = 2\nseeds = [0]\n[local]\nlr = 0.1\n[[schemes]]\nname = "fedavg"\n'
    study += "[times]\ntimes = [1, 2, 3]\n"
    (tmp_path / "s.toml").write_text(f'{study}[problem]\nname = "{own}:counted"\n')
    assert run("run s.toml -q --out x")[0] == 0
    assert run(f"run --resume x -q --problem {own}:counted")[0] == 0
    assert ft.History.load(tmp_path / "x" / "history.nc").dataset.attrs["configuration"].count('"clients": 3') > 0
    (tmp_path / "s.toml").write_text(f'{study}[problem]\nname = "{own}:fixed"\n')
    code, _, err = run("run s.toml -q --out y")
    assert code == 2
    assert "has 6 clients, but there are times of 3" in err


@pytest.mark.slow
def test_the_guide_runs_as_written(run, tmp_path) -> None:
    modules = re.findall(r"^<!-- (\w+\.py) -->\n```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in modules] == ["shop.py", "houses.py"]
    for name, code in modules:
        (tmp_path / name).write_text(code)
    [commands] = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    lines = commands.splitlines()
    assert len(lines) == 3
    for line in lines:
        quick = ["--lr", "0.05,0.1"] if line.startswith("fedtempo plan") else []
        code, out, err = run(*shlex.split(line)[1:], *quick)
        assert (code, err) == (0, ""), line
        assert out
    assert named({"name": "houses:prices", "clients": 8}).num_clients == 8
    said = {
        "plan --problem housse:prices --until 9 --times 1,2": "no module 'housse', in ",
        "plan --problem houses:price --until 9 --times 1,2": "did you mean prices? houses has init, loss, prices",
        "plan --problem houses:prices --until 9 --times 1,2 --set nois=1": "did you mean noise? Known: clients, noise",
    }
    for words, message in said.items():
        code, _, err = run(words)
        assert code == 2
        assert message in err
        assert message.replace("housse", "houses").split(" in ")[0] in GUIDE
