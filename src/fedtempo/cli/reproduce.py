"""``fedtempo reproduce``: the paper's figures, run and drawn again, and which of its statements hold."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtempo.cli import options as o
from fedtempo.cli.data import DataDir
from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import nearest

if TYPE_CHECKING:
    from fedtempo.paper.figure_file import Figure, Part
    from fedtempo.paper.stages import Place
    from fedtempo.simulation.history.history import History
    from fedtempo.simulation.ledger import Progress


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(help="fig1 to fig7, claims, all; stable; or a figure file of your own (.toml)."),
    ],
    scale: Annotated[
        str,
        typer.Option("--scale", help="quick: minutes on two cores; paper: one GPU; full: the paper's own horizons."),
    ] = "quick",
    setting: Annotated[
        str,
        typer.Option("--setting", help="text: what the paper says; authors: what its authors' scripts do."),
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for results and pictures.", show_default="results/reproduce-<scale>"),
    ] = None,
    from_results: Annotated[
        Path | None,
        typer.Option("--from-results", help="Run nothing; draw and judge what is in this folder.", show_default=False),
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Only this part, as mnist; repeat for more.", show_default=False)
    ] = None,
    picture: Annotated[str, typer.Option("--format", help="svg, png or pdf; html for a page for a browser.")] = "svg",
    for_claims: Annotated[
        bool,
        typer.Option("--for-claims", help="Run what the claims are judged by beside the pictures: many partitions."),
    ] = False,
    data_dir: DataDir = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results of another study.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Stop after so long and keep everything.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what is in the folder; refuse to begin anew.")
    ] = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Run the paper's experiments again, draw its figures, and say which of its statements hold.

    Results lie in a folder, a small NetCDF file for each part of a figure, with the setting in its name.
    What is there is not run again; Ctrl-C or --minutes stops and keeps everything, the same command goes on.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    from fedtempo.cli.run import prepare_jax
    from fedtempo.paper.figure_file import FIGURES, SETTINGS, read_figure
    from fedtempo.report.style import ENDINGS

    if picture not in (*ENDINGS, "html"):
        raise InputError(f"--format: {picture!r} is not known; use one of {', '.join(ENDINGS)}, or html for a page")
    names = [name for given in what for name in ((*FIGURES, "claims") if given == "all" else (given,))]
    if setting not in SETTINGS and all(name in (*FIGURES, "claims") for name in names):
        raise InputError(f"--setting: {setting!r} is not known; use one of {', '.join(SETTINGS)}")
    figures = [read_figure(name, scale, setting) for name in dict.fromkeys(names) if name != "claims"]
    wanted = _wanted(figures, part)
    seconds = _seconds(minutes)
    if from_results is not None and not from_results.is_dir():
        raise DataMissing(f"--from-results: {from_results} is not a folder; check the path")
    folder = out if out is not None else from_results or Path("results") / f"reproduce-{scale}"
    if resume and not folder.is_dir():
        raise DataMissing(f"--resume: there is no folder {folder}; leave --resume out to begin, or give another --out")
    if for_claims and from_results is not None:
        raise InputError("--for-claims runs what --from-results would not; leave one of the two out")
    if for_claims and not any(part.runs for figure in figures for part in figure.parts if wanted(part)):
        raise InputError("--for-claims: nothing is run beside these parts at this scale; try fig2 --scale paper")
    prepare_jax()
    if from_results is None:
        _check_data(figures, wanted, folder, data_dir, for_claims=for_claims)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder ({error.strerror}); choose another --out") from None
    until = time.monotonic() + seconds
    for figure in figures:
        if for_claims:
            _run_beside(figure, folder, wanted, data_dir, overwrite=overwrite, quiet=quiet, until=until)
            continue
        results = (
            _read(figure, from_results, wanted)
            if from_results is not None
            else _run(figure, folder, wanted, data_dir, overwrite=overwrite, quiet=quiet, until=until)
        )
        _present(figure, results, folder / f"{figure.stem}.{picture}")
    if "claims" in names:
        _judge(from_results or folder, folder, scale, setting)


def _seconds(minutes: float | None) -> float:
    if minutes is not None and not minutes > 0:
        raise InputError(f"--minutes: {minutes:g} is not above zero; give how long it may run, as 9")
    return math.inf if minutes is None else 60 * minutes


def _wanted(figures: Sequence[Figure], given: list[str] | None) -> Callable[[Part], bool]:
    """Which parts are meant."""
    if not given:
        return lambda part: True
    if not figures:
        raise InputError("--part: name a figure too, as fig2; claims are judged from all results that are there")
    known = [part.name for figure in figures for part in figure.parts]
    for name in given:
        if name not in known:
            raise InputError(f"--part: there is no part {name!r}{nearest(name, known)}")
    return lambda part: part.name in given


def _check_data(
    figures: Sequence[Figure],
    wanted: Callable[[Part], bool],
    folder: Path,
    data_dir: Path | None,
    *,
    for_claims: bool = False,
) -> None:
    """Refuse to begin where a data set is missing that will be needed for results that are not there."""
    from fedtempo.paper.stages import drawn_path, path_of
    from fedtempo.problems.data import DATASETS
    from fedtempo.problems.data.catalogue import needed

    def needs_data(part: Part) -> bool:
        paths = [path_of(folder, part, run) for run in part.runs] if for_claims else [drawn_path(folder, part)]
        return not all(path.is_file() for path in paths)

    left = [p for f in figures for p in f.parts if wanted(p) and needs_data(p)]
    for name in dict.fromkeys(str(p.study.get("problem", {}).get("name")) for p in left):
        if name in DATASETS:
            needed(name, data_dir)


def _run(
    figure: Figure,
    folder: Path,
    wanted: Callable[[Part], bool],
    data_dir: Path | None,
    *,
    overwrite: bool,
    quiet: bool,
    until: float,
) -> dict[str, History]:
    from fedtempo.paper.stages import run_part

    with _place(figure, folder, data_dir, overwrite=overwrite, quiet=quiet, until=until) as place:
        done = {part.name: run_part(part, place) for part in figure.parts if wanted(part)}
    return _read(figure, folder, lambda part: True, missing_ok=True) | done


def _run_beside(
    figure: Figure,
    folder: Path,
    wanted: Callable[[Part], bool],
    data_dir: Path | None,
    *,
    overwrite: bool,
    quiet: bool,
    until: float,
) -> None:
    from fedtempo.paper.stages import path_of, run_beside

    with _place(figure, folder, data_dir, overwrite=overwrite, quiet=quiet, until=until) as place:
        for part in figure.parts:
            for name in run_beside(part, place) if wanted(part) else ():
                typer.echo(f"{path_of(folder, part, name)}: {part.title}, for the claims")


@contextmanager
def _place(
    figure: Figure, folder: Path, data_dir: Path | None, *, overwrite: bool, quiet: bool, until: float
) -> Iterator[Place]:
    """Where results go; a stop inside keeps everything."""
    from fedtempo.cli.progress import ending, reporting, stoppable
    from fedtempo.paper.stages import Place

    kept = f"stopped, and everything so far is kept in {folder}; the same command goes on"
    with stoppable(kept) if figure.parts else nullcontext(), reporting(quiet) as report:

        def tell(label: str) -> Callable[[Progress], None] | None:
            if not quiet:
                print(f"fedtempo: {label}", file=sys.stderr)  # noqa: T201
            return ending(report, until)

        yield Place(folder, data_dir, overwrite, tell)


def _read(
    figure: Figure, folder: Path, wanted: Callable[[Part], bool], *, missing_ok: bool = False
) -> dict[str, History]:
    from fedtempo.paper.stages import drawn_path, load

    found = {p.name: load(drawn_path(folder, p)) for p in figure.parts if wanted(p)}
    there = {name: history for name, history in found.items() if history is not None}
    if figure.parts and not there and not missing_ok:
        raise DataMissing(f"{folder}: there are no results of {figure.name}; run it, or give another --from-results")
    return there


def _present(figure: Figure, results: dict[str, History], path: Path) -> None:
    from fedtempo.paper.drawing import draw, note

    if path.suffix == ".html" and figure.parts:
        from fedtempo.paper.reproduction_page import figure_document

        figure_document(figure, results, path.parent).save(path)
    else:
        path = path.with_suffix(".svg") if path.suffix == ".html" else path  # a timeline is a picture
        draw(figure, results, path)
    where = f" ({figure.place})" if figure.place else ""
    typer.echo(f"{path}: {figure.title}{where}. {note(figure, results) if results else figure.about}")


def _judge(results: Path, folder: Path, scale: str, setting: str) -> None:
    from fedtempo.files import write_text
    from fedtempo.paper.claims import judge, markdown, show_claims, stored
    from fedtempo.paper.figure_file import suffix

    settings = {name: judge(found, name) for name, found in stored(results).items()}
    if setting not in settings:
        asked = f"--scale {scale}" + (f" --setting {setting}" if suffix(setting) else "")
        raise DataMissing(f"{results}: there are no results to judge; fedtempo reproduce all {asked}")
    show_claims({setting: settings[setting]})
    page = folder / "claims.md"
    write_text(page, markdown(settings))
    typer.echo(f"{page}: the same with all cases")
