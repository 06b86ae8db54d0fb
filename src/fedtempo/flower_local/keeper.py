"""Kills what a local federation started when its starter is gone: ``python -m fedtempo.flower_local.keeper MARK``.

Its standard input is a pipe that its starter holds; the pipe closes when the starter ends, however it ends.
"""

from __future__ import annotations

import sys

from fedtempo.flower_local.processes import kill_marked


def main() -> None:
    """Wait for the pipe to close."""
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])


if __name__ == "__main__":
    main()
