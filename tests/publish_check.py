"""Is the package ready for an index? Build it, check what was built, install it into a bare environment, use it there.

    python tests/publish_check.py      or: make publish-check

The wheel is built from the sdist, so that the sdist is complete. Packages come from wherever pip finds them, in the
versions of constraints.txt. At the end: how long the install took, and how many megabytes each package is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = """
import json
from importlib.metadata import distributions
sizes = {}
for found in distributions():
    files = [found.locate_file(file) for file in found.files or []]
    sizes[found.name] = sum(file.stat().st_size for file in files if file.is_file())
print(json.dumps(sizes))
"""
LISTED = 14
"""The largest packages, by name."""


def environment(folder: Path) -> Path:
    """A bare virtual environment; its folder of programs."""
    venv.create(folder, with_pip=True, clear=True)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it must succeed."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDTEMPO_"))}
    settings["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=settings, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def installed(folder: Path, wheel: Path) -> Path:
    """The wheel in an environment of its own, and what it costs."""
    programs = environment(folder / "bare")
    before = json.loads(run(programs / "python", "-c", SIZES, cwd=folder))
    begin = time.perf_counter()
    run(programs / "pip", "install", "-qq", "--disable-pip-version-check", wheel, cwd=folder)
    seconds = time.perf_counter() - begin
    run(programs / "pip", "check", cwd=folder)
    sizes = json.loads(run(programs / "python", "-c", SIZES, cwd=folder))
    new = sorted(((size / 1e6, name) for name, size in sizes.items() if name not in before), reverse=True)
    print(f"installed in {seconds:.0f} s: {len(new)} packages, {sum(size for size, _ in new):.0f} MB")
    print(", ".join(f"{name} {size:.0f}" for size, name in new[:LISTED]))
    return programs


def used(programs: Path, folder: Path) -> None:
    """Plan and train a little, as on the README's first page."""
    plan = json.loads(run(programs / "fedtempo", "plan", "--clients", "20", "--times", "F80", "--json", cwd=folder))
    assert plan["clients"] == 20
    words = "run --clients 4 --times F80 --until 4 --points 3 --seeds 1 --lr 0.1,1 --out results"
    said = run(programs / "fedtempo", *words.split(), cwd=folder)
    assert "FedFix(1/2)" in said, said
    assert {"history.nc", "study.svg", "study.json"} <= {path.name for path in (folder / "results").iterdir()}
    assert "FedFix(1/2)" in run(programs / "fedtempo", "show", "results", cwd=folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT, cwd=folder)
        made = sorted((folder / "dist").iterdir())
        print(", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in made))
        tools = environment(folder / "tools")
        run(tools / "pip", "install", "-qq", "--disable-pip-version-check", "twine", cwd=folder)
        run(tools / "twine", "check", "--strict", *made, cwd=folder)
        [wheel] = (path for path in made if path.suffix == ".whl")
        used(installed(folder, wheel), folder)
        print("twine is content; plan, run and show work where nothing else is installed")


if __name__ == "__main__":
    main()
