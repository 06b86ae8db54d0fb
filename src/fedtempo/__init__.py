"""fedtempo: asynchronous federated learning at every client's own tempo.

Every public name is listed here and imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.6.0"

_HOME = {
    "AsyncFedAvg": "schemes",
    "Centralized": "schemes",
    "ClientTimes": "clock.times",
    "ClockOverflow": "errors",
    "Compression": "compression",
    "ConstantDiscount": "discounts",
    "Correction": "local.correction",
    "CuredSampling": "schemes",
    "CutOff": "discounts",
    "Cycle": "clock.cycle",
    "DataMissing": "errors",
    "Dirichlet": "problems.partitions",
    "Discounted": "weighting",
    "ExponentialTimes": "clock.random_times",
    "FastestSampling": "schemes",
    "FedAdaGrad": "server_steps",
    "FedAdam": "server_steps",
    "FedAvg": "schemes",
    "FedBuff": "schemes",
    "FedDANE": "local.corrections",
    "FedDyn": "local.corrections",
    "FedFix": "schemes",
    "FedProx": "local.corrections",
    "FedYogi": "server_steps",
    "FedtempoError": "errors",
    "FixedTimes": "clock.times",
    "HighestLossSampling": "schemes",
    "HingeDiscount": "discounts",
    "History": "history",
    "IID": "problems.partitions",
    "Identical": "weighting",
    "ImportanceOnly": "weighting",
    "InputError": "errors",
    "LabelShards": "problems.partitions",
    "LocalOptax": "local.solvers",
    "LocalRule": "local.rule",
    "LocalSGD": "local.solvers",
    "LogNormalTimes": "clock.random_times",
    "LowRank": "compression",
    "MixModels": "server_steps",
    "Model": "model",
    "MultinomialSampling": "schemes",
    "NaturalKey": "problems.partitions",
    "Normalised": "normalised",
    "OneLabel": "problems.partitions",
    "Participation": "participation",
    "ParticipationHistory": "participation_history",
    "Plan": "planning",
    "PolynomialDiscount": "discounts",
    "Problem": "problems.problem",
    "Progress": "runner",
    "QSGD": "compression",
    "Recommendation": "planner.choosing",
    "ResultsConflict": "errors",
    "Scaffold": "local.corrections",
    "Scheme": "schemes",
    "ServerOptimizer": "server_steps",
    "SlowMo": "server_steps",
    "StagedFedFix": "schemes",
    "TimeBased": "weighting",
    "Timeline": "clock.timeline",
    "TopK": "compression",
    "TraceTimes": "clock.trace",
    "UniformSampling": "schemes",
    "UniformTimes": "clock.random_times",
    "UnlawfulRule": "errors",
    "WaitingRule": "clock.waiting",
    "WeightRule": "weighting",
    "Weights": "weighting",
    "compare": "planning",
    "expected_weights": "weighting",
    "limit_cycle": "running",
    "participation_of": "weighting",
    "recommend": "planner.choosing",
    "simulate": "study",
    "timeline": "running",
    "timeline_chunks": "running",
    "weights": "weighting",
}

_MODULES = ("problems", "rivals", "theory")

__all__ = ["__version__", *_MODULES, *_HOME]

if TYPE_CHECKING:
    from fedtempo import problems as problems
    from fedtempo import rivals as rivals
    from fedtempo import theory as theory
    from fedtempo.clock.cycle import Cycle as Cycle
    from fedtempo.clock.random_times import ExponentialTimes as ExponentialTimes
    from fedtempo.clock.random_times import LogNormalTimes as LogNormalTimes
    from fedtempo.clock.random_times import UniformTimes as UniformTimes
    from fedtempo.clock.timeline import Timeline as Timeline
    from fedtempo.clock.times import ClientTimes as ClientTimes
    from fedtempo.clock.times import FixedTimes as FixedTimes
    from fedtempo.clock.trace import TraceTimes as TraceTimes
    from fedtempo.clock.waiting import WaitingRule as WaitingRule
    from fedtempo.compression import QSGD as QSGD
    from fedtempo.compression import Compression as Compression
    from fedtempo.compression import LowRank as LowRank
    from fedtempo.compression import TopK as TopK
    from fedtempo.discounts import ConstantDiscount as ConstantDiscount
    from fedtempo.discounts import CutOff as CutOff
    from fedtempo.discounts import HingeDiscount as HingeDiscount
    from fedtempo.discounts import PolynomialDiscount as PolynomialDiscount
    from fedtempo.errors import ClockOverflow as ClockOverflow
    from fedtempo.errors import DataMissing as DataMissing
    from fedtempo.errors import FedtempoError as FedtempoError
    from fedtempo.errors import InputError as InputError
    from fedtempo.errors import ResultsConflict as ResultsConflict
    from fedtempo.errors import UnlawfulRule as UnlawfulRule
    from fedtempo.history import History as History
    from fedtempo.local.correction import Correction as Correction
    from fedtempo.local.corrections import FedDANE as FedDANE
    from fedtempo.local.corrections import FedDyn as FedDyn
    from fedtempo.local.corrections import FedProx as FedProx
    from fedtempo.local.corrections import Scaffold as Scaffold
    from fedtempo.local.rule import LocalRule as LocalRule
    from fedtempo.local.solvers import LocalOptax as LocalOptax
    from fedtempo.local.solvers import LocalSGD as LocalSGD
    from fedtempo.model import Model as Model
    from fedtempo.normalised import Normalised as Normalised
    from fedtempo.participation import Participation as Participation
    from fedtempo.participation_history import ParticipationHistory as ParticipationHistory
    from fedtempo.planner.choosing import Recommendation as Recommendation
    from fedtempo.planner.choosing import recommend as recommend
    from fedtempo.planning import Plan as Plan
    from fedtempo.planning import compare as compare
    from fedtempo.problems.partitions import IID as IID
    from fedtempo.problems.partitions import Dirichlet as Dirichlet
    from fedtempo.problems.partitions import LabelShards as LabelShards
    from fedtempo.problems.partitions import NaturalKey as NaturalKey
    from fedtempo.problems.partitions import OneLabel as OneLabel
    from fedtempo.problems.problem import Problem as Problem
    from fedtempo.runner import Progress as Progress
    from fedtempo.running import limit_cycle as limit_cycle
    from fedtempo.running import timeline as timeline
    from fedtempo.running import timeline_chunks as timeline_chunks
    from fedtempo.schemes import AsyncFedAvg as AsyncFedAvg
    from fedtempo.schemes import Centralized as Centralized
    from fedtempo.schemes import CuredSampling as CuredSampling
    from fedtempo.schemes import FastestSampling as FastestSampling
    from fedtempo.schemes import FedAvg as FedAvg
    from fedtempo.schemes import FedBuff as FedBuff
    from fedtempo.schemes import FedFix as FedFix
    from fedtempo.schemes import HighestLossSampling as HighestLossSampling
    from fedtempo.schemes import MultinomialSampling as MultinomialSampling
    from fedtempo.schemes import Scheme as Scheme
    from fedtempo.schemes import StagedFedFix as StagedFedFix
    from fedtempo.schemes import UniformSampling as UniformSampling
    from fedtempo.server_steps import FedAdaGrad as FedAdaGrad
    from fedtempo.server_steps import FedAdam as FedAdam
    from fedtempo.server_steps import FedYogi as FedYogi
    from fedtempo.server_steps import MixModels as MixModels
    from fedtempo.server_steps import ServerOptimizer as ServerOptimizer
    from fedtempo.server_steps import SlowMo as SlowMo
    from fedtempo.study import simulate as simulate
    from fedtempo.weighting import Discounted as Discounted
    from fedtempo.weighting import Identical as Identical
    from fedtempo.weighting import ImportanceOnly as ImportanceOnly
    from fedtempo.weighting import TimeBased as TimeBased
    from fedtempo.weighting import WeightRule as WeightRule
    from fedtempo.weighting import Weights as Weights
    from fedtempo.weighting import expected_weights as expected_weights
    from fedtempo.weighting import participation_of as participation_of
    from fedtempo.weighting import weights as weights


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"fedtempo.{name}")
    if name in _HOME:
        return getattr(import_module(f"fedtempo.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedtempo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
