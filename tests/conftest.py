"""What every test shares."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A program that several tests compile, here or in processes of their own, is compiled once; also for the next time. It
# runs for milliseconds, so that optimising it does not pay, and the plain loops of XLA are compiled faster than its
# fused ones; `make test-slow` compiles as users do.
if "FEDTEMPO_FULL_COMPILE" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parent.parent / ".pytest_cache" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "FEDTEMPO_CACHE": "off",
}

# Programs are many small objects that live long: looking for cycles among them takes a tenth of the time.
gc.set_threshold(100_000, 20, 50)

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
    "cli/test_cli.py::test_a_plan_for_exponential_clients",
    "cli/test_cli.py::test_planning_loads_nothing_heavy[plan --times 1,2,3 --law exponential",
    "cli/test_run.py::test_a_compiled_program_cut_short",
    "cli/test_run.py::test_a_folder_that_is_taken",
    "cli/test_run.py::test_a_problem_of_ones_own",
    "cli/test_run.py::test_a_stopped_study_is_kept_and_goes_on",
    "cli/test_run.py::test_quadratics_random_times_and_other_solvers",
    "clock/test_own_rules.py::test_the_pace_of_coarse_clocks[lognormal-FedBuff(2)]",
    "clock/test_own_rules.py::test_the_pace_of_coarse_clocks[uniform-FedBuff(2)]",
    "flower/test_guard.py::test_a_run_killed_in_the_middle_of_a_recovery_goes_on",
    "flower/test_guard.py::test_the_oracle_makes_the_same_model[mix]",
    "flower/test_parity.py::test_a_client_that_fails_now_and_then_counts_by_its_importance[fedbuff]",
    "flower/test_parity.py::test_a_client_that_fails_now_and_then_counts_by_its_importance[fedfix]",
    "flower/test_parity.py::test_a_client_with_two_speeds_counts_by_its_importance[async]",
    "flower/test_parity.py::test_a_client_with_two_speeds_counts_by_its_importance[fedbuff]",
    "flower/test_parity.py::test_tries_before_rests_count_too[fedbuff]",
    "flower/test_parity.py::test_tries_before_rests_count_too[fedfix]",
    "flower/test_damage.py::test_whatever_is_done_to_a_folder_is_said_in_a_sentence[many]",
    "flower/test_real.py",
    "flower/test_saving.py::test_a_process_that_is_ended",
    "flower/test_step.py::test_weights_and_model_are_the_simulators[fedbuff",
    "flower/test_step.py::test_one_late_first_answer[async",
    "flower/test_robust_rules.py::test_the_model_is_the_simulators[fedfix-trimmed-mean-True]",
    "flower/test_robust_rules.py::test_a_killed_run_comes_to_the_same_bits[median]",
    "training/test_robust_rules.py::test_every_engine_gives_one_answer[krum]",
    "training/test_robust_rules.py::test_digits_are_learned_beside_the_hostile[median]",
    "weighting/test_measured.py::test_over_many_rounds_every_client_counts_by_its_importance[FedBuff(2)",
    "weighting/test_measured.py::test_every_weight_is_what_the_rule_says[FedBuff(2)-exponential",
    "paper/test_claims.py::test_a_scheme_that_diverges_at_every_rate",
    "paper/test_claims.py::test_a_rise_before_the_time_of_which_the_paper_speaks_does_not_count",
    "paper/test_claims.py::test_one_partition_decides_nothing_however_many_its_seeds[2]",
    "paper/test_claims.py::test_one_partition_decides_nothing_however_many_its_seeds[12]",
    "paper/test_paper_figures.py::test_one_seed_has_no_bands_over_seeds",
    "paper/test_paper_figures.py::test_rates_of_nothing_of_one_and_of_several_steps",
    "paper/test_paper_figures.py::test_the_curves_of_schemes_are_means_at_their_best_rates",
    "paper/test_paper_figures.py::test_the_same_figure_gives_the_same_bytes[schemes-svg]",
    "paper/test_paper_figures.py::test_there_is_a_panel_for_each_rate_on_the_same_axes[14-shape0]",
    "paper/test_paper_figures.py::test_time_is_labelled_once_a_column",
    "paper/test_reproduce.py::test_a_second_stage_on_other_data_is_refused",
    "paper/test_reproduce.py::test_a_study_on_stored_data_takes_the_folder_too",
    "paper/test_reproduce.py::test_claims_are_judged_from_results_on_disk",
    "paper/test_reproduce.py::test_figure_2_on_small_files_in_the_true_formats",
    "paper/test_reproduce.py::test_overwriting_replaces_another_setting_only_and_can_be_stopped",
    "paper/test_reproduce.py::test_schemes_go_on_at_rates_of_their_own",
    "paper/test_reproduce.py::test_the_example_of_an_own_figure_runs",
    "paper/test_reproduce.py::test_the_note_says_what_was_run_and_what_the_paper_has",
    "paper/test_reproduce.py::test_the_rates_of_the_appendix_are_read_back_at_every_scale",
    "paper/test_reproduce.py::test_two_stages_and_what_is_there",
    "planning/test_compare.py::test_pace_idleness_and_delay_are_those_of_a_long_timeline[exponential-FedBuff(3)]",
    "planning/test_compare.py::test_pace_idleness_and_delay_are_those_of_a_long_timeline[uniform-FedBuff(3)]",
    "planning/test_compare_unavailable.py::test_clients_that_never_stay_long_enough_are_refused",
    "planning/test_compare_unavailable.py::test_the_pages_example",
    "planning/test_recommend.py::test_a_recommendation_says_what_it_rests_on",
    "planning/test_recommend.py::test_it_can_be_planned[exponential]",
    "planning/test_recommend.py::test_it_can_be_planned[weights]",
    "planning/test_recommend.py::test_it_is_not_worse_than_fedavg_at_its_best_rate",
    "planning/test_recommend.py::test_the_budget_is_kept[10m]",
    "problems/test_images.py::test_a_federated_test_loss_is_the_weighted_mean_over_clients",
    "problems/test_images.py::test_cifar_by_both_networks_lowers_its_loss",
    "problems/test_models.py::test_bfloat16_is_close_and_gradients_keep_the_parameters_type[authors",
    "problems/test_models.py::test_bfloat16_is_close_and_gradients_keep_the_parameters_type[lstm",
    "problems/test_models.py::test_bfloat16_rounds_no_sum_over_rows",
    "problems/test_models.py::test_both_orders_of_images",
    "problems/test_models.py::test_images_are_scaled_by_mean_and_deviation",
    "problems/test_models.py::test_init_is_the_same_in_64_bits_and_draws_every_leaf_apart[authors]",
    "problems/test_models.py::test_init_is_the_same_in_64_bits_and_draws_every_leaf_apart[lstm]",
    "problems/test_models.py::test_loss_and_gradient_are_those_of_torch[authors]",
    "problems/test_models.py::test_loss_and_gradient_are_those_of_torch[fedavg-cifar]",
    "problems/test_models.py::test_recurrence_and_its_gradient_are_those_of_the_equations",
    "problems/test_models.py::test_runs_side_by_side_are_as_one_by_one",
    "problems/test_models.py::test_the_crop_is_central",
    "problems/test_models.py::test_training_lowers_the_loss[authors",
    "problems/test_models.py::test_training_lowers_the_loss[lstm",
    "problems/test_shakespeare_roles.py::test_it_learns",
    "report/test_history_report.py::test_files_are_the_same_twice",
    "schemes/test_sampling_training.py::test_the_cure_goes_to_the_optimum_and_the_criterion_elsewhere",
    "simulation/test_checkpoint.py::test_a_disk_that_is_full_leaves_the_last_checkpoint",
    "simulation/test_checkpoint.py::test_a_file_system_without_room_leaves_the_last_checkpoint",
    "simulation/test_checkpoint.py::test_a_study_that_was_stopped_goes_on_to_the_same_bits[events-1-stops0]",
    "simulation/test_checkpoint.py::test_a_study_that_was_stopped_goes_on_to_the_same_bits[events-5-stops1]",
    "simulation/test_checkpoint.py::test_a_unit_can_be_cut_after_every_call[events-5]",
    "simulation/test_checkpoint.py::test_an_interrupt_keeps_the_partial_history",
    "simulation/test_checkpoint.py::test_kill_9_at_any_moment_loses_the_last_interval_at_most",
    "simulation/test_checkpoint.py::test_random_times_and_other_numbers_of_cores_go_on_too",
    "simulation/test_engines.py::test_a_nested_model_with_adam_metrics_and_no_test_rows",
    "simulation/test_engines.py::test_a_scheme_without_a_round_keeps_its_first_model",
    "simulation/test_engines.py::test_centralized_training_is_sgd_on_all_rows[digits]",
    "simulation/test_engines.py::test_centralized_training_is_sgd_on_all_rows[quadratics]",
    "simulation/test_engines.py::test_events_and_waves_agree_along_the_way[digits]",
    "simulation/test_engines.py::test_events_and_waves_do_what_algorithm_1_says[digits]",
    "simulation/test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[digits",
    "simulation/test_engines.py::test_in_32_bits_all_agree_to_a_ten_thousandth[quadratics-5]",
    "simulation/test_engines.py::test_random_times_epochs_momentum_and_clipping",
    "simulation/test_engines.py::test_rounds_and_updates_are_those_of_the_timeline[digits]",
    "simulation/test_engines.py::test_rules_of_ones_own_full_gradients_and_a_model_that_is_one_number",
    "simulation/test_engines.py::test_runs_do_not_touch_each_other_and_diverge_at_the_same_time",
    "simulation/test_engines.py::test_small_pieces_and_a_growing_number_of_slots_change_nothing[events]",
    "simulation/test_engines.py::test_small_pieces_and_a_growing_number_of_slots_change_nothing[waves]",
    "simulation/test_engines.py::test_the_oracle_agrees[digits]",
    "simulation/test_engines.py::test_the_oracle_agrees[quadratics]",
    "simulation/test_engines_unavailable.py::test_engines_agree[absences]",
    "simulation/test_engines_unavailable.py::test_engines_agree[failures]",
    "simulation/test_engines_unavailable.py::test_engines_agree[on/off]",
    "simulation/test_engines_unavailable.py::test_seeds_have_timelines_of_their_own_where_anything_is_drawn",
    "simulation/test_measures.py::test_a_history_holds_what_its_models_have[True-events]",
    "simulation/test_states.py::test_corrections_and_compression_do_not_see_the_state",
    "simulation/test_states.py::test_every_engine_does_what_the_oracle_does[batch norm-1-",
    "simulation/test_states.py::test_every_engine_does_what_the_oracle_does[dropout-1-waves]",
    "simulation/test_states.py::test_every_engine_does_what_the_oracle_does[dropout-5-",
    "simulation/test_states.py::test_a_stopped_study_goes_on_to_the_same_bits[waves]",
    "simulation/test_states.py::test_what_is_drawn_depends_on_seed_client_job_and_step_alone",
    "simulation/test_study.py::test_a_study_in_which_all_diverge_ends_early",
    "simulation/test_study.py::test_schemes_may_have_rates_of_their_own",
    "simulation/test_unit_runner.py::test_a_single_scheme_is_cut_so_that_every_core_has_work",
    "simulation/test_unit_runner.py::test_a_stop_keeps_what_earlier_calls_had_measured",
    "simulation/test_unit_runner.py::test_metrics_of_ones_own_are_measured_and_resumed",
    "simulation/test_unit_runner.py::test_progress_of_a_resumed_study_counts_what_this_call_does",
    "simulation/test_unit_runner.py::test_studies_run_in_other_threads_too",
    "test_examples.py::test_a_command_of_the_readme_runs[fedtempo plan --clients 20 --times F80]",
    "test_examples.py::test_a_command_of_the_readme_runs[fedtempo plan --times 1,2,2.5,7 --law exponential",
    "test_examples.py::test_a_command_of_the_readme_runs[fedtempo theory",
    "test_examples.py::test_an_example_prints_what_is_kept[own_model]",
    "test_examples.py::test_the_code_of_the_theory_runs",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[availability]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compensation]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[compression]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[corrections]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[published]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[sampling]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[servers]",
    "test_examples.py::test_the_example_of_a_page_prints_what_it_shows[solvers]",
    "test_old_names.py::test_the_readme_of_060_runs_with_warnings_at_most",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[compression]",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[correction]",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[nested]",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[problem]",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[scheme_weights]",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[solver]",
    "test_own_parts.py::test_a_study_from_somebody_else_runs_no_code[weights]",
    "test_own_parts.py::test_solvers_corrections_and_optax_by_name",
    "theory/test_bounds.py::test_an_unknown_convex_loss_is_bounded_with_a_note",
    "theory/test_constants.py::test_closed_forms_agree_with_jax[logistic, features first]",
    "theory/test_constants.py::test_curvatures_of_quadratics_and_of_unknown_losses",
    "theory/test_constants.py::test_problems_that_bounds_do_not_cover_are_refused",
    "theory/test_constants.py::test_the_steps_from_sigma_1_and_sigma_2_to_sigma_are_false",
    "theory/test_expected.py::test_random_laws_have_the_moments_of_a_long_run[FedBuff(2)-LogNormalTimes",
    "theory/test_forecasting.py::test_simulated_runs_lie_around_the_forecast",
    "theory/test_forecasting.py::test_the_stationary_loss_of_random_rounds",
    "theory/test_stability.py::test_exponential_times_by_cloned_runs",
    "training/test_batches.py::test_one_seed_gives_the_same_batches_under_every_scheme[waves-float64-epochs]",
    "training/test_compression.py::test_other_types_are_sent_in_float32_and_come_back_as_they_were[float64",
    "training/test_convergence.py::test_the_cycle_closes_in_on_the_minimiser_of_what_is_weighted[time-based-AsyncFedAvg]",
    "training/test_convergence.py::test_training_ends_in_a_cycle",
    "training/test_methods.py::test_a_rival_has_one_row_whatever_weight_rules_a_study_compares",
    "training/test_methods.py::test_adaptive_solvers_work_under_staleness",
    "training/test_methods.py::test_bytes_count_what_is_sent_up_and_down",
    "training/test_methods.py::test_choice_by_losses_goes_on_after_a_stop_to_the_same_bits",
    "training/test_methods.py::test_corrections_with_memory_reach_the_optimum_even_under_weights_that_are_biased[FedFix",
    "training/test_methods.py::test_the_three_ways_agree_to_first_order_and_differ_in_the_second",
    "training/test_options.py::test_and_in_32_bits",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedAdaGrad]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedDANE]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedDyn and TopK]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedDyn]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[FedYogi]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[LowRank]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[QSGD]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD and SlowMo]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[SCAFFOLD, steps, rates]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[SlowMo]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[TopK]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[any Optax]",
    "training/test_options.py::test_every_engine_gives_one_answer_with_each_part[steps]",
    "training/test_robust_rules.py::test_digits_are_learned_beside_the_hostile[krum]",
    "training/test_robust_rules.py::test_digits_are_learned_beside_the_hostile[norm-clipping]",
    "training/test_robust_rules.py::test_digits_are_learned_beside_the_hostile[trimmed-mean]",
    "training/test_robust_rules.py::test_every_engine_gives_one_answer[median]",
    "training/test_robust_rules.py::test_every_engine_gives_one_answer[norm-clipping]",
    "training/test_robust_rules.py::test_every_engine_gives_one_answer[trimmed-mean]",
    "weighting/test_participation.py::test_an_estimate_depends_on_its_seed_alone",
    "weighting/test_participation.py::test_every_client_counts_by_its_importance_in_a_long_run[FedBuff(2)-bootstrap]",
    "planning/test_race.py::test_the_bound_holds_on_pure_noise[around zero]",
    "planning/test_race.py::test_the_bound_holds_on_pure_noise[negative]",
    "planning/test_recommend.py::test_it_can_be_planned[worst]",
    "planning/test_recommend.py::test_seconds_end_it",
    "planning/test_recommend.py::test_accuracy_is_made_large",
    "planning/test_recommend.py::test_it_can_be_planned[FedProx]",
    "planning/test_recommend.py::test_it_can_be_planned[SlowMo]",
    "planning/test_recommend.py::test_it_can_be_planned[bytes]",
    "planning/test_recommend.py::test_it_can_be_planned[momentum]",
    "paper/test_paper_figures.py::test_the_same_figure_gives_the_same_bytes[rates-svg]",
    "paper/test_paper_figures.py::test_the_same_figure_gives_the_same_bytes[weights-png]",
    "simulation/test_field.py::test_a_run_beside_fewer_and_fewer_others_keeps_its_bits[clients with a memory-waves]",
    "simulation/test_field.py::test_a_run_beside_fewer_and_fewer_others_keeps_its_bits[compression-waves]",
    "simulation/test_field.py::test_a_run_beside_fewer_and_fewer_others_keeps_its_bits[in 32 bits-waves]",
    "simulation/test_field.py::test_a_run_beside_fewer_and_fewer_others_keeps_its_bits[random times-waves]",
    "simulation/test_several.py::test_a_search_over_problems_of_other_shapes_is_kept_in_a_folder",
    "simulation/test_several.py::test_a_stopped_study_goes_on_through_its_parts_to_the_same_bits[searched]",
    "simulation/test_states.py::test_every_engine_does_what_the_oracle_does[batch norm-5-events]",
    "simulation/test_states.py::test_the_pilot_and_the_theory_say_that_they_need_a_plain_loss[batch norm]",
    "test_examples.py::test_an_example_prints_what_is_kept[first_study]",
    "simulation/test_field.py::test_a_run_beside_fewer_and_fewer_others_keeps_its_bits[problem with a state-waves]",
    "weighting/test_participation.py::test_every_client_counts_by_its_importance_in_a_long_run[FedBuff(2)-lognormal]",
    "weighting/test_participation.py::test_every_client_counts_by_its_importance_in_a_long_run[FedBuff(4)-",
    "weighting/test_participation.py::test_rounds_come_at_the_expected_pace_in_a_long_run[FedBuff(2)-bootstrap]",
    "weighting/test_participation.py::test_rounds_come_at_the_expected_pace_in_a_long_run[FedBuff(2)-lognormal]",
    "weighting/test_participation.py::test_rounds_come_at_the_expected_pace_in_a_long_run[FedBuff(4)-",
    "weighting/test_shares_when_unavailable.py::test_errors_of_estimates_are_honest_and_small",
    "weighting/test_shares_when_unavailable.py::test_weights_make_clients_count_by_their_importance[FedBuff",
    "weighting/test_shares_when_unavailable.py::test_weights_make_clients_count_by_their_importance[MultinomialSampling",
    "weighting/test_shares_when_unavailable.py::test_weights_make_clients_count_by_their_importance[UniformSampling",
    "weighting/test_steps.py::test_no_order_of_two_thousand_diverges_below_the_bound",
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
    "cli/test_run.py",
    "weighting/test_participation.py",
    "training/test_batches.py",
    "theory/test_constants.py",
)
"""Files of half a minute and more, the longest first."""


TORCH = ("problems/torch/", "simulation/test_torch_")
"""Tests of PyTorch modules: `make test-torch` runs them."""


def _name(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones are marked; files that take long come first, so that no process is left with one at the end."""
    items.sort(key=lambda item: LONG.index(_name(item)) if _name(item) in LONG else len(LONG))
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
        if _name(item).startswith(TORCH):
            item.add_marker(pytest.mark.torch)
