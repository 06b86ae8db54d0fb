"""Runs that are killed go on to the same record; workers that die; replies as bytes and in a file."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from hypothesis import given
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedFix, recorded
from fedtempo.flower import simulate_app as simulate
from fedtempo.flower.virtual.client_work import Done
from fedtempo.flower.virtual.jobs import Here
from fedtempo.flower.virtual.records import Digests, array_bytes, decoded, encoded
from fedtempo.flower.virtual.store import ReplyStore
from support import virtual_app as apps

TIMES = ft.FixedTimes.spread(4, 80)
APP = {
    "pyproject.toml": """
[project]
name = "numbers"
[tool.flwr.app.components]
serverapp = "numbers_app:server"
clientapp = "numbers_app:client"
[tool.flwr.app.config]
num-server-rounds = 5
pause = 0.0
rule.lr = 0.5
""",
    "numbers_app.py": """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    time.sleep(context.run_config["pause"])
    lr, i = message.content["config"]["lr"], context.node_config["partition-id"]
    w = message.content["arrays"]["w"].numpy()
    jobs = context.state["own"]["jobs"] + 1 if "own" in context.state else 1
    context.state["own"] = MetricRecord({"jobs": jobs})
    w = w + lr * (np.array([i, 1.0]) - w) + 0.01 * np.random.standard_normal(2) * jobs
    metrics = MetricRecord({"num-examples": 3 + i, "train_loss": float((w**2).sum())})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    loss = float((message.content["arrays"]["w"].numpy() ** 2).sum())
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "eval_loss": loss})}), reply_to=message)


@server.main()
def main(grid, context):
    config = context.run_config
    start = ArrayRecord({"w": Array(np.random.standard_normal(2))})
    FedAvg().start(
        grid, start, num_rounds=config["num-server-rounds"], train_config=ConfigRecord({"lr": config["rule.lr"]}),
        evaluate_fn=lambda n, arrays: MetricRecord({"loss": float(((arrays["w"].numpy() - 1.0) ** 2).sum())}),
    )
    print("the server app is done")
""",
}


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "app"
    made.mkdir()
    for name, content in APP.items():
        (made / name).write_text(content)
    return made


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, "flwr")


def fedtempo(*arguments: str, cwd: Path, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedtempo", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **more)


@pytest.fixture
def said(capsys, monkeypatch):
    """What a command prints, in this process."""
    from fedtempo.cli import main

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedtempo", *arguments])
        capsys.readouterr()
        with suppress(SystemExit):
            main()
        found = capsys.readouterr()
        assert not found.err
        return found.out

    return run


def contents(run: Path) -> tuple[list[str], dict[str, bytes]]:
    with np.load(run / "state.npz") as state:
        arrays = {name: state[name].tobytes() for name in state.files if name.startswith("array")}
    return (run / "rounds.jsonl").read_text().splitlines(), arrays


def same(one, other) -> bool:
    return one.rounds == other.rounds and one.arrays["w"].numpy().tobytes() == other.arrays["w"].numpy().tobytes()


# -- processes


def test_one_and_two_processes_give_the_bits_of_none(folder) -> None:
    def run(**more):
        return simulate(folder, times=TIMES, scheme=ft.AsyncFedAvg(), until=4, seed=2, **more)

    none, one, two = run(executor=Here()), run(workers=1), run(workers=2)
    assert none.rounds == one.rounds == two.rounds
    assert len({result.arrays["w"].numpy().tobytes() for result in (none, one, two)}) == 1


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_of_its_client_alone() -> None:
    server = apps.server(AsyncFedAvg(), rounds=25, config={"who": 3, "wrong": "die", "from": 2})
    result = simulate(server, "support.virtual_app:app", times=TIMES, workers=2)
    assert {fault.client for fault in result.errors if fault.kind == "error"} == {3}
    assert "process that ran the ClientApp has ended" in next(f.reason for f in result.errors if f.kind == "error")
    assert len(result.rounds) == 25


# -- killed, and started again


def _parent(process: int) -> int | None:
    """The parent of a process that is there."""
    with suppress(OSError):
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
        return None if state == "Z" else int(parent)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["app", "async"])
def test_after_kill_9_the_same_command_comes_to_the_same_record(folder, tmp_path, scheme) -> None:
    asked = ["app", str(folder), "--times", "F80", "--clients", "4", "--scheme", scheme, "--until", "5"]
    slow = ["-c", "pause=0.05", "--workers", "1"]
    whole = fedtempo(*asked, *slow, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "fedtempo", *asked, *slow, "--out", "cut"]
    name = {"app": "app", "async": "asyncfedavg"}[scheme]
    replies = tmp_path / "cut" / name / "replies.bin"
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    began = time.monotonic()
    while (not replies.exists() or replies.stat().st_size < 2500) and time.monotonic() < began + 60:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    workers = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _parent(int(name)) == process.pid]
    process.kill()  # it alone: its workers have to see that it is gone
    process.communicate()
    while any(_parent(worker) is not None for worker in workers) and time.monotonic() < began + 90:
        time.sleep(0.05)
    assert workers
    assert not [worker for worker in workers if _parent(worker) is not None]
    store = ReplyStore(replies)
    kept = len(store)
    store.close()
    assert kept >= 3
    again = fedtempo(*asked, *slow, "--out", "cut", "-v", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"{kept} replies are kept from before" in again.stderr
    assert contents(tmp_path / "cut" / name) == contents(tmp_path / "whole" / name)
    assert not replies.exists()
    assert fedtempo(*asked, *slow, "--out", "cut", cwd=tmp_path).returncode == ResultsConflict.exit_code


def test_replies_are_used_again_and_only_where_the_server_does_the_same(folder, tmp_path, caplog) -> None:
    def run(where, **more):
        return simulate(folder, times=TIMES, scheme=ft.FedFix("1/2"), executor=Here(), folder=where, **more)

    whole = run(tmp_path / "whole", until=4)
    with pytest.raises(ResultsConflict, match="contains a finished run"):
        run(tmp_path / "whole", until=4)

    def stop(now, updates):
        if updates == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", until=4, on_progress=stop)
    before = ReplyStore(tmp_path / "cut" / "replies.bin")
    assert 9 <= len(before) < 20
    before.close()
    assert same(run(tmp_path / "cut", until=4), whole)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "other", until=4, on_progress=stop)
    caplog.set_level(logging.WARNING)
    other = run(tmp_path / "other", until=4, seed=1)
    assert "does not repeat what it did before" in caplog.text
    assert same(other, run(None, until=4, seed=1))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "changed", until=4, on_progress=stop)
    run(tmp_path / "changed", until=4, run_config={"rule.lr": 0.25})
    assert "has changed since the run was started" in caplog.text


def test_a_kept_run_is_a_record_for_show_plan_and_watch(folder, tmp_path, said) -> None:
    simulate(folder, times=TIMES, executor=Here(), folder=tmp_path / "theirs")
    simulate(folder, times=TIMES, executor=Here(), folder=tmp_path / "ours", scheme=ft.FedFix("1/2"))
    for name in ("theirs", "ours"):
        record = recorded(tmp_path / name)
        assert record.timeline.unit.numerator == 1
        assert "Reality and simulation are the same, round by round" in said("show", str(tmp_path / name))
        assert (tmp_path / name / "run.png").is_file()
        assert json.loads(said("plan", "--times", str(tmp_path / name), "--scheme", "fedavg", "--json"))["schemes"]
        assert "5.0" in said("watch", "--once", str(tmp_path / name)).splitlines()[0]
    assert recorded(tmp_path / "theirs").scheme.label == "flwr FedAvg"


# -- the command


def test_the_command_compares_the_apps_strategy_with_schemes(folder, tmp_path, said) -> None:
    asked = ["app", str(folder), "--times", "F80", "--clients", "4", "--workers", "1", "-q"]
    done = fedtempo(*asked, "--scheme", "app", "--scheme", "fedfix", "--wait", "1/2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the server app is done" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert next(row for row in rows if row[:2] == ["flwr", "FedAvg"])[2:5] == ["5", "20", "0.00"]
    assert next(row for row in rows if row and row[0] == "FedFix(1/2)")[1] == "10"
    assert (tmp_path / "results" / "app" / "app.png").is_file()
    assert said("show", str(tmp_path / "results/app")).splitlines()[:5] == done.stdout.splitlines()[:5]
    other = fedtempo(*asked, "--scheme", "async", cwd=tmp_path)
    assert other.returncode == ResultsConflict.exit_code
    assert "--overwrite" in other.stderr
    again = fedtempo(*asked, "--scheme", "async", "--overwrite", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert sorted(path.name for path in (tmp_path / "results" / "app").iterdir() if path.is_dir()) == ["asyncfedavg"]


BAD = {
    "no folder": (["nowhere"], 3, "no Flower app found"),
    "unknown key": (["app", "-c", "rul.lr=1.0"], 2, "did you mean rule.lr"),
    "no value": (["app", "-c", "pause"], 2, "is not key=value"),
    "no quotes": (["app", "-c", "pause=abc"], 2, "strings need quotes"),
    "wait alone": (["app", "--wait", "1"], 2, "belongs to --scheme fedfix"),
    "server alone": (["app", "--server", "fedadam"], 2, "goes with --scheme"),
    "workers": (["app", "--workers", "0"], 2, "give at least 1"),
    "measured law": (["app", "--times", "measured:F80", "--law", "exponential"], 2, "have no law"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message_and_an_exit_code(folder, tmp_path, name, capsys, monkeypatch) -> None:
    from fedtempo.cli import main

    given, code, words = BAD[name]
    times = [] if "--times" in given else ["--times", "F80"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedtempo", "app", *given, *times, "--clients", "4"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_components_that_are_not_there_are_said(folder) -> None:
    (folder / "pyproject.toml").write_text("[tool.flwr.app.components]\nserverapp = 'x:app'\n")
    with pytest.raises(InputError, match="has no clientapp"):
        simulate(folder, times=TIMES)
    (folder / "pyproject.toml").write_text("[tool.flwr.app.components]\nserverapp='x:app'\nclientapp='not_here:app'\n")
    with pytest.raises(InputError, match=r"not_here in .* cannot be imported"):
        simulate(folder, times=TIMES)


# -- bytes

NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
SCALARS = st.one_of(NUMBERS, st.booleans(), st.text(max_size=8))


@given(
    numbers=st.dictionaries(st.text(max_size=5), NUMBERS),
    config=st.dictionaries(st.text(max_size=5), st.one_of(SCALARS, st.binary(max_size=5), st.lists(st.floats(0, 1)))),
    shape=st.lists(st.integers(0, 3), max_size=3),
)
def test_records_come_back_as_they_were(numbers, config, shape) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    arrays = ArrayRecord({"x": Array(array), "y": Array(np.array(3))})
    given = RecordDict({"a": arrays, "m": MetricRecord(numbers), "c": ConfigRecord(config)})
    found = decoded(encoded(given))
    assert list(found) == ["a", "m", "c"]
    assert found["a"]["x"].numpy().tobytes() == array.tobytes()
    assert found["a"]["x"].numpy().shape == array.shape
    assert dict(found["m"]) == numbers
    assert [type(value) for value in found["m"].values()] == [type(value) for value in numbers.values()]
    assert dict(found["c"]) == config
    assert array_bytes(encoded(given)) == sum(len(each.data) for each in given["a"].values())


def test_numbers_that_are_not_finite_come_back_too() -> None:
    found = decoded(encoded(RecordDict({"m": MetricRecord({"a": float("nan"), "b": float("inf")})})))
    assert np.isnan(found["m"]["a"])
    assert found["m"]["b"] == float("inf")
    with pytest.raises(InputError, match="not records"):
        decoded(b"\x05\0\0\0\0\0\0\0nothing")


def test_digests_tell_models_configs_and_names_apart() -> None:
    def of(array, **config):
        return RecordDict({"a": ArrayRecord({"x": Array(np.asarray(array))}), "c": ConfigRecord(config)})

    digests = Digests()
    first = of([1.0, 2.0], lr=0.1)
    assert digests.of(first) == digests.of(first) == Digests().of(of([1.0, 2.0], lr=0.1))
    others = [of([1.0, 2.5], lr=0.1), of([1.0, 2.0], lr=0.2), of([[1.0], [2.0]], lr=0.1), of([1, 2], lr=0.1)]
    assert len({digests.of(each) for each in [first, *others]}) == 5


def test_a_store_gives_what_was_put_and_cuts_off_what_a_kill_has_cut_short(tmp_path, caplog) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "replies.bin"
    store = ReplyStore(path)
    store.put(("train", 0, 0), "d0", Done(b"reply", None, b"state", 0.5))
    store.put(("train", 1, 0), "d1", Done(b"", (2, "no"), b"", 0.0))
    store.close()
    sound = path.stat().st_size
    odd = ((1 << 40).to_bytes(8, "little"), (5).to_bytes(8, "little") + b"{...}", path.read_bytes()[:20])
    for damage in (b"\x20", *odd):
        path.write_bytes(path.read_bytes()[:sound] + damage)
        store = ReplyStore(path)
        assert len(store) == 2
        assert store.get(("train", 0, 0), "d0") == Done(b"reply", None, b"state", 0.5)
        assert store.get(("train", 1, 0), "d1") == Done(b"", (2, "no"), b"", 0.0)
        assert store.get(("train", 1, 1), "d1") is None
        assert path.stat().st_size == sound
        store.close()
    data = bytearray(path.read_bytes())
    data[data.index(b"reply")] ^= 1  # a bit of the first entry: from there on nothing is believed
    path.write_bytes(data)
    store = ReplyStore(path, limit=10)
    assert len(store) == 0
    store.put(("train", 9, 9), "d", Done(b"x" * 20, None, b"", 0.0))
    assert store.get(("train", 9, 9), "d") is None
    assert "later replies are not kept" in caplog.text
    store.close()


def test_a_run_of_flowers_own_strategy_goes_on_with_what_it_remembers(tmp_path) -> None:
    def run(where, **more):
        server = apps.server(flower.FedAdam(eta=0.1), rounds=6, evaluate_fn=apps.squared)
        return simulate(server, apps.app, times=TIMES, executor=Here(), folder=where, **more)

    def stop(now, updates):
        if updates == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", on_progress=stop)
    assert json.loads((tmp_path / "cut" / "app.json").read_text())["client_app"] == "support.virtual_app:app"
    run(tmp_path / "cut")
    run(tmp_path / "whole")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_the_app_may_be_found_by_its_name_or_by_itself() -> None:
    named = simulate("support.virtual_app:server_app", "support.virtual_app:app", times=TIMES, executor=Here())
    itself = simulate(apps.server_app, apps.app, times=TIMES, executor=Here())
    assert named.rounds == itself.rounds
    assert len(simulate(apps.server(FedFix(1)), apps.app, times=TIMES, rounds=2, executor=Here()).rounds) == 2


def test_large_messages_go_through_memory_that_is_given_back() -> None:
    from fedtempo.flower.virtual.shared import LARGE, Shared, drop, put, take

    small, large = b"x" * 10, bytes(range(256)) * (LARGE // 128)
    assert put(small) == small
    assert take(small) == small
    place = put(large)
    assert isinstance(place, Shared)
    assert take(place) == large
    with pytest.raises(FileNotFoundError):
        take(place)
    other = put(large)
    drop(other)
    drop(other)
    with pytest.raises(FileNotFoundError):
        take(other)
