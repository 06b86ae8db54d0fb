"""What Python shows of an object: print, repr, HTML and table. A golden file is the print of a small example."""

from __future__ import annotations

import json
import math
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.display import LONGEST, PAGES
from fedtempo.planning.recommendation import Crossing, Recommendation
from fedtempo.report.frames import FRAMES
from fedtempo.report.page import Grid, names, page, table
from fedtempo.report.tables import plan_page
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.model import Model
from fedtempo.theory.document import Clients, Training, bounds_of, quantities_of
from fedtempo.weighting.weight_rules import weight_rule
from simulation.test_history import study
from support import recommendations

GOLDEN = Path(__file__).parent / "golden"
TIMES = ft.FixedTimes([1, 2, 3, 5])
FOUR = "--times 1,2,3,5"


def small_study():
    return study(schemes=("FedAvg", "AsyncFedAvg"), rates=(0.01, 0.03))


@cache
def plan() -> ft.Plan:
    return ft.compare(TIMES)


@cache
def recommendation() -> Recommendation:
    crossings = (Crossing(34.0, "AsyncFedAvg", "FedFix(5/4)"),)
    return recommendations.recommendation(pilot=True, crossings=crossings, notes=("The loss is not convex.",))


@cache
def settings() -> History:
    slow = small_study()
    fast = slow.copy(deep=True)
    fast["loss"].values[:] *= 0.8
    return ft.merge({"F0": History(fast), "F80": History(slow)}, dim="times")


@cache
def unfinished() -> History:
    dataset = small_study().assign_attrs(finished=0)
    dataset["loss"].values[1, ..., 20:] = np.nan
    return History(dataset)


@cache
def theory():
    importance = ft.compare(TIMES, ft.FedAvg()).importance
    return quantities_of(
        Clients(TIMES, importance, weight_rule("time-based"), None, None), [ft.FedAvg(), ft.FedFix("3/2")]
    )


@cache
def bounds():
    problem = ft.problems.quadratics(clients=4)
    clients = Clients(TIMES, problem.importance, weight_rule("time-based"), ft.compare(TIMES).times.unit * 60, None)
    return bounds_of(clients, [ft.FedAvg(), ft.AsyncFedAvg()], Training(problem, ft.LocalSGD(), False, 1.0, False))


def model() -> Model:
    leaves = {"layer": {"w": np.full((3, 2), 0.123456, np.float32), "b": np.zeros(2, np.float32)}}
    return Model(
        leaves, {"scheme": "FedFix(1/2)", "weights": "time-based", "seed": 0, "local_lr": 0.1}, {"n": np.int64(3)}
    )


OBJECTS = {
    "plan": plan,
    "scheme_plan": lambda: plan().schemes[1],
    "recommendation": recommendation,
    "timeline": lambda: ft.timeline(ft.FedBuff(2), TIMES, until=8),
    "history": lambda: History(small_study()),
    "settings": settings,
    "unfinished": unfinished,
    "summary": lambda: History(small_study()).summary(target=0.9),
    "model": model,
    "quantities": lambda: ft.theory.quantities(scheme=ft.FedFix("3/2"), times=TIMES),
    "bound": lambda: bounds().schemes[1].bound,
    "theory": theory,
    "bounds": bounds,
    "weights": lambda: ft.weights(ft.FedFix("3/2"), TIMES),
    "staged_weights": lambda: ft.weights(ft.StagedFedFix([("1/2", 5), (1, None)]), TIMES),
    "participation": lambda: ft.participation_of(ft.FedBuff(2), TIMES),
    "cycle": lambda: ft.limit_cycle(ft.FedBuff(2), TIMES),
}
every = pytest.mark.parametrize("name", OBJECTS)


def test_every_kind_has_an_example() -> None:
    assert {type(make()).__name__ for make in OBJECTS.values()} == set(PAGES) == set(FRAMES)


# -- print


@every
def test_print_is_the_golden_text(name, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # a narrow terminal, and one that wants colours, change nothing
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = GOLDEN / f"{name}.txt"
    text = f"{OBJECTS[name]()}\n"
    if not file.exists():
        file.write_text(text, encoding="utf-8")
        pytest.fail(f"{file} was missing and is written; look at it")
    assert text == file.read_text(encoding="utf-8"), f"if this is meant, delete {file} and run again"
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "plan": f"plan {FOUR}",
        "timeline": f"timeline {FOUR} --scheme fedbuff --buffer 2 --until 8",
        "theory": f"theory {FOUR} --scheme fedavg --scheme fedfix --wait 3/2",
        "bounds": f"theory {FOUR} --scheme fedavg --scheme async --problem quadratics --until 60",
    }.items(),
)
def test_print_is_what_the_command_line_prints(name, words, capsys, monkeypatch) -> None:
    code, out, _ = in_process(capsys, monkeypatch, words)
    assert code == 0
    print(OBJECTS[name]())
    assert capsys.readouterr().out == out


def test_a_recommendation_prints_what_the_command_line_prints(capsys, monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.planning.recommend.recommend", lambda *given, **named: recommendation())
    code, out, _ = in_process(capsys, monkeypatch, f"plan {FOUR} --problem quadratics --until 200 --lr 0.1,0.5")
    assert code == 0
    print(recommendation())
    assert capsys.readouterr().out == out


def test_a_scheme_prints_its_table_of_details(capsys, monkeypatch) -> None:
    _, out, _ = in_process(capsys, monkeypatch, f"plan {FOUR} --scheme async --details")
    print(ft.compare(TIMES, ft.AsyncFedAvg()).schemes[0])
    assert out.endswith(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["history", "unfinished", "summary"])
def test_a_history_prints_what_show_prints(name, capsys, monkeypatch, tmp_path) -> None:
    shown = OBJECTS[name]()
    history = shown.history if name == "summary" else shown
    history.save(tmp_path / "history.nc")
    target = " --target 0.9" if name == "summary" else ""
    words = f"show {tmp_path / 'history.nc'}{target} --out {tmp_path / 'x.svg'}"
    _, out, _ = in_process(capsys, monkeypatch, words)
    print(shown)
    assert out.startswith(f"{capsys.readouterr().out}\n")


def test_every_setting_has_its_table() -> None:
    text = str(settings())
    assert text.count("every scheme at its best rates") == 2
    for name, one in settings().split().items():
        alone = str(one).partition("\n\nEvery scheme at its best rates\n")[2]
        assert f"times {name}: every scheme at its best rates\n{alone}" in text
    with pytest.raises(ft.InputError, match="several of times"):
        settings().summary()


def test_nothing_is_printed_without_end() -> None:
    times = ft.FixedTimes.spread(300, 80)
    for shown in (
        ft.timeline(ft.AsyncFedAvg(), times, until=10),
        ft.weights(ft.FedFix("1/2"), times),
        ft.participation_of(ft.FedFix("1/2"), times),
        ft.compare(times, ft.FedFix("1/2")).schemes[0],
    ):
        assert len(str(shown).splitlines()) < 60
        assert ".table() lists them all" in str(shown)


def test_a_long_line_is_not_broken() -> None:
    label = "a" * 3000
    made = page(table("t" * 700, (names("x"), "y"), [(label, "1")]), "word " * 900)
    assert made.text().splitlines()[:3] == ["t" * 700, f"x{' ' * 3001}y", f"{label}  1"]
    assert len(made.text().splitlines()) == 4


def test_names_are_not_read_as_markup() -> None:
    plan = ft.compare(ft.TraceTimes([[1], [2]], names=["[red]a", ":smile:"]), ft.FedAvg())
    assert "[red]a" in plan_page(plan, details=True).text()
    assert ":smile:" in str(plan.schemes[0])


def test_a_terminal_has_what_fits(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    wide = Grid("t", (names("scheme"), names("spare")), (("a" * 50, "b" * 50),), spare=("spare",))
    page(wide).show()
    out = capsys.readouterr().out
    assert "b" * 50 not in out
    assert "A wider terminal also shows: spare." in out
    assert "b" * 50 in page(wide).text()


def test_a_model_never_prints_its_weights() -> None:
    text = f"{model()}\n{model()!r}\n{model()._repr_html_()}"
    assert "0.123" not in text
    assert "8 parameters, 40 bytes" in text
    assert "FedFix(1/2), time-based weights, local_lr 0.1, seed 0" in text
    assert "3×2" in text


# -- repr


@every
def test_a_repr_is_one_short_line(name) -> None:
    text = repr(OBJECTS[name]())
    assert len(text) <= LONGEST == 200
    assert "\n" not in text
    assert "array(" not in text


def test_what_lies_inside_has_short_reprs_too() -> None:
    made, bound = recommendation(), bounds().schemes[0].bound
    inside = [made.pilot, made.model, *made.predictions, *made.choices, *plan().schemes]
    inside += [bound.ceiling, bound.expected, bound.left, bound.left.constants, *bounds().schemes]
    for one in inside:
        assert len(repr(one)) <= LONGEST
        assert "array(" not in repr(one)


def test_a_long_repr_is_cut() -> None:
    long = Model({"w": np.ones(2)}, {"scheme": "s" * 500})
    assert len(repr(long)) == LONGEST
    assert repr(long).endswith("…>")
    assert repr(long).startswith("<Model: 2 parameters in 1 array, sss")


# -- HTML


class Reader(HTMLParser):
    """Checks that every tag is closed in its order; collects the text of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in ("input", "br", "hr", "img", "use", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("input", "use", "path"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    assert reader.open == []
    return reader


@every
def test_html_is_well_formed_and_has_all_that_print_has(name) -> None:
    shown = OBJECTS[name]()
    markup = shown._repr_html_()
    reader = read(markup)
    assert "table" in reader.tags
    printed = set(str(shown).split())
    assert all(word in printed for cell in reader.cells for word in cell.split())
    own = markup.partition("<details>")[0]
    colours = set(re.findall(r"(?:color|background):([^;\"]*)|solid ([^;\"]*)", own))
    assert {"".join(pair) for pair in colours} <= {"inherit", "transparent", "currentColor"}


@pytest.mark.parametrize("name", ["<b>", "a & b", "</table>"])
def test_html_escapes_names(name) -> None:
    shown = [
        History(small_study().assign_coords(scheme=[name, "FedAvg"])),
        ft.compare(ft.TraceTimes([[1], [2]], names=[name, "x"]), ft.FedAvg()).schemes[0],
        Model({name.replace("/", ""): np.ones(2)}, {"scheme": name}),
    ]
    for one in shown:
        markup = one._repr_html_().partition("<details>")[0]
        assert name not in markup.replace("</table><p", "").replace("</tbody></table>", "")
        assert name.replace("/", "") in "".join(read(markup).cells).replace("/", "")


# -- table


@every
def test_a_table_has_rows_and_columns_of_numbers(name) -> None:
    made = OBJECTS[name]().table()
    assert isinstance(made, pd.DataFrame)
    assert len(made) > 0
    words = {"scheme", "weights", "times", "name", "kind", "shape", "dtype", "symbol", "meaning", "why"}
    assert {column for column in made if not pd.api.types.is_numeric_dtype(made[column])} <= words


def test_a_plan_as_a_table() -> None:
    made = plan().table()
    assert made["scheme"].tolist() == [s.scheme.label for s in plan().schemes]
    known = plan().to_dict()["schemes"]
    for column in set(made) - {"scheme"}:
        for value, one in zip(made[column], known, strict=True):
            expected = one[column]
            assert pd.isna(value) if expected is None else value == expected, column
    never = ft.compare(ft.FixedTimes([1, 2, 3]), ft.FastestSampling(1)).table()
    assert math.isinf(never["identical_chi2"][0])


def test_whole_numbers_stay_whole_where_64_bits_hold_them() -> None:
    assert plan().table()["window"].dtype == "Int64"
    large = ft.compare(ft.FixedTimes.spread(20, 80), ft.AsyncFedAvg())
    assert large.table()["window"][0] == float(large.schemes[0].window) > 2**63


def test_what_unreliable_clients_cost_is_in_the_table() -> None:
    one = ft.compare(ft.FixedTimes([1, 2]).available(failure=0.1), ft.FedAvg())
    costs = one.schemes[0].costs
    assert costs is not None
    row = one.table().loc[0]
    assert row["failed"] == costs.work.failed > 0
    assert row["always_there_rounds_per_time"] == costs.rounds_per_time


def test_clients_of_a_scheme_as_a_table() -> None:
    scheme = plan().schemes[1]
    made = scheme.table()
    np.testing.assert_array_equal(made["weight"], scheme.weights.values[-1])
    np.testing.assert_array_equal(made["participation"], scheme.run.participation.share)
    np.testing.assert_array_equal(made["expected_weight"], scheme.expected_weights)
    named = ft.compare(ft.TraceTimes([[1], [2]], names=["a", "b"]), ft.FedAvg()).schemes[0].table()
    assert named["client"].tolist() == ["a", "b"]


def test_a_timeline_as_a_table() -> None:
    line = ft.timeline(ft.MultinomialSampling(4), TIMES, until=30)
    made = line[2:].table()
    listed = [
        (r.number, float(r.start), float(r.end), client, base, r.number - base, draws)
        for r in line[2:].rounds
        for client, base, draws in zip(r.participants, r.base_versions, r.draws, strict=True)
    ]
    columns = ["round", "round_start", "round_end", "client", "base_version", "delay", "draws"]
    assert list(made[columns].itertuples(index=False, name=None)) == listed
    assert made["job"].tolist() == line[2:].job.tolist()
    assert len(line[:0].table()) == 0
    assert "0 rounds" in str(line[:0])


def test_a_recommendation_as_a_table() -> None:
    made = recommendation()
    best = made.table()
    cells = made.table(every=True)
    for frame, rows in ((best, made.choices), (cells, made.cells)):
        assert frame["scheme"].tolist() == [c.scheme.label for c in rows]
        assert frame["behind_high"].tolist() == [c.behind.high for c in rows]
        for column, name in {"predicted_loss": "predicted"}.items() | {
            (name, name) for name in ("local_lr", "loss", "excess", "error", "seeds", "trained", "why")
        }:
            np.testing.assert_array_equal(frame[column], [getattr(c, name) for c in rows])
    for one in made.predictions:
        here = cells[(cells["scheme"] == one.scheme.label) & cells["local_lr"].isin(one.lr)]
        for column in ("progress", "noise", "heterogeneity", "drift"):
            np.testing.assert_array_equal(here[column], getattr(one, column))
        assert set(here["rounds"]) == {one.num_rounds}
        assert set(here["stability_limit"]) == {made.limits[one.scheme.label].lr}


def test_what_no_pilot_said_is_not_in_the_table() -> None:
    columns = ["scheme", "local_lr", "loss", "excess", "error", "seeds", "trained", "behind_low", "behind_high", "why"]
    assert recommendations.recommendation().table().columns.tolist() == columns
    made = recommendation()
    other = recommendations.prior(["FedAvg"], lr=[0.1])
    row = recommendations.recommendation(pilot=True, prior=other).table().set_index("scheme")
    assert set(row) == set(made.table()) - {"scheme"}
    assert row.loc["FedAvg", "rounds"] == 40
    assert pd.isna(row.loc["FedAvg", "noise"])  # at another rate
    assert row.loc["FedBuff(2)", ["rounds", "updates", "stability_limit", "proven_lr", "drift"]].isna().all()


def test_a_history_as_a_table() -> None:
    history = History(small_study())
    made, summary = history.table(target=0.9), history.summary(target=0.9)
    assert made.equals(summary.table())
    assert made["local_lr"].tolist() == [row.chosen["local_lr"] for row in summary.rows]
    for column in ("scheme", "weights", "loss", "accuracy", "time_to_target", "updates", "diverged"):
        assert made[column].tolist() == [getattr(row, column) for row in summary.rows]
    whole = settings().table()
    assert whole["times"].tolist() == ["F0"] * 4 + ["F80"] * 4
    for name, one in settings().split().items():
        assert whole[whole["times"] == name]["loss"].tolist() == one.table()["loss"].tolist()


def test_a_model_as_a_table() -> None:
    made = model().table()
    assert made["name"].tolist() == ["layer/b", "layer/w", "n"]
    assert made["kind"].tolist() == ["parameter", "parameter", "state"]
    assert made["shape"].tolist() == [(2,), (3, 2), ()]
    assert made["dtype"].tolist() == ["float32", "float32", "int64"]
    assert made["bytes"].tolist() == [8, 24, 8]


def test_quantities_and_bounds_as_tables() -> None:
    found = ft.theory.quantities(scheme=ft.FedFix("3/2"), times=TIMES)
    made = found.table().set_index("name")
    assert made.index.tolist() == list(found.to_dict())
    assert made.loc["weight_spread", "value"] == found.expected.weight_spread
    assert made.loc["weights", ["min", "max", "mean"]].tolist() == [
        found.weights.min(),
        found.weights.max(),
        found.weights.mean(),
    ]
    bound = bounds().schemes[1].bound
    terms = bound.table().set_index("name")["value"]
    for name, value in bound.terms.items():
        assert math.isnan(terms[name]) if value is None else terms[name] == value
    assert terms["theorem_1"] == bound.theorem_1
    assert terms["theorem_1_as_printed"] == bound.as_printed.total
    whole = bounds().table()
    assert set(whole["scheme"]) == {"FedAvg", "AsyncFedAvg"}
    assert len(whole) == sum(len(s.quantities.table()) + len(s.bound.table()) for s in bounds().schemes)


def test_weights_and_shares_as_tables() -> None:
    staged = ft.weights(ft.StagedFedFix([("1/2", 5), (1, None)]), TIMES)
    np.testing.assert_array_equal(staged.table()["weight"], staged.values.reshape(-1))
    assert staged.table()["stage"].tolist() == [0] * 4 + [1] * 4
    cycle = ft.limit_cycle(ft.FedBuff(2), TIMES)
    assert cycle is not None
    assert cycle.table()["contributions"].tolist() == cycle.counts.tolist()
    assert cycle.table()["share"].tolist() == [float(share) for share in cycle.participation]
    share = ft.participation_of(ft.FedBuff(2), TIMES)
    assert share.table()["share"].tolist() == share.share.tolist()


def test_documents_are_still_json() -> None:
    for made in (plan(), recommendation(), bounds()):
        json.dumps(made.to_dict(), allow_nan=False)
