"""Ports of 127.0.0.1: free ones, and servers that listen on them."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from fedtempo.flower_local.errors import FederationError

_TRIES = 3


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_listening(
    start: Callable[[int], subprocess.Popen[bytes]], what: str, log: Path, *, patience: float
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server on a free port, on another one if somebody else was faster, and wait until it listens there."""
    for _ in range(_TRIES):
        port = free_port()
        process = start(port)
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            if _answers(port):
                return process, port
            time.sleep(0.1)
        if process.poll() is None:
            raise FederationError(f"{what} did not listen within {patience:g} s\n{tail(log)}")
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
