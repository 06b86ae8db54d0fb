"""fedtempo: asynchronous federated learning at every client's own tempo.

Every public name is listed here and imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedtempo import compat

compat.install()

__version__ = "0.6.0"
"""The version of fedtempo, as text.

Example:
    >>> print("fedtempo", ft.__version__)
    fedtempo ...
"""

_HOME = {
    "AsyncFedAvg": "schemes.named",
    "Centralized": "schemes.named",
    "ClientTimes": "clock.times",
    "ClockOverflow": "errors",
    "Compression": "training.compression",
    "ConstantDiscount": "weighting.weight_rules",
    "CoordinateMedian": "training.robust_rules",
    "Correction": "training.corrections",
    "CuredSampling": "schemes.named",
    "CutOff": "weighting.weight_rules",
    "Cycle": "clock.cycle",
    "DataMissing": "errors",
    "Dirichlet": "problems.partitions",
    "Discounted": "weighting.weight_rules",
    "ExponentialTimes": "clock.random_times",
    "FastestSampling": "schemes.named",
    "FedAdaGrad": "training.server_rules",
    "FedAdam": "training.server_rules",
    "FedAvg": "schemes.named",
    "FedBuff": "schemes.named",
    "FedDANE": "training.corrections",
    "FedDyn": "training.corrections",
    "FedFix": "schemes.named",
    "FedProx": "training.corrections",
    "FedYogi": "training.server_rules",
    "FedtempoError": "errors",
    "FixedTimes": "clock.times",
    "HighestLossSampling": "schemes.named",
    "HingeDiscount": "weighting.weight_rules",
    "History": "simulation.history.history",
    "IID": "problems.partitions",
    "Identical": "weighting.weight_rules",
    "ImportanceOnly": "weighting.weight_rules",
    "InputError": "errors",
    "Krum": "training.robust_rules",
    "LabelShards": "problems.partitions",
    "LocalOptax": "training.solvers",
    "LocalRule": "training.solvers",
    "LocalSGD": "training.solvers",
    "LogNormalTimes": "clock.random_times",
    "LowRank": "training.compression",
    "MixModels": "training.server_rules",
    "Model": "simulation.history.model",
    "MultinomialSampling": "schemes.named",
    "NaturalKey": "problems.partitions",
    "NormClipping": "training.robust_rules",
    "Normalised": "weighting.other_rules",
    "OneLabel": "problems.partitions",
    "ParetoTimes": "clock.random_times",
    "Participation": "weighting.long_run",
    "ParticipationHistory": "weighting.other_rules",
    "Plan": "planning.compare",
    "PolynomialDiscount": "weighting.weight_rules",
    "Problem": "problems.problem",
    "Progress": "simulation.ledger",
    "QSGD": "training.compression",
    "Recommendation": "planning.recommendation",
    "ResultsConflict": "errors",
    "RunInfo": "simulation.run_info",
    "Scaffold": "training.corrections",
    "Scheme": "schemes.named",
    "ServerOptax": "training.server_rules",
    "ServerOptimizer": "training.server_rules",
    "ShiftedExponentialTimes": "clock.random_times",
    "SlowMo": "training.server_rules",
    "StagedFedFix": "schemes.named",
    "TimeBased": "weighting.weight_rules",
    "Timeline": "clock.timeline",
    "TopK": "training.compression",
    "TraceTimes": "clock.trace",
    "TrimmedMean": "training.robust_rules",
    "UniformSampling": "schemes.named",
    "UniformTimes": "clock.random_times",
    "UnlawfulRule": "errors",
    "WaitingRule": "clock.waiting",
    "WebPage": "report.browser.document",
    "WeightRule": "weighting.weight_rules",
    "Weights": "weighting.weights",
    "WorkersLost": "errors",
    "compare": "planning.compare",
    "expected_weights": "schemes.timelines",
    "limit_cycle": "schemes.timelines",
    "merge": "simulation.history.merging",
    "participation_of": "schemes.timelines",
    "recommend": "planning.recommend",
    "simulate": "simulation.study",
    "timeline": "schemes.timelines",
    "timeline_chunks": "schemes.timelines",
    "weights": "schemes.timelines",
    "write_timeline": "schemes.timeline_file",
}

_MODULES = {
    "devices": "clock.devices",
    "problems": "problems",
    "published": "schemes.published",
    "theory": "theory",
    "track": "track",
}
_EXTRAS = {"torch": "torch"}
"""Modules that need more than fedtempo itself does: not a part of `import *`."""

__all__ = ["__version__", *_MODULES, *_HOME]

if TYPE_CHECKING:
    from fedtempo import problems as problems
    from fedtempo import theory as theory
    from fedtempo import torch as torch
    from fedtempo import track as track
    from fedtempo.clock import devices as devices
    from fedtempo.clock.cycle import Cycle as Cycle
    from fedtempo.clock.random_times import ExponentialTimes as ExponentialTimes
    from fedtempo.clock.random_times import LogNormalTimes as LogNormalTimes
    from fedtempo.clock.random_times import ParetoTimes as ParetoTimes
    from fedtempo.clock.random_times import ShiftedExponentialTimes as ShiftedExponentialTimes
    from fedtempo.clock.random_times import UniformTimes as UniformTimes
    from fedtempo.clock.timeline import Timeline as Timeline
    from fedtempo.clock.times import ClientTimes as ClientTimes
    from fedtempo.clock.times import FixedTimes as FixedTimes
    from fedtempo.clock.trace import TraceTimes as TraceTimes
    from fedtempo.clock.waiting import WaitingRule as WaitingRule
    from fedtempo.errors import ClockOverflow as ClockOverflow
    from fedtempo.errors import DataMissing as DataMissing
    from fedtempo.errors import FedtempoError as FedtempoError
    from fedtempo.errors import InputError as InputError
    from fedtempo.errors import ResultsConflict as ResultsConflict
    from fedtempo.errors import UnlawfulRule as UnlawfulRule
    from fedtempo.errors import WorkersLost as WorkersLost
    from fedtempo.planning.compare import Plan as Plan
    from fedtempo.planning.compare import compare as compare
    from fedtempo.planning.recommend import recommend as recommend
    from fedtempo.planning.recommendation import Recommendation as Recommendation
    from fedtempo.problems.partitions import IID as IID
    from fedtempo.problems.partitions import Dirichlet as Dirichlet
    from fedtempo.problems.partitions import LabelShards as LabelShards
    from fedtempo.problems.partitions import NaturalKey as NaturalKey
    from fedtempo.problems.partitions import OneLabel as OneLabel
    from fedtempo.problems.problem import Problem as Problem
    from fedtempo.report.browser.document import WebPage as WebPage
    from fedtempo.schemes import published as published
    from fedtempo.schemes.named import AsyncFedAvg as AsyncFedAvg
    from fedtempo.schemes.named import Centralized as Centralized
    from fedtempo.schemes.named import CuredSampling as CuredSampling
    from fedtempo.schemes.named import FastestSampling as FastestSampling
    from fedtempo.schemes.named import FedAvg as FedAvg
    from fedtempo.schemes.named import FedBuff as FedBuff
    from fedtempo.schemes.named import FedFix as FedFix
    from fedtempo.schemes.named import HighestLossSampling as HighestLossSampling
    from fedtempo.schemes.named import MultinomialSampling as MultinomialSampling
    from fedtempo.schemes.named import Scheme as Scheme
    from fedtempo.schemes.named import StagedFedFix as StagedFedFix
    from fedtempo.schemes.named import UniformSampling as UniformSampling
    from fedtempo.schemes.timeline_file import write_timeline as write_timeline
    from fedtempo.schemes.timelines import expected_weights as expected_weights
    from fedtempo.schemes.timelines import limit_cycle as limit_cycle
    from fedtempo.schemes.timelines import participation_of as participation_of
    from fedtempo.schemes.timelines import timeline as timeline
    from fedtempo.schemes.timelines import timeline_chunks as timeline_chunks
    from fedtempo.schemes.timelines import weights as weights
    from fedtempo.simulation.history.history import History as History
    from fedtempo.simulation.history.merging import merge as merge
    from fedtempo.simulation.history.model import Model as Model
    from fedtempo.simulation.ledger import Progress as Progress
    from fedtempo.simulation.run_info import RunInfo as RunInfo
    from fedtempo.simulation.study import simulate as simulate
    from fedtempo.training.compression import QSGD as QSGD
    from fedtempo.training.compression import Compression as Compression
    from fedtempo.training.compression import LowRank as LowRank
    from fedtempo.training.compression import TopK as TopK
    from fedtempo.training.corrections import Correction as Correction
    from fedtempo.training.corrections import FedDANE as FedDANE
    from fedtempo.training.corrections import FedDyn as FedDyn
    from fedtempo.training.corrections import FedProx as FedProx
    from fedtempo.training.corrections import Scaffold as Scaffold
    from fedtempo.training.robust_rules import CoordinateMedian as CoordinateMedian
    from fedtempo.training.robust_rules import Krum as Krum
    from fedtempo.training.robust_rules import NormClipping as NormClipping
    from fedtempo.training.robust_rules import TrimmedMean as TrimmedMean
    from fedtempo.training.server_rules import FedAdaGrad as FedAdaGrad
    from fedtempo.training.server_rules import FedAdam as FedAdam
    from fedtempo.training.server_rules import FedYogi as FedYogi
    from fedtempo.training.server_rules import MixModels as MixModels
    from fedtempo.training.server_rules import ServerOptax as ServerOptax
    from fedtempo.training.server_rules import ServerOptimizer as ServerOptimizer
    from fedtempo.training.server_rules import SlowMo as SlowMo
    from fedtempo.training.solvers import LocalOptax as LocalOptax
    from fedtempo.training.solvers import LocalRule as LocalRule
    from fedtempo.training.solvers import LocalSGD as LocalSGD
    from fedtempo.weighting.long_run import Participation as Participation
    from fedtempo.weighting.other_rules import Normalised as Normalised
    from fedtempo.weighting.other_rules import ParticipationHistory as ParticipationHistory
    from fedtempo.weighting.weight_rules import ConstantDiscount as ConstantDiscount
    from fedtempo.weighting.weight_rules import CutOff as CutOff
    from fedtempo.weighting.weight_rules import Discounted as Discounted
    from fedtempo.weighting.weight_rules import HingeDiscount as HingeDiscount
    from fedtempo.weighting.weight_rules import Identical as Identical
    from fedtempo.weighting.weight_rules import ImportanceOnly as ImportanceOnly
    from fedtempo.weighting.weight_rules import PolynomialDiscount as PolynomialDiscount
    from fedtempo.weighting.weight_rules import TimeBased as TimeBased
    from fedtempo.weighting.weight_rules import WeightRule as WeightRule
    from fedtempo.weighting.weights import Weights as Weights


def __getattr__(name: str) -> object:
    if name in _MODULES or name in _EXTRAS:
        return import_module(f"fedtempo.{(_MODULES | _EXTRAS)[name]}")
    if name in _HOME:
        return getattr(import_module(f"fedtempo.{_HOME[name]}"), name)
    if name == "rivals":
        compat.warn("fedtempo.rivals", "fedtempo.published")
        return import_module("fedtempo.schemes.published")
    raise AttributeError(f"module 'fedtempo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_EXTRAS])
