"""What every test shares."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands that are run in this process set how loud logging is; the next test is not to hear of it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


SLOW = (
    "test_cli_run.py::test_a_compiled_program_cut_short",
    "test_cli_run.py::test_a_stopped_study_is_kept_and_goes_on[15]",
    "test_cli_run.py::test_a_stopped_study_is_kept_and_goes_on[9]",
    "test_engines.py::test_events_and_waves_do_what_algorithm_1_says[digits]",
    "test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[digits",
    "test_engines.py::test_the_oracle_agrees[digits]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compression]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[servers]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[solvers]",
    "test_images.py::test_cifar_by_both_networks_lowers_its_loss",
    "test_models.py::test_both_orders_of_images",
    "test_models.py::test_runs_side_by_side_are_as_one_by_one",
    "test_parts.py::test_and_in_32_bits",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[FedDyn and TopK]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD and SlowMo]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD, steps, rates]",
    "test_reproduce.py::test_the_example_of_an_own_figure_runs",
    "test_reproduce.py::test_two_stages_and_what_is_there",
    "test_roles.py::test_it_learns",
    "test_theory_forecasting.py::test_simulated_runs_lie_around_the_forecast",
)
"""Tests of many seconds that others stand beside: `make test-slow` runs them, `make test` the rest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
