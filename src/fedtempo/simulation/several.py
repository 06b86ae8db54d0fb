"""Studies that consist of several: of more than one problem or setting of client times, or with rates to be searched.

    rates to try  →  a study for each problem and times  →  their histories merged  →  rates to try next, or the end

Each of them has a folder of its own, parts/01, parts/02, …, inside the folder of the whole. Which rates come next
follows from the results alone, so that a stopped study goes on through the same parts to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.grid import AUTO, RATE
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.merging import merge
from fedtempo.simulation.history.selection import SEARCHED, compared
from fedtempo.simulation.ledger import Progress
from fedtempo.simulation.live import Live, ending
from fedtempo.simulation.rate_search import at_rates, first_rates, searches, widened
from fedtempo.training.solvers import LocalRule

if TYPE_CHECKING:
    from fedtempo.simulation.study import How, Study

Setting = tuple[str | None, str | None]
"""The names of a problem and of client times; None where the study has only one."""
Run = Callable[["Study", Folder | None, "How"], History]
"""Carries out one study in its folder."""


def run_several(
    studies: Mapping[Setting, Callable[[LocalRule], Study]],
    local: LocalRule,
    folder: Folder | None,
    run: Run,
    how: How,
) -> History:
    """All of the studies, at the rates given or at those that a search finds, as one history."""
    first = first_rates(local) if searches(local) else ()
    tried = at_rates(local, first) if first else local
    each = {
        setting: study(tried).configuration() for setting, study in studies.items()
    }  # all checked before any is run
    live = None if folder is None else Live(folder.live)
    begin = None if folder is None else _beginning(folder, _configuration(each, bool(first)), how.overwrite, live)
    told = _Told(_followed(how.on_progress, live), len(studies), searching=bool(first))
    with ending(live):
        return _run_all(studies, local, first, folder, run, replace(how, on_progress=None), begin, told)


def _run_all(
    studies: Mapping[Setting, Callable[[LocalRule], Study]],
    local: LocalRule,
    first: tuple[float, ...],
    folder: Folder | None,
    run: Run,
    how: How,
    begin: Callable[[], None] | None,
    told: _Told,
) -> History:
    """One after the other, until no more rates follow."""
    whole: History | None = None
    rates, ended, rounds, number = first, None, 0, 0
    while ended is None:
        done: dict[Setting, History] = {}
        rounds += 1
        for setting, study in studies.items():
            number += 1
            before = (whole, dict(done), setting)

            def so_far(part: History, before: tuple[Any, ...] = before) -> None:
                if folder is not None:
                    earlier, others, here = before
                    _unfinished(_added(earlier, {**others, here: part})).save(folder.history)

            asked = study(at_rates(local, rates) if rates else local)
            place = None if folder is None else folder.part(number, begin if number == 1 else None)
            own = replace(
                how,
                overwrite=how.overwrite and number == 1,
                on_progress=told.of(len(rates) or 1),
                on_history=so_far,
                where=_labels(setting),
            )
            done[setting] = run(asked, place, own)
        whole = _added(whole, done)
        if not first:
            break
        tried = whole.dataset[RATE].values.tolist()
        following = widened(tried, _scores(whole), first)
        rates, ended = following.rates, following.ended
    assert whole is not None
    if first:
        about = {"rates": whole.dataset[RATE].values.tolist(), "first": list(first), "rounds": rounds, "ended": ended}
        whole = _with(whole, {SEARCHED: json.dumps(about)})
    if folder is not None:
        whole.save(folder.history)
    return whole


def _labels(setting: Setting) -> dict[str, object]:
    """The names of a setting, where it has them."""
    return {kind: name for kind, name in zip(("problem", "times"), setting, strict=True) if name is not None}


def _beginning(folder: Folder, configuration: dict[str, Any], overwrite: bool, live: Live | None) -> Callable[[], None]:
    """What makes the folder that of the whole, when its first part begins: what cannot be run leaves no folder."""
    replaced = overwrite and folder.holds_a_study()
    if not replaced:
        folder.check(configuration)

    def begin() -> None:
        if replaced:
            folder.clear()
        folder.begin(configuration, {"blocks": 1})
        if live is not None:
            live.begin({"parts": True})

    return begin


def _followed(told: Callable[[Progress], None] | None, live: Live | None) -> Callable[[Progress], None] | None:
    """Who is told of progress, and the file for those who watch."""
    if live is None:
        return told

    def tell(progress: Progress) -> None:
        live.progress(progress.done)
        if told is not None:
            told(progress)

    return tell


def _configuration(each: Mapping[Setting, dict[str, Any]], searching: bool) -> dict[str, Any]:
    """All that is needed to repeat the studies: that of the first, and by name what differs."""
    whole = dict(next(iter(each.values())))
    if any(problem is not None for problem, _ in each):
        for key in ("problem", "fingerprint"):
            whole[key] = {str(problem): one[key] for (problem, _), one in each.items()}
    if any(times is not None for _, times in each):
        for key in ("times", "law"):
            whole[key] = {str(times): one[key] for (_, times), one in each.items()}
    if searching:
        whole["local"] = {**whole["local"], RATE: AUTO}
    return whole


def _added(whole: History | None, parts: Mapping[Setting, History]) -> History:
    """The parts as one history, with what there was."""
    by_problem: dict[str | None, dict[str | None, History]] = {}
    for (problem, times), part in parts.items():
        by_problem.setdefault(problem, {})[times] = part
    found = {problem: _named(of_times, "times") for problem, of_times in by_problem.items()}
    one = _named(found, "problem")
    return one if whole is None else merge([whole, one])


def _named(parts: Mapping[str | None, History], dim: str) -> History:
    names = {name: part for name, part in parts.items() if name is not None}
    return merge(names, dim=dim) if names else parts[None]


def _scores(history: History) -> NDArray[np.float64]:
    """[rates, settings × schemes × weight rules]: the final loss at the best of the other hyper-parameters."""
    losses = history.final("loss").mean("seed").where(~history.diverged.any("seed"))
    others = [d for d in losses.dims if d not in (*compared(losses.dims), RATE)]
    table = losses.min(others).transpose(RATE, ...).values.reshape(losses.sizes[RATE], -1)
    ran = history.begun.any([RATE, "seed", *others]).transpose(*compared(losses.dims)).values.reshape(-1)
    return np.asarray(table[:, ran], dtype=np.float64)


def _with(history: History, attrs: Mapping[str, Any]) -> History:
    return replace(history, dataset=history.dataset.assign_attrs(attrs))


def _unfinished(history: History) -> History:
    return _with(history, {"finished": 0})


@dataclass
class _Told:
    """Passes the progress of one study on as that of all."""

    on_progress: Callable[[Progress], None] | None
    settings: int
    searching: bool
    _done: float = 0.0
    """Studies at one rate that are done."""
    _updates: int = 0
    _seconds: float = 0.0
    _shown: float = field(default=0.0)

    def of(self, rates: int) -> Callable[[Progress], None] | None:
        """For the next study, of so many rates."""
        if self.on_progress is None:
            return None
        tell, before = self.on_progress, (self._done, self._updates, self._seconds)
        expected = self.settings * (7 if self.searching else 1)  # 3 rates, then 4 closer to the best

        def pass_on(progress: Progress) -> None:
            self._done = before[0] + rates * progress.done
            self._updates, self._seconds = before[1] + progress.updates, before[2] + progress.seconds
            self._shown = max(self._shown, min(1.0, self._done / max(expected, before[0] + rates)))
            tell(replace(progress, done=self._shown, updates=self._updates, seconds=self._seconds))

        return pass_on
