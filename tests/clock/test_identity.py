"""Keys of runs of the clock: the same for the same run, another one for any change of what it depends on."""

from __future__ import annotations

import builtins
import functools
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock import identity, rules
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Action, Close, Event, View
from fedtempo.clock.hardware import HardwareTimes
from fedtempo.clock.identity import key_of
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.waiting import State, WaitingRule, resend

F = Fraction
HALF = 2


def digest(rule: WaitingRule, times: ClientTimes, seed: int = 0, importance: Any = None, **more: Any) -> str:
    key = key_of(ClockConfig.of(rule, times, importance, seed), "test", **more)
    assert key is not None
    assert not key.here
    return key.digest


FIXED = ft.FixedTimes([1, 2, 3])
TIMES = [
    FIXED,
    ft.FixedTimes([1, 2, "7/2"]),
    ft.FixedTimes([1, 3, 2]),
    ft.FixedTimes([1, 2, 3, 3]),
    ft.ExponentialTimes([1, 2, 3]),
    ft.ExponentialTimes([1, 2, 4]),
    ft.ExponentialTimes([1, 2, 3], resolution="1/1000"),
    ft.ShiftedExponentialTimes([1, 2, 3]),
    ft.ShiftedExponentialTimes([1, 2, 3], shift="1/3"),
    ft.LogNormalTimes([1, 2, 3]),
    ft.LogNormalTimes([1, 2, 3], sigma=0.4),
    ft.LogNormalTimes([1, 2, 3], sigma=[0.5, 0.5, 0.4]),
    ft.ParetoTimes([1, 2, 3]),
    ft.ParetoTimes([1, 2, 3], shape=3),
    ft.UniformTimes([1, 2, 3], [2, 3, 4]),
    ft.UniformTimes([1, 2, 3], [2, 3, 5]),
    ft.UniformTimes([1, 2, 2], [2, 3, 5]),
    ft.TraceTimes([[1, 2], [3], [4]]),
    ft.TraceTimes([[2, 1], [3], [4]]),
    ft.TraceTimes([[1], [2, 3], [4]]),
    ft.TraceTimes([[1, 2], [3], [4]], mode="bootstrap"),
    FIXED.available(failure="1/10"),
    FIXED.available(failure=["1/10", 0, 0]),
    FIXED.available(on=10, off=5),
    FIXED.available(on=10, off=6),
    FIXED.available(on=11, off=5),
    FIXED.available(absences={0: [(1, 2)]}),
    FIXED.available(absences={0: [(1, 3)]}),
    FIXED.available(absences={1: [(1, 2)]}),
    FIXED.available(absences={0: [(1, 2)]}, period=4),
    FIXED.available(absences={0: [(1, 2)]}, period=5),
    ft.ExponentialTimes([1, 2, 3]).available(failure="1/10"),
]
RULES = [
    rules.WaitForAll(),
    rules.WaitForNext(),
    rules.WaitForSome(1),
    rules.WaitForSome(2),
    rules.FixedInterval(F(1, 2)),
    rules.FixedInterval(F(1, 3)),
    rules.IntervalStages(((F(1, 2), 3), (F(1), None))),
    rules.IntervalStages(((F(1, 2), 4), (F(1), None))),
    rules.UniformSample(1),
    rules.UniformSample(2),
    rules.MultinomialSample(1),
    rules.MultinomialSample(2),
    rules.FastestClients(1),
    rules.FastestClients(2),
    rules.HighestLoss(1),
    rules.HighestLoss(1, candidates=2),
    rules.CuredSample(rules.UniformSample(1), window=4, biased=2),
    rules.CuredSample(rules.UniformSample(1), window=5, biased=2),
    rules.CuredSample(rules.UniformSample(1), window=4, biased=1),
    rules.CuredSample(rules.FastestClients(1), window=4, biased=2),
]


def test_every_law_rule_and_number_has_its_key() -> None:
    known = [digest(rule, FIXED) for rule in RULES] + [digest(rules.WaitForSome(2), times) for times in TIMES[1:]]
    assert len(set(known)) == len(known)


def test_all_rules_and_laws_are_tried() -> None:
    named = {getattr(rules, name) for name in rules.__all__ if name not in ("fastest", "SampledClients")}
    assert {type(rule) for rule in RULES} == named
    tried = {type(times) for times in TIMES}

    def below(kind: type) -> set[type]:
        return {kind, *(each for part in kind.__subclasses__() for each in below(part))}

    ours = {kind for kind in below(ClientTimes) if kind.__module__.startswith("fedtempo.clock.")}
    abstract = {kind for kind in ours if getattr(kind, "__abstractmethods__", ())}
    assert tried == ours - abstract - {HardwareTimes}  # which no clock can run


@pytest.mark.parametrize("times", TIMES, ids=repr)
def test_every_attribute_of_client_times_counts(times: ClientTimes) -> None:
    """Whatever an attribute is changed to, even if no constructor would."""
    whole = digest(rules.WaitForSome(2), times)
    for name, value in vars(times).items():
        if name == "_clock_means":
            continue
        changed = object.__new__(type(times))
        vars(changed).update(vars(times) | {name: _other(value)})
        config = replace(ClockConfig.of(rules.WaitForSome(2), times), times=changed)
        found = key_of(config, "test")
        assert found is None or found.digest != whole, name


def _other(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        changed = value.copy()
        changed.flat[-1] += 1
        return changed
    if isinstance(value, (tuple, list)):
        return type(value)([*value[:-1], _other(value[-1])])
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "!"
    if isinstance(value, ft.ClientTimes):
        return ft.FixedTimes([5, 6, 7])
    if hasattr(value, "failure"):
        return replace(value, failure=tuple(f / 2 + F(1, 100) for f in value.failure))
    return value + 1


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_field_of_a_rule_counts(rule: WaitingRule) -> None:
    whole = digest(rule, FIXED)
    for field in fields(rule):  # type: ignore[arg-type]
        changed = object.__new__(type(rule))
        for each in fields(rule):  # type: ignore[arg-type]
            object.__setattr__(changed, each.name, getattr(rule, each.name))
        value = getattr(rule, field.name)
        other = (
            rules.WaitForSome(9) if isinstance(value, WaitingRule) else (1 if value is None else _other_field(value))
        )
        object.__setattr__(changed, field.name, other)
        config = replace(ClockConfig.of(rule, FIXED), rule=changed)
        found = key_of(config, "test")
        assert found is not None
        assert found.digest != whole, field.name


def _other_field(value: Any) -> Any:
    return (*value, "more") if isinstance(value, tuple) else _other(value)


def test_seed_question_and_importance_count() -> None:
    rule, drawn = rules.WaitForSome(2), rules.MultinomialSample(2)
    times = ft.ExponentialTimes([1, 2, 3])
    p = [np.array(x) / 6 for x in ([1, 2, 3], [2, 1, 3])]
    assert digest(rule, times) != digest(rule, times, seed=1)
    config = ClockConfig.of(rule, times)
    found = [key_of(config, *about) for about in [("a",), ("b",), ("a", 1), ("a", 1.0), ("a", (1,)), ("a", np.ones(2))]]
    assert len({key.digest for key in found if key is not None}) == len(found)
    assert digest(rule, times, importance=p[0]) != digest(rule, times, importance=p[1])
    assert digest(drawn, times, 0, p[0]) != digest(drawn, times, 0, p[1])
    read, not_read = ([key_of(ClockConfig.of(r, times, q), "", importance=False) for q in p] for r in (drawn, rule))
    assert read[0] != read[1]
    assert not_read[0] == not_read[1]


@pytest.mark.parametrize("name", ["__version__", "FORMAT", "_about_here", "_scipy"])
def test_version_format_source_and_libraries_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = ft.LogNormalTimes([1, 2, 3])
    before = digest(rules.WaitForSome(2), times)
    monkeypatch.setattr(identity, name, (lambda: "other") if name.startswith("_a") or name == "_scipy" else "other")
    assert digest(rules.WaitForSome(2), times) != before


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the clock, in a place of its own, as if this process had imported it from there."""
    for package in ("clock", "weighting"):
        (tmp_path / package).mkdir()
    path = tmp_path / "clock" / "cycle.py"
    path.write_text("a = 1")
    monkeypatch.setattr(identity, "_ROOT", tmp_path)
    monkeypatch.setattr(identity, "_SOURCE", identity._source(tmp_path))
    return path


def test_the_source_of_the_clock_counts(source: Path) -> None:
    before = identity._source(identity._ROOT)
    assert before is not None
    source.write_text("a = 2")
    after = identity._source(identity._ROOT)
    assert after is not None
    assert before.digest != after.digest


def test_the_source_that_counts_is_what_was_imported(source: Path) -> None:
    before = digest(rules.WaitForSome(2), FIXED)
    assert identity.source_is_the_same()
    source.write_text("a = 22")
    assert digest(rules.WaitForSome(2), FIXED) == before
    assert not identity.source_is_the_same()


def test_the_source_is_read_at_import() -> None:
    code = (
        "import sys; from pathlib import Path; whole, read = Path.read_bytes, []\n"
        "Path.read_bytes = lambda self: read.append(self.name) or whole(self)\n"
        "import fedtempo.clock.identity; print('cycle.py' in read)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_without_source_there_is_no_key(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.unlink()
    assert identity._source(identity._ROOT) is None
    assert not identity.source_is_the_same()
    monkeypatch.setattr(identity, "_SOURCE", None)
    assert key_of(ClockConfig.of(rules.WaitForSome(2), FIXED), "test") is None
    assert not identity.source_is_the_same()


@pytest.mark.parametrize(
    ("kind", "name", "patch"),
    [
        (rules.WaitForSome, "chunks", lambda self, config: rules.WaitForAll().chunks(config)),
        (rules.WaitForSome, "chunks", rules.WaitForAll.chunks),
        (rules.WaitForSome, "phase", lambda self, state: 0),
        (WaitingRule, "phase", lambda self, state: 0),
        (ft.FixedTimes, "mean_time", property(lambda self: None)),
        (ClientTimes, "more", lambda self: 0),
    ],
)
def test_a_class_that_was_patched_has_no_key(
    kind: type, name: str, patch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, patch, raising=False)
    assert key_of(ClockConfig.of(rules.WaitForSome(2), FIXED), "test") is None
    assert own(Half()) is None or kind is rules.WaitForSome


def test_constants_of_a_class_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(rules.WaitForSome(2), FIXED)
    monkeypatch.setattr(rules.WaitForSome, "constant_phase", not rules.WaitForSome.constant_phase)
    assert digest(rules.WaitForSome(2), FIXED) != before


def test_a_key_is_the_same_in_another_process_and_after_use() -> None:
    code = (
        "import fedtempo as ft; from fedtempo.clock import rules; from fedtempo.clock.config import ClockConfig\n"
        "from fedtempo.clock.identity import key_of\n"
        "times = ft.LogNormalTimes([1, 2, 3], sigma=0.4).available(on=10, off=5)\n"
        "print(key_of(ClockConfig.of(rules.WaitForSome(2), times), 'test').digest)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    times = ft.LogNormalTimes([1, 2, 3], sigma=0.4).available(on=10, off=5)
    assert times.clock_mean_time.all()  # worked out and kept inside
    assert times.availability is not None
    assert len(times.availability.stretches) == 1
    pickle.dumps((times, rules.WaitForSome(2)))  # which writes something down in their classes
    assert digest(rules.WaitForSome(2), times) == done.stdout.strip()


def test_a_key_is_the_same_after_pickling() -> None:
    before = own(Half())
    pickle.dumps(Half())
    assert own(Half()) == before


# -- rules of one's own


def decide(self: Any, state: State, event: Event, view: View) -> tuple[State, Action]:
    if (again := resend(event)) is not None:
        return state, again
    enough = len(view.arrived) * HALF >= len(view.clients) + getattr(self, "more", 0)
    return state, Close(tuple(view.arrived.values())) if enough else None


@dataclass(frozen=True)
class Half(WaitingRule):
    more: int = 0
    limits = (1, 2)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        return decide(self, state, event, view)


def own(rule: WaitingRule, **more: Any) -> Any:
    return key_of(ClockConfig.of(rule, FIXED, **more), "test")


def test_a_rule_of_ones_own_has_a_key_in_this_process() -> None:
    key = own(Half())
    assert key is not None
    assert Half in key.here
    assert own(Half()) == key
    assert own(Half(1)) != key
    p = [np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])]  # it may read them, whatever it says that it needs
    configs = [ClockConfig.of(Half(), FIXED, importance) for importance in p]
    assert len({key_of(config, "test", importance=False) for config in configs}) == 2


def test_what_the_code_of_a_rule_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [own(Half())]
    monkeypatch.setitem(globals(), "HALF", 3)
    keys.append(own(Half()))
    monkeypatch.setattr(Half, "limits", (1, 3))
    keys.append(own(Half()))
    monkeypatch.setattr(Half, "phase", lambda self, state: None)
    keys.append(own(Half()))
    monkeypatch.setattr(Half, "phase", lambda self, state: 0)
    keys.append(own(Half()))
    assert all(key is not None for key in keys)
    assert all(one != other for one, other in pairwise(keys))
    monkeypatch.setitem(globals(), "HALF", [2])
    assert own(Half()) is not None
    monkeypatch.setitem(globals(), "HALF", object())
    assert own(Half()) is None


def test_what_can_change_has_no_key() -> None:
    class Loose(WaitingRule):
        decide = decide

    class Own(ft.FixedTimes):
        pass

    @dataclass(frozen=True)
    class Holding(WaitingRule):
        what: Any
        decide = decide

    assert own(Loose()) is None
    assert own(Holding(3)) is not None
    assert own(Holding(object())) is None
    assert key_of(ClockConfig.of(rules.WaitForSome(2), Own([1, 2, 3])), "test") is None
    changed = Half()
    object.__setattr__(changed, "secret", 3)
    assert own(changed) is None


# -- what a rule's code can read; each of these is what `decide` asks for


def decided_by(asked: Callable[..., Any]) -> WaitingRule:
    @dataclass(frozen=True)
    class Asking(WaitingRule):
        def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
            return asked(view), None

    return Asking()


def imports(view: View) -> Any:
    from clock.settings import K  # type: ignore[import-not-found]

    return K


def imports_inside(view: View) -> Any:
    return [__import__("os") for _ in view.clients]


def stores(view: View) -> Any:
    global HALF
    HALF = len(view.clients)


@functools.wraps(math.sqrt)
def wraps_the_library(view: Any = None) -> Any:
    return HALF


class Spoofed:
    needed = 1


Spoofed.__module__ = "math"


class Kind(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 0


class Made(metaclass=Kind):
    needed = 1


HIDDEN = np.ma.masked_array([1, 2], mask=[True, False])
NOT_KNOWN = {
    "import": imports,
    "__import__": imports_inside,
    "global": stores,
    "environment": lambda view: int(os.environ["KK"]),
    "interpreter": lambda view: sys.flags,
    "numpy.random": lambda view: np.random.default_rng().random(),
    "numpy of math of ours": lambda view: ft.clock.times.np.random,  # type: ignore[attr-defined]
    "module in a module": lambda view: functools.sys,  # type: ignore[attr-defined]
    "file of numbers": lambda view: np.loadtxt("settings"),
    "memory as it is": lambda view: np.empty(3),
    "open": lambda view: open("settings"),  # noqa: SIM115
    "eval": lambda view: eval("HALF"),
    "globals": lambda view: globals()["HALF"],
    "by way of a function": lambda view: decide.__globals__["HALF"],
    "getattr of a module": lambda view: getattr(np, "ran" + "dom"),
    "masked": lambda view: HIDDEN,
    "a kind of class": lambda view: Made.needed,
}


@pytest.mark.parametrize("asked", NOT_KNOWN.values(), ids=NOT_KNOWN.keys())
def test_code_that_may_read_anything_has_no_key(asked: Callable[..., Any]) -> None:
    assert own(decided_by(asked)) is None


def test_pure_code_has_a_key() -> None:
    for asked in (
        lambda view: math.ceil(F(len(view.clients), HALF)),
        lambda view: np.linalg.norm(np.sort(np.arange(len(view.clients)))) + np.pi,
        lambda view: functools.reduce(max, sorted(view.clients), 0),
        lambda view: ft.rules.Close(()),
        lambda view: wraps_the_library(),
    ):
        assert own(decided_by(asked)) is not None
        assert own(decided_by(asked)).here


def test_a_function_is_what_it_is_and_not_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, name in ((wraps_the_library, "HALF"), (lambda view: Spoofed.needed, None)):
        rule = decided_by(asked)
        before = own(rule)
        assert before is not None
        assert own(rule) == before
        monkeypatch.setitem(globals(), name, 7) if name else monkeypatch.setattr(Spoofed, "needed", 7)
        assert own(rule) != before


def test_what_is_put_into_a_pure_module_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "NEEDED", 2, raising=False)
    monkeypatch.setattr(builtins, "WANTED", 2, raising=False)
    of_math = decided_by(lambda view: math.NEEDED)  # type: ignore[attr-defined]
    of_python = decided_by(lambda view: WANTED)  # type: ignore[name-defined]  # noqa: F821
    before = own(of_math)
    assert before is not None
    assert own(of_python) is None
    monkeypatch.setattr(math, "NEEDED", 3)
    assert own(of_math) != before


def test_whatever_goes_wrong_means_no_key() -> None:
    def with_a_cell_that_is_not_filled() -> Callable[..., Any]:
        def asked(view: View) -> Any:
            return later

        if HALF == 0:
            later = 1
        return asked

    nested: list[Any] = []
    nested.append(nested)
    assert own(decided_by(with_a_cell_that_is_not_filled())) is None
    assert own(decided_by(lambda view, held=nested: held)) is None
    assert own(decided_by(lambda view: "\ud800")) is None
