"""A federation on this machine leaves no process behind, and says what went wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedtempo.errors import InputError
from fedtempo.flower.local import FederationError, LocalFederation, Run
from fedtempo.flower.local.certificates import make_certificates, make_node_key, public_of
from fedtempo.flower.local.federation import assignments, free_port, program, start_listening
from fedtempo.flower.local.processes import Processes, marked

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in /proc")


def until(happened: Callable[[], bool], limit: float = 30.0) -> bool:
    deadline = time.monotonic() + limit
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.05)
    return happened()


SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "


@linux
def test_all_processes_end_also_those_that_they_started(tmp_path: Path) -> None:
    processes = Processes(os.environ)
    processes.start([sys.executable, "-c", SLEEPER + "time.sleep(60)"], tmp_path / "one.log")
    assert until(lambda: len(processes.marked()) == 2)
    processes.end()
    assert processes.marked() == {}


@linux
def test_a_process_that_was_killed_leaves_no_orphan(tmp_path: Path) -> None:
    processes = Processes(os.environ)
    first = processes.start([sys.executable, "-c", SLEEPER + "time.sleep(60)"], tmp_path / "one.log")
    assert until(lambda: len(processes.marked()) == 2)
    first.kill()
    first.wait()
    assert until(lambda: len(processes.marked()) == 1)
    processes.end()
    assert processes.marked() == {}


@linux
def test_processes_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from fedtempo.flower.local.processes import Processes\n"
        "p = Processes(os.environ)\n"
        f"p.start([sys.executable, '-c', 'import time; time.sleep(60)'], Path({str(tmp_path / 'x.log')!r}))\n"
        "print(p.mark, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        mark = starter.stdout.readline().strip()
        assert until(lambda: len(marked(mark)) == 1)
        starter.send_signal(signal.SIGKILL)
    assert until(lambda: marked(mark) == {})


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes(os.environ)
    yield made
    made.end()


def test_the_log_is_shown_with_the_error(tmp_path: Path, processes: Processes) -> None:
    log = tmp_path / "node.log"

    def start(port: int) -> subprocess.Popen[bytes]:
        return processes.start([sys.executable, "-c", "print('cannot go on'); exit(3)"], log)

    with pytest.raises(FederationError, match=r"the node ended with exit code 3\ncannot go on"):
        start_listening(start, "the node", log, timeout=20.0)
    assert "cannot go on" in LocalFederation(tmp_path).logs()


def test_a_server_that_never_listens_is_not_waited_for_for_ever(tmp_path: Path, processes: Processes) -> None:
    log = tmp_path / "node.log"

    def start(port: int) -> subprocess.Popen[bytes]:
        return processes.start([sys.executable, "-c", "import time; time.sleep(60)"], log)

    with pytest.raises(FederationError, match="did not listen within"):
        start_listening(start, "the node", log, timeout=0.3)


def test_a_taken_port_is_no_obstacle(tmp_path: Path, processes: Processes) -> None:
    log = tmp_path / "node.log"
    tried: list[int] = []

    def start(port: int) -> subprocess.Popen[bytes]:
        tried.append(port)
        serve = f"import socket; s = socket.create_server(('127.0.0.1', {port})); s.accept()"
        taken = "print('address already in use'); exit(1)"
        return processes.start([sys.executable, "-c", taken if len(tried) == 1 else serve], log)

    _, port = start_listening(start, "the node", log, timeout=20.0)
    assert [port] == tried[1:]


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_what_is_not_running_is_said() -> None:
    with pytest.raises(InputError, match="with statement"):
        _ = LocalFederation("without positive curvature").processes


def test_values_are_written_as_flower_reads_them() -> None:
    written = " ".join(assignments({"a": 1, "b": 0.5, "c": "d e", "f": True}))
    assert written == 'a=1 b=0.5 c="d e" f=true'


def test_an_unknown_command_is_said() -> None:
    with pytest.raises(InputError, match=r"pip install 'fedtempo\[flower\]'"):
        program("flower-of-nothing")


@pytest.mark.parametrize(
    ("status", "finished", "completed"),
    [("running", False, False), ("finished:completed", True, True), ("finished:failed", True, False)],
)
def test_how_a_run_stands(status: str, finished: bool, completed: bool) -> None:
    run = Run("1", status)
    assert (run.finished, run.completed) == (finished, completed)


def test_certificates_are_signed_by_their_authority_and_keys_are_secret(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    made = make_certificates(tmp_path)
    authority = x509.load_pem_x509_certificate(made.authority.read_bytes())
    server = x509.load_pem_x509_certificate(made.server.read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    key = make_node_key(tmp_path, "node")
    private = load_ssh_private_key(key.read_bytes(), None)
    assert private.public_key() == load_ssh_public_key(public_of(key).read_bytes())
    assert {path.stat().st_mode & 0o777 for path in (made.server_key, key)} == {0o600}
