"""What is read of sentence-transformers' files, old and new, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.models.checkpoint import find_checkpoint, find_tokenizer, module_fingerprints
from mlx_bulk.runner.pooling.sentence_folder import read_sentence_folder
from mlx_bulk.runner.pooling.spec import DenseLayer, EmbeddingHead, Normalize, TokenHead, embedding_spec

from ...encoder_checkpoints import tiny_bert
from ...sentence_folders import OLD_POOLING, old_pooling, write_dense, write_json, write_modules

GELU = "torch.nn.modules.activation.GELU"


@pytest.mark.parametrize("old", [True, False])
def test_both_dialects_say_the_same(tmp_path: Path, old: bool) -> None:
    settings = old_pooling("mean", "cls") if old else {"embedding_dimension": 32, "pooling_mode": ["cls", "mean"]}
    write_modules(tmp_path, ("Pooling", settings), ("Dropout", {"dropout": 0.1}), ("Normalize", {}), old=old)
    found = read_sentence_folder(tmp_path)
    assert (found.head, found.include_prompt) == (EmbeddingHead(("cls", "mean"), (Normalize(),)), True)
    assert found.modules == ("Transformer", "Pooling", "Dropout", "Normalize")


@pytest.mark.parametrize("mode", OLD_POOLING)
def test_every_mode_is_known(tmp_path: Path, mode: Any) -> None:
    for number, settings in enumerate([old_pooling(mode), {"pooling_mode": mode}]):
        head = read_sentence_folder(write_modules(tmp_path / str(number), ("Pooling", settings))).head
        assert head == EmbeddingHead((mode,))


def test_pooling_without_a_mode_is_the_mean(tmp_path: Path) -> None:
    assert read_sentence_folder(write_modules(tmp_path, ("Pooling", old_pooling()))).head == EmbeddingHead(("mean",))


def test_a_prompt_may_be_left_out(tmp_path: Path) -> None:
    assert not read_sentence_folder(write_modules(tmp_path, ("Pooling", old_pooling("mean", include_prompt=False)))).include_prompt


def test_dense_layers_keep_their_order(tmp_path: Path) -> None:
    first = write_dense(tmp_path, 2, 32, 64, bias=False, activation_function="torch.nn.modules.linear.Identity")
    second = write_dense(tmp_path, 3, 64, 16, activation_function=GELU, use_residual=True)
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "mean"}), first, second, ("Normalize", {}))
    head = read_sentence_folder(tmp_path).head
    assert head is not None
    dense = [
        DenseLayer(tmp_path / "2_Dense", 32, 64, "Identity", bias=False),
        DenseLayer(tmp_path / "3_Dense", 64, 16, "GELU", bias=True, residual=True),
    ]
    assert head.layers == (*dense, Normalize())
    assert embedding_spec(head, 32).dimensions == 16
    with pytest.raises(ModelError, match="2_Dense: in_features is 32, but pooling gives 48 numbers"):
        embedding_spec(head, 48)


def test_prompts_and_similarity_are_read(tmp_path: Path) -> None:
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "mean"}))
    said = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query", "similarity_fn_name": "dot", "truncate_dim": 8}
    write_json(tmp_path / "config_sentence_transformers.json", said)
    found = read_sentence_folder(tmp_path)
    assert (found.prompts, found.default_prompt, found.similarity) == ({"query": "query: ", "document": ""}, "query", "dot")
    assert found.head == EmbeddingHead(("mean",), cut=8)
    assert found.head is not None
    assert embedding_spec(found.head, 32).dimensions == 8


@pytest.mark.parametrize(
    ("settings", "limits", "length"),
    [
        ({"max_seq_length": 256, "do_lower_case": True}, (512, 512), 256),
        ({"max_seq_length": 256, "tokenizer_args": {"model_max_length": 64}}, (512, 512), 64),
        ({}, (512, 256), 256),
        ({}, (int(1e30), 256), 256),
        ({}, (128, None), 128),
        ({}, (None, None), None),
        ({"max_seq_length": None}, (100, 256), 100),
    ],
)
def test_the_longest_text(tmp_path: Path, settings: dict[str, Any], limits: tuple[int | None, int | None], length: int | None) -> None:
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "mean"}))
    write_json(tmp_path / "sentence_bert_config.json", settings)
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": limits[0]})
    write_json(tmp_path / "config.json", {"max_position_embeddings": limits[1]})
    found = read_sentence_folder(tmp_path)
    assert (found.max_length, found.lower_case) == (length, settings.get("do_lower_case", False))


def test_a_generative_reranker_names_its_tokens(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, ("LogitScore", {"true_token_id": 9693, "false_token_id": 2152}))
    write_json(folder / "sentence_bert_config.json", {"modality_config": {"message": {"method": "forward"}}})
    found = read_sentence_folder(folder)
    assert (found.head, found.tokens, found.messages) == (None, TokenHead(9693, 2152), True)


def test_a_cross_encoders_dense_layer_gives_scores(tmp_path: Path) -> None:
    dense = write_dense(tmp_path, 2, 32, 1, module_output_name="scores", activation_function="torch.nn.Identity")
    assert read_sentence_folder(write_modules(tmp_path, ("Pooling", {"pooling_mode": "cls"}), dense)).scores


def test_a_folder_without_modules_has_no_head(tmp_path: Path) -> None:
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    found = read_sentence_folder(tmp_path)
    assert (found.modules, found.head, found.prompts) == ((), None, {"query": "q: "})


def test_a_conversion_without_1_pooling_has_layers_and_no_mode(tmp_path: Path) -> None:
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "cls"}), ("Normalize", {}))
    (tmp_path / "1_Pooling" / "config.json").unlink()
    assert read_sentence_folder(tmp_path).head == EmbeddingHead((), (Normalize(),))


def test_a_dense_layer_without_settings_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "cls"}), ("Dense", {}))
    (tmp_path / "2_Dense" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"2_Dense holds no config\.json; fetch the model anew, with all its folders"):
        read_sentence_folder(tmp_path)


KINDS = "Transformer, CLIPModel, Pooling, Dense, Normalize, Dropout, LogitScore"


@pytest.mark.parametrize("name", ["Router", "CNN", "LSTM", "WeightedLayerPooling", "WordEmbeddings", "LayerNorm"])
def test_unknown_modules_are_refused_by_name(tmp_path: Path, name: str) -> None:
    write_modules(tmp_path, (name, {}), old=True)
    with pytest.raises(ModelError) as refused:
        read_sentence_folder(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / 'modules.json'} names the module sentence_transformers.models.{name}, which is not computed here; known are {KINDS}"
    )


def test_code_that_comes_with_a_model_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "modules.json", [{"path": "", "type": "custom_st.Transformer"}])
    with pytest.raises(ModelError, match=r"names the module custom_st\.Transformer, which is not computed here"):
        read_sentence_folder(tmp_path)


SIZES = {"in_features": 32, "out_features": 8}
POOLED: tuple[str, dict[str, Any]] = ("Pooling", {"pooling_mode": "mean"})


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([("Pooling", {"pooling_mode": "median"})], "1_Pooling/config.json: pooling_mode is median; known are cls, lasttoken, max"),
        ([POOLED, POOLED], "modules.json names Pooling twice"),
        ([("Normalize", {}), POOLED], "1_Normalize: the module Normalize works before Pooling, which is not computed here"),
        ([POOLED, ("Normalize", {"module_input_name": "token_embeddings"})], "2_Normalize: the module Normalize works from token_"),
        ([POOLED, ("Dense", {**SIZES, "activation_function": "my.Act"})], "activation_function is my.Act; known"),
        ([POOLED, ("Dense", {**SIZES, "activation_function": "torch.nn.Hardtanh"})], "known are torch.nn's ELU"),
        ([POOLED, ("Dense", {"in_features": "32"})], "in_features and out_features are 32 and None; expected whole numbers"),
        ([POOLED, ("Dense", SIZES)], "2_Dense holds no model.safetensors; fetch the model anew"),
        ([("LogitScore", {})], "1_LogitScore/config.json: true_token_id is None; expected a token id"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, modules: list[tuple[str, dict[str, Any]]], message: str) -> None:
    write_modules(tmp_path, *modules)
    with pytest.raises(ModelError) as refused:
        read_sentence_folder(tmp_path)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not readable: "),
        ("[]", "holds no list of modules with a type each"),
        ('[{"path": ""}]', "holds no list of modules with a type each"),
        ('[{"type": "sentence_transformers.models.Pooling", "path": "1"}]', "begins with the module Pooling; expected Transformer first"),
        ('[{"type": "sentence_transformers.models.Transformer", "path": "../other"}]', "in ../other, outside of the folder"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelError) as refused:
        read_sentence_folder(tmp_path)
    assert message in str(refused.value)


def test_a_transformer_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "0_Transformer")
    write_modules(tmp_path, POOLED, body="0_Transformer", old=True)
    write_json(tmp_path / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 20})
    config = ModelConfig(path=str(tmp_path))
    checkpoint = find_checkpoint(config)
    assert (checkpoint.folder, checkpoint.modules_folder) == (tmp_path / "0_Transformer", tmp_path)
    assert find_tokenizer(config)[0] == tmp_path / "0_Transformer"
    found = read_sentence_folder(checkpoint.modules_folder)
    assert (found.body, found.max_length, found.head) == (checkpoint.folder, 20, EmbeddingHead(("mean",)))


def test_the_modules_files_are_part_of_the_identity(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    checkpoint = find_checkpoint(ModelConfig(path=str(folder)))
    seen = {module_fingerprints(checkpoint)["model.modules"]}
    assert seen == {"none"}
    write_modules(folder, POOLED, write_dense(folder, 2, 32, 8))
    seen.add(module_fingerprints(checkpoint)["model.modules"])
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}})
    seen.add(module_fingerprints(checkpoint)["model.modules"])
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    seen.add(module_fingerprints(checkpoint)["model.modules"])
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"other weights")
    seen.add(module_fingerprints(checkpoint)["model.modules"])
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 9})
    seen.add(module_fingerprints(checkpoint)["model.modules"])
    assert len(seen) == 6
