"""Vectors against sentence-transformers in float32 on the CPU, where each text runs alone, from the files that it reads itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.pooling_loader import load_pooling_model
from mlx_bulk.runner.pooling.hidden_size import hidden_size
from mlx_bulk.runner.pooling.sentence_folder import SentenceFolder, read_sentence_folder
from mlx_bulk.runner.pooling.spec import embedding_spec
from numpy.typing import NDArray

from ...checkpoints import DEMO, PLENTY
from ...encoder_checkpoints import tiny_bert, tiny_modernbert, tiny_roberta
from ...sentence_folders import old_pooling, write_dense, write_json, write_modules

pytestmark = pytest.mark.oracle
Floats = NDArray[np.float32]
Modules = list[tuple[str, dict[str, Any]]]

WORDS = [
    "the",
    "a",
    "how",
    "many",
    "what",
    "apples",
    "cats",
    "dogs",
    "has",
    "buys",
    "each",
    "day",
    "two",
    "three",
    "price",
    "cost",
    "total",
]
TEXTS = [" ".join(WORDS[(3 * i + at * at) % len(WORDS)] for at in range(n)) for i, n in enumerate([1, 2, 4, 7, 11, 16, 24, 36])]
# The bounds, and what is measured is a tenth of them: float32 on both sides, sums in another order.
COSINE, FAR = 0.99999, 1e-5
PROMPT = "find the price: "
SPREAD = 6.0  # on each matrix: a wrong mask, position or mode moves vectors by a tenth and more
NORMALIZE: tuple[str, dict[str, Any]] = ("Normalize", {})
DECODER: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 96,  # no square: Gemma's scale is its root
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
}


def write_decoder(folder: Path, family: str, appended: str, **settings: Any) -> Path:
    """Writes a body as transformers' ``AutoModel`` saves it, with the demo's tokenizer, which appends a token to each text."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers
    from tokenizers import Tokenizer, processors

    config = getattr(transformers, f"{family}Config")(**{**DECODER, **settings})
    torch.manual_seed(0)
    model: Any = transformers.AutoModel.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SPREAD) if parameter.ndim > 1 else parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    backend = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    ends = [(appended, backend.token_to_id(appended))]
    backend.post_processor = processors.TemplateProcessing(single=f"$A {appended}", pair=f"$A $B {appended}", special_tokens=ends)
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", json.loads((DEMO / "tokenizer_config.json").read_text()) | {"pad_token": appended})
    return folder


def special_tokens() -> list[str]:
    return [token["content"] for token in json.loads((DEMO / "tokenizer.json").read_text())["added_tokens"]]


def qwen3(folder: Path) -> Path:
    """As Qwen3-Embedding: the pad's token is also what is appended to each text."""
    return write_decoder(folder, "Qwen3", special_tokens()[0], pad_token_id=0)


def gemma3(folder: Path) -> Path:
    """As EmbeddingGemma: both ways, with a window that is shorter than most texts."""
    return write_decoder(
        folder, "Gemma3Text", special_tokens()[0], num_hidden_layers=7, sliding_window=8, use_bidirectional_attention=True, pad_token_id=0
    )


def llama(folder: Path) -> Path:
    return write_decoder(folder, "Llama", special_tokens()[-1])


def llama_both_ways(folder: Path) -> Path:
    return write_decoder(folder, "Llama", special_tokens()[-1], is_causal=False)


def roberta(folder: Path) -> Path:
    return tiny_roberta(folder, max_position_embeddings=202)


def xlm_roberta(folder: Path) -> Path:
    return tiny_roberta(folder, model_type="xlm-roberta", max_position_embeddings=202)


def modernbert(folder: Path) -> Path:
    """Its window of 4 tokens each way is shorter than most texts."""
    return tiny_modernbert(folder, max_position_embeddings=202)


def two_dense(folder: Path) -> Modules:
    first = write_dense(folder, 2, 96, 160, bias=False, activation_function="torch.nn.modules.linear.Identity")
    return [("Pooling", {"embedding_dimension": 96, "pooling_mode": "mean"}), first, write_dense(folder, 3, 160, 96), NORMALIZE]


def pooled(*modes: str) -> Callable[[Path], Modules]:
    return lambda folder: [("Pooling", old_pooling(*modes))]


def unit(*modes: str, width: int = 96) -> Callable[[Path], Modules]:
    return lambda folder: [("Pooling", {"embedding_dimension": width, "pooling_mode": list(modes)}), NORMALIZE]


def residual(folder: Path) -> Modules:
    dense = write_dense(folder, 2, 32, 48, use_residual=True, activation_function="torch.nn.modules.activation.GELU")
    return [("Pooling", old_pooling("mean")), dense]


CASES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Modules]]] = {
    "bert mean": (tiny_bert, pooled("mean")),
    "bert cls": (tiny_bert, pooled("cls")),
    "bert max": (tiny_bert, pooled("max")),
    "bert cls+mean": (tiny_bert, pooled("cls", "mean")),
    "bert sqrt": (tiny_bert, pooled("mean_sqrt_len_tokens")),
    "bert residual": (tiny_bert, residual),
    "roberta mean": (roberta, unit("mean", width=32)),
    "xlm-r cls": (xlm_roberta, unit("cls", width=32)),
    "modernbert mean": (modernbert, unit("mean", width=32)),
    "modernbert cls": (modernbert, unit("cls", width=32)),
    "qwen3 lasttoken": (qwen3, unit("lasttoken")),
    "gemma3 both ways, two dense": (gemma3, two_dense),
    "llama weightedmean": (llama, unit("weightedmean")),
    "llama both ways": (llama_both_ways, unit("mean")),
}


class Ours:
    """A folder's vectors by our loader."""

    def __init__(self, folder: Path):
        from mlx_bulk.runner.text.tokenizer import load_tokenizer

        config = ModelConfig(path=str(folder))
        checkpoint = find_checkpoint(config)
        self.said: SentenceFolder = read_sentence_folder(checkpoint.modules_folder)
        assert self.said.head is not None
        self.network = load_pooling_model(
            config, checkpoint, embedding_spec(self.said.head, hidden_size(checkpoint.config)), PLENTY
        ).network
        self.tokenizer = load_tokenizer(checkpoint.folder, None, {}, False)

    def __call__(self, texts: list[str], batch: int, starts: int = 0) -> Floats:
        rows = [self.tokenizer.encode(text).ids.tolist() for text in texts]
        found: list[Floats] = []
        for at in range(0, len(rows), batch):
            part = rows[at : at + batch]
            tokens = np.full((len(part), max(map(len, part))), 7, np.int32)
            for line, row in zip(tokens, part, strict=True):
                line[: len(row)] = row
            found.append(np.array(self.network(mx.array(tokens), [len(row) for row in part], [starts] * len(part))))
        return np.concatenate(found)


def theirs(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def alone(model: Any, **settings: Any) -> Floats:
    return np.stack([model.encode(text, show_progress_bar=False, **settings) for text in TEXTS])


def assert_the_same(found: Floats, expected: Floats) -> None:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(axis=1) / lengths).min() >= COSINE
    scale = max(1.0, float(np.abs(expected).max()))  # vectors without Normalize are larger than 1
    assert np.abs(found - expected).max() <= FAR * scale


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, case: str) -> None:
    write, modules = CASES[case]
    folder = write(tmp_path / "model")
    write_modules(folder, *modules(folder), old=case.startswith("bert"))
    expected, ours = alone(theirs(folder)), Ours(folder)
    close = expected @ expected.T / np.outer(np.linalg.norm(expected, axis=1), np.linalg.norm(expected, axis=1))
    assert np.triu(close, 1).max() < 0.9999, "texts that have one vector would show nothing"
    for batch in (1, 3, len(TEXTS)):
        assert_the_same(ours(TEXTS, batch), expected)


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "weightedmean", "lasttoken", "mean_sqrt_len_tokens"])
def test_a_prompt_that_does_not_count_is_read_all_the_same(tmp_path: Path, mode: str) -> None:
    folder = tiny_bert(tmp_path / "model")
    write_modules(folder, ("Pooling", old_pooling(mode, include_prompt=False)))
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": PROMPT}})
    ours = Ours(folder)
    assert (ours.said.prompts, ours.said.include_prompt) == ({"query": PROMPT}, False)
    expected = alone(theirs(folder), prompt_name="query")
    start = len(ours.tokenizer.encode(PROMPT).ids) - 1  # without [SEP], as sentence-transformers counts
    assert_the_same(ours([PROMPT + text for text in TEXTS], len(TEXTS), start), expected)
    assert np.abs(ours([PROMPT + text for text in TEXTS], len(TEXTS)) - expected).max() > 0.01 or mode == "lasttoken"


def test_a_folder_that_sentence_transformers_saves_is_read(tmp_path: Path) -> None:
    """Its own files, of the version that is installed: names of modules, Pooling, Dense, limits and prompts."""
    import torch  # pyright: ignore[reportMissingImports]
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.base.modules import Dense, Normalize, Transformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.sentence_transformer.modules import Pooling  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    parts = [
        Transformer(str(qwen3(tmp_path / "body"))),
        Pooling(96, "lasttoken"),
        Dense(96, 24, activation_function=torch.nn.SiLU()),
        Normalize(),
    ]
    model = SentenceTransformer(modules=cast("Any", parts), device="cpu", prompts={"query": PROMPT}, default_prompt_name="query")
    model.max_seq_length = 60
    model.save(str(tmp_path / "model"))
    ours = Ours(tmp_path / "model")
    assert ours.said.modules == ("Transformer", "Pooling", "Dense", "Normalize")
    assert (ours.said.default_prompt, ours.said.prompts["query"], ours.said.max_length) == ("query", PROMPT, 60)
    assert_the_same(ours([PROMPT + text for text in TEXTS], 4), alone(model))


def test_a_cut_is_as_sentence_transformers_cuts_and_normalizes(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    write_modules(folder, ("Pooling", old_pooling("mean")), NORMALIZE)
    model = theirs(folder)
    model.truncate_dim = 12
    ours = Ours(folder)
    head = ours.network.head
    head.spec = replace(head.spec, cut=12)
    assert_the_same(ours(TEXTS, 3), alone(model))
    head.spec = replace(head.spec, normalize=True)
    assert_the_same(ours(TEXTS, 3), alone(model, normalize_embeddings=True))
