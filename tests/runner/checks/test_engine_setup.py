"""Tests what a session notes of its models, and what the setup takes over from the probes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.kernels import native
from mlx_bulk.runner.caches.image_blocks import attend_in_blocks
from mlx_bulk.runner.checks.engine_setup import expected_setups, fit
from mlx_bulk.runner.checks.padding_probe import kv_obstacle
from mlx_bulk.runner.checks.row_limits import row_check
from mlx_bulk.runner.core.errors import ModelError, OutOfRoom, RowError
from mlx_bulk.runner.core.images import ImageTable
from mlx_bulk.runner.core.kv_quantization import KVQuantization
from mlx_bulk.runner.core.logprob_options import LogprobOptions

from ...checkpoints import LLAMA, loaded, write_checkpoint
from ..support.tiny import prompts_of
from ..support.tiny_runs import documents, greedy


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("fitting") / "tiny")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its heads divide into groups."""
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "tiny", LLAMA | {"head_dim": 64})


def test_what_scoring_relies_on_is_tried_where_prompts_are_scored(checkpoint: Path):
    fitted = fit(loaded(checkpoint), BatchConfig(), LogprobOptions(echo=True))
    setup, reference, about = fitted.setup, fitted.reference, fitted.about
    assert (setup.head is not None, setup.features.right_padded, setup.features.shared_passages, reference) == (True, True, True, None)
    assert about["probe"]["scoring"] == {"head": True, "right_padded": True, "shared": True, "reasons": []}


def test_a_reference_is_tried_too_and_both_keep_the_rows_that_fit_beside_each_other(checkpoint: Path):
    model = loaded(checkpoint)
    fitted = fit(model, BatchConfig(), LogprobOptions(echo=True), model)
    setup, reference, about = fitted.setup, fitted.reference, fitted.about
    assert reference is not None
    assert reference.head is not None
    assert reference.limits == setup.limits
    alone = fit(model, BatchConfig(), LogprobOptions(echo=True)).setup
    assert setup.limits.token_bytes == 2 * alone.limits.token_bytes
    assert about["reference"]["probe"]["scoring"]["shared"]


def test_a_job_without_prompt_logprobs_tries_none_of_their_ways(checkpoint: Path):
    fitted = fit(loaded(checkpoint), BatchConfig(), LogprobOptions())
    setup, about = fitted.setup, fitted.about
    assert (setup.head, setup.features.right_padded, setup.features.shared_passages) == (None, False, False)
    assert "scoring" not in about["probe"]


def _warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "sliding window" in record.getMessage()]


def test_a_window_that_a_model_lacks_gives_one_warning(checkpoint: Path, caplog: pytest.LogCaptureFixture):
    fitted = fit(loaded(checkpoint), BatchConfig(), LogprobOptions(echo=True), loaded(checkpoint))
    setup, reference = fitted.setup, fitted.reference
    assert reference is not None
    check = row_check(setup, {"model_type": "one"}, (reference, {"model_type": "other", "sliding_window": 8}))
    with caplog.at_level("WARNING", "mlx_bulk"):
        assert [check(row) for row in documents(prompts_of((8, 9, 10)))] == [None] * 3
    (said,) = _warned(caplog)
    assert said.startswith("row 1 can grow to 9 tokens: the reference's config.json asks for a sliding window of 8, which mlx-lm's other")
    caplog.clear()
    check = row_check(setup, {"model_type": "one", "sliding_window": 9}, (reference, {"model_type": "other", "sliding_window": 8}))
    with caplog.at_level("WARNING", "mlx_bulk"):
        assert [check(row) for row in documents(prompts_of((10, 20)))] == [None] * 2
    assert [said.partition("window of ")[2][:1] for said in _warned(caplog)] == ["9", "8"]


def test_a_row_is_too_large_for_what_both_models_keep_of_it(checkpoint: Path):
    model = loaded(checkpoint)
    alone = fit(model, BatchConfig(), LogprobOptions(echo=True)).setup
    fitted = fit(model, BatchConfig(), LogprobOptions(echo=True), model)
    both, reference = fitted.setup, fitted.reference
    assert reference is not None
    (row,) = documents(prompts_of((20,)))
    room = alone.limits.kv(1, 20)
    alone, both = (replace(of, limits=replace(of.limits, kv_bytes=room)) for of in (alone, both))
    assert row_check(alone, {})(row) is None
    assert "lower score.context" in (row_check(both, {}, (reference, {}))(row) or "")


def test_a_picture_at_the_end_of_a_prompt_is_refused_where_its_tokens_see_each_other_both_ways(checkpoint: Path):
    """A prompt's last token goes through the model by itself, and the picture would be cut."""
    model = loaded(checkpoint)
    check = row_check(fit(model, BatchConfig(), LogprobOptions()).setup, {})
    image = ImageTable(7).register("one", 3, (1, 1, 3), dict)
    ends, goes_on = greedy([[1, 2, *image.ids.tolist()], [1, *image.ids.tolist(), 2]])
    assert [check(ends), check(goes_on)] == [None, None]
    attend_in_blocks(model.network)
    assert check(goes_on) is None
    with pytest.raises(RowError, match="the prompt ends in a picture") as refused:
        check(ends)
    assert refused.value.stage == "image"


def test_in_deterministic_mode_a_row_has_to_fit_as_often_as_a_batch_has_rows(checkpoint: Path):
    setup = fit(loaded(checkpoint), BatchConfig(rows=4, deterministic=True), LogprobOptions(echo=True)).setup
    setup = setup.with_features(any_slot=True)  # whatever the BLAS of this machine
    (row,) = documents(prompts_of((20,)))
    enough = replace(setup.limits, kv_bytes=setup.limits.kv(4, 20))
    assert row_check(replace(setup, limits=enough), {})(row) is None
    with pytest.raises(OutOfRoom, match=r"^row 0: 4 rows of 20 tokens, as many as .*; what was finished is safe.*fewer batch\.rows"):
        row_check(replace(setup, limits=replace(enough, kv_bytes=enough.kv_bytes - 1)), {})(row)


def test_in_deterministic_mode_no_row_is_left_out_for_lack_of_memory(checkpoint: Path):
    """Its batch would then be another: which rows stand together may not depend on this machine's memory."""
    setup = fit(loaded(checkpoint), BatchConfig(rows=4, deterministic=True), LogprobOptions()).setup
    (row,) = greedy(prompts_of((20,)), max_tokens=5)
    enough = replace(setup.limits, kv_bytes=setup.limits.kv(1, 25))
    assert row_check(replace(setup, limits=enough), {})(row) is None
    less = replace(setup, limits=replace(enough, kv_bytes=enough.kv_bytes - 1))
    with pytest.raises(OutOfRoom, match=r"^row 0: 20 prompt tokens and up to 5 more need .* raise batch\.memory .*sampling\.max_tokens"):
        row_check(less, {})(row)
    assert "raise batch.memory" in (row_check(replace(less, static=False), {})(row) or "")


@pytest.mark.parametrize(("start", "words"), [(0, "keys and values"), (5, "keys and values of tokens from number 6 of each row on")])
def test_the_config_says_how_keys_and_values_are_held_and_the_log_repeats_it(
    wide: Path, caplog: pytest.LogCaptureFixture, start: int, words: str
):
    with caplog.at_level("INFO", "mlx_bulk"):
        fitted = fit(loaded(wide), BatchConfig(kv_bits=8, kv_group=32, kv_start=start), LogprobOptions())
    assert fitted.setup.kv == KVQuantization(8, 32, start)
    said = f"tiny: float32 on cpu, batches of up to 32 rows, {words} in 8 bits, groups of 32"
    assert [message.removeprefix(said) for message in caplog.messages if message.startswith(said)] == [
        ", slower on this CPU: its kernel of whole blocks reads no quantized keys" if native.library() is not None else ""
    ]
    assert [fitted.about["batch"][key] for key in ("kv_bits", "kv_group", "kv_start")] == [8, 32, start]


def test_a_reference_quantizes_nothing(wide: Path):
    fitted = fit(loaded(wide), BatchConfig(kv_bits=4), LogprobOptions(reference=True), loaded(wide))
    assert fitted.reference is not None
    assert (fitted.setup.kv, fitted.reference.kv) == (KVQuantization(4), None)


@pytest.mark.parametrize(("bits", "share"), [(8, 72 / 256), (4, 40 / 256)])
def test_more_rows_fit_where_keys_and_values_are_quantized(wide: Path, bits: Any, share: float):
    """Of float32, with two float32 numbers a group of 64; plan counts the same."""
    whole, few = (fit(loaded(wide), BatchConfig(kv_bits=each), LogprobOptions()).setup.limits for each in (None, bits))
    assert few.token_bytes == share * whole.token_bytes
    assert few.row_bytes == 0
    (planned,) = expected_setups([loaded(wide)], BatchConfig(kv_bits=bits), LogprobOptions())
    assert planned.limits == few


@pytest.mark.parametrize(("width", "group", "cure"), [(16, 64, "set batch.kv_bits to null"), (96, 64, "set batch.kv_group to 32, or ")])
def test_heads_that_do_not_divide_into_groups_are_refused_in_one_line(tmp_path: Path, width: int, group: Any, cure: str):
    model = loaded(write_checkpoint(tmp_path / "odd", LLAMA | {"head_dim": width}))
    why = rf"^batch\.kv_bits: keys and values of odd \(llama\) cannot be quantized: its heads of {width} numbers do not divide .*; {cure}"
    config = BatchConfig(kv_bits=8, kv_group=group)
    with pytest.raises(ModelError, match=why):
        fit(model, config, LogprobOptions())
    with pytest.raises(ModelError, match=why):  # a plan says so too
        expected_setups([model], config, LogprobOptions())


def test_attention_that_takes_no_quantized_keys_is_refused(wide: Path):
    model = loaded(wide)
    original: Any = type(model.network.layers[0].self_attn)

    class MultipliesKeys(original):
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            own = mx.zeros((1, 2, x.shape[1], 64))
            keys, _ = cache.update_and_fetch(own, own)
            return x + keys.swapaxes(-1, -2).sum()

    model.network.layers[0].self_attn.__class__ = MultipliesKeys
    assert "its attention takes no quantized keys ('PackedKV' object has no attribute" in kv_obstacle(model.network, KVQuantization(8))
