"""Tests the search for checkpoints: places, messages, config.json, fingerprints."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.utils
import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.models.checkpoint import Checkpoint, checkpoint_fingerprints, find_checkpoint

from ...checkpoints import write_adapter, write_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def test_a_missing_checkpoint_is_named(tmp_path: Path):
    write_checkpoint(tmp_path / "llama-tiny")
    cases = {
        tmp_path / "llama-tny": f"model.path: no folder {tmp_path}/llama-tny (did you mean {tmp_path}/llama-tiny?); expected demo, a local",
        tmp_path / "llama-tiny/config.json": "config.json is a file; expected a folder",
        tmp_path: f"model.path: {tmp_path} holds no config.json; expected a folder in Hugging Face or mlx-lm format",
    }
    for path, message in cases.items():
        with pytest.raises(ModelError) as caught:
            find_checkpoint(ModelConfig(path=str(path)))
        assert message in str(caught.value)


def test_other_formats_of_weights_are_named(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"holds no model\*\.safetensors \(found pytorch_model\.bin: only safetensors are read\)"):
        find_checkpoint(ModelConfig(path=str(folder)))


def test_an_index_that_names_weights_elsewhere_is_said(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other/model.safetensors"}}')
    with pytest.raises(ModelError, match=r"index\.json names \.\./other/model\.safetensors, which lies outside of the folder"):
        find_checkpoint(ModelConfig(path=str(folder)))


def test_a_broken_config_is_named(tmp_path: Path, tiny: Path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"model/config\.json is not readable: Expecting property name"):
        find_checkpoint(ModelConfig(path=str(folder)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "is not readable: its values are nested too deeply; fetch the model anew"),
        ("[1]", "holds a list; expected an object with the model's settings; fetch the model anew"),
    ],
    ids=["deep", "list"],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_settings_that_are_none_are_named(tmp_path: Path, tiny: Path, name: str, content: str, message: str):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=f"^model.path: {folder / name} {message}$"):
        find_checkpoint(ModelConfig(path=str(folder)))


def test_the_demo_is_found_by_name():
    checkpoint = find_checkpoint(ModelConfig(path="demo"))
    assert (checkpoint.folder / "model.safetensors").is_file()
    assert checkpoint.context == 512
    assert checkpoint.eos == {0, 2}  # the generation config's, which has one more than the tokenizer


def test_a_hub_id_is_fetched_at_its_revision(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, str | None]] = []

    def snapshot(repo: str, revision: str | None = None, **_: Any) -> str:
        asked.append((repo, revision))
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert find_checkpoint(ModelConfig(path="org/name", revision="v2")).folder == tiny
    assert asked == [("org/name", "v2")]


def test_the_weights_of_sentence_transformers_modules_are_fetched(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    """The names of a repository with dense layers, filtered as the hub's client filters them."""
    names = ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "model.safetensors"]
    names += ["0_Transformer/model-00001-of-00002.safetensors", "onnx/model.onnx", "2_Dense/pytorch_model.bin", "README.md"]
    fetched: list[str] = []

    def snapshot(repo: str, revision: str | None = None, allow_patterns: list[str] | None = None) -> str:
        fetched.extend(huggingface_hub.utils.filter_repo_objects(names, allow_patterns=allow_patterns))
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    find_checkpoint(ModelConfig(path="org/name"))
    assert fetched == names[:6]


def test_a_model_missing_on_the_hub_gives_one_line(monkeypatch: pytest.MonkeyPatch):
    def snapshot(*_: Any, **__: Any) -> str:
        raise OSError("404 Client Error\nRepository Not Found")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(ModelError) as caught:
        find_checkpoint(ModelConfig(path="org/name"))
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


def test_an_eos_of_id_0_counts(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "tiny")
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert find_checkpoint(ModelConfig(path=str(folder))).eos == {0}


@pytest.mark.parametrize("gone", ["adapter_config.json", "adapters.safetensors"])
def test_a_folder_that_is_no_adapter(tmp_path: Path, tiny: Path, gone: str):
    adapter = write_adapter(tiny, tmp_path / "lora", "lora")
    (adapter / gone).unlink()
    with pytest.raises(ModelError, match=f"^model.adapter: {adapter} holds no {gone}; expected a LoRA or DoRA adapter"):
        find_checkpoint(ModelConfig(path=str(tiny), adapter=str(adapter)))
    with pytest.raises(ModelError, match=f"^policy.adapter: {adapter} holds no {gone}"):
        find_checkpoint(ModelConfig(path=str(tiny), adapter=str(adapter)), adapter_key="policy.adapter")


def test_messages_name_where_the_model_stands_in_the_config(tmp_path: Path):
    with pytest.raises(ModelError, match=r"^score\.reference\.path: no folder /nowhere; "):
        find_checkpoint(ModelConfig(path="/nowhere"), "score.reference")
    with pytest.raises(ModelError, match=r"^score\.reference\.path: .* holds no config\.json"):
        find_checkpoint(ModelConfig(path=str(tmp_path)), "score.reference")


def test_fingerprints_follow_contents_alone(tmp_path: Path, tiny: Path):
    first = shutil.copytree(tiny, tmp_path / "first")
    prints = checkpoint_fingerprints(find_checkpoint(ModelConfig(path=str(tiny))))
    assert checkpoint_fingerprints(find_checkpoint(ModelConfig(path=str(first)))) == prints
    for name, key in (
        ("model.safetensors", "model.weights"),
        ("tokenizer.json", "model.tokenizer"),
        ("chat_template.jinja", "model.chat_template"),
        ("generation_config.json", "model.generation_config"),
    ):
        (first / name).write_bytes((first / name).read_bytes() + b" ")
        now = checkpoint_fingerprints(find_checkpoint(ModelConfig(path=str(first))))
        assert {k for k in now if now[k] != prints[k]} == {key}
        prints = now
