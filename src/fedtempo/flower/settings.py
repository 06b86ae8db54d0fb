"""What a training on Flower is set to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flwr.app import Message, MetricRecord, RecordDict

from fedtempo.clock.rules import WaitForSome
from fedtempo.clock.ticks import Exact
from fedtempo.clock.waiting import WaitingRule
from fedtempo.flower.clock import NANOSECOND, Clock
from fedtempo.schemes import Scheme
from fedtempo.weighting import WeightRule

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All choices but the model and the end; durations in nanoseconds."""

    scheme: Scheme
    weights: WeightRule
    server_lr: float
    importance: Mapping[str, Exact] | None
    times: Mapping[str, Exact] | None
    identity_key: str | None
    work_key: str | None
    clip_norm: float | None
    norm_limit: float | None
    max_failures: int
    retry_after: int
    checkpoint: Path | None
    checkpoint_every: int
    poll: int
    message: Callable[..., Message]
    clock: Clock
    arrays_key: str
    config_key: str
    examples_key: str
    train_metrics: MetricsFn
    evaluate_metrics: MetricsFn
    fraction_evaluate: float
    min_evaluate_nodes: int
    min_nodes: int

    @property
    def rule(self) -> WaitingRule:
        """What ends a round."""
        return self.scheme.waiting

    @cached_property
    def wait(self) -> int:
        """The rule's own interval in ticks, 0 if it has none."""
        return int(max(self.rule.waits, default=0 * NANOSECOND) // NANOSECOND)

    @property
    def nodes_needed(self) -> int:
        """How many nodes must be there for training to start."""
        size = self.rule.size if isinstance(self.rule, WaitForSome) else 1
        return max(self.min_nodes, size)
