"""Who is who: Flower's nodes are numbered at random each time they start; clients keep their numbers.

A client is known by its node's public key, by the value of a reply metric that the user names, or else by its node id.
A node without authentication makes a new key at each start, so where a metric is named it tells more than the key. A
client that comes back under another node keeps its number, and with it its estimates and importance.

Flower shows a server the keys of all nodes and not whether they were registered, so the user says it: where nodes are
`authenticated`, a key beats a name. Who has a known key is that client, whatever it says, and a node with another key
does not take over the name of a client that is away; it counts as a client of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fedtempo.flower.faults import Kind


class Node(Protocol):
    """What is used of Flower's NodeInfo."""

    @property
    def node_id(self) -> int: ...
    @property
    def public_key(self) -> bytes: ...


class Change(NamedTuple):
    """A client that came or went (`there`), or only something to note (`there` is None)."""

    client: int
    there: bool | None
    kind: Kind
    reason: str


@dataclass
class _Client:
    number: int
    node: int | None
    first_node: int
    key: str
    name: str | None = None
    """Value of the identity metric."""


class ClientRegistry:
    """Client numbers by node, key and name."""

    def __init__(self) -> None:
        self._clients: list[_Client] = []
        self._by_node: dict[int, _Client] = {}
        self._by_key: dict[str, _Client] = {}
        self._by_name: dict[str, _Client] = {}
        self._last_at: dict[int, _Client] = {}
        self._warned: set[int] = set()
        self._same: dict[int, bytes] | None = None
        """Keys by node, where nobody has come or gone at the last look, nor is another client since."""

    def __len__(self) -> int:
        return len(self._clients)

    def identity(self, client: int) -> str:
        """A client's identity: its name, else its key's fingerprint, else its node."""
        if not 0 <= client < len(self._clients):
            return "?"
        known = self._clients[client]
        return known.name or known.key or f"node {known.first_node}"

    @property
    def names(self) -> tuple[str, ...]:
        """Identities by client number."""
        return tuple(self.identity(client) for client in range(len(self._clients)))

    def node_of(self, client: int) -> int | None:
        """The node at which the client is, None if it is gone."""
        return self._clients[client].node

    @property
    def there(self) -> list[int]:
        """The clients that are there."""
        return [client.number for client in self._clients if client.node is not None]

    def look(self, nodes: Iterable[Node]) -> list[Change]:
        """Who has come and gone, when these nodes are connected."""
        listed = {node.node_id: node.public_key for node in nodes}
        if listed == self._same:
            return []
        changes = [self._leave(self._by_node[node]) for node in sorted(self._by_node.keys() - listed.keys())]
        for number in sorted(listed):
            key = _fingerprint(listed[number])
            holder = self._by_key.get(key) if key else self._last_at.get(number)
            here = self._by_node.get(number)
            if here is not None:
                if holder is not None and holder is not here and holder.node is None and here.key == "":
                    changes += self._move(here, holder)
                continue
            if holder is not None and holder.node is not None:
                changes.append(self._join(number, ""))
                changes.append(self._clash(changes[-1].client, holder))
            elif holder is not None:
                self._put(holder, number)
                changes.append(Change(holder.number, True, "came back", f"at node {number}"))
            else:
                changes.append(self._join(number, key))
        self._same = None if changes else listed
        return changes

    def introduce(self, client: int, name: str | None, *, authenticated: bool = False) -> list[Change]:
        """A reply of `client` named it: it may be one that is known already, and then its number is that one's.

        Not where nodes are `authenticated`: then one that is known would have been known by its key.
        """
        here = self._clients[client]
        if name is None or here.name is not None or here.node is None:
            return []
        holder = self._by_name.get(name)
        if holder is None:
            here.name = name
            self._by_name[name] = here
            return []
        if authenticated or holder.node is not None:
            if here.number in self._warned:
                return []
            self._warned.add(here.number)
            return [self._clash(here.number, holder)]
        return self._move(here, holder)

    def _join(self, node: int, key: str) -> Change:
        client = _Client(len(self._clients), node, node, key)
        self._clients.append(client)
        self._put(client, node)
        if key:
            self._by_key[key] = client
        return Change(client.number, True, "joined", f"at node {node}")

    def _put(self, client: _Client, node: int) -> None:
        client.node = node
        self._by_node[node] = self._last_at[node] = client
        self._same = None

    def _leave(self, client: _Client) -> Change:
        node, client.node = client.node, None
        assert node is not None
        del self._by_node[node]
        return Change(client.number, False, "left", f"node {node} is no longer connected")

    def _move(self, here: _Client, holder: _Client) -> list[Change]:
        """The node of `here` is that of `holder`."""
        node, here.node = here.node, None
        assert node is not None
        self._put(holder, node)
        other = ", by its name only: its key is different" if here.key and holder.key not in ("", here.key) else ""
        if here.key:
            holder.key = here.key
            self._by_key[here.key] = holder
        found = f"it came back as client {holder.number}"
        return [
            Change(here.number, False, "came back", found),
            Change(holder.number, True, "came back", f"at node {node}{other}"),
        ]

    def _clash(self, client: int, holder: _Client) -> Change:
        known, cure = f"at node {holder.node}, which is still connected", "Give each node its own key or name"
        if holder.node is None:
            known = "which is disconnected and has another key"
            cure = "Reconnect it with its old key; if nodes make new keys at each start, leave authenticated out"
        return Change(
            client,
            None,
            "same identity",
            f"it claims to be {self.identity(holder.number)!r}, like client {holder.number} {known}; it counts as a "
            f"separate client. {cure}",
        )

    def snapshot(self) -> list[list[Any]]:
        """[node or -1, first node, key, name, nodes at which it was the last…] by client."""
        rows = [[-1 if c.node is None else c.node, c.first_node, c.key, c.name] for c in self._clients]
        for node, client in self._last_at.items():
            rows[client.number].append(node)
        return rows

    @classmethod
    def restore(cls, saved: Sequence[Sequence[Any]]) -> ClientRegistry:
        """The clients as they were; the next `look` says who has gone since."""
        registry = cls()
        for number, (node, first, key, name, *last_at) in enumerate(saved):
            client = _Client(number, None if node < 0 else node, first, key, name)
            registry._clients.append(client)
            registry._last_at |= dict.fromkeys(last_at, client)
            if node >= 0:
                registry._put(client, node)
            if key:
                registry._by_key[key] = client
            if name is not None:
                registry._by_name[name] = client
        return registry


def named(metrics: Mapping[str, Any], key: str | None) -> str | None:
    """The client's name in its metrics; whole numbers without a point."""
    if key is None or key not in metrics:
        return None
    value = metrics[key]
    if isinstance(value, list):
        return None
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**64 else str(value)


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16] if key else ""
