"""How schemes and weight rules look in every picture: a colour is a scheme, a family of schemes a hue.

A line is solid for time-based weights, dashed for identical ones, dotted for importance alone.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtempo.history import History
from fedtempo.report.history_summary import FAIR
from fedtempo.report.style import INK

_FAMILIES = {
    "FedAvg": ("#2b2b2b",),
    "AsyncFedAvg": ("#d55e00",),
    "FedFix": ("#0072b2", "#56b4e9", "#0a3a66", "#8fa8d8"),
    "FedBuff": ("#009e73", "#7fcfa8", "#00523b", "#a6b34b"),
}
_OTHERS = ("#cc79a7", "#e69f00", "#7a4b2a", "#8c8c8c", "#5e3c99", "#b2182b")
_DASHES: dict[str, Any] = {
    FAIR: "-",
    "identical": (0, (4.0, 1.8)),
    "importance": (0, (1.0, 1.6)),
}
_OTHER_DASHES = ((0, (5.0, 1.5, 1.0, 1.5)), (0, (3.0, 1.2, 1.0, 1.2, 1.0, 1.2)))


def colours(schemes: list[str]) -> dict[str, str]:
    """A colour for each scheme, which its family decides; distinct without colour vision through lightness."""
    used: dict[str, int] = {}
    chosen = {}
    for scheme in schemes:
        family = scheme.split("(")[0]
        shades = _FAMILIES.get(family, _OTHERS)
        key = family if family in _FAMILIES else ""
        chosen[scheme] = shades[used.get(key, 0) % len(shades)]
        used[key] = used.get(key, 0) + 1
    return chosen


def dashes(rules: list[str]) -> dict[str, Any]:
    """A line style for each weight rule."""
    others = [rule for rule in rules if rule not in _DASHES]
    return {r: _DASHES[r] if r in _DASHES else _OTHER_DASHES[others.index(r) % len(_OTHER_DASHES)] for r in rules}


def entries(history: History) -> list[Line2D]:
    """What a legend lists: the schemes, and the weight rules where there is more than the time-based one."""
    dataset = history.dataset
    schemes, rules = dataset["scheme"].values.tolist(), dataset["weights"].values.tolist()
    handles = [Line2D([], [], color=colour, linewidth=2.4, label=name) for name, colour in colours(schemes).items()]
    if rules != [FAIR]:
        styles = dashes(rules).items()
        handles += [Line2D([], [], color=INK, linestyle=s, linewidth=1.4, label=f"{r} weights") for r, s in styles]
    return handles


def legend(figure: Figure, history: History) -> None:
    """Below the axes, where it covers no line."""
    handles = entries(history)
    width = figure.get_figwidth()
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(width / max(1.75, 0.6 + 0.08 * longest))))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5, handlelength=2.6
    )
