"""Checkpoints found and loaded: messages, precision, quantization, adapters, and the rope settings of transformers 5."""

import json
import logging
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.kernels import backend
from mlx_bulk.runner.errors import ModelError
from mlx_bulk.runner.model import Checkpoint, Model, find, fingerprints, load
from mlx_bulk.runner.rope import translated
from mlx_lm.utils import load as mlx_lm_load
from mlx_lm.utils import load_model, quantize_model, save_config, save_model
from numpy.typing import NDArray

from ..checkpoints import LLAMA, VOCABULARY, write_adapter, write_checkpoint

PLENTY = 1 << 40  # bytes
IDS = list(range(5, 45))
on_cpu = pytest.mark.skipif(backend.device_name() != "cpu", reason="what the CPU does by itself")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def loaded(path: Path, memory: int = PLENTY, **settings: Any) -> Model:
    config = ModelConfig(path=str(path), **settings)
    return load(config, find(config), memory)


def logprobs(network: Any, ids: list[int] = IDS) -> NDArray[np.float32]:
    logits = network(mx.array([ids]))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


# --------------------------------------------------------------------------------------------------- finding a model


def test_what_cannot_be_found_is_named(tmp_path: Path):
    write_checkpoint(tmp_path / "llama-tiny")
    cases = {
        tmp_path / "llama-tny": f"model.path: no folder {tmp_path}/llama-tny (did you mean {tmp_path}/llama-tiny?); expected demo, a local",
        tmp_path / "llama-tiny/config.json": "config.json is a file; expected a folder",
        tmp_path: f"model.path: {tmp_path} holds no config.json; expected a folder in Hugging Face or mlx-lm format",
    }
    for path, message in cases.items():
        with pytest.raises(ModelError) as caught:
            find(ModelConfig(path=str(path)))
        assert message in str(caught.value)


def test_other_formats_of_weights_are_named(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"holds no model\*\.safetensors \(found pytorch_model\.bin: only safetensors are read\)"):
        find(ModelConfig(path=str(folder)))


def test_a_broken_config_is_named(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"model/config\.json is not readable: Expecting property name"):
        find(ModelConfig(path=str(folder)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "martian"}, "mlx-lm has no model type 'martian'; a newer mlx-lm may"),
        ({"hidden_size": 32}, r"Expected shape \(2048, 32\) but received shape \(2048, 64\)"),
        ({"num_hidden_layers": 3}, r"Missing 9 parameters:.*more lines; --log-level debug shows them"),
    ],
)
def test_weights_and_config_that_do_not_fit(tmp_path: Path, tiny: Path, change: dict[str, Any], message: str):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(LLAMA | change))
    with pytest.raises(ModelError, match=f"^model.path: {folder} cannot be loaded: .*{message}") as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)


def test_the_demo_is_found_by_name():
    checkpoint = find(ModelConfig(path="demo"))
    assert (checkpoint.folder / "model.safetensors").is_file()
    assert checkpoint.context == 512
    assert checkpoint.eos == {0, 2}  # the generation config's, which has one more than the tokenizer


def test_a_hub_id_is_fetched_at_its_revision(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, str | None]] = []

    def snapshot(repo: str, revision: str | None = None, **_: Any) -> str:
        asked.append((repo, revision))
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert find(ModelConfig(path="org/name", revision="v2")).folder == tiny
    assert asked == [("org/name", "v2")]


def test_a_hub_that_has_no_such_model_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def snapshot(*_: Any, **__: Any) -> str:
        raise OSError("404 Client Error\nRepository Not Found")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(ModelError) as caught:
        find(ModelConfig(path="org/name"))
    assert str(caught.value) == "model.path: org/name is neither a local folder nor to be had from the hub: 404 Client Error"


def test_context_and_eos_are_read_by_any_of_their_names(tmp_path: Path):
    def checkpoint(**config: Any) -> Checkpoint:
        return Checkpoint(tmp_path, None, config)

    assert checkpoint(max_position_embeddings=7).context == 7
    assert checkpoint(n_positions=7).context == 7
    assert checkpoint(text_config={"max_position_embeddings": 9}).context == 9
    assert checkpoint(max_position_embeddings=None).context is None
    assert checkpoint(eos_token_id=3).eos == {3}
    assert checkpoint(eos_token_id=[3, 4]).eos == {3, 4}
    assert checkpoint(eos_token_id=None).eos == checkpoint().eos == frozenset()


def test_fingerprints_follow_contents_alone(tmp_path: Path, tiny: Path):
    first = shutil.copytree(tiny, tmp_path / "first")
    prints = fingerprints(find(ModelConfig(path=str(tiny))))
    assert fingerprints(find(ModelConfig(path=str(first)))) == prints
    for name, key in (
        ("model.safetensors", "model.weights"),
        ("tokenizer.json", "model.tokenizer"),
        ("chat_template.jinja", "model.chat_template"),
        ("generation_config.json", "model.generation_config"),
    ):
        (first / name).write_bytes((first / name).read_bytes() + b" ")
        now = fingerprints(find(ModelConfig(path=str(first))))
        assert {k for k in now if now[k] != prints[k]} == {key}
        prints = now


# ---------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_what_the_weights_have(tiny: Path, dtype: str):
    model = loaded(tiny, dtype=dtype)
    assert model.dtype == dtype
    arrays: Any = [array for _, array in tree_flatten(model.network.parameters())]
    assert {str(array.dtype) for array in arrays} == {f"mlx.core.{dtype}"}
    assert model.vocabulary == VOCABULARY
    assert model.weight_bytes == sum(array.nbytes for array in arrays)


@on_cpu
def test_auto_is_float32_on_the_cpu(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "half")
    weights: Any = mx.load(str(tiny / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), {k: v.astype(mx.float16) for k, v in weights.items()}, {"format": "mlx"})
    assert loaded(folder).dtype == "float32"


def quantized(tiny: Path, folder: Path, bits: int, dtype: mx.Dtype) -> Path:
    """The tiny model as ``mlx_lm.convert -q`` writes it."""
    shutil.copytree(tiny, folder)
    network, _ = mlx_lm_load(str(tiny))[:2]
    network.set_dtype(dtype)
    network, config = quantize_model(network, json.loads((tiny / "config.json").read_text()), group_size=32, bits=bits)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), {"format": "mlx"})
    save_config(config, folder / "config.json")
    return folder


@on_cpu
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_become_float32_where_they_fit(tmp_path: Path, tiny: Path, bits: int):
    folder = quantized(tiny, tmp_path / "quantized", bits, mx.float16)
    model = loaded(folder)
    assert model.dtype == "float32"
    assert not any(name.endswith("scales") for name, _ in tree_flatten(model.network.parameters()))
    own = mlx_lm_load(str(folder))[0]
    own.set_dtype(mx.float32)
    # The same numbers, multiplied in another order.
    np.testing.assert_allclose(logprobs(model.network), logprobs(own), rtol=0, atol=1e-4)


@on_cpu
def test_quantized_weights_stay_so_where_they_do_not(tmp_path: Path, tiny: Path, caplog: pytest.LogCaptureFixture):
    folder = quantized(tiny, tmp_path / "quantized", 4, mx.float16)
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        logging.getLogger("mlx_bulk").addHandler(caplog.handler)
        try:
            model = loaded(folder, memory=1000)
        finally:
            logging.getLogger("mlx_bulk").removeHandler(caplog.handler)
    assert any(name.endswith("scales") for name, _ in tree_flatten(model.network.parameters()))
    assert "quantized weights stay so (float32 would take 0.0 GB of 0.0 GB): matrix products are slow" in caplog.text
    own = mlx_lm_load(str(folder))[0]
    own.set_dtype(mx.float32)
    np.testing.assert_allclose(logprobs(model.network), logprobs(own), rtol=0, atol=1e-4)


# ----------------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_is_applied_as_by_mlx_lm(tmp_path: Path, tiny: Path, kind: str):
    adapter = write_adapter(tiny, tmp_path / kind, kind)
    ours = loaded(tiny, adapter=str(adapter), dtype="float32")
    theirs = mlx_lm_load(str(tiny), adapter_path=str(adapter))[0]
    np.testing.assert_allclose(logprobs(ours.network), logprobs(theirs), rtol=0, atol=1e-5)
    assert np.abs(logprobs(ours.network) - logprobs(loaded(tiny, dtype="float32").network)).max() > 0.1
    with_adapter, without = (fingerprints(find(ModelConfig(path=str(tiny), adapter=a))) for a in (str(adapter), None))
    assert {key for key in without if without[key] != with_adapter[key]} == {"model.adapter"}


@pytest.mark.parametrize("gone", ["adapter_config.json", "adapters.safetensors"])
def test_a_folder_that_is_no_adapter(tmp_path: Path, tiny: Path, gone: str):
    adapter = write_adapter(tiny, tmp_path / "lora", "lora")
    (adapter / gone).unlink()
    with pytest.raises(ModelError, match=f"^model.adapter: {adapter} holds no {gone}; expected a LoRA or DoRA adapter"):
        find(ModelConfig(path=str(tiny), adapter=str(adapter)))


# --------------------------------------------------------------------------------------- rope as transformers 5 has it

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True}
GEMMA = {
    "hidden_size": 64,  # its root is exact in bfloat16, in which mlx-lm scales Gemma's embeddings
    "sliding_window": 16,
    "num_hidden_layers": 6,  # of which the last is full, as in every Gemma 3
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 54321.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 777.0},
    },
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}),
    "Llama": ("llama", {"rope_parameters": {"rope_theta": 12345.0, **LLAMA3}}),
    "Qwen3Moe": ("qwen3_moe", {**MOE, "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}),
    "Gemma3": ("gemma3_text", GEMMA),
}


def transformers_config(name: str) -> Any:
    """A config of the family ``name`` as an object of transformers."""
    import transformers

    module = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    return getattr(transformers, module)(**{**SIZES, **FAMILIES[name][1]})


def written_by_transformers(name: str, folder: Path) -> dict[str, Any]:
    """The config.json that transformers saves for it."""
    transformers_config(name).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def test_every_family_of_the_tests_is_saved_without_the_old_names(tmp_path: Path):
    for name in FAMILIES:
        config = written_by_transformers(name, tmp_path / name)
        assert "rope_parameters" in config
        assert not {"rope_theta", "rope_scaling", "rope_local_base_freq"} & config.keys()


def test_old_names_are_added_and_kept():
    flat = {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}
    assert translated(flat)["rope_theta"] == 5.0
    assert "rope_scaling" not in translated(flat)
    assert translated(flat | {"rope_theta": 7.0}).get("rope_theta", 7.0) == 7.0
    assert translated({"rope_theta": 7.0}) == {}
    scaled = {"rope_parameters": {"rope_theta": 5.0, **LLAMA3}}
    assert translated(scaled)["rope_scaling"] == LLAMA3
    partial = {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 0.25, "rope_type": "default"}}
    assert translated(partial)["partial_rotary_factor"] == translated(partial)["rotary_pct"] == 0.25
    inner = {"text_config": {"hidden_size": 8, **flat}}
    assert translated(inner)["text_config"]["hidden_size"] == 8
    assert translated(inner)["text_config"]["rope_theta"] == 5.0
    assert translated({"num_local_experts": 4}) == {"num_experts": 4}
    assert translated({"num_local_experts": 4, "num_experts": 4}) == {}
    layered = translated(GEMMA)
    assert (layered["rope_theta"], layered["rope_local_base_freq"]) == (54321.0, 777.0)


def write_random(name: str, folder: Path) -> Path:
    """A checkpoint of the family with random weights under the config that transformers saves."""
    config = written_by_transformers(name, folder)
    module = import_module(f"mlx_lm.models.{FAMILIES[name][0]}")
    mx.random.seed(0)
    network = module.Model(module.ModelArgs.from_dict({**config, **translated(config)}))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), {"format": "mlx"})
    return folder


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3Moe"])
def test_theta_of_a_loaded_model_is_the_config_s(tmp_path: Path, name: str):
    network = loaded(write_random(name, tmp_path / name)).network
    assert [layer.self_attn.rope.base for layer in network.layers] == [12345.0, 12345.0]


def test_theta_by_layer_type(tmp_path: Path):
    network = loaded(write_random("Gemma3", tmp_path / "gemma")).network
    assert [layer.self_attn.rope.base for layer in network.layers] == [*[777.0] * 5, 54321.0]


def test_scaled_rope_of_a_loaded_model(tmp_path: Path):
    network = loaded(write_random("Llama", tmp_path / "llama")).network
    plain = 12345.0 ** (np.arange(0, 8, 2) / 8)
    frequencies = np.array(network.layers[0].self_attn.rope._freqs)
    # The shortest wave keeps its length, the longest is stretched by the factor.
    np.testing.assert_allclose(frequencies[[0, -1]] / plain[[0, -1]], [1.0, 8.0], rtol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_transformers_gives_its_logits(tmp_path: Path, name: str):
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    theirs: Any = AutoModelForCausalLM.from_config(transformers_config(name), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)  # logits that spread: a wrong theta then shows
    theirs.save_pretrained(tmp_path / name)
    ids = np.random.default_rng(0).integers(0, 128, 60).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    network = loaded(tmp_path / name, dtype="float32").network
    assert expected.std() > 0.1
    # float32 on both sides: only the order of sums differs
    np.testing.assert_allclose(np.array(network(mx.array([ids]))[0]), expected, rtol=0, atol=1e-4)


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


def test_an_eos_of_id_0_counts(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "tiny")
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert find(ModelConfig(path=str(folder))).eos == {0}
