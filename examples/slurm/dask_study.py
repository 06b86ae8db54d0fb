"""A study on the workers of a Slurm cluster, started and ended by this script through dask-jobqueue.

pip install 'fedtempo[cluster]' dask-jobqueue
python examples/slurm/dask_study.py
"""

from dask_jobqueue import SLURMCluster
from distributed import Client

import fedtempo as ft


def main() -> None:
    cluster = SLURMCluster(cores=4, processes=4, memory="16GB", walltime="04:00:00")
    cluster.scale(jobs=8)  # 32 workers, as they come
    with Client(cluster) as client:
        history = ft.simulate(
            ft.problems.digits(clients=20, partition=ft.Dirichlet(0.1)),
            [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2")],
            ft.FixedTimes.spread(clients=20, slowdown=80),
            until=1000,
            local=ft.LocalSGD(steps=5, lr=[0.03, 0.1, 0.3]),
            seeds=range(20),
            checkpoint="results/study",  # workers save there where they see it, else units travel
            executor=client.get_executor(pure=False),
        )
    print(history)


if __name__ == "__main__":
    main()
