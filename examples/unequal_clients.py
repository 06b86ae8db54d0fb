"""Four clients of unequal speed: who contributes when, and with which weight nobody takes over the model."""

import fedtempo as ft

times = ft.FixedTimes(["1", "2", "5/2", 7])

for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(wait="1/2"), ft.FedBuff(size=2)):
    line = ft.timeline(scheme, times, until=70)
    weights = ft.weights(scheme, times)
    print(scheme)
    print(f"  {line.num_rounds} rounds, {line.num_updates} updates, largest delay {line.staleness.max()}")
    print("  weights d_i      ", ", ".join(str(d) for d in weights))
    print("  expected q_i     ", ft.expected_weights(scheme, times).round(3))
    print("  without them q_i ", ft.expected_weights(scheme, times, rule="identical").round(3))
