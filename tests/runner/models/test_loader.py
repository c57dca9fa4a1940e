"""Tests loading of checkpoints: messages, precision, quantization, adapters."""

import importlib
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.kernels import backend, native
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.models.checkpoint import checkpoint_fingerprints, find_checkpoint
from mlx_bulk.runner.models.loader import outline
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_lm.utils import load as mlx_lm_load
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from ...checkpoints import LLAMA, VOCABULARY, loaded, logprobs, write_adapter, write_checkpoint, write_quantized

on_cpu = pytest.mark.skipif(backend.device_name() != "cpu", reason="what the CPU does by itself")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


# --------------------------------------------------------------------------------------------- what cannot be loaded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "martian"}, "mlx-lm has no model type 'martian'; a newer mlx-lm may"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "BertModel is an encoder, .*job: embed makes vectors with it"),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
            "BertForSequenceClassification is a classifier or reward model, which predicts no next token; job: classify runs it",
        ),
        ({"hidden_size": 32}, r"Expected shape \(2048, 32\) but received shape \(2048, 64\)"),
        ({"hidden_size": 32}, r"config\.json and the weights do not fit each other: .*; fetch both anew from one place"),
        (
            {"num_attention_heads": 0},
            r"config\.json says num_attention_heads: 0; expected whole numbers of at least 1; fetch config\.json anew",
        ),
        ({"hidden_size": 1.5, "vocab_size": "x\n"}, r"config\.json says hidden_size: 1\.5, vocab_size: 'x\\n'; expected"),
        ({"num_hidden_layers": 3}, r"Missing 9 parameters:.*more lines; --log-level debug shows them"),
        (
            {"num_hidden_layers": 3},
            r"fit each other: Missing 9 parameters: model\.layers\.2\.\S+, model\.layers\.2\.\S+ \(and 7 more lines",
        ),
    ],
)
def test_weights_and_config_that_do_not_fit(tmp_path: Path, tiny: Path, change: dict[str, Any], message: str):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(LLAMA | change))
    with pytest.raises(ModelError, match=f"^model.path: {folder} cannot be loaded: .*{message}") as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("../../other/x.safetensors", "lies outside of the folder and is not read"), ("model-9.safetensors", "is not there")],
)
def test_weights_that_the_index_names_and_nobody_reads(tmp_path: Path, tiny: Path, name: str, reason: str):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 3}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.layers.2.x": name}}))
    with pytest.raises(ModelError, match=f"cannot be loaded: model.safetensors.index.json names {name}, which {reason}; fetch the model"):
        loaded(folder)


def test_a_model_file_that_leaves_the_process_is_a_model_that_cannot_be_loaded(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "hf_olmo", None)  # what mlx-lm's olmo.py leaves the process for
    monkeypatch.delitem(sys.modules, "mlx_lm.models.olmo", raising=False)
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(LLAMA | {"model_type": "olmo"}))
    with pytest.raises(ModelError, match="cannot be loaded: mlx-lm's file of the model type 'olmo' gives up; what it has printed says why"):
        loaded(folder)


def test_a_model_that_takes_no_prompt_of_two_tokens_is_not_loaded(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    llama: Any = importlib.import_module("mlx_lm.models.llama")
    call = llama.Model.__call__

    def one(self: Any, tokens: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        if tokens.shape[1] > 1:
            raise TypeError("the mask is a word")
        return call(self, tokens, *args, **kwargs)

    monkeypatch.setattr(llama.Model, "__call__", one)
    with pytest.raises(ModelError, match="cannot be loaded: the mask is a word"):
        loaded(tiny)


# ---------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_what_the_weights_have(tiny: Path, dtype: str):
    model = loaded(tiny, dtype=dtype)
    assert model.dtype == dtype
    arrays: Any = [array for _, array in tree_flatten(model.network.parameters())]
    assert {str(array.dtype) for array in arrays} == {f"mlx.core.{dtype}"}
    assert model.vocabulary == VOCABULARY
    assert model.parameter_bytes == sum(array.nbytes for array in arrays)


@on_cpu
def test_auto_is_float32_on_the_cpu(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "half")
    weights: Any = mx.load(str(tiny / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), {k: v.astype(mx.float16) for k, v in weights.items()}, {"format": "mlx"})
    assert loaded(folder).dtype == "float32"


@pytest.mark.cpu_path("its kernels read dense weights")
def test_weights_that_are_views_are_copied_once_at_load(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    truth = loaded(tiny).network

    def turned(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        return {name: mx.contiguous(array.T).T if "q_proj" in name else array for name, array in weights.items()}

    monkeypatch.setattr("mlx_lm.models.llama.Model.sanitize", turned, raising=False)
    found: dict[str, Any] = dict(tree_flatten(loaded(tiny).network.parameters()))
    expected: dict[str, Any] = dict(tree_flatten(truth.parameters()))
    for name, array in expected.items():
        assert native.layout(found[name]).c_contiguous, name
        assert mx.array_equal(found[name], array), name


@on_cpu
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_become_float32_where_they_fit(tmp_path: Path, bits: int):
    folder = write_quantized(tmp_path / "quantized", bits)
    model = loaded(folder)
    assert model.dtype == "float32"
    assert not any(name.endswith("scales") for name, _ in tree_flatten(model.network.parameters()))
    own = mlx_lm_load(str(folder))[0]
    own.set_dtype(mx.float32)
    # The same numbers, multiplied in another order.
    np.testing.assert_allclose(logprobs(model.network), logprobs(own), rtol=0, atol=1e-4)


@on_cpu
@pytest.mark.parametrize("served", [True, False])
def test_quantized_weights_stay_so_where_they_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, served: bool
):
    """In our kernels if there are any: a model of any size, as mlx's products are far slower."""
    if served and native.library() is None:
        pytest.skip("no kernels here")
    if not served:
        monkeypatch.setattr(native, "library", lambda: None)
    folder = write_quantized(tmp_path / "quantized")
    with caplog.at_level(logging.INFO, "mlx_bulk"):
        logging.getLogger("mlx_bulk").addHandler(caplog.handler)
        try:
            model = loaded(folder, memory=1000)
        finally:
            logging.getLogger("mlx_bulk").removeHandler(caplog.handler)
    assert any(name.endswith("scales") for name, _ in tree_flatten(model.network.parameters()))
    said = next(record for record in caplog.records if "quantized" in record.message)
    assert said.message.startswith(
        "the weights stay quantized (as float32 they would take 1.3 MB; 750 bytes is three quarters of what batch.memory leaves, "
        "and cached tokens need the rest)"
    )
    assert (said.levelname, "matrix products are slow" in said.message) == (("INFO", False) if served else ("WARNING", True))
    own = mlx_lm_load(str(folder))[0]
    own.set_dtype(mx.float32)
    np.testing.assert_allclose(logprobs(model.network), logprobs(own), rtol=0, atol=1e-4)
    assert ("linear" in context_of(model.network).used) == served


def test_block_float_weights_are_float32_on_the_cpu(tmp_path: Path):
    """mlx dequantizes mxfp4 to bfloat16, whose noise the probe would have to allow for."""
    folder = write_checkpoint(tmp_path / "whole")
    network, config = load_model(folder)
    network, config = quantize_model(network, config, group_size=32, bits=4, mode="mxfp4")
    packed = tmp_path / "packed"
    packed.mkdir()
    save_model(packed, network)
    save_config(config, packed / "config.json")
    assert loaded(packed).dtype == "float32"


# ----------------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_is_applied_as_by_mlx_lm(tmp_path: Path, tiny: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    """Both compute by mlx's operations."""
    monkeypatch.setattr(kernel_injection, "substitute", lambda *_: ())
    adapter = write_adapter(tiny, tmp_path / kind, kind)
    ours = loaded(tiny, adapter=str(adapter), dtype="float32")
    theirs = mlx_lm_load(str(tiny), adapter_path=str(adapter))[0]
    np.testing.assert_allclose(logprobs(ours.network), logprobs(theirs), rtol=0, atol=1e-5)
    assert np.abs(logprobs(ours.network) - logprobs(loaded(tiny, dtype="float32").network)).max() > 0.1
    with_adapter, without = (checkpoint_fingerprints(find_checkpoint(ModelConfig(path=str(tiny), adapter=a))) for a in (str(adapter), None))
    assert {key for key in without if without[key] != with_adapter[key]} == {"model.adapter"}


def test_an_adapter_without_dropout_is_loaded_and_one_without_layers_refused(tmp_path: Path, tiny: Path):
    adapter = write_adapter(tiny, tmp_path / "lora", "lora")
    expected = logprobs(loaded(tiny, adapter=str(adapter), dtype="float32").network)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    del settings["lora_parameters"]["dropout"]
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    np.testing.assert_array_equal(logprobs(loaded(tiny, adapter=str(adapter), dtype="float32").network), expected)
    config = ModelConfig(path=str(tiny), adapter=str(adapter))
    assert outline(config, find_checkpoint(config), 1 << 40).vocabulary == VOCABULARY
    del settings["num_layers"]
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    for load in (lambda: loaded(tiny, adapter=str(adapter)), lambda: outline(config, find_checkpoint(config), 1 << 40)):
        with pytest.raises(ModelError, match=r"^the adapter .*/lora: its adapter_config.json has no num_layers; expected a whole number"):
            load()
