"""Who is who: numbers that stay while node ids change."""

from __future__ import annotations

import json
from types import SimpleNamespace

from fedtempo.flower.client_registry import ClientRegistry, named


def nodes(*ids, **keys) -> list:
    listed = [SimpleNamespace(node_id=n, public_key=b"") for n in ids]
    return listed + [SimpleNamespace(node_id=int(n[1:]), public_key=key.encode()) for n, key in keys.items()]


def said(changes) -> list:
    return [(change.client, change.there, change.kind) for change in changes]


def test_nodes_are_numbered_by_their_ids_as_they_come() -> None:
    registry = ClientRegistry()
    assert said(registry.look(nodes(30, 10))) == [(0, True, "joined"), (1, True, "joined")]
    assert registry.names == ("node 10", "node 30")
    assert registry.look(nodes(10, 30)) == []
    assert said(registry.look(nodes(30, 20))) == [(0, False, "left"), (2, True, "joined")]
    assert registry.there == [1, 2]
    assert said(registry.look(nodes(10, 30, 20))) == [(0, True, "came back")], (
        "a node that was not heard of for a while"
    )
    assert said(registry.look(nodes(10, 30, 20, 40))) == [(3, True, "joined")], "without a key it is a stranger"


def test_a_key_is_recognised() -> None:
    registry = ClientRegistry()
    registry.look(nodes(n1="alice", n2="bob"))
    assert len({*registry.names}) == 2
    registry.look(nodes(n2="bob"))
    assert said(registry.look(nodes(n2="bob", n9="alice"))) == [(0, True, "came back")]
    assert registry.node_of(0) == 9
    both = registry.look(nodes(n2="bob", n20="alice"))
    assert said(both) == [(0, False, "left"), (0, True, "came back")], "gone and back between two looks"


def test_a_second_node_with_a_living_nodes_key_is_a_client_of_its_own_until_the_first_goes() -> None:
    registry = ClientRegistry()
    registry.look(nodes(n1="alice"))
    assert said(registry.look(nodes(n1="alice", n2="alice"))) == [(1, True, "joined"), (1, None, "same identity")]
    assert registry.look(nodes(n1="alice", n2="alice")) == [], "said once"
    assert registry.names[1] == "node 2"
    assert said(registry.look(nodes(n2="alice"))) == [
        (0, False, "left"),
        (1, False, "came back"),
        (0, True, "came back"),
    ]
    assert registry.there == [0]
    assert registry.node_of(0) == 2


def test_a_name_is_recognised_with_the_first_reply() -> None:
    registry = ClientRegistry()
    registry.look(nodes(1, 2))
    assert registry.introduce(0, "seven") == []
    assert registry.introduce(0, "eight") == [], "a name stays"
    assert registry.names == ("seven", "node 2")
    registry.look(nodes(2))
    registry.look(nodes(2, 3))
    assert said(registry.introduce(2, "seven")) == [(2, False, "came back"), (0, True, "came back")]
    assert registry.node_of(0) == 3
    assert registry.node_of(2) is None
    assert registry.introduce(0, "seven") == []


def test_a_name_of_a_living_client_is_given_when_that_one_goes() -> None:
    """A crashed node stays connected for a while, and its successor is there before it is gone."""
    registry = ClientRegistry()
    registry.look(nodes(1))
    registry.introduce(0, "seven")
    registry.look(nodes(1, 2))
    assert said(registry.introduce(1, "seven")) == [(1, None, "same identity")]
    assert registry.introduce(1, "seven") == [], "said once"
    registry.look(nodes(2))
    assert said(registry.introduce(1, "seven")) == [(1, False, "came back"), (0, True, "came back")]


def test_a_key_that_is_new_at_each_start_does_not_hide_the_name() -> None:
    registry = ClientRegistry()
    registry.look(nodes(n1="made at start"))
    registry.introduce(0, "seven")
    registry.look(nodes(n2="made at the next start"))
    assert said(registry.introduce(1, "seven")) == [(1, False, "came back"), (0, True, "came back")]
    assert registry.names[0] == "seven"
    registry.look(nodes())
    assert said(registry.look(nodes(n3="made at the next start"))) == [(0, True, "came back")]


def test_a_name_that_comes_back_with_another_key_is_said() -> None:
    registry = ClientRegistry()
    registry.look(nodes(n1="made at start"))
    registry.introduce(0, "seven")
    registry.look(nodes(n2="made at the next start"))
    *_, back = registry.introduce(1, "seven")
    assert back.reason == "at node 2, by its name only: its key is different"


def authenticated(registry: ClientRegistry, client: int, name: str):
    return registry.introduce(client, name, authenticated=True)


def test_where_nodes_are_authenticated_a_new_key_does_not_take_over_a_name() -> None:
    registry = ClientRegistry()
    registry.look(nodes(n1="alice"))
    assert authenticated(registry, 0, "seven") == []
    registry.look(nodes(n2="mallory"))
    [change] = authenticated(registry, 1, "seven")
    assert (change.client, change.there, change.kind) == (1, None, "same identity")
    assert "like client 0 which is disconnected and has another key; it counts as a separate client" in change.reason
    assert authenticated(registry, 1, "seven") == [], "said once"
    assert registry.there == [1]
    assert registry.names[1] != "seven"
    assert said(registry.look(nodes(n2="mallory", n3="alice"))) == [(0, True, "came back")], "by her key"
    assert authenticated(registry, 0, "eight") == [], "whatever she says"
    assert registry.names[0] == "seven"


def test_where_nodes_are_authenticated_a_known_key_is_its_client_whatever_it_says() -> None:
    registry = ClientRegistry()
    registry.look(nodes(n1="alice", n2="bob"))
    authenticated(registry, 0, "seven")
    authenticated(registry, 1, "eight")
    registry.look(nodes(n2="bob"))
    assert authenticated(registry, 1, "seven") == []
    registry.look(nodes())
    assert said(registry.look(nodes(n9="bob"))) == [(1, True, "came back")]
    assert authenticated(registry, 1, "seven") == []
    assert (registry.names[0], registry.names[1], registry.there) == ("seven", "eight", [1])


def test_one_node_that_claims_every_name_is_noted_once() -> None:
    registry = ClientRegistry()
    registry.look(nodes(*range(50)))
    for client in range(49):
        registry.introduce(client, str(client))
    assert sum(len(registry.introduce(49, str(client))) for client in range(49)) == 1


def test_what_is_saved_is_what_comes_back() -> None:
    registry = ClientRegistry()
    registry.look(nodes(1, n2="alice", n3="bob"))
    registry.introduce(2, "seven")
    registry.look(nodes(n2="alice", n3="bob"))
    copy = ClientRegistry.restore(json.loads(json.dumps(registry.snapshot())))
    assert copy.names == registry.names
    assert copy.there == registry.there == [1, 2]
    for each in (registry, copy):
        changes = each.look(nodes(n9="alice"))
        assert said(changes) == [(1, False, "left"), (2, False, "left"), (1, True, "came back")]
        assert said(each.look(nodes(1, n9="alice"))) == [(0, True, "came back")], "known by its node alone"


def test_names_in_metrics() -> None:
    assert named({"id": 3, "loss": 0.5}, "id") == "3"
    assert named({"id": 3.0}, "id") == "3"
    assert named({"id": 2.5}, "id") == "2.5"
    assert named({"id": [1, 2]}, "id") is None
    assert named({"loss": 0.5}, "id") is None
    assert named({"id": 3}, None) is None
    assert named({"id": float("nan")}, "id") == "nan"
    assert named({"id": 1e308}, "id") == "1e+308"
