"""Processes that are certain to end: by their starter, or without it when it is gone.

Every process carries a mark in its environment, which those that it starts inherit: so none is missed, also when the
one in between was killed. A keeper, which is this file run as a script with the mark, kills all that carry it when the
starter is gone: its standard input is a pipe that the starter holds, and that closes however the starter ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

MARK = "FEDTEMPO_LOCAL_FEDERATION"
POLITE_SECONDS = 10.0
"""How long a process may take to end after SIGTERM."""


class Processes:
    """Processes with a log each, ended together."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.env = {**env, MARK: self.mark}
        self._started: list[subprocess.Popen[bytes]] = []
        self._keeper = subprocess.Popen(
            [sys.executable, __file__, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process that writes to `log`."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                env=self.env,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def marked(self) -> dict[int, str]:
        """The processes that are running, with their command lines."""
        return marked(self.mark)

    def end(self) -> None:
        """End them all, politely at first."""
        for process in reversed(self._started):
            process.terminate()
        deadline = time.monotonic() + POLITE_SECONDS
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._started:
            process.kill()
            process.wait()
        kill_marked(self.mark)
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait(POLITE_SECONDS)


def marked(mark: str) -> dict[int, str]:
    """Processes with this mark and their command lines, where the system lets one look (Linux)."""
    wanted = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def kill_marked(mark: str) -> None:
    """Kill what carries the mark, and what it starts meanwhile."""
    for _ in range(50):
        left = [pid for pid in marked(mark) if not _gone(pid)]
        if not left:
            return
        kill(left)
        time.sleep(0.1)


def kill(pids: Iterable[int]) -> None:
    """SIGKILL."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _gone(pid: int) -> bool:
    """Whether it has ended and only waits to be asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def main() -> None:
    """Wait for the pipe to close."""
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])


if __name__ == "__main__":
    main()
