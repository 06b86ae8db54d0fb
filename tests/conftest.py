"""What every test shares."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A program that several tests compile, here or in processes of their own, is compiled once; also for the next time.
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parent.parent / ".pytest_cache" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

hypothesis.settings.register_profile("the same every time", derandomize=True, deadline=None)
hypothesis.settings.load_profile("the same every time")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands that are run in this process set how loud logging is; the next test is not to hear of it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


SLOW = (
    "test_availability_engines.py::test_engines_agree[absences]",
    "test_availability_engines.py::test_engines_agree[on/off]",
    "test_checkpoint.py::test_a_study_that_was_stopped_goes_on_to_the_same_bits[events-5-stops1]",
    "test_checkpoint.py::test_a_unit_can_be_cut_after_every_stretch[EventMachine-5]",
    "test_checkpoint.py::test_random_times_and_other_numbers_of_cores_go_on_too",
    "test_cli_run.py::test_a_compiled_program_cut_short",
    "test_cli_run.py::test_a_stopped_study_is_kept_and_goes_on",
    "test_engines.py::test_centralized_training_is_sgd_on_all_rows[digits]",
    "test_engines.py::test_events_and_waves_agree_along_the_way[digits]",
    "test_engines.py::test_events_and_waves_do_what_algorithm_1_says[digits]",
    "test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[digits",
    "test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[quadratics-5]",
    "test_engines.py::test_rounds_and_updates_are_those_of_the_timeline[digits]",
    "test_engines.py::test_the_oracle_agrees[digits]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compensation]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compression]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[corrections]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[rivals]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[servers]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[solvers]",
    "test_images.py::test_cifar_by_both_networks_lowers_its_loss",
    "test_methods.py::test_choice_by_losses_goes_on_after_a_stop_to_the_same_bits",
    "test_models.py::test_bfloat16_is_close_and_gradients_keep_the_parameters_type[authors",
    "test_models.py::test_both_orders_of_images",
    "test_models.py::test_init_is_the_same_in_64_bits_and_draws_every_leaf_apart[authors]",
    "test_models.py::test_loss_and_gradient_are_those_of_torch[authors]",
    "test_models.py::test_loss_and_gradient_are_those_of_torch[fedavg-cifar]",
    "test_models.py::test_runs_side_by_side_are_as_one_by_one",
    "test_models.py::test_the_crop_is_central",
    "test_models.py::test_training_lowers_the_loss[authors",
    "test_own_rules.py::test_the_pace_of_coarse_clocks[lognormal-FedBuff(2)]",
    "test_own_rules.py::test_the_pace_of_coarse_clocks[uniform-FedBuff(2)]",
    "test_parts.py::test_and_in_32_bits",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[FedAdaGrad]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[FedDANE]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[FedDyn and TopK]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[FedYogi]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD and SlowMo]",
    "test_parts.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD, steps, rates]",
    "test_reproduce.py::test_the_example_of_an_own_figure_runs",
    "test_reproduce.py::test_the_note_says_what_was_run_and_what_the_paper_has",
    "test_reproduce.py::test_the_rates_of_the_appendix_are_read_back_at_every_scale",
    "test_reproduce.py::test_two_stages_and_what_is_there",
    "test_roles.py::test_it_learns",
    "test_theory_expected.py::test_random_laws_have_the_moments_of_a_long_run[FedBuff(2)-LogNormalTimes",
    "test_theory_forecasting.py::test_simulated_runs_lie_around_the_forecast",
)
"""Tests of many seconds that others stand beside: `make test-slow` runs them, `make test` the rest."""

LONG = (
    "test_engines.py",
    "test_checkpoint.py",
    "test_rival.py",
    "test_parts.py",
    "test_models.py",
    "test_methods.py",
    "test_examples.py",
    "test_planner.py",
    "test_reproduce.py",
    "test_flower_real.py",
    "test_cli_run.py",
    "test_participation.py",
    "test_batches.py",
    "test_theory_constants.py",
)
"""Files of half a minute and more, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones are marked; files that take long come first, so that no process is left with one at the end."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
