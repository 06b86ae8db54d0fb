"""The disk fails while a training runs, and the training goes on; nothing is lost when the disk is there again."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo import files
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedFix, TimedStrategy, recorded, state
from fedtempo.flower.journal import Journal
from fedtempo.flower.run_folder import RunFolder, seal, unsealed
from flower.test_checkpoint import INITIAL, STRATEGIES, check, start, tokens, world
from support.flower_fake import FakeGrid, Killed, on, record_of, shifting
from support.power import REFUSALS, RefusingDisk


def during(grid, begin: float, end: float, monkeypatch, disk: files.Disk) -> None:
    """The disk refuses between two moments."""
    usual = files.disk
    grid.at(begin, lambda: monkeypatch.setattr(files, "disk", disk))
    grid.at(end, lambda: monkeypatch.setattr(files, "disk", usual))


def same(folder: Path, result) -> None:
    """The folder tells what the result tells."""
    found, meant = recorded(folder), recorded(result)
    assert found.timeline.equals(meant.timeline)
    assert found.events == meant.events
    assert found.faults == meant.faults
    np.testing.assert_array_equal(found.weights.values, meant.weights.values)
    state, arrays, lines = RunFolder(folder).read()
    assert arrays["w"].tolist() == result.arrays["w"].numpy().tolist()
    journal = Journal(scheme={}, server_lr=1.0, on_disk=False)
    journal.read(lines)
    assert journal.measured("train") == result.train_metrics_clientapp
    assert state["ended"] == result.stopped


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("name", ["fedfix", "async"])
def test_a_disk_that_refuses_does_not_end_the_training(name, refusal, tmp_path, monkeypatch, caplog) -> None:
    grid, steps = world()
    during(grid, 0.9, 3.4 if name == "fedfix" else 2.05, monkeypatch, RefusingDisk(*REFUSALS[refusal][:2]))
    caplog.set_level(logging.WARNING, "flwr")
    result = start(name, grid, tmp_path, resume=False, rounds=6)
    check(result, steps)
    same(tmp_path, result)
    kinds = [fault.kind for fault in result.errors]
    assert kinds == ["checkpoint", "saved again"], "once a streak"
    told, again = (fault.reason for fault in result.errors)
    assert f"({REFUSALS[refusal][2]})" in told
    assert told.endswith("training continues, and saving is tried again at the next round to be saved")
    assert "since round" in again
    assert len([line for line in caplog.messages if "checkpoint: " in line]) == 1
    assert result.stopped == "6 rounds are done"


@pytest.mark.parametrize("refusal", REFUSALS)
def test_killed_while_the_disk_refuses_the_last_saved_round_is_there(refusal, tmp_path, monkeypatch) -> None:
    usual = files.disk
    for moment in (1.1, 1.6, 2.3):
        folder = tmp_path / str(moment)
        grid, steps = world()
        during(grid, 0.9, 2.05, monkeypatch, RefusingDisk(*REFUSALS[refusal][:2]))
        grid.at(moment, lambda grid=grid: setattr(grid, "kill_at", 0))
        with pytest.raises(Killed):
            start("async", grid, folder, resume=False, rounds=6)
        monkeypatch.setattr(files, "disk", usual)
        grid.kill_at = None
        result = start("async", grid, folder, resume=True, rounds=6)
        check(result, steps)
        assert recorded(folder).timeline.equals(recorded(result).timeline)


def test_a_disk_that_refuses_to_the_end_is_said_with_the_result(tmp_path, monkeypatch, caplog) -> None:
    grid, steps = world()
    during(grid, 1.2, 1e6, monkeypatch, RefusingDisk(*REFUSALS["full disk"][:2]))
    result = start("async", grid, tmp_path, resume=False)
    check(result, steps)
    assert result.stopped.startswith("6 rounds are done; rounds after 2 are not saved: ")
    assert "No space left on device" in result.stopped
    assert result.stopped in result.summary()
    assert recorded(tmp_path).timeline.num_rounds == 2
    assert "Rounds after 2 are not saved" in caplog.text


@pytest.mark.parametrize("every", [1, 3])
def test_a_folder_that_is_deleted_is_made_again_with_all_of_the_journal(every, tmp_path, caplog) -> None:
    grid, steps = world()
    folder = tmp_path / "run"
    grid.at(2.3, lambda: shutil.rmtree(folder))
    result = start("fedfix", grid, folder, resume=False, checkpoint_every=every)
    check(result, steps)
    same(folder, result)
    assert not result.errors
    assert caplog.text.count(f"{folder / 'rounds.jsonl'} was removed or truncated; all of it is written again") == 1
    with pytest.raises(ResultsConflict, match="contains a run"):
        start("fedfix", grid, folder, resume=False)


@pytest.mark.parametrize("harm", ["removed", "cut", "renamed"])
def test_a_journal_that_is_harmed_while_the_server_runs_is_written_anew(harm, tmp_path) -> None:
    grid, steps = world()
    journal = tmp_path / "rounds.jsonl"

    def do() -> None:
        if harm == "removed":
            journal.unlink()
        elif harm == "cut":
            os.truncate(journal, 40)
        else:
            journal.rename(tmp_path / "elsewhere")

    grid.at(2.3, do)
    result = start("async", grid, tmp_path, resume=False)
    check(result, steps)
    same(tmp_path, result)


def test_another_run_in_the_place_of_this_one_is_left_alone(tmp_path) -> None:
    folder = tmp_path / "run"
    other, _ = world()
    start("async", other, tmp_path / "other", resume=False, rounds=2)
    grid, steps = world()
    grid.at(2.3, lambda: (shutil.rmtree(folder), shutil.copytree(tmp_path / "other", folder)))
    result = start("async", grid, folder, resume=False)
    check(result, steps)
    assert "another run has replaced this one; move it away" in result.stopped
    assert recorded(folder).timeline.num_rounds == 2


def test_a_folder_that_is_moved_away_and_put_back_is_written_on(tmp_path, caplog) -> None:
    folder, copy = tmp_path / "run", tmp_path / "copy"
    grid, steps = world()
    grid.at(2.3, lambda: (shutil.copytree(folder, copy), shutil.rmtree(folder), copy.rename(folder)))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = start("async", grid, folder, resume=False)
    check(result, steps)
    same(folder, result)
    assert not caplog.messages


@pytest.mark.parametrize("room", range(0, 6000, 331))
def test_room_may_end_anywhere(room, tmp_path, monkeypatch) -> None:
    grid, steps = world()
    monkeypatch.setattr("support.power._Full.left", room)
    during(grid, 0.9, 2.05, monkeypatch, RefusingDisk("write", errno.ENOSPC))
    result = start("async", grid, tmp_path, resume=False)
    check(result, steps)
    same(tmp_path, result)


def test_a_folder_that_cannot_be_prepared_is_refused_before_anything_runs(tmp_path) -> None:
    grid, steps = world()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"checkpoint: .*file cannot be created"):
        start("async", grid, tmp_path / "file", resume=False)
    assert not steps


def test_the_journal_in_memory_makes_the_lines_of_the_folder(tmp_path) -> None:
    grid, _ = world()
    grid.connect(103, shifting(1, 0.3, token=10**6))
    grid.at(2.0, lambda: grid.disconnect(103))
    result = start("fedbuff", grid, tmp_path, resume=False)
    lines = RunFolder(tmp_path).read()[2]
    assert result.journal is not None
    assert sorted(lines) == sorted(result.journal.lines())


def test_a_line_knows_its_checksum() -> None:
    line = '{"round":[0,1,10,[[1,0,0,5,10,0.5,1.0,100]],["b"]],"told":[]}'
    sealed = seal(line)
    assert json.loads(sealed)["round"] == json.loads(line)["round"]
    assert unsealed(sealed) == line
    assert unsealed(line) == line, "as earlier versions wrote it"
    with pytest.raises(ValueError, match="checksum"):
        unsealed(sealed.replace("0.5", "5.0"))


# -- which run goes on


def snippet(grid, folder, rounds=4, make=AsyncFedAvg, **options):
    """As in the README: no word of resuming."""
    return make(**on(grid, checkpoint=folder, **options)).start(grid, record_of(INITIAL), num_rounds=rounds)


def test_the_snippet_of_the_readme_can_be_run_again_and_again(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "flwr")
    grid, _ = world()
    first = snippet(grid, tmp_path / "run")
    assert first.folder == tmp_path / "run"
    assert f"Checkpoint: a new run starts in {tmp_path / 'run'}" in caplog.messages
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    second = snippet(grid, tmp_path / "run")
    third = snippet(grid, tmp_path / "run")
    assert [second.folder.name, third.folder.name] == ["run-2", "run-3"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == kept
    for result in (first, second, third):
        assert len(result.rounds) == 4
        assert recorded(result.folder).timeline.equals(recorded(result).timeline)
    said = f"Checkpoint: a new run starts in {tmp_path / 'run-3'}, since {tmp_path / 'run-2'} has come to its end"
    assert f"{said} (4 rounds are done)" in caplog.messages


def test_a_run_that_was_killed_goes_on_by_itself(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "flwr")
    grid, _ = world()
    snippet(grid, tmp_path / "run")
    grid.kill_at = grid.calls + 24
    with pytest.raises(Killed):
        snippet(grid, tmp_path / "run", rounds=12)
    grid.kill_at = None
    done = recorded(tmp_path / "run-2").timeline.num_rounds
    assert 0 < done < 12
    other = snippet(grid, tmp_path / "run", server_lr=0.5)
    assert other.folder.name == "run-3", "settings are others"
    result = snippet(grid, tmp_path / "run", rounds=12)
    assert result.folder.name == "run-2"
    assert [fault.kind for fault in result.errors] == ["restart"]
    assert f"Checkpoint: the run in {tmp_path / 'run-2'} continues after round {done}" in caplog.messages
    assert snippet(grid, tmp_path / "run", rounds=12).folder.name == "run-4"


def test_a_run_that_another_server_makes_is_let_alone(tmp_path) -> None:
    found = []
    for moment in (0.5, 1.5):  # before its first save, and after
        grid, _ = world()
        folder = tmp_path / str(moment) / "run"
        grid.at(moment, lambda folder=folder: found.append(snippet(world()[0], folder, rounds=3).folder.name))
        assert snippet(grid, folder).folder.name == "run"
    assert found == ["run-2", "run-2"]


def test_folders_that_are_in_the_way_are_let_alone(tmp_path) -> None:
    grid, _ = world()
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "photo.jpg").write_text("")
    (tmp_path / "run-x").mkdir()
    (tmp_path / "run-3").write_text("")
    assert snippet(grid, tmp_path / "run").folder.name == "run-4"
    (tmp_path / "run-5").mkdir()
    (tmp_path / "run-5" / "rounds.jsonl").write_text("")  # killed before anything was saved
    assert snippet(grid, tmp_path / "run").folder.name == "run-5"


def test_a_run_that_cannot_be_read_is_said_where_it_is_the_newest(tmp_path) -> None:
    grid, _ = world()
    snippet(grid, tmp_path / "run")
    for path in (tmp_path / "run").glob("state*"):
        path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"run/state\.npz: cannot be read"):
        snippet(grid, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    shutil.rmtree(tmp_path / "run")
    snippet(grid, tmp_path / "run-2")
    shutil.copytree(tmp_path / "old", tmp_path / "run")
    assert snippet(grid, tmp_path / "run").folder.name == "run-3"


def test_a_finished_run_of_060_is_not_gone_on_with(tmp_path) -> None:
    grid, _ = world()
    snippet(grid, tmp_path / "run")
    rewritten(tmp_path / "run", lambda document: document.pop("ended"))
    assert snippet(grid, tmp_path / "run").folder.name == "run-2"
    rewritten(tmp_path / "run", lambda document: document.pop("ended", None))
    shutil.rmtree(tmp_path / "run-2")
    assert snippet(grid, tmp_path / "run", rounds=9).folder.name == "run", "nobody knows that it has ended"


def test_resume_is_true_false_or_auto(tmp_path) -> None:
    grid, _ = world()
    assert snippet(grid, None).folder is None
    with pytest.raises(InputError, match="resume: 'yes' is not True, False or 'auto'"):
        AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), resume="yes")


# -- with other settings


def rewritten(folder: Path, change) -> None:
    """The folder with another document in its states."""
    for path in folder.glob("state*.npz"):
        with np.load(path) as saved:
            arrays = dict(saved)
        document = json.loads(arrays.pop("document").tobytes())
        change(document)
        np.savez(path, document=np.frombuffer(json.dumps(document).encode(), np.uint8), **arrays)


DIFFERENT = {
    "importance": ({"node 100": 1, "node 101": 2}, {"node 100": 1, "node 101": 3}, "importance of 'node 101' is \"2\""),
    "times": (None, {"node 100": 2}, 'times is null, here it is {"node 100": "2"}'),
    "identity_key": (None, "token", 'identity_key is null, here it is "token"'),
    "clip_norm": (1.5, 2.5, "clip_norm is 1.5, here it is 2.5"),
    "weighted_by_key": ("num-examples", "token", 'weighted_by_key is "num-examples", here it is "token"'),
    "seed": (0, 1, "seed is 0, here it is 1"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_would_make_another_run_is_refused_by_name(what, tmp_path) -> None:
    before, after, said = DIFFERENT[what]
    grid, _ = world()
    start("async", grid, tmp_path, resume=False, rounds=3, **{what: before})
    with pytest.raises(ResultsConflict) as caught:
        start("async", grid, tmp_path, resume=True, rounds=4, **{what: after})
    assert f"holds another run (its {said}" in str(caught.value)
    assert start("async", grid, tmp_path, resume=True, rounds=4, **{what: before}).stopped == "4 rounds are done"


def test_a_loss_key_counts_where_the_rule_reads_losses(tmp_path) -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, loss=1.0, other=1.0))
    for scheme, refused in ((ft.AsyncFedAvg(), False), (ft.HighestLossSampling(1), True)):
        folder = tmp_path / str(refused)
        for key in ("loss", "other"):
            strategy = TimedStrategy(scheme, **on(grid, checkpoint=folder, loss_key=key, weights="identical"))
            if refused and key == "other":
                with pytest.raises(ResultsConflict, match="its loss_key is"):
                    strategy.start(grid, record_of(INITIAL), num_rounds=3, resume=True)
            else:
                strategy.start(grid, record_of(INITIAL), num_rounds=2, resume=True)


def test_what_may_change_may_change(tmp_path) -> None:
    grid, _ = world()
    snippet(grid, tmp_path, rounds=3)
    harmless = {
        "poll": 1, "checkpoint_every": 2, "retry_after": 5, "max_failures": 7, "norm_limit": 3.0, "work_key": "token",
        "fraction_evaluate": 0.5,
    }  # fmt: skip
    result = AsyncFedAvg(**on(grid, checkpoint=tmp_path, **harmless)).start(
        grid, record_of(INITIAL), num_rounds=5, timeout=77, until=500, resume=True
    )
    assert result.stopped == "5 rounds are done"


def test_a_folder_of_060_does_not_name_all_settings(tmp_path, monkeypatch) -> None:
    grid, _ = world()
    snippet(grid, tmp_path, rounds=3)

    def as_060(document) -> None:
        for key in ("importance", "times", "identity_key", "weighted_by_key", "clip_norm", "seed"):
            del document["about"][key]
        for key in ("asked", "ended", "journal_crc"):
            del document[key]

    rewritten(tmp_path, as_060)
    journal = tmp_path / "rounds.jsonl"
    old = "".join(f"{unsealed(line)}\n" for line in journal.read_text().splitlines())
    journal.write_text(old)
    rewritten(tmp_path, lambda document: document.update(journal=len(old)))
    assert recorded(tmp_path).timeline.num_rounds == 3
    monkeypatch.setitem(state.WHEN_ABSENT, "seed", 0)
    with pytest.raises(ResultsConflict, match="its seed is 0, here it is 1"):
        start("async", grid, tmp_path, resume=True, seed=1)
    result = start("async", grid, tmp_path, resume=True, clip_norm=3.0)
    assert result.stopped == "6 rounds are done"
    lines = journal.read_text().splitlines()
    assert [unsealed(line) for line in lines][: len(old.splitlines())] == old.splitlines()
    assert '"crc"' in lines[-1]
    assert recorded(tmp_path).timeline.equals(recorded(result).timeline)


# -- stopped


@pytest.fixture(autouse=True)
def usual_handlers():
    """A test that runs in the background of a shell ignores Ctrl-C."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path) -> None:
    """As under nohup."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    grid, steps = world()
    stopping(grid, 1.2, signal.SIGINT)
    check(start("async", grid, tmp_path, resume=False), steps)


def stopping(grid, seconds: float, number: int) -> None:
    grid.at(seconds, lambda: os.kill(os.getpid(), number))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_signal_ends_the_training_with_all_saved(name, number, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "flwr")
    before = signal.getsignal(number)
    grid, _ = world()
    stopping(grid, 5.2, number)
    strategy = STRATEGIES[name](
        **on(grid, checkpoint=tmp_path, norm_limit=None, checkpoint_every=5, train_metrics_aggr_fn=tokens)
    )
    raised = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(raised) as caught:
        strategy.start(grid, record_of(INITIAL), num_rounds=600, timeout=9)
    assert number == signal.SIGINT or caught.value.code == 143
    assert signal.getsignal(number) == before
    stopped = strategy.result
    done = len([closed for closed in stopped.rounds if closed.updates])
    word = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert stopped.stopped == f"{word} after round {done}; when started again, it continues from {tmp_path}"
    assert any(f"stopped: {word} after round" in line for line in caplog.messages)
    assert recorded(tmp_path).timeline.equals(recorded(stopped).timeline)
    assert recorded(tmp_path).events == recorded(stopped).events
    result = start(name, grid, tmp_path, resume="auto", rounds=done + 4)
    assert result.folder == tmp_path
    assert result.rounds[: len(stopped.rounds)] == stopped.rounds
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    entered = [token for metrics in result.train_metrics_clientapp.values() for token in metrics["tokens"]]
    assert len(entered) == len(set(entered)) == record.timeline.num_updates


def test_a_signal_ends_a_sleep(tmp_path, monkeypatch) -> None:
    """A long poll holds nobody up: nothing more is asked of Flower."""
    grid, _ = world()
    sleep, calls = grid.clock.sleep, []

    def sleeping(until) -> None:
        if len(grid.nodes[101].got) > 3 and not calls:
            calls.append(grid.calls)
            os.kill(os.getpid(), signal.SIGTERM)
        sleep(until)

    monkeypatch.setattr(grid.clock, "sleep", sleeping)
    with pytest.raises(SystemExit):
        start("async", grid, tmp_path, resume=False, rounds=100)
    assert grid.calls == calls[0]
    assert recorded(tmp_path).timeline.num_rounds >= 3


def test_the_second_signal_ends_everything_at_once(tmp_path) -> None:
    grid, _ = world()
    stopping(grid, 2.2, signal.SIGINT)
    stopping(grid, 2.2, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        start("async", grid, tmp_path, resume=False, rounds=100)
    assert start("async", grid, tmp_path, resume=True).stopped


def test_handlers_of_others_stay(tmp_path) -> None:
    """As Flower's own, which raises SystemExit where the server happens to be."""
    grid, _ = world()

    def theirs(number, frame):
        raise SystemExit(7)

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        stopping(grid, 2.2, signal.SIGTERM)
        with pytest.raises(SystemExit) as caught:
            start("async", grid, tmp_path, resume=False, rounds=100)
        assert caught.value.code == 7
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)
    assert start("async", grid, tmp_path, resume=True).stopped == "6 rounds are done"


def test_in_another_thread_no_handler_is_touched(tmp_path) -> None:
    grid, steps = world()
    found = []
    thread = threading.Thread(target=lambda: found.append(start("async", grid, tmp_path, resume=False)))
    thread.start()
    thread.join()
    check(found[0], steps)


def test_a_stop_while_waiting_for_nodes(tmp_path) -> None:
    grid = FakeGrid()
    stopping(grid, 2.2, signal.SIGTERM)
    strategy = FedFix(1, **on(grid, checkpoint=tmp_path / "run"))
    with pytest.raises(SystemExit):
        strategy.start(grid, record_of(INITIAL))
    assert strategy.result.stopped == "SIGTERM after round 0"
    assert snippet(world()[0], tmp_path / "run").folder == tmp_path / "run"


PROCESS = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
from fedtempo.flower import AsyncFedAvg
from support.flower_fake import FakeGrid, Killed, on, record_of, shifting
grid = FakeGrid()
sent = []
def behave(message):
    sent.append(1)
    if len(sent) == 8:
        print("out", flush=True)
        sys.stdin.readline()
    return shifting(1, 1)(message)
grid.connect(100, behave)
AsyncFedAvg(**on(grid, checkpoint={folder!r})).start(grid, record_of({{"w": np.zeros(2)}}), num_rounds=10**6)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended(number, tmp_path) -> None:
    paths = [path for path in sys.path if path]
    code = PROCESS.format(paths=paths, folder=str(tmp_path / "run"))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    _, said = process.communicate("\n", timeout=60)
    assert process.returncode == (143 if number == signal.SIGTERM else -9)
    assert "Traceback" not in said
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    done = recorded(tmp_path / "run").timeline.num_rounds
    assert done >= 7
    result = AsyncFedAvg(**on(grid, checkpoint=tmp_path / "run")).start(
        grid, record_of({"w": np.zeros(2)}), num_rounds=done + 2
    )
    assert result.folder == tmp_path / "run"
    assert result.arrays["w"].numpy().tolist() == [done + 2] * 2
