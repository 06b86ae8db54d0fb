"""Light and dark, and a colour for each scheme: what pictures and pages share, without a library that draws.

The four schemes of the paper have colours of their own, the others one each from a list whose members differ, also
without full colour vision, by lightness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedtempo.errors import InputError


@dataclass(frozen=True)
class Theme:
    """The inks of a figure."""

    name: str
    background: str
    ink: str
    grid: str
    faint: str
    """What is there and says little: a job that is not used yet."""
    waiting: tuple[str, str]
    """Face and edge of what waits."""
    away: tuple[str, str]
    """Face and edge of the time in which a client is not there."""
    lost: str
    """Work that is lost."""
    families: dict[str, str]
    """The colours of the paper's schemes."""
    others: tuple[str, ...]
    """Colours of all other schemes, in the order in which they are taken."""

    @property
    def rc(self) -> dict[Any, Any]:
        """For `rc_context`."""
        return {
            "font.size": 9.0,
            "font.family": "DejaVu Sans",
            "svg.hashsalt": "fedtempo",
            "svg.fonttype": "path",
            "figure.facecolor": self.background,
            "axes.facecolor": self.background,
            "savefig.facecolor": "auto",
            "axes.edgecolor": self.ink,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "xtick.color": self.ink,
            "ytick.color": self.ink,
        }


LIGHT = Theme(
    name="light",
    background="white",
    ink="#33373d",
    grid="#e3e6ea",
    faint="#b9bec7",
    waiting=("#e4e7ec", "#9aa1ad"),
    away=("#f4f5f7", "#c3c8d0"),
    lost="#b3261e",
    families={"FedAvg": "#2b2b2b", "AsyncFedAvg": "#d55e00", "FedFix": "#0072b2", "FedBuff": "#009e73"},
    others=(
        *("#d4bf2a", "#6a0080", "#ff558a", "#754a40", "#8080ff", "#60d4aa", "#b52080", "#0000ff", "#d4952a"),
        *("#559fca", "#b5b5ff", "#4a00bf", "#554000", "#553555"),
    ),
)
DARK = Theme(
    name="dark",
    background="#16181d",
    ink="#d9dde3",
    grid="#2c313a",
    faint="#5d646f",
    waiting=("#2c313a", "#6d7684"),
    away=("#1d2026", "#3c424d"),
    lost="#ff7066",
    families={"FedAvg": "#ececec", "AsyncFedAvg": "#ff7f2a", "FedFix": "#4aa8ef", "FedBuff": "#1fc493"},
    others=(
        *("#ffb500", "#ea75ca", "#caff00", "#b5806a", "#7580ff", "#ea0000", "#aacaff", "#b5df8a", "#aa4a80"),
        *("#604aff", "#4a9f9f", "#f4aaca", "#4a75bf", "#9f604a"),
    ),
)
_THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def theme_of(style: str) -> Theme:
    """The theme of that name."""
    if style not in _THEMES:
        raise InputError(f"style: {style!r} is not known; give {' or '.join(map(repr, _THEMES))}")
    return _THEMES[style]


def colours(schemes: Sequence[str], theme: Theme = LIGHT) -> dict[str, str]:
    """A colour for each scheme, no two alike as long as there are some; the first of a family has the family's."""
    used: set[str] = set()
    chosen: dict[str, str] = {}
    taken = 0
    for scheme in schemes:
        family = scheme.split("(")[0].split(" ")[0]
        if family in theme.families and family not in used:
            chosen[scheme] = theme.families[family]
            used.add(family)
        elif scheme not in chosen:
            chosen[scheme] = theme.others[taken % len(theme.others)]
            taken += 1
    return chosen
