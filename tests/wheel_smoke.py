"""Build the wheel, unpack it alone into an empty folder, and use it from there as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        [wheel] = folder.glob("fedtempo-*.whl")
        site = folder / "site"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            archive.extractall(site)
        assert "fedtempo/py.typed" in names, "the wheel lacks py.typed"
        strangers = [n for n in names if not n.startswith(("fedtempo/", "fedtempo-"))]
        assert not strangers, f"the wheel carries {strangers}"
        [entry] = site.glob("fedtempo-*.dist-info/entry_points.txt")
        assert "fedtempo = fedtempo.cli:main" in entry.read_text(), "the wheel has no command"
        assert any(n.endswith("licenses/LICENSE") for n in names), "the wheel carries no licence"
        env = {**os.environ, "PYTHONPATH": str(site)}
        where = [sys.executable, "-c", "import fedtempo; print(fedtempo.__file__)"]
        home = subprocess.run(where, check=True, env=env, cwd=folder, capture_output=True, text=True).stdout
        assert home.startswith(str(site)), f"not the wheel's own package: {home}"
        plan = [sys.executable, "-m", "fedtempo", "plan", "--clients", "3", "--times", "F50", "--json"]
        out = subprocess.run(plan, check=True, env=env, cwd=folder, capture_output=True, text=True).stdout
        assert json.loads(out)["clients"] == 3
        picture = folder / "timeline.svg"
        draw = ["timeline", "--scheme", "async", "--times", "1,2", "--until", "4", "--out", str(picture)]
        subprocess.run(
            [sys.executable, "-m", "fedtempo", *draw], check=True, env=env, cwd=folder, stdout=subprocess.DEVNULL
        )
        assert picture.read_text().rstrip().endswith("</svg>")
        again = [sys.executable, "-m", "fedtempo", "reproduce", "fig1", "--out", str(folder / "paper")]
        subprocess.run(again, check=True, env=env, cwd=folder, stdout=subprocess.DEVNULL)
        assert (folder / "paper" / "fig1.svg").is_file(), "the paper's figures are not in the wheel"
        print(f"wheel: {wheel.name} builds, imports, plans, draws, and knows the paper's figures")


if __name__ == "__main__":
    main()
