"""What the documents say is what the files beside them say."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fedtempo.paper.claims import judge, markdown, stored
from fedtempo.paper.drawing import draw
from fedtempo.paper.figure_file import FIGURES, read_figure
from fedtempo.paper.stages import drawn_path, load, missing_rates, path_of, second_stage, what_was_run
from fedtempo.simulation.history.history import History

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = DOCS / "reproduction"


def test_the_page_of_claims_is_judged_from_the_results_beside_it():
    found = {setting: judge(results, setting) for setting, results in stored(RESULTS).items()}
    page = (DOCS / "claims.md").read_text(encoding="utf-8")
    assert page == markdown(found), "fedtempo reproduce claims --from-results docs/reproduction --out docs"


def test_results_were_run_in_the_setting_of_their_figure_files():
    seen = 0
    for name in FIGURES:
        for part in read_figure(name, "paper").parts:
            scout, history = (load(path_of(RESULTS, part, stage)) for stage in ("scout", ""))
            if scout is not None:
                assert what_was_run(scout)["study"] == part.scout
            if history is not None:
                assert history.finished
                assert what_was_run(history)["study"] == (part.study if scout is None else second_stage(part, scout))
                seen += 1
    assert seen >= 6


@pytest.mark.parametrize("setting", ["text", "authors"])
def test_what_was_run_beside_figures_is_what_their_files_say(setting):
    parts = [part for name in FIGURES for part in read_figure(name, "paper", setting).parts]
    there = {path_of(RESULTS, part, run): study for part in parts for run, study in part.runs.items()}
    found = [path for path in RESULTS.glob("*.nc") if path in there]
    assert {path.name for path in found} >= {f"fig2-mnist{'.authors' * (setting == 'authors')}.beginning.nc"}
    for path in found:
        history = load(path)
        assert history.finished
        assert what_was_run(history)["study"] == there[path]


def test_best_rates_on_the_page_are_those_of_the_results_beside_it():
    """A star where no worse one was run beyond."""
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for part in read_figure("fig4", "paper").parts:
        history = load(path_of(RESULTS, part))
        open_ended = missing_rates(history, part.full["local"]["lr"], load(path_of(RESULTS, part, "scout")))
        best = history.best().dataset
        schemes = ("FedAvg", "AsyncFedAvg", "FedFix(1/2)", "FedBuff(10)")
        rates = [f"{float(best['local_lr'].sel(scheme=s).item()):g}{'*' * (s in open_ended)}" for s in schemes]
        data, times, clients = part.title.split(", ")
        assert f"| {data}, {clients}, {times} | {' | '.join(rates)} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_pictures_are_drawn_of_the_results_beside_them(name, tmp_path):
    """By their words, which stand in the file as comments: what was run, rates, ends of axes."""
    figure = read_figure(name, "paper")
    results = {part.name: load(drawn_path(RESULTS, part)) for part in figure.parts}
    draw(figure, results, tmp_path / "new.svg")
    kept, new = (
        re.findall("<!-- (.+) -->", p.read_text("utf-8")) for p in (RESULTS / f"{name}.svg", tmp_path / "new.svg")
    )
    assert len(new) > 5
    assert kept == new, f"fedtempo reproduce {name} --scale paper --from-results docs/reproduction"


def test_results_hold_no_paths_and_are_small():
    files = sorted(RESULTS.glob("*.nc"))
    assert files
    assert sum(path.stat().st_size for path in files) < 8_000_000
    for path in files:
        attributes = str(History.load(path).attrs)
        assert "/work" not in attributes
        assert "data_dir" not in attributes


VERDICTS = ("holds", "holds with a correction", "does not hold")


def theory_claims() -> list[list[str]]:
    """The cells of the rows of docs/claims_theory.md."""
    lines = (DOCS / "claims_theory.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| T")]


@cache
def functions_of(path: str) -> frozenset[str]:
    """The names of the functions of a test file, without running it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", theory_claims(), ids=lambda row: row[0])
def test_a_claim_of_the_theory_has_a_verdict_and_tests_that_exist(row):
    _, statement, place, verdict, remark, tests = row
    assert statement.endswith(".")
    assert place.startswith(("section", "appendi", "table"))
    assert verdict.strip("*") in VERDICTS
    assert remark or verdict == "**holds**"
    for test in tests.split("<br>"):
        path, name = test.strip("`").split("::")
        assert name.startswith("test_")
        assert name in functions_of(path), test


def test_the_page_of_the_theory_counts_its_claims():
    rows = theory_claims()
    page = (DOCS / "claims_theory.md").read_text(encoding="utf-8")
    assert [row[0] for row in rows] == [f"T{k}" for k in range(1, len(rows) + 1)]
    hold, mended, wrong = ([row[3] for row in rows].count(f"**{verdict}**") for verdict in VERDICTS)
    assert f"{len(rows)} claims: {hold} hold, {mended} hold with a correction, {wrong} do not hold." in page
    assert {int(k) for k in re.findall(r"\(T(\d+)\)", page)} <= set(range(1, len(rows) + 1))


def test_every_test_of_claims_is_behind_one():
    path = "tests/theory/test_claims.py"
    named = {test for row in theory_claims() for test in re.findall(rf"{path}::(\w+)", row[5])}
    assert {name for name in functions_of(path) if name.startswith("test_")} == named


DESIGN = (DOCS / "design.md").read_text(encoding="utf-8")


def named_places() -> list[tuple[str, str]]:
    """`package/file.py` `name` in the design page; a name alone belongs to nobody in particular."""
    found = re.findall(r"`([a-z_/]+\.py)`,? `([A-Za-z_.]+)`", DESIGN)
    return [(path, name) for path, name in found if not name.endswith(".py")]


def test_the_design_page_names_what_there_is() -> None:
    files = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", DESIGN)) - {"tests/test_floors.py", "docs/house.py"}
    assert len(files) > 40
    assert not [name for name in files if not (ROOT / "src" / "fedtempo" / name).is_file()]
    places = named_places()
    assert len(places) > 20
    for path, name in places:
        tree = ast.parse((ROOT / "src" / "fedtempo" / path).read_text(encoding="utf-8"))
        for part in name.split("."):
            found = [n for n in tree.body if getattr(n, "name", None) == part]
            assert found, f"{path} has no {name}"
            tree = found[0]


def test_functions_named_alone_exist() -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src" / "fedtempo").rglob("*.py"))
    alone = re.findall(r"`([A-Z]\w+)\.([a-z_]+)`", DESIGN)
    assert len(alone) > 12
    for owner, method in alone:
        assert f"class {owner}" in text, owner
        assert re.search(rf"def {method}\b|    {method}:", text), f"{owner}.{method}"


def test_the_picture_of_the_house_is_that_of_the_source() -> None:
    spec = spec_from_file_location("house", DOCS / "house.py")
    house = module_from_spec(spec)
    spec.loader.exec_module(house)
    assert (DOCS / "house.svg").read_text(encoding="utf-8") == house.drawn(), "run python docs/house.py"
    assert "#c0392b" not in house.drawn(), "an import goes downwards"
