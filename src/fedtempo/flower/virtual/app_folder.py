"""A Flower app as a folder: its components and its run config, as ``flwr run`` reads them from pyproject.toml.

[tool.flwr.app.components]   serverapp = "package.server_app:app", clientapp = "package.client_app:app"
[tool.flwr.app.config]       what the apps find in context.run_config; tables inside are joined by points
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import nearest

_PAIR = re.compile(r"""([^\s=]+)=("(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|\S+)""")


@dataclass(frozen=True)
class AppFolder:
    """What pyproject.toml says."""

    path: Path
    name: str
    server: str
    """As package.module:app."""
    client: str
    config: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Changes when a Python file of the app does."""
        return digest_of(self.path)


def digest_of(folder: Path) -> str:
    """A digest of the Python files below a folder."""
    total = hashlib.blake2b(digest_size=12)
    for path in sorted(folder.rglob("*.py")):
        if not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts):
            total.update(str(path.relative_to(folder)).encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def app_folder(path: Path | str) -> AppFolder:
    """The app in a folder."""
    folder = Path(path).resolve()
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise DataMissing(f"{path}: no Flower app found (no pyproject.toml); give the folder that flwr run takes")
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: it cannot be read ({error})") from None
    app = tables.get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {})
    for name in ("serverapp", "clientapp"):
        if not isinstance(components.get(name), str):
            raise InputError(
                f"{file}: [tool.flwr.app.components] has no {name}; add {name} = "
                f'"package.{name[:-3]}_app:app", as flwr new writes it'
            )
    name = str(tables.get("project", {}).get("name", folder.name))
    return AppFolder(folder, name, components["serverapp"], components["clientapp"], _flat(app.get("config", {})))


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return flat


def overridden(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The run config with other values for some of its keys."""
    for name in given:
        if name not in config:
            raise InputError(
                f"run config: the app has no key {name!r}{nearest(name, list(config))}; add it to "
                "[tool.flwr.app.config]"
            )
    return {**config, **given}


def read_run_config(texts: list[str]) -> dict[str, Any]:
    """``--run-config 'lr=0.1 name="x"'``, as flwr run takes it."""
    found: dict[str, Any] = {}
    for text in texts:
        rest = _PAIR.sub("", text).strip(" ,")
        if rest:
            raise InputError(f"--run-config: {rest!r} is not key=value; write 'lr=0.1 name=\"text\"'")
        for name, value in _PAIR.findall(text):
            try:
                found[name] = tomllib.loads(f"value = {value}")["value"]
            except tomllib.TOMLDecodeError:
                raise InputError(
                    f'--run-config: {value} is not a TOML value; strings need quotes: {name}="{value}"'
                ) from None
    return found
