"""Clients' metrics of a round as one: their mean, weighted by one of them.

    m̄ = Σ_i w_i m_i / Σ_i w_i        number by number; w itself is left out

The same numbers as the default of Flower's FedAvg, which builds views of each record on the way: in rounds of one
update they took as long as half of the model's making.
"""

from __future__ import annotations

from typing import Any

from flwr.app import MetricRecord, RecordDict


def weighted_mean(records: list[RecordDict], weighted_by: str) -> MetricRecord:
    """The mean of all metrics but `weighted_by`, which is in the first MetricRecord of each."""
    found = [[part for part in record.values() if isinstance(part, MetricRecord)] for record in records]
    weights: list[Any] = [metrics[0][weighted_by] for metrics in found]
    total = sum(weights)
    terms: dict[str, list[tuple[float, Any]]] = {}
    for metrics, weight in zip(found, weights, strict=True):
        share = weight / total
        for part in metrics:
            for name, value in part.items():
                if name != weighted_by:
                    terms.setdefault(name, []).append((share, value))
    return MetricRecord({name: _sum(name, given) for name, given in terms.items()})


def _sum(name: str, terms: list[tuple[float, Any]]) -> Any:
    """Σ share · value of numbers, or of lists place by place."""
    lengths = {len(value) if isinstance(value, list) else None for _, value in terms}
    if lengths == {None}:
        return sum(share * value for share, value in terms)
    if len(lengths) > 1:
        raise TypeError(f"{name!r} is not the same number of numbers in each reply; send it alike from all clients")
    places = zip(*([share * number for number in value] for share, value in terms), strict=True)
    return [sum(place) for place in places]
