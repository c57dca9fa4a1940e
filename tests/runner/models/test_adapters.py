"""Tests adapters put on a network and taken off: the base returns to the bit, and unfit adapters are refused."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.layers.kernel_injection import substitute
from mlx_bulk.runner.layers.kv_cache import make_caches as empty
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.models.adapters import AdapterRefused, Adapters
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.vision.features import FeatureCache
from mlx_bulk.runner.vision.image_embedding import read_pictures_with
from mlx_lm.utils import load_adapters
from numpy.typing import NDArray

from ...adapters import save_adapter, write_adapter, write_full
from ..support import kernel_models
from ..support.made_up_pictures import NoiseTower
from ..support.tiny import VOCABULARY, fresh

IDS = (5, 17, 3, 3, 200, 41, 9)


def adapters_of(network: Any) -> Adapters:
    def no_checkpoint(folder: Path) -> nn.Module:
        raise AssertionError(f"{folder} is no checkpoint")

    return Adapters(network, mx.float32, lambda: "weights", no_checkpoint)


def logits(network: Any) -> NDArray[np.float32]:
    return np.array(network(mx.array([IDS])))


def alone(folder: Path, name: str = "llama") -> NDArray[np.float32]:
    """By mlx-lm, on a network that had nothing on before."""
    network = load_adapters(fresh(name), str(folder))
    network.eval()
    return logits(network)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
def test_an_adapter_put_on_is_that_of_mlx_lm_and_off_is_the_base(name: str, kind: str, tmp_path: Path):
    network = fresh(name)
    base = logits(network)
    folder = write_full(tmp_path, network) if kind == "full" else write_adapter(tmp_path, network, kind, keys=("self_attn.q_proj",))
    adapters = adapters_of(network)
    adapters.put_on(folder)
    np.testing.assert_array_equal(logits(network), alone(folder, name))
    assert np.abs(logits(network) - base).max() > 0.05
    with adapters.off():
        np.testing.assert_array_equal(logits(network), base)
    np.testing.assert_array_equal(logits(network), alone(folder, name))


@kernel_models.needed
@pytest.mark.parametrize(("kind", "kernels"), [("lora", True), ("dora", False)])
def test_the_blas_keeps_its_threads_under_dora_which_multiplies_by_it(kind: str, kernels: bool, tmp_path: Path):
    network = fresh()
    with kernel_models.originals():
        assert substitute(network, VOCABULARY, None)
        adapters = adapters_of(network)
        assert context_of(network).multiplies
        adapters.put_on(write_adapter(tmp_path, network, kind))
        assert context_of(network).multiplies == kernels
        adapters.back()
        assert context_of(network).multiplies


@pytest.mark.parametrize("dropout", [None, 0.5])
def test_an_adapter_without_dropout_samples_as_one_with_it(dropout: float | None, tmp_path: Path):
    network = fresh()
    with_it, without = (write_adapter(tmp_path / name, network, keys=("self_attn.q_proj",)) for name in ("with", "without"))
    settings = json.loads((without / "adapter_config.json").read_text())
    settings["lora_parameters"]["dropout"] = dropout
    if dropout is None:
        del settings["lora_parameters"]["dropout"]
    (without / "adapter_config.json").write_text(json.dumps(settings))
    adapters = adapters_of(network)
    adapters.put_on(without)
    np.testing.assert_array_equal(logits(network), alone(with_it))


def test_scale_zero_would_not_be_the_base_under_dora(tmp_path: Path):
    """The tests above would not notice an adapter at scale 0 in place of one taken off."""
    network = fresh()
    base, adapters = logits(network), adapters_of(network)
    adapters.put_on(write_adapter(tmp_path, network, "dora"))
    for module in network.modules():
        if "lora_a" in module:
            module.scale = 0.0
    assert np.abs(logits(network) - base).max() > 0.05
    with adapters.off():
        np.testing.assert_array_equal(logits(network), base)


def test_steps_may_differ_in_rank_layers_and_kind(tmp_path: Path):
    network = fresh()
    base, adapters = logits(network), adapters_of(network)
    steps = [
        write_adapter(tmp_path / "1", network, rank=4, layers=2, seed=1),
        write_adapter(tmp_path / "2", network, rank=8, layers=4, seed=2, keys=("mlp.up_proj", "self_attn.o_proj")),
        write_full(tmp_path / "3", network, seed=3),
        write_adapter(tmp_path / "4", network, "dora", rank=2, layers=1, seed=4),
        write_full(tmp_path / "5", network, seed=5),
        write_adapter(tmp_path / "6", network, rank=1, layers=1, seed=6, keys=("lm_head",)),
    ]
    for step in steps:
        adapters.put_on(step)
        np.testing.assert_array_equal(logits(network), alone(step))
    adapters.back()
    np.testing.assert_array_equal(logits(network), base)


def test_the_adapter_of_the_load_comes_back(tmp_path: Path):
    network = fresh()
    adapters = adapters_of(network)
    adapters.put_on(write_adapter(tmp_path / "first", network, seed=1))
    adapters.stay()
    first = logits(network)
    adapters.put_on(write_adapter(tmp_path / "second", fresh(), seed=2))
    adapters.back()
    np.testing.assert_array_equal(logits(network), first)


def test_on_quantized_weights_they_stay_quantized(tmp_path: Path):
    network = fresh()
    nn.quantize(network, group_size=64, bits=4)
    base, folder = logits(network), write_adapter(tmp_path, network, layers=4)
    adapters = adapters_of(network)
    adapters.put_on(folder)
    assert isinstance(network.layers[0].self_attn.q_proj.linear, nn.QuantizedLinear)
    assert np.abs(logits(network) - base).max() > 0.05
    with adapters.off():
        np.testing.assert_array_equal(logits(network), base)


def test_a_head_made_after_the_swap_sees_an_adapter_on_the_head(tmp_path: Path):
    network = fresh()
    adapters_of(network).put_on(write_adapter(tmp_path, network, keys=("lm_head",)))
    head = Head(network)
    states = head.states(mx.array([IDS]), empty(network, 1, padded=False))
    np.testing.assert_allclose(np.array(head.logits(states[0])), logits(network)[0], rtol=0, atol=1e-5)


def spoiled(folder: Path, how: str) -> None:
    """Makes an adapter's folder one that cannot be put on."""
    config, tensors = folder / "adapter_config.json", folder / "adapters.safetensors"
    given: Any = mx.load(str(tensors))
    mx.eval(given)
    settings: Any = json.loads(config.read_text())
    name = min(given)
    match how:
        case "half written":
            tensors.write_bytes(tensors.read_bytes()[: tensors.stat().st_size // 2])
        case "no tensors":
            tensors.unlink()
        case "config no JSON":
            config.write_text("{")
        case "other shapes":
            given[name] = given[name][:-1]
        case "a tensor is missing":
            del given[name]
        case "one too many":
            given["model.layers.3.mlp.other.lora_a"] = mx.zeros((2, 2))
        case "NaN":
            given[name] = given[name] * mx.nan
        case "logits overflow":
            given = {key: value * 1e30 for key, value in given.items()}
        case "layers that the model has not":
            settings["lora_parameters"]["keys"], given = ["attention.wq"], {}
        case "no scale":
            del settings["lora_parameters"]["scale"]
        case "no layers":
            del settings["num_layers"]
        case "layers as text":
            settings["num_layers"] = "2"
        case "no rank":
            del settings["lora_parameters"]["rank"]
        case "parameters as a list":
            settings["lora_parameters"] = [4, 2.0]
        case "a list":
            settings = [4]
        case "PEFT":
            settings = {"peft_type": "LORA", "r": 4}
        case _:
            raise AssertionError(how)
    if how not in ("half written", "no tensors", "config no JSON"):
        save_adapter(folder, settings, given)


REASONS = {
    "half written": "",
    "no tensors": "holds no adapters.safetensors",
    "config no JSON": "",
    "other shapes": "does not match model parameter shape",
    "a tensor is missing": "adapters.safetensors lacks model.layers.0",
    "one too many": "not an adapter parameter in the model",
    "NaN": "holds NaN",
    "logits overflow": "its logits are NaN or infinite",
    "layers that the model has not": "names no layers that the model has",
    "no scale": "scale",
    "no layers": "its adapter_config.json has no num_layers; expected a whole number: of the last layers that it is on",
    "layers as text": 'its adapter_config.json: num_layers: found "2"; expected a whole number',
    "no rank": "its adapter_config.json has no lora_parameters.rank; expected a whole number",
    "parameters as a list": "its adapter_config.json: lora_parameters: found [4, 2.0]; expected a mapping with rank, scale",
    "a list": "its adapter_config.json holds [4]; expected a mapping with fine_tune_type",
    "PEFT": "PEFT's format",
}


@pytest.mark.parametrize("how", REASONS)
def test_an_adapter_that_does_not_fit_is_refused_and_the_last_one_stays(how: str, tmp_path: Path):
    network = fresh()
    base, adapters = logits(network), adapters_of(network)
    adapters.put_on(write_adapter(tmp_path / "good", network, "dora"))
    good, bad = logits(network), write_adapter(tmp_path / "bad", fresh(), seed=2)
    spoiled(bad, how)
    with pytest.raises(AdapterRefused) as refused:
        adapters.put_on(bad)
    assert str(bad) in str(refused.value)
    assert REASONS[how] in str(refused.value)
    assert "\n" not in str(refused.value)
    np.testing.assert_array_equal(logits(network), good)
    with adapters.off():
        np.testing.assert_array_equal(logits(network), base)


def test_the_probe_sees_a_base_that_has_changed(tmp_path: Path):
    network = fresh()
    adapters = adapters_of(network)
    adapters.put_on(write_adapter(tmp_path, network))
    weight = network.layers[0].mlp.gate_proj.weight
    network.layers[0].mlp.gate_proj.weight = weight * (1 + 2.0**-20)
    with pytest.raises(ModelError, match="not the base model's any more"), adapters.off():
        pass


def test_a_checkpoint_is_refused_where_a_tower_reads_pictures(tmp_path: Path):
    network = fresh()
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    read_pictures_with(network, FeatureCache(NoiseTower()))
    base = logits(network)
    adapters = Adapters(network, mx.float32, lambda: "weights", lambda _: fresh())
    with pytest.raises(AdapterRefused, match="is a checkpoint, and its vision tower would not be read"):
        adapters.put_on(tmp_path)
    np.testing.assert_array_equal(logits(network), base)
    adapters.put_on(write_adapter(tmp_path / "lora", network, "lora", keys=("self_attn.q_proj",)))
    assert np.abs(logits(network) - base).max() > 0.01
