"""The main stories on the path of Metal and CUDA: mlx's operations alone, on this CPU, in one process of its own.

The path is chosen when mlx-bulk is loaded, hence the process. On a GPU, and with MLX_BULK_CPU=generic, the whole suite takes it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STORIES = (
    "runner/engine/test_engine.py::test_mixed_lengths_are_as_each_row_alone[llama-padded]",
    "runner/engine/test_engine.py::test_rows_leave_and_join_in_the_middle[llama]",
    "runner/engine/test_engine.py::test_top_logprobs_ranks_and_entropies[llama]",
    "runner/engine/test_engine.py::test_a_model_without_a_preference_gives_log_v_and_the_lowest_ids",
    "runner/scoring/test_scorer.py::test_all_figures_wanted_are_there",
    "runner/scoring/test_scorer_outcomes.py::test_ids_that_one_model_lacks_are_left_out_of_the_divergence",
    "runner/engine/test_guided_rows.py::test_samples_of_a_row_differ_and_each_is_whole",
    "runner/layers/test_lm_head.py::test_a_second_model_is_compared_with_the_first",
    "kernels/test_divergence.py",
    "commands/test_sampling.py::test_n_samples_differ_in_seed_and_text_alone",
    "commands/test_sampling.py::test_stop_strings_across_tokens",
    "commands/test_sampling.py::test_plain_draws_follow_the_models_logits",
    "commands/test_run.py::test_batches_and_shards_change_no_answer[batch1]",
    "commands/test_score_closed_forms.py::test_a_bigram_model_gives_each_pair_its_logprob",
    "commands/test_embed_runs.py::test_a_row_is_a_vector_of_one_length_with_its_tokens",
)


@pytest.mark.slow
@pytest.mark.cpu_path("elsewhere the whole suite takes the path of Metal and CUDA")
def test_the_main_stories_on_the_path_of_metal_and_cuda():
    # -n 0 comes behind the project's own options, and wins.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *(str(HERE / each) for each in STORIES)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**variables, "MLX_BULK_CPU": "generic"}
    done = subprocess.run(command, check=False, cwd=HERE.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout  # each of them says something on this path
