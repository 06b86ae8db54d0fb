"""The lines that a recommendation ends in make the same again: a strategy on Flower, a scheme in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest

import fedtempo as ft
import support
from fedtempo.errors import InputError
from fedtempo.planning.deployment import scheme_line, strategy_line
from fedtempo.schemes.table import SCHEMES, scheme_of
from fedtempo.training.server_rules import SERVERS
from fedtempo.weighting.weight_rules import TimeBased, WeightRule, weight_rule
from support import own_parts, recommendations

flower = pytest.importorskip("fedtempo.flower")
NAMES = {"ft": ft, "optax": optax, **{name: getattr(flower, name) for name in flower.__all__}}

BY_NAME = {
    "fedavg": "FedAvg()",
    "async": "AsyncFedAvg()",
    "fedfix:1/4": "FedFix(wait=0.25)",
    "fedfix:30": "FedFix(wait=30.0)",
    "fedbuff:5": "FedBuff(size=5)",
    "uniform:5": "TimedStrategy(ft.UniformSampling(5))",
    "multinomial:5": "TimedStrategy(ft.MultinomialSampling(5))",
    "fastest:5": "TimedStrategy(ft.FastestSampling(5))",
    "highest-loss:5": 'TimedStrategy(ft.HighestLossSampling(5), weights="identical", loss_key="train_loss")',
    "fedasync:0.3": "AsyncFedAvg(weights=ft.Discounted(ft.published.Mixing(0.3), ft.PolynomialDiscount()), step=",
    "fedbuff-published:4": "FedBuff(size=4, weights=ft.Discounted(ft.Identical(), ft.PolynomialDiscount()), ",
    "cutoff:fedfix(1/2):20": "FedFix(wait=0.5, weights=ft.Discounted(ft.TimeBased(), ft.CutOff(20)))",
}
STAGED = ft.StagedFedFix([("1/4", 10), ("1/2", None)])
CURED = ft.CuredSampling(ft.FastestSampling(2), window=8, biased=2)
HOSTED = [*map(scheme_of, BY_NAME), STAGED, CURED]
ALONE = [scheme_of("centralized"), scheme_of("fednova:1,2,5"), scheme_of("fedau:async:200")]
SERVER_RULES = [
    ft.SlowMo(0.5),
    ft.FedAdam(),
    ft.FedAdam(b2=0.9),
    ft.FedYogi(0.8, 0.9, 0.1),
    ft.FedAdaGrad(0.01),
    ft.MixModels(),
    ft.CoordinateMedian(last=10),
    ft.TrimmedMean(trim=0.1),
    ft.Krum(hostile=1),
    ft.NormClipping(),
    ft.ServerOptax(optax.adam, options={"b1": 0.8}),
]
RULES = [
    "time-based",
    "identical",
    "importance",
    "measured",
    "own-time",
    "measured:3",
    ft.Discounted(ft.Identical(), ft.HingeDiscount(10, 4)),
    ft.Discounted(ft.TimeBased(), ft.PolynomialDiscount(0.25)),
]


def made(scheme: ft.Scheme, **given: Any):
    """A recommendation of this scheme."""
    found = recommendations.recommendation()
    return replace(found, choices=(replace(found.best, scheme=scheme, local_lr=0.5), *found.choices[1:]), **given)


def evaluated(line: str) -> Any:
    assert "\n" not in line
    return eval(line, dict(NAMES))


def said(line: str) -> str:
    return line.partition("  # ")[0]


def settings(line: str) -> Any:
    """What the strategy of the line is set to."""
    return evaluated(line)._settings()


@pytest.mark.parametrize("scheme", [*HOSTED, *ALONE], ids=str)
def test_a_scheme_for_the_simulator_is_the_same_again(scheme) -> None:
    again = evaluated(scheme_line(made(scheme)))
    assert again == scheme
    assert (again.label, again.spec()) == (scheme.label, scheme.spec())


def test_every_named_scheme_is_tried() -> None:
    tried = {one.name for one in HOSTED} | {one.name for one in ALONE}
    named = {name: one for name, one in SCHEMES.known.items() if getattr(one, "__module__", "") == ft.FedAvg.__module__}
    assert {*named, "cured", "fedfix-stages"} <= tried


@pytest.mark.parametrize("scheme", HOSTED, ids=str)
def test_a_strategy_runs_the_scheme(scheme) -> None:
    rule = "identical" if scheme.name == "highest-loss" else "time-based"
    line = strategy_line(made(scheme, rule=rule))
    found = settings(line)
    assert found.rule == scheme.waiting
    assert found.scheme.options.server == scheme.options.server
    expected = scheme.options.own_weights or weight_rule(rule)
    assert found.weights == (expected if scheme.own_weights is None else expected.fitted(scheme.own_weights))
    assert (found.step or "stable") == (scheme.options.step or "stable")


@pytest.mark.parametrize("name", BY_NAME)
def test_lines_are_short(name) -> None:
    rule = "identical" if name.startswith("highest") else "time-based"
    assert strategy_line(made(scheme_of(name), rule=rule)).startswith(BY_NAME[name])


def test_the_example() -> None:
    local = ft.LocalSGD(steps=5, lr="auto", batch_size=32)
    best = made(ft.FedFix(30), local=local)
    assert strategy_line(best) == "FedFix(wait=30.0)  # clients: lr=0.5, 5 local steps, batches of 32"
    best = made(ft.FedFix("1/4").using(server=ft.FedAdam()), local=ft.LocalSGD(batch_size=None), server_lr=0.01)
    line = strategy_line(best)
    assert line == (
        "FedFix(wait=0.25, server=ft.FedAdam(), server_lr=0.01)  # clients: lr=0.5, 1 local step, batches of all rows"
    )
    assert settings(line).server_lr == 0.01
    assert said(scheme_line(best)) == 'ft.FedFix("1/4").using(server=ft.FedAdam())'
    assert scheme_line(best).endswith('; weights="time-based"; step="stable"; server_lr=0.01')


@pytest.mark.parametrize("server", SERVER_RULES, ids=lambda rule: type(rule).__name__)
def test_server_rules(server) -> None:
    scheme = ft.FedBuff(4).using(server=server)
    assert evaluated(scheme_line(made(scheme))) == scheme
    found = settings(strategy_line(made(scheme))).scheme.options.server
    assert found == (server.among(10) if hasattr(server, "among") else server)


def test_every_named_server_rule_is_tried() -> None:
    assert set(SERVERS.known.values()) <= {type(server) for server in SERVER_RULES}


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("step", ["stable", "paper", "proven"])
def test_weights_and_step(rule, step) -> None:
    line = strategy_line(made(ft.FedFix(2), rule=rule, step=step))
    found = settings(line)
    assert (found.weights, found.step or "stable") == (weight_rule(rule), step)
    assert isinstance(found.weights, WeightRule)
    assert ("weights=" in line) == (found.weights != TimeBased())
    scheme = ft.FedFix(2).using(weights=weight_rule(rule), step=step)
    assert evaluated(scheme_line(made(scheme))) == scheme


@pytest.mark.parametrize("correction", [ft.FedProx(0.1), ft.FedDANE(0.1), ft.FedDyn(1.0), ft.Scaffold()], ids=str)
def test_a_correction_is_the_clients_work_or_cannot_be(correction) -> None:
    scheme = ft.FedFix(2).using(correction=correction)
    assert evaluated(scheme_line(made(scheme))) == scheme
    if correction.remembers:
        with pytest.raises(InputError, match="a ClientApp sends back only that; leave it out, or use FedProx"):
            strategy_line(made(scheme))
    else:
        line = strategy_line(made(scheme))
        assert settings(line).scheme == ft.FedFix(2)
        assert line.endswith("in the ClientApp's loss the term of ft.FedProx(0.1)")


@pytest.mark.parametrize("method", [ft.TopK("1/100"), ft.QSGD(2, norm="euclidean"), ft.LowRank(3)], ids=str)
def test_a_compression_is_a_mod_of_the_clients(method) -> None:
    scheme = ft.FedFix(2).using(compression=method)
    assert evaluated(scheme_line(made(scheme))) == scheme
    line = strategy_line(made(scheme))
    assert settings(line).scheme == ft.FedFix(2)
    mod = line.partition("mods=[")[2].partition("]")[0]
    assert mod.startswith("compressing(ft.")
    assert callable(evaluated(mod))


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        (ALONE[0], "every client has data of its own"),
        (ALONE[1], "its clients differ in local steps or rates"),
        (ALONE[2], "a server on Flower estimates its own"),
        (ft.FedAvg().using(compensate="rate"), "its clients differ in local steps or rates"),
        (ft.FedAvg().using(client_rates=[1.0, 2.0]), "leave client_steps, client_rates and compensate out"),
    ],
)
def test_what_flower_cannot_host_is_refused(scheme, words) -> None:
    with pytest.raises(InputError, match=words):
        strategy_line(made(scheme))
    assert evaluated(scheme_line(made(scheme))) == scheme


def test_clients_settings_are_said() -> None:
    local = ft.LocalSGD(steps=2, lr=[0.1, 0.5], momentum=0.9, clip=1, draw="epochs", schedule="horizon")
    line = strategy_line(made(ft.FedAvg(), local=local))
    assert line.partition("# ")[2] == (
        "clients: lr=0.5, 2 local steps, batches of 32, clip=1, momentum=0.9, each row once an epoch, "
        "lr divided by the root of steps times rounds"
    )
    local = ft.LocalOptax(solver=optax.adam, options={"b1": 0.8})
    assert "batches of 32, optax.adam, b1=0.8" in strategy_line(made(ft.FedAvg(), local=local))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("EveryFew:3", "ft.Scheme(support.own_parts.EveryFew(3), name="),
        ("few:2", "ft.Scheme(support.own_parts.few(size=2), name="),
        ("Pairs:3", "TimedStrategy(support.own_parts.Pairs(3)"),
    ],
)
def test_ones_own_rule_comes_with_its_import(text, call) -> None:
    scheme = scheme_of(f"support.own_parts:{text}")
    line, in_simulation = strategy_line(made(scheme)), scheme_line(made(scheme))
    assert call in line
    assert line.endswith("; import support.own_parts")
    names = {**NAMES, "support": support}
    assert eval(line, names).scheme.waiting == scheme.waiting
    assert eval(in_simulation, names) == scheme
    assert eval(in_simulation, names).label == scheme.label


def test_ones_own_server_rule() -> None:
    scheme = ft.FedAvg().using(server=own_parts.Halving(0.5))
    line = strategy_line(made(scheme))
    assert line.startswith("FedAvg(server=support.own_parts.Halving(0.5))")
    assert eval(line, {**NAMES, "support": support}).scheme == scheme


def test_what_has_no_place_cannot_be_written() -> None:
    class Here(ft.SlowMo):
        pass

    with pytest.raises(InputError, match="cannot be written as a line"):
        strategy_line(made(ft.FedAvg().using(server=Here())))


def test_the_recommendation_has_both_lines() -> None:
    best = made(ft.FedFix(2), server_lr=np.float64(0.5))
    assert "server_lr=0.5)" in best.line()
    assert (best.line(), best.line(flower=False)) == (strategy_line(best), scheme_line(best))
