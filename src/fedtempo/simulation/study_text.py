"""A study's description as the text of a study file, which ``fedtempo run`` reads as the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def study_text(description: Mapping[str, Any]) -> str:
    """The text; what is None, which TOML does not have, is left out."""
    return "\n".join(_table(description, "")).strip() + "\n"


def _table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Values first, then tables and lists of tables, each under its own head."""
    later: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, Mapping) or _is_tables(value):
            later.append((name, value))
        elif value is not None:
            yield f"{_key(name)} = {_value(value)}"
    for name, value in later:
        inner = f"{path}.{_key(name)}" if path else _key(name)
        for one in [value] if isinstance(value, Mapping) else value:
            yield ""
            yield f"[{inner}]" if isinstance(value, Mapping) else f"[[{inner}]]"
            yield from _table(one, inner)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items() if v is not None)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(one) for one in value if one is not None)}]"
    return _string(str(value))


def _float(value: float) -> str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    text = repr(value)
    mantissa, mark, power = text.partition("e")
    return text if "." in mantissa or not mark else f"{mantissa}.0e{power}"
