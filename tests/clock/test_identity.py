"""Keys of runs of the clock: the same for the same run, another one for any change of what it depends on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
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


def test_the_source_of_the_clock_counts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for text in ("a = 1", "a = 2"):
        for package in ("clock", "weighting"):
            (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / "clock" / "cycle.py").write_text(text)
        monkeypatch.setattr(identity, "_ROOT", tmp_path)
        identity._about_here.cache_clear()
        found.add(identity._about_here())
    identity._about_here.cache_clear()
    assert len(found) == 2


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
    assert digest(rules.WaitForSome(2), times) == done.stdout.strip()


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
