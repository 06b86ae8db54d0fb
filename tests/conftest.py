"""What every test shares."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A program that several tests compile, here or in processes of their own, is compiled once; also for the next time. It
# runs for milliseconds, so that optimising it does not pay; `make test-slow` compiles as users do.
if "FEDTEMPO_FULL_COMPILE" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
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
    "simulation/test_engines_unavailable.py::test_engines_agree[absences]",
    "simulation/test_engines_unavailable.py::test_engines_agree[on/off]",
    "simulation/test_checkpoint.py::test_a_study_that_was_stopped_goes_on_to_the_same_bits[events-5-stops1]",
    "simulation/test_checkpoint.py::test_a_unit_can_be_cut_after_every_call[events-5]",
    "simulation/test_checkpoint.py::test_random_times_and_other_numbers_of_cores_go_on_too",
    "cli/test_run.py::test_a_compiled_program_cut_short",
    "cli/test_run.py::test_a_stopped_study_is_kept_and_goes_on",
    "simulation/test_engines.py::test_centralized_training_is_sgd_on_all_rows[digits]",
    "simulation/test_engines.py::test_events_and_waves_agree_along_the_way[digits]",
    "simulation/test_engines.py::test_events_and_waves_do_what_algorithm_1_says[digits]",
    "simulation/test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[digits",
    "simulation/test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[quadratics-5]",
    "simulation/test_engines.py::test_rounds_and_updates_are_those_of_the_timeline[digits]",
    "simulation/test_engines.py::test_the_oracle_agrees[digits]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compensation]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compression]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[corrections]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[published]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[servers]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[solvers]",
    "problems/test_images.py::test_cifar_by_both_networks_lowers_its_loss",
    "training/test_methods.py::test_choice_by_losses_goes_on_after_a_stop_to_the_same_bits",
    "problems/test_models.py::test_bfloat16_is_close_and_gradients_keep_the_parameters_type[authors",
    "problems/test_models.py::test_both_orders_of_images",
    "problems/test_models.py::test_init_is_the_same_in_64_bits_and_draws_every_leaf_apart[authors]",
    "problems/test_models.py::test_loss_and_gradient_are_those_of_torch[authors]",
    "problems/test_models.py::test_loss_and_gradient_are_those_of_torch[fedavg-cifar]",
    "problems/test_models.py::test_runs_side_by_side_are_as_one_by_one",
    "problems/test_models.py::test_the_crop_is_central",
    "problems/test_models.py::test_training_lowers_the_loss[authors",
    "clock/test_own_rules.py::test_the_pace_of_coarse_clocks[lognormal-FedBuff(2)]",
    "clock/test_own_rules.py::test_the_pace_of_coarse_clocks[uniform-FedBuff(2)]",
    "training/test_options.py::test_and_in_32_bits",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedAdaGrad]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedDANE]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedDyn and TopK]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedYogi]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD and SlowMo]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD, steps, rates]",
    "paper/test_reproduce.py::test_the_example_of_an_own_figure_runs",
    "paper/test_reproduce.py::test_the_note_says_what_was_run_and_what_the_paper_has",
    "paper/test_reproduce.py::test_the_rates_of_the_appendix_are_read_back_at_every_scale",
    "paper/test_reproduce.py::test_two_stages_and_what_is_there",
    "problems/test_shakespeare_roles.py::test_it_learns",
    "theory/test_expected.py::test_random_laws_have_the_moments_of_a_long_run[FedBuff(2)-LogNormalTimes",
    "theory/test_forecasting.py::test_simulated_runs_lie_around_the_forecast",
)
"""Tests of many seconds that others stand beside: `make test-slow` runs them, `make test` the rest."""

LONG = (
    "simulation/test_engines.py",
    "simulation/test_checkpoint.py",
    "clock/test_rival.py",
    "training/test_options.py",
    "problems/test_models.py",
    "training/test_methods.py",
    "test_examples.py",
    "planning/test_recommend.py",
    "paper/test_reproduce.py",
    "flower/test_real.py",
    "cli/test_run.py",
    "weighting/test_participation.py",
    "training/test_batches.py",
    "theory/test_constants.py",
)
"""Files of half a minute and more, the longest first."""


def _name(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones are marked; files that take long come first, so that no process is left with one at the end."""
    items.sort(key=lambda item: LONG.index(_name(item)) if _name(item) in LONG else len(LONG))
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
