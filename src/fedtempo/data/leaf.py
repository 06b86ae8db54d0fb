"""LEAF's roles: a JSON object with `users`, `num_samples` (one each) and `user_data[user]["raw"]`, a role's text."""

from __future__ import annotations

import json
from typing import Any

from fedtempo.data.damage import Damage
from fedtempo.data.roles import Roles, cleaned


def leaf_roles(data: bytes) -> Roles:
    """The roles in the file's order."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damage(f"it is not JSON ({error})") from None
    users, counts, texts = _parts(document)
    if not users:
        raise Damage("it holds no roles")
    if not all(isinstance(user, str) for user in users) or len(set(users)) < len(users):
        raise Damage("its users are not names that differ from each other")
    if len(counts) != len(users):
        raise Damage(f"it has {len(counts)} entries in num_samples for {len(users)} users")
    return Roles(tuple(users), tuple(cleaned(_raw(texts, user)) for user in users))


def _parts(document: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """`users`, `num_samples` and `user_data`."""
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(document, dict) or not isinstance(document.get(key), kind):
            raise Damage(f"it does not have LEAF's keys: {key} is not there, or not a {kind.__name__}")
    return document["users"], document["num_samples"], document["user_data"]


def _raw(texts: dict[str, Any], user: str) -> str:
    entry = texts.get(user)
    raw = entry.get("raw") if isinstance(entry, dict) else None
    if not isinstance(raw, str):
        raise Damage(
            f'the role {user!r} has no text: user_data["{user}"]["raw"] is not there (LEAF writes it with --raw)'
        )
    return raw
