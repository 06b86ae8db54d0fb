"""Plan, then train: compare schemes from client times alone, let the planner choose one, and train with its choice."""

import fedtempo as ft

times = ft.FixedTimes(["1", "1", "2", "2", "4", "8"])
problem = ft.problems.digits(clients=6, partition=ft.Dirichlet(0.5), l2=0.01)

# Times alone say how fast each scheme is, and how far off identical weights would be.
schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(2), ft.FedBuff(3)]
for plan in ft.compare(times, schemes).schemes:
    pace, bias = plan.updates_per_time, plan.identical_bias
    print(f"{plan.scheme}: {pace:.2f} updates per unit of time; with identical weights {bias:.0%} bias")

# With a problem and an end it trains many schemes and rates a little, and few to the end.
made = ft.recommend(problem, times, schemes=schemes, until=100, local=ft.LocalSGD(batch_size=32), budget="25%")
print("choice:", made.best.scheme, "at rate", made.best.local_lr)
print("on Flower:", made.line())

# The choice beside FedAvg, from other seeds.
local = ft.LocalSGD(lr=sorted({made.best.local_lr, made.fedavg.local_lr}), batch_size=32)
history = ft.simulate(
    problem, [made.best.scheme, ft.FedAvg()], times, until=100, local=local, seeds=[10, 11], points=11
)
print(history.best("loss").summary())
