"""A SuperLink and SuperNodes on 127.0.0.1, each a process with a log, offline and without telemetry.

Flower's own commands do the work: ``flower-superlink``, ``flower-supernode``, ``flwr run``, ``flwr list``. Ports are
free ones; where another process was quicker, others are tried.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedtempo.errors import FedtempoError, InputError
from fedtempo.flower.local.certificates import Certificates, make_certificates, make_node_key, public_of
from fedtempo.flower.local.processes import Processes


class FederationError(FedtempoError):
    """A federation on this machine did not do what was asked; the message ends with a log."""


_TRIES = 3


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_listening(
    start: Callable[[int], subprocess.Popen[bytes]], what: str, log: Path, *, timeout: float
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server on a free port, on another one if somebody else was faster, and wait until it listens there."""
    for _ in range(_TRIES):
        port = free_port()
        process = start(port)
        deadline = time.monotonic() + timeout
        while process.poll() is None and time.monotonic() < deadline:
            if _answers(port):
                return process, port
            time.sleep(0.1)
        if process.poll() is None:
            raise FederationError(f"{what} did not listen within {timeout:g} s\n{tail(log)}")
        if "address already in use" not in tail(log):
            break
    raise FederationError(f"{what} ended with exit code {process.returncode}\n{tail(log)}")


def tail(log: Path, lines: int = 30) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


Value = str | int | float | bool


@dataclass(frozen=True)
class Flwr:
    """The command ``flwr`` in a folder and an environment."""

    folder: Path
    env: Mapping[str, str]
    timeout: float

    def ask(self, *arguments: str) -> dict[str, Any]:
        """What a command answers as JSON; a refusal is an error, whatever the exit code."""
        said = self.text(*arguments, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(said[said.index("{") :])
        except ValueError:
            answer = {"success": False, "error-message": said}
        if not answer.get("success"):
            raise FederationError(f"flwr {' '.join(arguments)}: {answer.get('error-message', answer)}")
        return answer

    def text(self, *arguments: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [program("flwr"), *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=self.timeout,
        )
        return done.stdout or done.stderr


def program(name: str) -> str:
    """A command of Flower: the one beside this Python, else the one on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f"the command {name} was not found; pip install 'fedtempo[flower]'")
    return found


def assignments(values: Mapping[str, Value]) -> list[str]:
    """``name=value`` as Flower reads it, each value in TOML."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


NAME = "local"
"""What the SuperLink is called in Flower's configuration."""
_ASK_SECONDS = 5.0  # between two questions how a run stands, unless a process has come or gone: each starts a process
_PRIVATE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass(frozen=True, eq=False)
class Node:
    """A SuperNode."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    key: Path | None = None


@dataclass(frozen=True)
class Run:
    """A run of an app, and how it stands: ``running``, ``finished:completed``, ``finished:failed``, …"""

    id: str
    status: str

    @property
    def finished(self) -> bool:
        """Whether it goes on no more."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it came to its end without an error."""
        return self.status == "finished:completed"


def _with_commands(environment: Mapping[str, str]) -> dict[str, str]:
    """The path with the folder of this Python first: Flower's commands start each other by name."""
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])}


class LocalFederation:
    """A SuperLink and, as they are started, SuperNodes; a context manager that leaves no process behind.

    `folder` keeps Flower's home, logs and keys. With `secure`, TLS and authenticated nodes, under an authority made for
    the occasion. `env` is added to the environment of all processes; a start may take `start_timeout` seconds.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        secure: bool = False,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
        patience: float | None = None,
    ) -> None:
        if patience is not None:
            warnings.warn("LocalFederation's patience is called start_timeout", FutureWarning, stacklevel=2)
            start_timeout = patience
        self.folder = Path(folder).resolve()
        self.secure = secure
        self.start_timeout = start_timeout
        self.nodes: dict[str, Node] = {}
        self.certificates: Certificates | None = None
        self._home = self.folder / "flower"
        self._env = {**_PRIVATE, "FLWR_HOME": str(self._home), **(env or {})}
        self._processes: Processes | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True, exist_ok=True)
        if self.secure:
            self.certificates = make_certificates(self.folder / "keys")
        self._processes = Processes({**os.environ, **_with_commands(os.environ), **self._env})
        try:
            self._start_link()
        except BaseException:
            self._processes.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        self.processes.end()

    @property
    def processes(self) -> Processes:
        """The processes, once it has been entered."""
        if self._processes is None:
            raise InputError("the federation is not running; use it in a with statement")
        return self._processes

    @property
    def flwr(self) -> Flwr:
        """The command line that knows this SuperLink."""
        return Flwr(self.folder, self.processes.env, self.start_timeout)

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self._port}"

    def _start_link(self) -> None:
        tls, trust = ["--insecure"], "insecure = true"
        if self.certificates is not None:
            made = self.certificates
            tls = ["--ssl-ca-certfile", str(made.authority), "--ssl-certfile", str(made.server)]
            tls += ["--ssl-keyfile", str(made.server_key), "--enable-supernode-auth"]
            trust = f"root-certificates = {json.dumps(str(made.authority))}"
        log = self._log_of("superlink")

        def start(port: int) -> subprocess.Popen[bytes]:
            command = [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), *tls]
            return self.processes.start([*command, "--disable-runtime-dependency-installation"], log)

        _, self._port = start_listening(start, "the SuperLink", log, timeout=self.start_timeout)
        config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.address}"\n{trust}\n'
        (self._home / "config.toml").write_text(config)

    def new_key(self, name: str, *, register: bool = True) -> Path:
        """A key for a node of a secure federation, made known to the SuperLink unless `register` is False."""
        key = make_node_key(self.folder / "keys", name)
        if register:
            self.flwr.ask("supernode", "register", str(public_of(key)), NAME)
        return key

    def start_node(
        self, name: str, config: Mapping[str, Value] | None = None, *, key: Path | None = None, insecure: bool = False
    ) -> Node:
        """Start a SuperNode and wait until it listens; `key` is its private key, in a secure federation a new one.

        `insecure`: without TLS and key, although the federation has them (it is to be turned away).
        """
        if name in self.nodes and self.nodes[name].process.poll() is None:
            raise InputError(f"a node {name!r} is already running; give another name")
        tls = ["--insecure"]
        if self.certificates is not None and not insecure:
            key = self.new_key(name) if key is None else key
            tls = ["--root-certificates", str(self.certificates.authority), "--auth-supernode-private-key", str(key)]
        if config:
            tls += ["--node-config", " ".join(assignments(config))]
        log = self._log_of(name)

        def start(port: int) -> subprocess.Popen[bytes]:
            command = [program("flower-supernode"), "--superlink", self.address, "--host", "127.0.0.1"]
            return self.processes.start([*command, "--port", str(port), *tls], log)

        process, port = start_listening(start, f"the node {name}", log, timeout=self.start_timeout)
        node = self.nodes[name] = Node(name, process, port, log, key)
        return node

    def online(self) -> list[str]:
        """The ids of the nodes that the SuperLink hears."""
        nodes = self.flwr.ask("supernode", "list", NAME)["nodes"]
        return [str(node["node-id"]) for node in nodes if node["status"] == "online"]

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many nodes are online."""
        deadline = time.monotonic() + self.start_timeout
        while len(found := self.online()) < count:
            if time.monotonic() > deadline:
                raise FederationError(f"{len(found)} of {count} nodes came online within {self.start_timeout:g} s")
            time.sleep(0.3)

    def submit(self, app: str | Path, config: Mapping[str, Value] | None = None) -> Run:
        """Start a run of an app; `config` replaces values of its run configuration."""
        said = [part for pair in assignments(config or {}) for part in ("--run-config", pair)]
        return Run(str(self.flwr.ask("run", str(app), NAME, *said)["run-id"]), "submitted")

    def look(self, run: Run) -> Run:
        """How a run stands."""
        [found] = self.flwr.ask("list", NAME, "--run-id", run.id)["runs"]
        return Run(run.id, str(found["status"]))

    def wait(self, run: Run, *, limit: float) -> Run:
        """Wait until a run has finished, however; after `limit` seconds it is stopped, and that is an error."""
        deadline = time.monotonic() + limit
        while not (run := self.look(run)).finished:
            if time.monotonic() > deadline:
                self.flwr.ask("stop", run.id, NAME)
                raise FederationError(f"the run is {run.status} after {limit:g} s\n{self.run_log(run)}")
            self._pause(min(deadline, time.monotonic() + _ASK_SECONDS))
        return run

    def _pause(self, until: float) -> None:
        """Until then, or until a ServerApp has started or ended."""
        before = self.app_processes()
        while time.monotonic() < until and self.app_processes() == before:
            time.sleep(0.25)

    def run(self, app: str | Path, config: Mapping[str, Value] | None = None, *, limit: float = 600.0) -> Run:
        """Run an app to its end; a run that fails is an error, which shows its log."""
        run = self.wait(self.submit(app, config), limit=limit)
        if not run.completed:
            raise FederationError(f"the run ended as {run.status}\n{self.run_log(run)}")
        return run

    def run_log(self, run: Run) -> str:
        """What a run's ServerApp logged."""
        return self.flwr.text("log", run.id, NAME, "--show")

    def app_processes(self, node: Node | None = None) -> list[int]:
        """The processes of ClientApps that run on a node; without one, those of ServerApps."""
        port, what = (self._port, "flwr-serverapp") if node is None else (node.port, "flwr-clientapp")
        return [pid for pid, said in self.processes.marked().items() if what in said and f"127.0.0.1:{port} " in said]

    def logs(self, lines: int = 30) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {log.stem}\n{tail(log, lines)}" for log in sorted(self.folder.glob("*.log")))

    def _log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"
