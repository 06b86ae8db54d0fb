"""``fedtempo show``: the table and the figures of a study or of a run on Flower, finished or still running.

Nothing is imported because a folder names it: names are printed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtempo.cli import options as o
from fedtempo.clock.times_text import check_saved, is_run
from fedtempo.errors import DataMissing, InputError
from fedtempo.schemes.table import SCHEMES

if TYPE_CHECKING:
    from fedtempo.flower.record import Record
    from fedtempo.simulation.history.history import History


def read_run(path: Path) -> Record:
    """The record of the run; what it needs is imported only now."""
    check_saved(path)
    try:
        from fedtempo.flower import recorded
    except ImportError as error:
        raise InputError(f"{path} holds a run on Flower: {error}") from None
    return recorded(path)


def show(
    results: Annotated[
        Path,
        typer.Argument(
            help="The folder of a study, of a run on Flower, of fedtempo app or of fedtempo reproduce; a history file "
            "(.nc); or what fedtempo plan --problem … --json wrote.",
        ),
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            help="Draw into this file: x.svg, .png or .pdf; or a page for a browser, report.html. Repeat for more.",
            show_default="a folder's own pictures; none for a history file",
        ),
    ] = None,
    measure: Annotated[
        str | None, typer.Option("--measure", help="Draw only this measure, as test_accuracy.", show_default=False)
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme", help="A run's own rule, to simulate it: package.module:attribute.", show_default=False
        ),
    ] = None,
    target: o.Target = None,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Print what happened in a study or in a run on Flower, and draw it.

    RESULTS is a study's folder (also while it runs), a history file (.nc), the checkpoint folder of a run on Flower, a
    folder of fedtempo app or fedtempo reproduce, or a recommendation as JSON.

    --out report.html writes one file for a browser: tables that sort, curves that can be zoomed, settings, sentences.

    A folder gets its pictures, as under fedtempo run; a history file is drawn only with --out.

    A run on Flower is compared with simulation and plan. What a folder names is printed, never imported:

    --scheme names a rule of your own, so that it can be simulated.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    for path in out or ():
        if not path.parent.is_dir():
            raise InputError(f"--out: {path}: the folder {path.parent} does not exist; create it first")

    pages = _check_endings(out)
    if measure is not None and out and len(pages) == len(out):
        raise InputError("--measure: a page has every measure; leave it out, or add a picture, as --out x.svg")
    if (results / "runs.json").is_file():
        if measure is not None or target is not None or scheme is not None:
            raise InputError(f"--measure, --target and --scheme: {results} holds runs of an app; leave them out")
        from fedtempo.cli.flower_app import present_app

        present_app(results, out)
        return
    if is_run(results):
        if measure is not None or target is not None:
            raise InputError(f"--measure and --target: {results} holds a run on Flower, not a study; leave them out")
        if scheme is not None:
            SCHEMES.load(scheme, "--scheme")
        present_run(results, out)
        return
    if scheme is not None:
        raise InputError(f"--scheme: {results} holds no run on Flower; leave it out")
    if results.is_file() or results.suffix == ".nc":
        _present_file(results, out, measure=measure, target=target)
        return
    from fedtempo.simulation.shares import parts_of, study_in

    if not (results / "history.nc").exists() and not parts_of(results):
        if (results / "study.json").exists():
            raise DataMissing(
                f"{results}: nothing is measured yet; wait, or go on with fedtempo run --resume {results}"
            )
        _present_reproduction(results, out, measure=measure, target=target)
        return
    history, jobs = study_in(results)
    present(history, results, out=out, measure=measure, target=target, jobs=jobs)
    if jobs:
        typer.echo(f"\nPut together of {jobs}.")


def _check_endings(out: list[Path] | None) -> list[Path]:
    """Refuse endings of neither pictures nor pages, before anything is written; the pages."""
    from fedtempo.report.browser.document import is_page
    from fedtempo.report.style import ENDINGS

    for path in out or []:
        if not is_page(path) and path.suffix.lower().lstrip(".") not in ENDINGS:
            raise InputError(
                f"{path}: the ending must be one of {', '.join(ENDINGS)} for a picture, or html for a page, as in "
                "report.html"
            )
    return [path for path in out or [] if is_page(path)]


def _present_file(path: Path, out: list[Path] | None, *, measure: str | None, target: float | None) -> None:
    """A history, or a recommendation that was written as JSON."""
    from fedtempo.cli.found import refuse_other_file
    from fedtempo.simulation.history.history import History

    if path.suffix == ".json" and _present_recommendation(path, out, measure=measure, target=target):
        return
    refuse_other_file(path)
    if measure is not None and not out:
        raise InputError(f"--measure: it is drawn, so say where, as --out {measure}.svg")
    present(History.load(path), None, out=out, measure=measure, target=target, name=path.stem)


def _present_recommendation(path: Path, out: list[Path] | None, *, measure: str | None, target: float | None) -> bool:
    """What fedtempo plan --problem … --json wrote; whether the file is that."""
    from fedtempo.cli.found import read_json
    from fedtempo.planning.saved_recommendation import is_recommendation, read_recommendation

    document = read_json(path)
    if not is_recommendation(document):
        return False
    if measure is not None or target is not None:
        raise InputError(f"--measure and --target: {path} is a recommendation, not a study; leave them out")
    pages = _check_endings(out)
    if len(pages) < len(out or []):
        raise InputError(f"--out: {path} becomes a page, as report.html; fedtempo plan --problem … --figure draws it")
    from fedtempo.report.browser.recommendation import recommendation_document
    from fedtempo.report.recommendation_tables import show_recommendation

    made = read_recommendation(document, str(path))
    show_recommendation(made)
    for page in pages:
        recommendation_document(made).save(page)
    _say_where(pages, "No page is written; add --out report.html for one.")
    return True


def _present_reproduction(folder: Path, out: list[Path] | None, *, measure: str | None, target: float | None) -> None:
    """The paper's figures in a folder of ``fedtempo reproduce``, or what the folder is in their place."""
    from fedtempo.paper.reproduction_page import (
        claims_of,
        is_reproduction,
        read_reproduction,
        reproduction_document,
        show_reproduction,
    )

    if not is_reproduction(folder):
        from fedtempo.cli.found import nothing_to_show

        raise nothing_to_show(folder)
    if measure is not None or target is not None:
        raise InputError(f"--measure and --target: {folder} holds the paper's figures, not a study; leave them out")
    pages = _check_endings(out)
    if len(pages) < len(out or []):
        raise InputError(
            f"--out: {folder} holds the paper's figures; fedtempo reproduce FIGURE --from-results {folder} draws one, "
            "and report.html shows all"
        )
    found = read_reproduction(folder)
    claims = claims_of(found)
    show_reproduction(found, claims)
    if pages:
        made = reproduction_document(found, claims)
        for page in pages:
            made.save(page)
    _say_where(pages, "No page is written; add --out report.html for one.")


def _say_where(paths: list[Path], otherwise: str) -> None:
    typer.echo(f"\n{', '.join(map(str, paths)) or otherwise}")


def present_run(folder: Path, out: list[Path] | None = None) -> None:
    """Reality beside simulation and plan, on standard output and as figures in the folder."""
    record = read_run(folder)
    from fedtempo.flower.comparison import compared
    from fedtempo.flower.run_document import run_document
    from fedtempo.flower.run_figure import save_run
    from fedtempo.flower.run_tables import show_run
    from fedtempo.report.browser.document import is_page

    run = compared(record)
    show_run(run)
    paths = out or [folder / "run.png", folder / "run.svg"]
    for path in paths:
        if is_page(path):
            run_document(run, name=folder.resolve().name).save(path)
        else:
            save_run(run, path)
    _say_where(paths, "")


def present(
    history: History,
    folder: Path | None,
    *,
    out: list[Path] | None = None,
    measure: str | None = None,
    target: float | None = None,
    jobs: str = "",
    name: str = "",
) -> None:
    """The table on standard output; figures and pages where `out` says, or figures in the study's own folder.

    `jobs`: of which it was put together, in words; `name`: of a study without a folder.
    """
    from fedtempo.report.history_figure import save_study
    from fedtempo.report.history_text import show_history

    show_history(history, target=target)
    drawn = measure or "study"
    paths = out or ([] if folder is None else [folder / f"{drawn}.png", folder / f"{drawn}.svg"])
    if not paths:
        typer.echo("\nNothing is drawn; add --out study.svg for a picture.")
        return
    pages = _check_endings(out)
    pictures = [path for path in paths if path not in pages]
    if measure is None and pictures:
        save_study(history, *pictures, target=target)
    elif measure is not None:
        for path in pictures:
            history.plot(measure, path=path)
    if pages:
        _save_pages(history, folder, pages, target=target, jobs=jobs, name=name)
    typer.echo(f"\n{', '.join(str(path) for path in paths)}")


def _save_pages(
    history: History, folder: Path | None, pages: list[Path], *, target: float | None, jobs: str, name: str
) -> None:
    """The study's page, with the study file that its folder keeps."""
    from fedtempo.report.browser.history import history_document
    from fedtempo.simulation.checkpoint import Folder

    description = None
    if folder is not None:
        with suppress(InputError, DataMissing):  # it was started from Python
            description = Folder(folder).description()
        name = folder.resolve().name
    page = history_document(history, name=name, target=target, description=description, jobs=jobs)
    for path in pages:
        page.save(path)
