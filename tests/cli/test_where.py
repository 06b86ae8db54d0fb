"""`--workers`, `--cluster`, `--units`: where `fedtempo run` and `fedtempo plan` train."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.cli import where
from fedtempo.errors import WorkersLost
from fedtempo.simulation.checkpoint import DESKS
from support.executors import Changed, assert_same

SMALL = shlex.split(
    "run --problem fedtempo.problems:quadratics --clients 3 --times F0 --scheme fedavg --scheme async --lr 0.1 "
    "--until 8 --points 5 --seeds 2 --steps 1 --weights time-based --quiet"
)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return partial(in_process, capsys, monkeypatch)


def test_jobs_of_a_study_and_what_show_says_of_them(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.report.history_figure.save_study", lambda *given, **named: None)
    assert run(*SMALL, "--out", "whole")[0] == 0
    code, out, err = run(*SMALL, "--out", "study", "--units", "2/3", "--track", "csv")
    assert (code, err) == (0, "")
    assert out == "job 2/3 is done; all jobs together: fedtempo show study\n"
    assert (tmp_path / "study" / "track" / "2-of-3" / "points.csv").exists()
    code, out, _ = run("show", "study")
    assert code == 0
    assert "Put together of 1 of 3 jobs (nothing yet from 1, 3)." in out
    assert "not finished" in out or "unfinished" in out
    for job in ("1/3", "3/3"):
        assert run(*SMALL, "--out", "study", "--units", job)[0] == 0
    code, out, err = run(*SMALL, "--lr", "0.2", "--out", "study", "--units", "1/3")
    assert code == 4
    assert "holds the results of another study" in err
    code, out, _ = run("show", "study")
    assert "Put together of 3 of 3 jobs." in out
    code, _, err = run(*SMALL, "--out", "study", "--units", "1/2")
    assert code == 0
    code, out, _ = run("show", "study")
    assert "Put together of 1 of 2 jobs (nothing yet from 2), 3 of 3 jobs." in out
    code, _, err = run("run", "--resume", "study", "--quiet")
    assert (code, err) == (0, "")
    assert_same(ft.History.load("study/history.nc"), ft.History.load("whole/history.nc"))
    assert "Put together" not in run("show", "study")[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--workers 0", "workers: 0 processes cannot be; give at least 1"),
        ("--workers 2 --cluster tcp://x:1", "leave --workers out, or --cluster"),
        ("--cluster tcp://127.0.0.1:1", "--cluster: no scheduler of Dask answers at tcp://127.0.0.1:1"),
        ("--cluster nowhere", "--cluster: no scheduler of Dask answers at nowhere"),
        ("--units 3", "units: '3' is not a share of them; give which of how many jobs, as 3/8"),
        ("--units 1/2 --overwrite", "job 1/2 must not remove what others have done"),
    ],
)
def test_bad_input_is_one_sentence(flags, said, run, monkeypatch) -> None:
    monkeypatch.setattr(where, "_CONNECT_SECONDS", 0.2)
    code, _, err = run(*SMALL, "--out", "study", *flags.split())
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert not Path("study").exists()


def test_a_plan_without_a_problem_trains_nothing(run) -> None:
    code, _, err = run("plan", "--clients", "5", "--times", "F80", "--workers", "2")
    assert code == 2
    assert "--workers: it belongs to a problem; add one" in err


def test_a_cluster_that_is_lost_leaves_a_study_that_goes_on(run, monkeypatch, tmp_path) -> None:
    class Lost(Changed):
        def submit(self, fn, /, *args, **kwargs):
            if len(self.orders) > 1:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().submit(fn, *args, **kwargs)

    with Lost() as lost, monkeypatch.context() as patch:
        patch.setattr("fedtempo.cli.run.trained_by", partial(_given, lost))
        code, _, err = run(*SMALL, "--out", "study")
    assert code == WorkersLost.exit_code == 5
    assert "executor: it is closed; what was saved is kept" in err
    assert "fedtempo run --resume study" in err
    assert not list((tmp_path / "study").glob(f"{DESKS}*"))
    assert run("run", "--resume", "study", "--quiet")[0] == 0
    assert ft.History.load("study/history.nc").finished


class _given:
    def __init__(self, executor, workers, cluster) -> None:
        self.executor = executor

    def __enter__(self):
        return {"executor": self.executor}

    def __exit__(self, *error) -> None:
        pass


def test_without_dask_it_says_what_to_install(run, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = run(*SMALL, "--out", "study", "--cluster", "tcp://127.0.0.1:1")
    assert code == 2
    assert "pip install 'fedtempo[cluster]'" in err
