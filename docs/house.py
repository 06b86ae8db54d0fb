"""Draw docs/house.svg, the plan of the house, from the imports of the source itself: ``python docs/house.py``.

A box is a package. On its right the imports, thicker where more modules do it; on its left what is handed down.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "fedtempo"

FLOORS = {
    "errors, files, grid, registry, display, compat": "exceptions, durable files, axes, names, printing, old names",
    "clock": "exact time, client times, events, waiting rules, server, timelines",
    "weighting": "long-run shares, weight rules, weights, windows",
    "training": "solvers, corrections, compression, server rules",
    "problems": "clients' data, losses, partitions, networks",
    "schemes": "waiting rule + options: named, published; their timelines",
    "simulation": "study, units, engines, checkpoints, history",
    "track": "TensorBoard, MLflow, Weights & Biases, tables, while it trains",
    "theory": "quantities, bounds, stability, forecasts",
    "planning": "compare (times only), recommend (with a problem)",
    "report": "tables and figures",
    "flower": "the deployment, and a federation on one machine",
    "paper": "the paper's figures and verdicts",
    "cli": "commands: parse, call, print",
}
"""From the top: what lives there."""

FLOWS = {
    ("clock", "weighting"): ("timeline", 0.5),
    ("weighting", "schemes"): ("weights", 0.4),
    ("training", "simulation"): ("jobs, steps", 0.45),
    ("problems", "simulation"): ("loss, rows", 0.5),
    ("schemes", "simulation"): ("scheme", 0.5),
    ("schemes", "flower"): ("scheme", 0.75),
    ("theory", "planning"): ("forecast", 0.5),
    ("simulation", "report"): ("history", 0.3),
    ("planning", "report"): ("plan", 0.5),
    ("report", "cli"): ("tables, figures", 0.35),
    ("flower", "cli"): ("record", 0.6),
}
"""What is handed down, from the floor that makes it to the one that uses it: each is an import, the other way round;
and where along its arc the name stands."""

WIDTH, ROW, BOX, LEFT, TOP = 900, 46, 34, 210, 64


def floor_of(module: str) -> str | None:
    """The box that a module stands in."""
    first = module.split(".")[0]
    return next((name for name in FLOORS if first in name.split(", ")), None)


def edges() -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """How many modules of one box import from another, and how many modules a box has."""
    found: Counter[tuple[str, str]] = Counter()
    modules: Counter[str] = Counter()
    for path in sorted(SRC.rglob("*.py")):
        here = floor_of(".".join(path.relative_to(SRC).with_suffix("").parts))
        if here is None:
            continue
        modules[here] += 1
        if path.name == "display.py":
            continue  # loads the report when called: the one door
        there = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedtempo."):
                there.add(floor_of(node.module.removeprefix("fedtempo.")))
        found.update((here, other) for other in there if other is not None and other != here)
    return found, modules


def drawn() -> str:
    """The picture, as SVG."""
    imports, modules = edges()
    names = list(FLOORS)
    height = TOP + ROW * len(names) + 16
    middle = {name: TOP + ROW * k + BOX // 2 for k, name in enumerate(names)}
    right = LEFT + 420
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold" fill="#222">The house: each floor imports only '
        "from those above it</text>",
        f'<text x="{LEFT}" y="44" font-size="11" fill="#666">left: what is handed down; right: imports, thicker where '
        "more modules do it; grey: the number of modules</text>",
    ]
    for (lower, upper), count in sorted(imports.items(), key=lambda item: (names.index(item[0][0]), item[0][1])):
        begin, end = middle[lower], middle[upper]
        reach = 30 + 15 * abs(names.index(lower) - names.index(upper))
        wrong = names.index(upper) > names.index(lower)
        colour = "#c0392b" if wrong else "#4a7ab5"
        title = f"{lower} imports {upper}: {count} modules"
        out.append(
            f'<path d="M{right} {begin} C{right + reach} {begin} {right + reach} {end} {right} {end}" fill="none" '
            f'stroke="{colour}" stroke-opacity="0.5" stroke-width="{0.6 + count**0.5 / 1.6:.2f}">'
            f"<title>{escape(title)}</title></path>"
        )
    for (upper, lower), (what, at) in FLOWS.items():
        assert imports[lower, upper], f"nothing goes from {upper} to {lower}"
        begin, end = middle[upper] + 7, middle[lower] - 7
        reach = 14 + 13 * (names.index(lower) - names.index(upper))
        side = LEFT - 3 * at * (1 - at) * reach - 4
        height_at = begin + (3 * at**2 - 2 * at**3) * (end - begin)
        out.append(
            f'<path d="M{LEFT} {begin} C{LEFT - reach} {begin} {LEFT - reach} {end} {LEFT - 5} {end}" fill="none" '
            'stroke="#2e7d4f" stroke-width="1.4"/>'
            f'<path d="M{LEFT - 8} {end - 4} L{LEFT - 1} {end} L{LEFT - 8} {end + 4} Z" fill="#2e7d4f"/>'
            f'<text x="{side:.0f}" y="{height_at + 4:.0f}" font-size="11" text-anchor="end" '
            f'fill="#2e7d4f" stroke="#fff" stroke-width="3" paint-order="stroke">{escape(what)}</text>'
        )
    for k, (name, about) in enumerate(FLOORS.items()):
        y = TOP + ROW * k
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="{right - LEFT}" height="{BOX}" rx="5" fill="#eef3f9" stroke="#4a7ab5"/>'
            f'<text x="{LEFT + 10}" y="{y + 14}" font-size="12" font-weight="bold" fill="#1c3d5e">{escape(name)}'
            f'<tspan font-weight="normal" fill="#888" dx="7">{modules[name]}</tspan></text>'
            f'<text x="{LEFT + 10}" y="{y + 28}" font-size="10.5" fill="#333">{escape(about)}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "house.svg").write_text(drawn(), encoding="utf-8")
