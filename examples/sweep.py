"""A sweep: any number may be a list, client times and problems may be several by name, and each becomes a dimension.

On the command line the same flags are repeated: ``fedtempo run --times F0 --times F80 --lr 0.1,0.3,1``.
"""

import fedtempo as ft

# Two settings of times, three rates, two numbers of local steps, two seeds, three schemes: 72 trainings.
times = {"alike": ft.FixedTimes.spread(10, 0), "unequal": ft.FixedTimes.spread(10, 80)}
problem = ft.problems.digits(clients=10, partition=ft.Dirichlet(0.3), l2=0.01)
schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2")]
local = ft.LocalSGD(steps=[1, 5], lr=[0.3, 1.0, 3.0], batch_size=32)
history = ft.simulate(problem, schemes, times, until=5, local=local, seeds=[0, 1], points=11)
print(dict(history.dataset.loss.sizes))

# `best` chooses rates and steps for each scheme, never between settings.
best = history.best("loss")
for setting, part in best.split("times").items():
    print(setting)
    for scheme in part.dataset.scheme.values:
        end = part.dataset.sel(scheme=scheme).isel(time=-1).squeeze()
        rate, steps = float(end.local_lr.values.ravel()[0]), int(end.local_steps.values.ravel()[0])
        print(f"  {scheme:12} loss {float(end.loss.mean()):.3f} with rate {rate:g} and {steps} local steps")

# Every run and time as rows: for pandas, a spreadsheet, or a figure of your own.
table = history.to_dataframe()
print(len(table), "rows")

# What was run on two days is one study.
more = ft.simulate(problem, ft.FedBuff(3), times, until=5, local=local, seeds=[0, 1], points=11)
print(", ".join(ft.merge([history, more]).dataset.scheme.values))
