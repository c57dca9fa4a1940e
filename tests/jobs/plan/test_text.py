"""Tests the lines of a plan that only some jobs have."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.plan.text import plan_as_text
from mlx_bulk.runner.estimate.plan import Plan, plan_run

from ...checkpoints import LLAMA, write_checkpoint
from ..support.bench import Bench


def test_a_plan_says_what_pictures_and_copies_of_weights_take(bench: Bench) -> None:
    config = load_config(bench.write_config(batch={"image_memory": 0.5}), [])
    assert isinstance(config, GenerateConfig)
    plan = plan_run(config, KINDS["generate"])
    assert plan.tower_bytes == 0
    assert "read pictures" not in plan_as_text(plan, 200)
    assert "experts" not in plan_as_text(plan, 200)
    experts = plan_as_text(replace(plan, copy_bytes=3_000_000), 200)
    assert "up to 3.0 MB more hold experts' weights in float32: this CPU multiplies no half precision" in experts
    survey = replace(plan.survey, picture_tokens=[4, 8], pictures={"one"})
    text = plan_as_text(replace(plan, survey=survey, tower_bytes=2_000_000), 200)
    assert "2 in prompts, 12 of the tokens above: 4 to 8 each, mean 6" in text
    assert "not with transformers" not in text
    unlike = " ".join(plan_as_text(replace(plan, survey=survey, uncompared=("of_next_year",)), 200).split())
    assert "pictures of the model type of_next_year were compared with mlx-vlm alone and not with transformers" in unlike
    assert text.index("█") < text.index("pictures  "), "the bars are those of the prompts, and stand below these"
    assert "2.0 MB of the weights read pictures; their features take up to 500 MB more (batch.image_memory)" in text


@pytest.mark.slow
@pytest.mark.cpu_path("it multiplies experts in half precision in float32, one at a time")
def test_copies_of_experts_in_half_precision_are_counted(tmp_path: Path) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "decoder_sparse_step": 1}
    kind = LLAMA | experts | {"model_type": "qwen3_moe", "mlp_only_layers": [], "norm_topk_prob": True}
    bench = Bench(tmp_path, write_checkpoint(tmp_path / "model", kind))

    def planned(dtype: str) -> Plan:
        config = load_config(bench.write_config(model={"dtype": dtype}), [])
        assert isinstance(config, GenerateConfig)
        return plan_run(config, KINDS["generate"])

    half, whole = planned("bfloat16"), planned("float32")
    assert (half.copy_bytes, whole.copy_bytes) == (4 * 96 * LLAMA["hidden_size"], 0)
    assert half.limits.kv_bytes + half.weight_bytes + half.copy_bytes == whole.limits.kv_bytes + whole.weight_bytes
