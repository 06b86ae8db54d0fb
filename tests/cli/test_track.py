"""`--track`: sinks of `fedtempo run` and `fedtempo watch`, at their usual places or at given ones."""

from __future__ import annotations

import csv
import shlex
from functools import partial

import pytest

import fedtempo as ft
from cli.test_cli import in_process
from flower.test_telling import federation, start
from track.test_sinks import tensorboard_has

SMALL = shlex.split(
    "run --problem fedtempo.problems:quadratics --clients 3 --times F0 --scheme fedavg --lr 0.1 --until 8 "
    "--points 5 --seeds 2 --steps 1 --weights time-based --quiet"
)
OWN = """
told = []
class Sink:
    def __call__(self, run, time, values):
        told.append((run.name, time))
    def close(self):
        told.append("closed")
number = 3
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return partial(in_process, capsys, monkeypatch)


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_sinks_of_a_study_and_again_when_it_goes_on(run, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    given = ("--track", "tensorboard", "--track", "csv:deep/points.csv", "--track", "mine:Sink")
    code, _, err = run(*SMALL, "--out", "study", *given)
    assert (code, err) == (0, "")
    assert len(rows(tmp_path / "deep" / "points.csv")) == 10
    found = tensorboard_has(tmp_path / "study" / "track" / "tensorboard")
    assert sum(tag == "loss" for *_, tag in found) == 10
    import mine

    assert len(mine.told) == 11
    assert mine.told[-1] == "closed"
    code, _, err = run("run", "--resume", "study", "--quiet", "--track", "csv", "--track", "tensorboard")
    assert (code, err) == (0, "")
    assert rows(tmp_path / "study" / "track" / "points.csv") == rows(tmp_path / "deep" / "points.csv")
    again = tensorboard_has(tmp_path / "study" / "track" / "tensorboard")
    assert again.keys() == found.keys()
    assert all(len(values) == 1 for values in again.values())
    code, _, err = run(*SMALL, "--out", "study", "--overwrite")
    assert (code, err) == (0, "")
    assert not (tmp_path / "study" / "track").exists(), "curves of the study that was replaced"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorbord", "'tensorbord' is not known; did you mean tensorboard?"),
        ("csvs:points.csv", "'csvs' is not known; did you mean csv?"),
        ("tensorbord:runs", "'tensorbord' is not known; did you mean tensorboard?"),
        ("nothing", "'nothing' is not known; use one of tensorboard, mlflow, wandb, csv, parquet"),
        ("csv:", "'csv:': a place is missing after the colon"),
        ("nowhere_at_all:sink", "there is no module 'nowhere_at_all'"),
        ("mine:number", "mine:number is a int; it must be called with (run, time, values)"),
    ],
)
def test_bad_input(run, tmp_path, text, said) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    code, out, err = run(*SMALL, "--out", "study", "--track", text)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "study").exists()


def test_the_same_twice_is_refused(run) -> None:
    code, _, err = run(*SMALL, "--track", "csv", "--track", "csv")
    assert code == 2
    assert "--track 'csv': it is given twice; leave one out" in err


def test_watch_feeds_the_same_sinks(run, tmp_path) -> None:
    start(federation(), tmp_path / "run", ft.track.csv(tmp_path / "live.csv"))
    code, _, err = run("watch", "run", "--once", "--track", "csv")
    assert (code, err) == (0, "")
    assert rows(tmp_path / "run" / "track" / "points.csv") == rows(tmp_path / "live.csv")
