"""The mistakes of earlier code, and of our own since: for each, the tests that cover it or the work that will.

A name is `file::test`; the test below fails if one is missing, so the table cannot go stale.
"""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.conftest import ROOT

LATER = "later: "
SIM = "sim/test_run.py"
REF, LOOP = "train/step/test_reference.py", "train/test_loop.py"
LOSS, ADV, LOGP = "objectives/test_losses.py", "objectives/test_advantages.py", "objectives/test_logprobs.py"
RESUME, RECIPES = "train/run/test_resume.py", "test_recipes.py"
SERVED = "train/online/test_served.py"
TRL = "integrations/test_trl"
DATA, TOKENS, CONFIG = "train/data/test_data.py", "train/data/test_tokens.py", "train/config/test_config.py"

TRAPS: dict[int, tuple[str, list[str]]] = {
    1: (
        "post-update sync switches the method off",
        [
            f"{REF}::test_post_update_sync_switches_the_method_off",
            f"{SIM}::test_syncing_before_the_update_leaves_a_zero_log_ratio_at_step_0_only",
            f"{SIM}::test_syncing_after_every_update_switches_the_ratio_off",
            f"{TRL}_training.py::test_a_sync_after_the_update_would_switch_the_method_off",
        ],
    ),
    2: (
        "a hook before the optimizer step is too late under DeepSpeed",
        [
            f"{REF}::test_before_step_scores_with_the_weights_before_the_sync",
            "train/run/test_sharded_runs.py::test_other_ways_to_share_out_are_refused_with_the_reason",
        ],
    ),
    3: (
        "FSDP2 goes silently stale after a scoring pass",
        ["train/policy/test_shard.py::test_a_pass_before_the_update_leaves_nothing_stale"],
    ),
    4: (
        "live tensors in place of a snapshot",
        [
            f"{REF}::test_a_live_reference_is_never_aliased",
            f"{SIM}::test_parameters_told_to_each_step_stay_as_they_were",
        ],
    ),
    5: (
        "sync counter and reference are training state",
        [
            f"{RESUME}::test_a_kill_at_every_write_barrier_changes_nothing",
            f"{RESUME}::test_kills_at_random_times_change_nothing",
            f"{RESUME}::test_a_stop_at_any_safe_point_changes_nothing",
            f"{TRL}_resume.py::test_a_run_goes_on_to_the_same_bits_from_the_middle_of_a_window",
            f"{TRL}_resume.py::test_a_checkpoint_without_its_reference_is_refused",
            "train/run/test_distributed.py::test_two_ranks_do_what_one_does",
            "train/run/test_distributed.py::test_any_number_of_processes_goes_on",
            "train/step/test_passes.py::test_a_window_is_found_again_by_any_number_of_processes",
        ],
    ),
    6: (
        "sync belongs to optimizer steps, and works with LoRA",
        [
            f"{REF}::test_before_step_scores_with_the_weights_before_the_sync",
            "train/policy/test_adapter.py::test_scoring_ahead_equals_a_copied_adapter",
            "train/policy/test_adapter.py::test_every_schedule_equals_a_second_adapter",
        ],
    ),
    7: ("k ignored, defaults that differ from the tables", [f"{CONFIG}::test_a_recipe_becomes_types"]),
    8: (
        "masks guessed from log_ratio != 0",
        [f"{LOSS}::test_first_dpo_step_is_ln_2", f"{LOSS}::test_masked_garbage_changes_nothing"],
    ),
    9: (
        "a clip range without 0 turns padding into a contribution",
        ["theory/test_clipping.py::test_refuses_ranges_without_zero", f"{LOSS}::test_padding"],
    ),
    10: (
        "KTO's z_0",
        [
            f"{LOSS}::test_kto_is_equation_7",
            f"{LOSS}::test_reference_point_is_never_negative",
            f"{LOSS}::test_no_gradient_through_the_reference_point",
            f"{LOOP}::test_mismatched_pairs_have_other_prompts",
            f"{LOOP}::test_batches_that_cannot_be_are_refused",
            f"{LOOP}::test_a_step_with_one_prompt_borrows_answers_from_the_stream",
            "train/run/test_distributed.py::test_two_ranks_do_what_one_does",
        ],
    ),
    11: (
        "advantages of pairs and of equal scores",
        [
            f"{ADV}::test_pairs_are_plus_and_minus_one",
            f"{ADV}::test_equal_scores_up_to_rounding_give_zero",
            f"{ADV}::test_settings_of_other_code",
        ],
    ),
    12: (
        "token means per micro-batch",
        [
            f"{LOOP}::test_accumulation_changes_nothing",
            "train/step/test_against_oracle.py::test_a_run_is_the_run_the_paper_describes",
            "train/run/test_distributed.py::test_two_ranks_do_what_one_does",
        ],
    ),
    13: (
        "GRPO's KL term is k3 of the unclipped difference",
        [
            f"{LOSS}::test_kl_term_is_k3_of_baseline_minus_policy",
            "train/step/test_against_oracle.py::test_a_run_is_the_run_the_paper_describes",
        ],
    ),
    14: (
        "humanline on losses without a reference",
        [f"{CONFIG}::test_simpo_is_refused_with_the_papers_reason"],
    ),
    15: (
        "precision of log-probabilities; one path for policy and reference",
        [
            f"{LOGP}::test_bf16_operands_give_float32_logits",
            f"{LOGP}::test_forward_only_is_bitwise_training",
            f"{REF}::test_log_ratios_are_exactly_zero_at_learning_rate_zero",
        ],
    ),
    16: (
        "dropout while scoring, LoRA's too",
        [
            f"{LOOP}::test_dropout_is_off_by_default",
            f"{REF}::test_scoring_never_drops",
            "train/policy/test_adapter.py::test_log_ratios_are_zero_at_rate_zero_with_dropout",
        ],
    ),
    17: (
        "pure bf16 weights swallow updates",
        [
            f"{LOOP}::test_weights_are_float32_masters_under_bf16",
            "train/policy/test_precision.py::test_small_updates_of_bf16_weights_are_not_lost",
            f"{RECIPES}::test_a_recipe_of_the_paper_says_what_is_not_the_papers",
        ],
    ),
    18: ("optimizer settings that never arrive", [f"{LOOP}::test_optimizer_settings_reach_the_optimizer"]),
    19: (
        "masks by token id; truncation",
        [
            f"{TOKENS}::test_the_mask_goes_by_position_when_pad_is_the_end_token",
            f"{TOKENS}::test_a_cut_completion_has_no_end_token_and_the_example_is_untouched",
            f"{TOKENS}::test_pairs_identical_once_cut_are_dropped_and_counted",
        ],
    ),
    20: (
        "prompts too long, completions left empty",
        [
            f"{TOKENS}::test_a_prompt_that_leaves_no_room_is_never_trained_on",
            f"{TOKENS}::test_the_99_percent_limit_is_the_smallest",
        ],
    ),
    21: (
        "one template path",
        [
            f"{TOKENS}::test_the_template_hash_follows_template_and_special_tokens",
            f"{TOKENS}::test_the_prompt_to_sample_from_is_the_prompt_trained_on",
            "train/test_templates.py::test_sampling_scoring_pairing_and_training_read_one_prompt",
            "train/test_templates.py::test_a_server_is_asked_for_all_of_it",
            f"{DATA}::test_spaces_are_kept",
            f"{RESUME}::test_a_changed_model_folder",
            "train/online/test_server.py::test_a_server_that_reads_another_prompt_is_found_out",
            "train/online/test_rewards_models.py::test_it_uses_its_own_template",
        ],
    ),
    22: (
        "malformed lines, nulls and nan scores; the boundary",
        [
            f"{DATA}::test_a_wrong_pair_is_named_by_line_and_reason",
            f"{DATA}::test_a_file_without_rows_is_an_error",
            f"{TOKENS}::test_the_boundary_never_merges",
            f"{TOKENS}::test_the_boundary_holds_where_joint_tokenisation_would_merge",
        ],
    ),
    23: (
        "single-label KTO data, duplicates, contradictions",
        [
            "train/data/test_examples.py::test_a_single_label_is_an_error_unless_allowed",
            f"{DATA}::test_duplicates_and_contradictions_are_reported",
        ],
    ),
    24: (
        "the newest checkpoint is not always good",
        [
            f"{RESUME}::test_damage_to_any_component_falls_back_and_is_named",
            f"{RESUME}::test_only_damaged_checkpoints_are_refused",
            f"{RESUME}::test_a_full_disk_keeps_the_previous_checkpoint_and_the_run",
        ],
    ),
    25: (
        "nan hidden from the log and stepped on",
        [
            f"{LOOP}::test_the_guilty_example_is_named",
            f"{LOOP}::test_an_infinite_gradient_behind_a_finite_loss_is_caught",
            f"{LOOP}::test_a_run_that_blows_up_stops_with_names_and_saves_nothing",
        ],
    ),
    26: (
        "SIGTERM polled in the step loop only",
        [
            f"{RESUME}::test_a_stop_at_any_safe_point_changes_nothing",
            f"{RESUME}::test_a_stop_while_loading_writes_nothing",
            f"{RESUME}::test_a_second_signal_ends_at_once",
            "train/online/test_rounds.py::test_a_stop_while_sampling_loses_nothing",
        ],
    ),
    27: (
        "math-verify in the main process",
        [
            "train/online/test_rewards_pool.py::test_hostile_answers_are_bounded",
            "train/online/test_rewards_pool.py::test_a_thread_may_ask",
            "train/online/test_rewards.py::test_no_text_is_evaluated",
        ],
    ),
    28: (
        "configuration typos, numbers read as strings, duplicate keys",
        [f"{CONFIG}::test_mistakes_are_named_with_place_and_remedy", f"{CONFIG}::test_a_recipe_becomes_types"],
    ),
    29: (
        "remote code and pickle",
        [
            "test_traps.py::test_no_remote_code_and_no_pickle",
            f"{LOOP}::test_code_in_a_model_folder_is_never_run",
            f"{RESUME}::test_checkpoints_hold_no_pickle",
        ],
    ),
    30: (
        "two runs in one directory, secrets, control characters, trackers",
        [
            f"{LOOP}::test_an_output_in_use_is_refused",
            f"{RESUME}::test_a_folder_in_use_is_refused",
            "test_cli.py::test_no_escape_sequence_gets_through_the_command_line",
            "train/run/test_tracking.py::test_a_tracker_that_raises_is_reported_once_and_dropped",
            "train/run/test_tracking.py::test_no_secret_reaches_a_tracker",
            f"{RECIPES}::test_a_name_is_never_a_path",
        ],
    ),
    31: (
        "4-bit layers lose their gradient on CPUs with AVX512-BF16",
        ["train/policy/test_adapter.py::test_four_bits_keep_their_gradients_after_scoring"],
    ),
    32: (
        "accelerate's FSDP2 plugin returns bf16 log-probabilities",
        ["train/policy/test_shard.py::test_bf16_gathers_narrow_weights_and_gives_wide_log_probabilities"],
    ),
    33: (
        "under sharding every forward pass is a collective",
        [
            "train/run/test_sharded_processes.py::test_two_processes_that_share_out_a_policy",
            "train/policy/test_shard.py::test_gradients_are_shared_out_between_micro_batches",
            "train/policy/test_shard.py::test_scoring_ahead_equals_a_second_model",
            "train/step/test_passes.py::test_processes_make_equally_many_passes",
            "train/run/test_distributed.py::test_two_ranks_do_what_one_does",
        ],
    ),
    34: (
        "a launcher kills a stopping run after 30 seconds",
        [
            f"{RECIPES}::test_what_the_environment_asks_of_a_script",
            "train/run/test_distributed.py::test_a_save_that_a_launcher_would_cut_off_is_said_once",
        ],
    ),
    35: (
        "a server's 200 is no proof of new weights",
        [
            f"{SERVED}::test_a_server_that_ignores_new_weights_ends_the_run",
            f"{SERVED}::test_a_server_that_falls_back_to_the_first_weights_is_found",
            f"{SERVED}::test_another_model_is_found_at_the_first_round",
            f"{SERVED}::test_small_changes_are_told_from_rounding",
            "train/online/test_proof.py::test_a_right_server_that_rounds_is_never_refused",
        ],
    ),
    36: (
        "SGLang's names of ids, and n equal texts",
        [
            "train/online/test_untrainable.py::test_ids_that_are_told_are_the_ones_trained_on",
            "train/online/test_server.py::test_a_server_that_draws_the_same_n_times_is_asked_one_by_one",
            "train/online/test_server.py::test_a_server_that_draws_the_same_with_every_seed_is_refused",
        ],
    ),
    37: (
        "ids outside the vocabulary, of another text, or too many",
        [
            "train/online/test_untrainable.py::test_a_server_of_bad_answers_ends_the_run_and_a_healthy_one_goes_on",
            "train/online/test_untrainable.py::test_a_poisoned_round_is_named_and_made_again",
        ],
    ),
    38: (
        "a softmax in float32 misses 1 by more than 1e-6",
        ["theory/test_arguments.py::test_a_softmax_in_float32_is_a_law"],
    ),
    39: (
        "a pool waits for ever for a worker that was killed",
        [
            "reproduce/test_suite.py::test_a_worker_that_dies_ends_the_suite_with_words",
            "sim/test_study.py::test_a_worker_that_dies_ends_the_study_with_words",
        ],
    ),
    40: (
        "failed: 0.0 turns a broken scorer into a finished run",
        ["train/online/test_pairing.py::test_more_than_a_share_without_a_score_ends_the_round"],
    ),
    41: (
        "variants compared at equal learning rates",
        [
            "train/online/test_distance.py::test_both_sums_are_the_divergences_of_every_answer_there_is",
            "reproduce/test_hypotheses.py::test_on_one_curve_the_predictions_hold",
        ],
    ),
    42: (
        "offline GRPO at the online clip is a handicapped baseline",
        [
            "reproduce/test_quick.py::test_the_cells_are_those_of_the_grid_with_the_papers_clips",
            "test_example_gsm8k.py::test_offline_grpo_has_the_papers_clip_humanlines_and_the_widest",
        ],
    ),
}


@functools.cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_trap_is_listed():
    """All of them are here, each with at least one test or the work that will bring it."""
    assert sorted(TRAPS) == list(range(1, 43))
    assert all(what and covered for what, covered in TRAPS.values())


@pytest.mark.parametrize("number", TRAPS)
def test_the_named_tests_exist(number):
    """Every test named for a trap exists."""
    for entry in TRAPS[number][1]:
        if not entry.startswith(LATER):
            file, _, name = entry.partition("::")
            assert name in names_in(file), entry


def test_no_remote_code_and_no_pickle():
    """No code of ours allows remote code, unpickles, or saves with torch.save."""
    for path in (ROOT / "humanline").rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        named = re.search(r"trust_remote_code|pickle|dill|joblib|torch\s*\.\s*(save|load)\b", code)
        for node in ast.walk(ast.parse(code)) if named else ():
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                allowed = isinstance(node.value, ast.Constant) and node.value.value is False
                assert allowed, f"{path.name}:{node.value.lineno} passes trust_remote_code"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {getattr(node, "module", "") or ""}
                assert not names & {"pickle", "dill", "cloudpickle", "joblib"}, path.name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "save"), ("torch", "load")}, path.name
