"""What the documents say is what the files beside them say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedtempo.paper.claims import judge, markdown
from fedtempo.paper.figure_file import FIGURES, read_figure
from fedtempo.paper.stages import drawn_path, load, path_of, second_stage, told
from fedtempo.simulation.history.history import History

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = DOCS / "reproduction"


def test_the_page_of_claims_is_judged_from_the_results_beside_it():
    found = {}
    for name in FIGURES:
        parts = read_figure(name, "paper").parts
        there = {part.name: load(drawn_path(RESULTS, part)) for part in parts}
        found[name] = {n: history for n, history in there.items() if history is not None}
    page = (DOCS / "claims.md").read_text(encoding="utf-8")
    assert page == markdown(judge(found)), "fedtempo reproduce claims --from-results docs/reproduction --out docs"


def test_results_were_run_in_the_setting_of_their_figure_files():
    seen = 0
    for name in FIGURES:
        for part in read_figure(name, "paper").parts:
            scout, history = (load(path_of(RESULTS, part, scout=first)) for first in (True, False))
            if scout is not None:
                assert told(scout)["study"] == part.scout
            if history is not None:
                assert history.finished
                assert told(history)["study"] == (part.study if scout is None else second_stage(part, scout))
                seen += 1
    assert seen >= 6


def test_results_hold_no_paths_and_are_small():
    files = sorted(RESULTS.glob("*.nc"))
    assert files
    assert sum(path.stat().st_size for path in files) < 4_000_000
    for path in files:
        attributes = str(History.load(path).attrs)
        assert "/work" not in attributes
        assert "data_dir" not in attributes


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
