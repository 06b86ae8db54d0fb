"""What is at a path that ``fedtempo show`` was given, in words, where it is nothing that can be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtempo.clock.times_text import is_run
from fedtempo.errors import DataMissing, FedtempoError, InputError

_HISTORY = "history.nc"
_MOST = 3


def nothing_to_show(folder: Path) -> FedtempoError:
    """The error that says what a folder is in the place of a study."""
    if not folder.exists():
        return DataMissing(f"{folder}: no such file or folder; check the path")
    names = sorted(path.name for path in folder.iterdir())
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_result(path)]
    if not names:
        what = "the folder is empty"
    elif inside:
        listed = ", ".join(str(path) for path in inside[:_MOST])
        more = f" and {len(inside) - _MOST} more" if len(inside) > _MOST else ""
        return InputError(f"{folder}: it holds results in folders of their own; show one of them: {listed}{more}")
    elif "pyproject.toml" in names:
        what = f"it looks like an app's own folder: fedtempo app {folder} --times … trains it"
    elif any("tfevents" in name for name in names) or {"mlflow.db", "mlruns", "wandb"} & {*names}:
        what = "it is what --track wrote: open it with TensorBoard, MLflow or W&B, and show the study's own folder"
    elif folder.name == "units" and any(name.endswith(".npz") for name in names):
        what = f"these are units of a study: fedtempo show {folder.parent}"
    else:
        what = f"it has {', '.join(names[:_MOST])}{', …' if len(names) > _MOST else ''}"
    return DataMissing(f"{folder}: no study is there, and no run of fedtempo.flower; check the path ({what})")


def _is_result(folder: Path) -> bool:
    return (folder / _HISTORY).is_file() or (folder / "runs.json").is_file() or is_run(folder)


def refuse_other_file(path: Path) -> None:
    """Say what a file is that is no history."""
    ending = path.suffix.lower()
    if not path.is_file() or ending == ".nc":
        return
    if ending == ".toml":
        raise InputError(f"{path}: this is a study file: fedtempo run {path} trains it, then show its folder")
    if ending in (".svg", ".png", ".pdf", ".html", ".htm"):
        raise InputError(f"{path}: this is a picture or a page already; open it, or show the folder that it is from")
    if path.name in ("study.json", _HISTORY, "runs.json", "state.npz", "rounds.jsonl"):
        raise InputError(f"{path}: this is a part of a folder of results: fedtempo show {path.parent}")
    if ending == ".json":
        raise InputError(f"{path}: {_json_words(path)}")


def read_json(path: Path) -> Any:
    """The document in a file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not JSON that can be read ({error}); give a file of fedtempo's") from None


def _json_words(path: Path) -> str:
    found = read_json(path)
    keys = found.keys() if isinstance(found, dict) else set()
    if "schemes" in keys:
        return "this is a plan of fedtempo plan --json without a problem, and nothing of it was trained; run that again"
    return "JSON, but not a recommendation of fedtempo plan --problem … --json; give one, or a folder of results"
