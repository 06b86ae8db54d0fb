"""A run's page: all that is printed, measures over seconds and rounds, and names of clients as text."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import MetricRecord

from cli.test_cli import in_process
from fedtempo.flower import FedFix, recorded
from fedtempo.flower.comparison import compared
from fedtempo.flower.run_document import _MOST_POINTS, run_document, thinned
from fedtempo.flower.run_tables import run_page
from fedtempo.flower.virtual.runs import AppRun, read_runs, runs_page, write_runs
from fedtempo.flower.virtual.runs_document import runs_document
from fedtempo.report.page import Grid
from support.flower_fake import FakeGrid, failure, on, record_of, shifting
from support.pages import HOSTILE, data_of, rows_of, scripts_of, text_of


def trained(folder, rounds: int = 12):
    """A client fails, rounds are empty, the server measures, and clients do under a hostile name."""
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1.8, loss=0.5, **{HOSTILE: 2.0}))
    grid.connect(101, shifting(1, 1.7, loss=0.25))
    grid.connect(102, lambda message: [(10**8, failure(message, reason=f"ValueError: {HOSTILE}"))])
    strategy = FedFix(0.8, **on(grid, checkpoint=folder, evaluation="wait"))

    def evaluate(number, arrays):
        return MetricRecord({"loss": float("nan") if number > 9 else 8.0 / (1 + number)})

    strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=rounds, evaluate_fn=evaluate)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return compared(recorded(folder))


def test_the_page_has_all_that_is_printed(run) -> None:
    page = run_document(run, name=HOSTILE)
    assert scripts_of(page) == 2
    text, rows = text_of(page), rows_of(page)
    for part in run_page(run).parts:
        if isinstance(part, Grid):
            assert part.title in text
            assert part.heads in rows
            assert all(list(row) in rows for row in part.rows)
        else:
            assert part.text in text
    assert f"\n{HOSTILE}\n" in text
    assert any(HOSTILE in cell for row in rows for cell in row), "the fault's reason"
    assert "loss (server) is NaN since round 10" in text


def test_measures_are_drawn_when_the_model_was_there(run) -> None:
    found = data_of(run_document(run))["studies"]["measures"]
    assert [m["name"] for m in found["measures"]] == ["loss", HOSTILE]
    server = next(one for one in found["combos"] if one["at"][0] == "server")
    assert server["means"][0] == [pytest.approx(8.0 / (1 + n), rel=1e-4) if n <= 9 else None for n in range(13)]
    assert server["gone"]
    seconds, rounds = (found["pool"][place] for place in server["xs"])
    assert rounds == list(range(13))
    taking = [bool(closed.participants) for closed in run.record.timeline.rounds]
    assert not all(taking)
    assert seconds == pytest.approx([0.0, *(run.record.ends[taking] / 1e9)], rel=1e-4)


def test_counts_of_clients_end_at_their_updates(run) -> None:
    lines = data_of(run_document(run))["charts"]["clients"]["lines"]
    jobs = {run.record.names[i]: run.clients[i].jobs for i in run.active}
    assert {line["label"]: line["ys"][-1] for line in lines} == jobs


def test_hostile_names_of_clients_are_text(run) -> None:
    named = replace(run.record, names=(HOSTILE, *run.record.names[1:]))
    clients = (replace(run.clients[0], name=HOSTILE), *run.clients[1:])
    page = run_document(replace(run, record=named, clients=clients))
    assert scripts_of(page) == 2
    assert any(row[0] == HOSTILE for row in rows_of(page) if row)
    assert HOSTILE in [line["label"] for line in data_of(page)["charts"]["clients"]["lines"]]


def test_a_record_makes_its_page(run, tmp_path) -> None:
    page = run.record.to_html(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == page.html == run_document(run).html


def test_a_run_without_measures_and_faults(run) -> None:
    page = run_document(replace(run, record=replace(run.record, measured={}, faults=())))
    assert data_of(page)["studies"] == {}
    assert "Measures of the model" not in text_of(page)
    assert "one by one" not in text_of(page)


def test_long_lines_keep_their_ends() -> None:
    points = list(range(10_000))
    found = thinned(points)
    assert (len(found), found[0], found[-1]) == (_MOST_POINTS, 0, 9_999)
    assert thinned(points[:10]) == points[:10]


def test_show_writes_it(run, tmp_path, capsys, monkeypatch) -> None:
    trained(tmp_path / "run", rounds=3)
    out = tmp_path / "run.html"
    code, said, err = in_process(capsys, monkeypatch, "show", str(tmp_path / "run"), "--out", str(out))
    assert (code, err) == (0, "")
    assert said.endswith(f"\n\n{out}\n")
    assert "<h1>run</h1>" in out.read_text(encoding="utf-8")
    assert not (tmp_path / "run" / "run.png").exists()


# -- runs of an app


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    for name in ("one", "two"):
        trained(folder / name)
    asked = {"app": HOSTILE, "times": "F80", "clients": 3, "seed": 0, "run_config": {"lr": 0.1}, "law": None}
    write_runs(folder, asked, {"FedFix(4/5)": "one", HOSTILE: "two"})
    return folder


def test_the_page_of_an_app_has_every_strategy(app) -> None:
    runs = read_runs(app)
    page = runs_document(app, runs)
    assert scripts_of(page) == 2
    for part in runs_page(runs).parts:
        if isinstance(part, Grid):
            assert all(list(row) in rows_of(page) for row in part.rows)
        else:
            assert part.text in text_of(page)
    assert ["run_config.lr", "0.1"] in rows_of(page)
    assert "fedtempo app APP --times F80 --clients 3 --seed 0\n" in text_of(page)
    found = data_of(page)["studies"]["runs"]
    assert [value["value"] for value in found["dims"][0]["values"]] == ["FedFix(4/5)", HOSTILE]
    names = [axis["name"] for axis in found["axes"]]
    one = next(one for one in found["combos"] if one["at"][0] == HOSTILE)
    updates = found["pool"][one["xs"][names.index("updates")]]
    assert updates[-1] == runs[1].record.timeline.num_updates


def test_show_writes_the_page_of_an_app(app, tmp_path, capsys, monkeypatch) -> None:
    page, picture = tmp_path / "app.html", tmp_path / "app.svg"
    words = ("show", str(app), "--out", str(page), "--out", str(picture))
    code, _, err = in_process(capsys, monkeypatch, *words)
    assert (code, err) == (0, "")
    assert f"<h1>{app.name}</h1>" in page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"<?xml")


def test_what_was_asked_for_never_becomes_a_command_that_does_more(app) -> None:
    asked = {"app": "x", "times": "F80; rm -rf /", "clients": "-q", "seed": 0}
    write_runs(app, asked, {"FedFix(4/5)": "one"})
    text = text_of(runs_document(app, [AppRun("FedFix(4/5)", recorded(app / "one"))]))
    assert "fedtempo app APP --seed 0\n" in text
    assert json.loads((app / "runs.json").read_text())["asked"] == asked
