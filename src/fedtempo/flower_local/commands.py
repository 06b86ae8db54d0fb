"""Flower's command line: ``flwr …`` and what it answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtempo.errors import InputError
from fedtempo.flower_local.errors import FederationError

Value = str | int | float | bool


@dataclass(frozen=True)
class Flwr:
    """The command ``flwr`` in a folder and an environment."""

    folder: Path
    env: Mapping[str, str]
    patience: float

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
            timeout=self.patience,
        )
        return done.stdout or done.stderr


def program(name: str) -> str:
    """A command of Flower: the one beside this Python, else the one on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f"the command {name} is not there; pip install 'fedtempo[flower]'")
    return found


def assignments(values: Mapping[str, Value]) -> list[str]:
    """``name=value`` as Flower reads it, each value in TOML."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]
