"""Compressed contributions on Flower: a client's mod packs them, the server admits them like any other."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedFix, compressing, recorded
from fedtempo.flower.compressing import MARKER
from fedtempo.flower.result import in_bytes
from fedtempo.flower.validator import Contribution, Refused, ReplyValidator
from fedtempo.training.batches import compression_key, job_key
from fedtempo.training.compression import QSGD, LowRank, TopK
from support.flower_fake import SECOND, FakeGrid, answer, arrays_of, make_message, on, record_of, shifting

METHODS = [TopK(0.1), QSGD(5, norm="euclidean"), QSGD(3, bucket=32), LowRank(2)]
SECONDS = (1, 0.75, 2.5)


def first_model():
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(size=(30, 8)).astype(np.float32),
        "b": np.zeros(8, np.float32),
        "seen": np.zeros((), np.int64),
    }


def trained(client: int, sent):
    """A client's new model: half way to its own optimum, and one more batch seen."""
    aim = np.random.default_rng(10 + client)
    new = {n: (0.5 * (sent[n] + aim.normal(size=sent[n].shape))).astype(np.float32) for n in ("w", "b")}
    return {**new, "seen": sent["seen"] + 1}


class Site:
    """A node with a ClientApp of Flower's own, and its state; `sent` is what it was sent, job by job."""

    def __init__(self, client: int, mods, seconds: float = 1.0, **node_config) -> None:
        self.client, self.seconds, self.sent = client, seconds, {}
        config = node_config or {"partition-id": client}
        self.context = Context(run_id=7, node_id=2**40 + client, node_config=config, state=RecordDict(), run_config={})
        self.app = ClientApp(mods=mods)

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            sent = arrays_of(message)
            self.sent[message.content["config"]["job"]] = sent
            message.content["arrays"].clear()  # as `to_numpy_ndarrays(keep_input=False)` does
            return answer(message, trained(client, sent), {"num-examples": 10 * (client + 1), "loss": 1.0})

        @self.app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            return answer(message, {"w": np.zeros(3)}, {"num-examples": 1})

    def behave(self, message: Message):
        copy = Message(content=RecordDict(dict(message.content)), metadata=message.metadata)
        copy.content["arrays"] = ArrayRecord(dict(message.content["arrays"]))  # the wire: the server keeps its own
        return [(int(self.seconds * SECOND), self.app(copy, self.context))]


def sites(methods):
    return [Site(i, [] if method is None else [compressing(method)], SECONDS[i]) for i, method in enumerate(methods)]


def train(some, strategy=None, rounds=25, **options):
    grid = FakeGrid()
    for site in some:
        grid.connect(100 + site.client, site.behave)
    strategy = (strategy or FedFix)(0.8, **on(grid, server_lr=0.7, **options))
    return strategy.start(grid, record_of(first_model()), num_rounds=rounds)


def simulated(result, some, methods):
    """θ^{n+1} = θ^n + η_g Σ ω_i(n) C(Δ_i) on the recorded rounds, with C and its state from the simulation's half."""
    theta = first_model()
    states = [None if method is None else method.start(theta) for method in methods]
    compress = {method: jax.jit(method.compress) for method in methods if method is not None}
    bases = [theta]
    for closed in result.rounds:
        total = {name: np.zeros(array.shape) for name, array in theta.items()}
        for update in closed.updates:
            i = update.client
            sent = some[i].sent[update.job]
            np.testing.assert_allclose(sent["w"], bases[update.base]["w"], atol=2e-4)
            new = trained(i, sent)
            change = {name: new[name] - sent[name] for name in new}
            if methods[i] is not None:
                key = job_key(compression_key(0), jnp.uint32(i), jnp.uint32(update.job))
                change["seen"] = np.int32(0)  # it is no contribution
                change, states[i] = compress[methods[i]](change, states[i], key)
            for name in ("w", "b"):
                total[name] += 0.7 * update.weight * update.clipped * np.asarray(change[name], np.float64)
            total["seen"] += update.weight * new["seen"]
        share = min(1.0, sum(closed.weights))
        seen = (1 - share) * theta["seen"] + share * total["seen"] / sum(closed.weights) if closed.updates else 0
        theta = {name: theta[name] + total[name] for name in theta} | ({"seen": seen} if closed.updates else {})
        theta = {name: np.rint(x).astype(np.int64) if name == "seen" else x.astype("f4") for name, x in theta.items()}
        bases.append(theta)
    return theta


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_training_is_that_of_the_simulated_compression(method) -> None:
    some = sites([method] * 3)
    result = train(some)
    assert not result.errors
    model = simulated(result, some, [method] * 3)
    for name, array in model.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array, atol=2e-4)
    plain = train(sites([None] * 3)).arrays["w"].numpy()
    assert np.abs(plain - model["w"]).max() > 0.01, "compression changes the way, or it was not there"


def test_compressed_and_plain_clients_train_together(tmp_path) -> None:
    methods = [TopK(0.1), None, QSGD(7, bucket=16)]
    some = sites(methods)
    result = train(some, checkpoint=tmp_path)
    assert not result.errors
    model = simulated(result, some, methods)
    for name, array in model.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array, atol=2e-4)
    by_client = {}
    for closed in result.rounds:
        for update in closed.updates:
            by_client.setdefault(update.client, set()).add(update.bytes_up)
    shapes = first_model()
    header = 128  # of each array, in NumPy's format
    plain = sum(array.nbytes for array in shapes.values())
    assert by_client == {
        0: {methods[0].num_bytes(shapes) + 3 * header},
        1: {plain + 3 * header},
        2: {methods[2].num_bytes(shapes) + 3 * header},
    }
    assert methods[0].num_bytes(shapes) < plain / 5


def test_clients_with_names_or_without_numbers_have_draws_of_their_own() -> None:
    """By node, or by partition-id, whatever that is; and the same ones for the same job."""
    sent = make_message(_content(first_model(), job=4), 1, "train")
    replies = {}
    for name, config in {"number": {"partition-id": 0}, "name": {"partition-id": "a"}, "node": {"x": 1}}.items():
        for attempt in (0, 1):
            site = Site(0, [compressing(QSGD(3), seed=5)], **config)
            [(_, reply)] = site.behave(sent)
            replies[name, attempt] = reply.content["arrays"]["codes"].data
        assert replies[name, 0] == replies[name, 1]
    assert len(set(replies.values())) == 3
    other = Site(0, [compressing(QSGD(3), seed=6)]).behave(sent)[0][1]
    assert other.content["arrays"]["codes"].data not in replies.values()


def _content(model, **config):
    return RecordDict({"arrays": record_of(model), "config": ConfigRecord(config)})


# -- what a client keeps


def job(site: Site, **config):
    """The parts of the site's next reply."""
    message = make_message(_content(first_model(), **config), 1, "train")
    message.content["config"].setdefault("job", 0)
    [(_, reply)] = site.behave(message)
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


def test_the_memory_lies_in_the_clients_state() -> None:
    site = Site(0, [compressing(TopK(0.1))])
    first, second = job(site), job(site)
    assert not np.array_equal(first["values"], second["values"]), "what was left out is sent next"
    kept = site.context.state["fedtempo.compression.memory"]
    assert {name: array.shape for name, array in kept.items()} == {"error/b": (8,), "error/w": (30, 8)}
    again = Site(0, [compressing(TopK(0.1))])
    again.context.state = site.context.state  # the node starts a process for each message
    np.testing.assert_array_equal(job(again)["values"], job(_with_two_jobs())["values"])


def _with_two_jobs() -> Site:
    site = Site(0, [compressing(TopK(0.1))])
    job(site), job(site)
    return site


@pytest.mark.parametrize("change", ["run", "method", "shape"])
def test_a_memory_of_something_else_is_not_used(change) -> None:
    fresh = job(Site(0, [compressing(TopK(0.1))]))["values"]
    used = Site(0, [compressing(TopK(0.2 if change == "method" else 0.1))])
    job(used)
    if change == "shape":
        kept = used.context.state["fedtempo.compression.memory"]
        kept["error/w"] = Array(np.zeros((2, 2), np.float32))
    after = Site(0, [compressing(TopK(0.1))])
    after.context.state = used.context.state
    after.context.run_id += change == "run"
    np.testing.assert_array_equal(job(after)["values"], fresh)


def test_without_a_number_jobs_are_counted() -> None:
    """A server that does not say which job this is; each still has draws of its own."""

    def numbered(site):
        message = make_message(_content(first_model()), 1, "train")
        mod = compressing(QSGD(3))
        work = lambda message, context: answer(message, trained(0, first_model()), {"num-examples": 1})  # noqa: E731
        return mod(message, site.context, work).content["arrays"]["codes"].data

    site = Site(0, [])
    codes = [numbered(site) for _ in range(3)]
    assert len(set(codes)) == 3
    assert codes[0] == numbered(Site(0, []))


def test_other_messages_and_replies_pass() -> None:
    site = Site(0, [compressing(TopK(0.1))])
    message = make_message(_content(first_model(), job=0), 1, "evaluate")
    [(_, reply)] = site.behave(message)
    assert list(reply.content["arrays"]) == ["w"]
    assert MARKER not in reply.content
    with pytest.raises(InputError, match="'topk' is not a compression; give"):
        compressing("topk")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda new: new["w"].fill(np.nan), "'w' contains NaN in 240 of 240 entries"),
        (lambda new: new.pop("b"), "its arrays are not the model's: it lacks b"),
        (lambda new: new.update(w=new["w"].T), r"'w' has shape \(8, 30\) where the model has \(30, 8\)"),
        (lambda new: new.update(seen=np.array("x")), "'seen' has dtype <U1"),
    ],
)
def test_what_cannot_be_compressed_is_refused_as_ever_and_not_remembered(change, words) -> None:
    site = Site(0, [])
    message = make_message(_content(first_model(), job=0), 1, "train")
    new = trained(0, first_model())
    change(new)
    mod = compressing(TopK(0.1))
    reply = mod(message, site.context, lambda message, context: answer(message, new, {"num-examples": 1}))
    assert MARKER not in reply.content
    assert not site.context.state
    found = ReplyValidator("num-examples", clip_norm=None, norm_limit=None).admit(reply, first_model())
    assert isinstance(found, Refused)
    assert re.search(words, found.reason)


# -- what the server makes of it


def compressed(method, base, new):
    message = make_message(_content(base, job=0), 1, "train")
    context = Site(0, []).context
    mod = compressing(method)
    return mod(message, context, lambda message, context: answer(message, new, {"num-examples": 5}))


def test_the_decoded_change_goes_through_every_check() -> None:
    base = first_model()
    new = trained(0, base)
    for method in METHODS:
        reply = compressed(method, base, new)
        validator = ReplyValidator("num-examples", clip_norm=1.0, norm_limit=10.0)
        found = validator.admit(reply, base)
        assert isinstance(found, Contribution)
        assert found.delta.keys() == {"w", "b"}
        assert found.values == {"seen": 1}
        assert found.norm == pytest.approx(np.sqrt(sum((found.delta[n] ** 2).sum() for n in ("w", "b"))), rel=1e-5)
        assert found.clipped == pytest.approx(1 / found.norm)
        assert list(found.content) == ["metrics"], "arrays and marker are let go of"
        assert found.bytes_up == sum(len(array.data) for array in reply.content["arrays"].values())
        del reply.content["metrics"]
        assert "no number 'num-examples'" in validator.admit(reply, base).reason


def test_numbers_that_travel_but_are_not_finite_are_refused() -> None:
    base = first_model()
    for part, method in (("scales", QSGD(5)), ("values", TopK(0.1)), ("factors", LowRank(2))):
        reply = compressed(method, base, trained(0, base))
        parts = {name: array.numpy().copy() for name, array in reply.content["arrays"].items()}
        parts[part][-1] = np.inf
        reply.content["arrays"] = record_of(parts)
        refused = ReplyValidator("num-examples", clip_norm=None, norm_limit=None).admit(reply, base)
        assert isinstance(refused, Refused)
        assert "contains" in refused.reason


def spoiled(way):
    """A client that packs well, and whose reply is then spoiled."""
    site = Site(1, [compressing(TopK(0.1))])

    def behave(message):
        [(delay, reply)] = site.behave(message)
        way(reply.content)
        return [(delay, reply)]

    return behave


def _mark(**what):
    return lambda content: content.__setitem__(MARKER, ConfigRecord(what))


def _arrays(change):
    def way(content):
        parts = {name: array.numpy().copy() for name, array in content["arrays"].items()}
        change(parts)
        content["arrays"] = record_of(parts)

    return way


WAYS = {
    "no method": (_mark(), "has no name"),
    "unknown": (_mark(name="zip"), "'zip' is not known"),
    "numbers": (_mark(name=3), "3 is not known"),
    "lists": (_mark(name="topk", share=["1", "2"]), "is not a number"),
    "too much": (_mark(name="topk", share="2"), "share above 0 and up to 1"),
    "nothing": (_mark(name="topk", share="1/0"), "is not a number"),
    "another share": (_mark(name="topk", share="1/2"), "where float32 of shape"),
    "another method": (_mark(name="qsgd", levels=4), "where codes, rest, scales are expected"),
    "levels": (_mark(name="qsgd", levels=10**12), "levels: 1000000000000 is not allowed"),
    "extra": (_mark(name="topk", share="0.1", x=1), "the key 'x' does not exist"),
    "a metric": (lambda content: content.__setitem__(MARKER, MetricRecord({"share": 1})), "not a ConfigRecord"),
    "no mark": (lambda content: content.pop(MARKER), "its arrays are not the model's"),
    "short": (_arrays(lambda parts: parts.update(values=parts["values"][:-1])), "where float32 of shape"),
    "long": (_arrays(lambda parts: parts.update(rest=np.zeros(10**6, np.uint8))), "where uint8 of shape"),
    "type": (_arrays(lambda parts: parts.update(values=parts["values"].astype("f8"))), "values is float64"),
    "places": (_arrays(lambda parts: parts["places"].fill(255)), "places are not 24 different"),
    "missing": (_arrays(lambda parts: parts.pop("places")), "it has rest, values where places, rest, values"),
    "more": (_arrays(lambda parts: parts.update(w=np.ones(3))), "are expected"),
    "plain": (_arrays(lambda parts: (parts.clear(), parts.update(first_model()))), "it has b, seen, w where"),
    "bytes": (
        lambda content: content["arrays"].__setitem__("values", Array("float32", (24,), "numpy.ndarray", b"no")),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_malformed_payload_is_a_fault_and_training_goes_on(way) -> None:
    spoil, words = WAYS[way]
    grid = FakeGrid()
    grid.connect(100, Site(0, [compressing(TopK(0.1))]).behave)
    grid.connect(101, spoiled(spoil))
    result = AsyncFedAvg(**on(grid)).start(grid, record_of(first_model()), num_rounds=4)
    assert len(result.rounds) == 4
    refused = [fault for fault in result.errors if fault.kind == "refused"]
    assert refused
    assert all(fault.identity == "node 101" and words in fault.reason for fault in refused)


# -- bytes in the record


def test_bytes_are_recorded_saved_and_shown(tmp_path, capsys, monkeypatch) -> None:
    result = train(sites([TopK(0.1), None, LowRank(1)]), checkpoint=tmp_path / "run")
    updates = [update for closed in result.rounds for update in closed.updates]
    for record in (recorded(result), recorded(tmp_path / "run")):
        assert record.bytes_up.tolist() == [update.bytes_up for update in updates]
        turned = record.numbered({"node 100": 2, "node 101": 0, "node 102": 1})
        assert dict(zip(turned.timeline.client.tolist(), turned.bytes_up.tolist(), strict=True)) == {
            (client + 2) % 3: size for client, size in {u.client: u.bytes_up for u in updates}.items()
        }
    total = sum(update.bytes_up for update in updates)
    assert f"Received: {total / 1000:.3g} kB" in result.summary()
    code, out, _ = in_process(capsys, monkeypatch, "show", str(tmp_path / "run"))
    assert code == 0
    [row] = [line for line in out.splitlines() if line.strip().startswith("received")]
    assert f"{total / 1000:.3g} kB" in row


def test_bytes_in_words() -> None:
    words = {
        0: "0 bytes",
        1: "1 byte",
        999: "999 bytes",
        1000: "1 kB",
        999_499: "999 kB",
        999_501: "1 MB",
        12_345_678: "12.3 MB",
    }
    assert {number: in_bytes(number) for number in words} == words
    assert in_bytes(4_567_000_000_000) == "4.57 TB"


def test_records_of_older_versions_are_read(tmp_path, capsys, monkeypatch) -> None:
    folder = tmp_path / "run"
    result = train(sites([None] * 3), checkpoint=folder)
    journal = folder / "rounds.jsonl"
    before = journal.read_text().splitlines()
    lines = [json.loads(line) for line in before]
    for line in lines:
        for update in line.get("round", [0, 0, 0, []])[3]:
            del update[7:]
    old = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    from fedtempo.flower.state import RunFolder

    monkeypatch.setattr(RunFolder, "_lines", lambda self, state, path: old.splitlines())
    record = recorded(folder)
    assert record.timeline.equals(recorded(result).timeline)
    assert record.bytes_up.tolist() == [0] * record.timeline.num_updates
    code, out, _ = in_process(capsys, monkeypatch, "show", str(folder))
    assert code == 0
    assert "received" not in out


def test_resume_goes_on_with_compressed_clients(tmp_path) -> None:
    some = sites([TopK(0.1), QSGD(5), LowRank(2)])
    grid = FakeGrid()
    for site in some:
        grid.connect(100 + site.client, site.behave)
    first = FedFix(0.8, **on(grid, checkpoint=tmp_path))
    first.start(grid, record_of(first_model()), num_rounds=5)
    then = FedFix(0.8, **on(grid, checkpoint=tmp_path))
    result = then.start(grid, record_of(first_model()), num_rounds=12, resume=True)
    assert result.rounds[-1].server_round == 12
    assert {fault.kind for fault in result.errors} <= {"restart", "unknown"}
    sizes = {update.bytes_up for closed in result.rounds for update in closed.updates}
    assert 0 not in sizes


def test_a_client_of_flower_needs_no_jax() -> None:
    code = (
        "import sys\nfrom fedtempo.flower import compressing\nfrom fedtempo.training.compression import TopK\n"
        "compressing(TopK(0.01))\nassert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_clients_are_served_as_before() -> None:
    grid = FakeGrid()
    for node, seconds in ((1, 1), (2, 0.5)):
        grid.connect(node, shifting(1, seconds))
    result = AsyncFedAvg(**on(grid)).start(grid, record_of({"w": np.zeros(2)}), num_rounds=6)
    assert not result.errors
    assert {update.bytes_up for closed in result.rounds for update in closed.updates} == {128 + 16}
    assert recorded(result).scheme == ft.AsyncFedAvg()
