"""`--workers`, `--cluster`, `--units`: where a command trains."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtempo.errors import InputError

_PANEL = "Where it runs"
_CONNECT_SECONDS = 10.0

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Train in so many processes of this machine.",
        show_default="this process",
        rich_help_panel=_PANEL,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Train on the workers of a Dask scheduler: its address as tcp://host:8786, or its file.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Units = Annotated[
    str | None,
    typer.Option(
        "--units",
        help="Train a share of the study, as one of several jobs with the same folder: 3/8.",
        show_default="all",
        rich_help_panel=_PANEL,
    ),
]


@contextmanager
def trained_by(workers: int | None, cluster: str | None) -> Iterator[dict[str, Any]]:
    """What `simulate` and `recommend` are given as `executor` or `workers`."""
    if cluster is None:
        yield {} if workers is None else {"workers": workers}
        return
    if workers is not None:
        raise InputError("--workers: the cluster has its own; leave --workers out, or --cluster")
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--cluster: Dask is not installed; pip install 'fedtempo[cluster]'") from None
    make: Any = Client
    _silence()
    given = {"scheduler_file": cluster} if Path(cluster).is_file() else {"address": cluster}
    try:
        client = make(**given, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        said = str(error).strip().splitlines()
        raise InputError(
            f"--cluster: no scheduler of Dask answers at {cluster} ({said[0] if said else type(error).__name__}); "
            "start one by: dask scheduler, and workers by: dask worker ADDRESS"
        ) from None
    _silence()  # what has been loaded since
    try:
        if not client.scheduler_info()["workers"]:
            logging.getLogger(__name__).warning("%s has no workers yet; waiting for some: dask worker ADDRESS", cluster)
        yield {"executor": client.get_executor(pure=False)}
    finally:
        client.close(timeout=2)


def _silence() -> None:
    """What goes wrong in Dask is said in one sentence here."""
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
