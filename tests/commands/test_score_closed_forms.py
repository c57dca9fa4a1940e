"""Tests scoring end to end on models with logprobs in closed form: uniform, bigram, and one that weighs its context."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pyarrow as pa
import pytest
from mlx import nn
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.models import model_pool
from mlx_bulk.runner.models.checkpoint import Checkpoint
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from ..checkpoints import BOS, CONTEXT, VOCABULARY, write_checkpoint
from ..jobs.support.bench import Bench, Done, Record
from ..runner.support.small_tokenizers import demo

LONG = "The king is dead, and the queen is in the town; café 東京 🙂. " * 9
TEXTS = ["", "a", "\n", "é", "東京 🙂", "a\r\nb\r\n\r\n", "The king is dead.", LONG]

Ids = list[int]


def rewritten(folder: Path, *parts: str) -> Path:
    """The tiny checkpoint with zeros for the weights whose name holds one of ``parts``."""
    write_checkpoint(folder)
    weights = load_weights(folder)
    zeros = {name: mx.zeros_like(w) if any(part in name for part in parts) else w for name, w in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), zeros, metadata={"format": "mlx"})
    return folder


def load_weights(folder: Path) -> dict[str, mx.array]:
    found = mx.load(str(folder / "model.safetensors"))
    assert isinstance(found, dict)
    return found


def ids_of(text: str) -> Ids:
    """A document's ids: its own behind BOS, which stands there once."""
    ids = demo().encode_text(text).ids.tolist()
    return ids if ids[:1] == [BOS] else [BOS, *ids]


def scored(bench: Bench, rows: list[Record], score: Record, **sections: Any) -> Done:
    done = bench.score("-q", rows=rows, score=score, **sections)
    assert (done.code, len(done.records)) == (0, len(rows)), done.stderr
    return done


def overall(done: Done) -> Record:
    """The statistics over all records."""
    with pa.memory_map(str(done.output / "stats.arrow")) as file:
        return pa.ipc.open_file(file).read_all().slice(0, 1).to_pylist()[0]


# ------------------------------------------------------------------------------------------- uniform, and a bigram model


@pytest.mark.parametrize("cut", [{}, {"context": 7}, {"context": 32, "windows": "strided", "stride": 5}], ids=["model", "7", "strided"])
def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(tmp_path: Path, cut: Record):
    bench = Bench(tmp_path, rewritten(tmp_path / "uniform", "lm_head"))
    done = scored(bench, [{"t": text} for text in TEXTS], {"text": "{{ t }}", **cut})
    tokens = sum(len(ids_of(text)) - 1 for text in TEXTS)
    assert len(ids_of(LONG)) > 2 * CONTEXT  # several windows
    found = overall(done)
    assert (found["documents"], found["nothing_to_score"], found["scored_tokens"]) == (len(TEXTS), 1, tokens)
    assert found["sum_logprob"] == pytest.approx(-tokens * math.log(VOCABULARY), rel=1e-7)  # float32 holds ln V to 6e-8 of it
    assert found["token_perplexity"] == pytest.approx(VOCABULARY, rel=1e-6)
    size = sum(len(text.encode()) for text in TEXTS)
    assert found["bytes"] == size
    assert found["bits_per_byte"] == pytest.approx(tokens * math.log2(VOCABULARY) / size, rel=1e-7)
    for text, record in zip(TEXTS, done.records, strict=True):
        own = len(ids_of(text)) - 1
        assert record["scored_tokens"] == own
        assert record["sum_logprob"] == (pytest.approx(-own * math.log(VOCABULARY), rel=1e-7) if own else None)


def test_a_bigram_model_gives_each_pair_its_logprob(tmp_path: Path):
    """Attention and MLP add nothing, so the logits follow from the newest token alone, whatever the windows are."""
    folder = rewritten(tmp_path / "bigram", "o_proj", "down_proj")
    done = scored(Bench(tmp_path, folder), [{"t": text} for text in TEXTS], {"text": "{{ t }}", "context": 11})
    table = bigrams(folder)
    total, tokens = 0.0, 0
    for text, record in zip(TEXTS, done.records, strict=True):
        ids = ids_of(text)
        assert record["token_ids"] == ids
        expected = table[ids[:-1], ids[1:]]
        assert record["token_logprobs"][0] is None
        # Logits of up to 30 in float32, whose sums have another order: 1e-5 is a few roundings.
        np.testing.assert_allclose(np.array(record["token_logprobs"][1:], np.float64), expected, rtol=0, atol=1e-5)
        total, tokens = total + math.fsum(expected), tokens + len(expected)
    assert table[ids_of(LONG)[:-1], ids_of(LONG)[1:]].std() > 1  # else a wrong pair would hide within the tolerance
    found = overall(done)
    assert found["scored_tokens"] == tokens
    assert found["sum_logprob"] == pytest.approx(total, abs=1e-5 * tokens)
    assert found["token_perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-5)


def bigrams(folder: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logprobs [V, V] of the token after each, in float64 from the weights: RMSNorm of the embedding times lm_head."""
    weights = load_weights(folder)
    embedding, norm, head = (
        np.array(weights[f"{name}.weight"]).astype(np.float64) for name in ("model.embed_tokens", "model.norm", "lm_head")
    )
    eps = json.loads((folder / "config.json").read_text())["rms_norm_eps"]
    hidden = embedding / np.sqrt((embedding**2).mean(axis=-1, keepdims=True) + eps) * norm
    logits = hidden @ head.T
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# ------------------------------------------------------------------------------------ a model that weighs what it sees

WEIGHTS = 1 + np.arange(VOCABULARY) * 37 % 61
SPARE = VOCABULARY - 1  # the id that takes what the others' logprob leaves; no text has it


class Scale(nn.Module):
    """A model whose next token tells which tokens it sees: every id but ``SPARE`` has probability 1 / ((1 + weight) · (V − 1)).

    ``weight`` is the sum of WEIGHTS over all real tokens at or before the position, those in the cache too: pads, a token too
    many or too few, or another one's cache are all another sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = mx.array(WEIGHTS.astype(np.float32))

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        weights = self.table[tokens][:, None, :, None]  # (B, 1, T, 1)
        layer = cache[0] if cache else None
        mask: Any = create_attention_mask(weights[:, 0], layer, return_array=True)
        seen = weights if layer is None else layer.update_and_fetch(weights, weights)[0]
        length = tokens.shape[1]
        visible = mx.ones((length, seen.shape[2]), mx.bool_) if mask is None else mask  # (…, T, S)
        total = (visible * seen[..., 0][:, :, None, :]).sum(axis=-1)[:, 0]  # (B, T)
        logits = mx.zeros((*tokens.shape, VOCABULARY))
        logits[..., SPARE] = mx.log(total) + math.log(VOCABULARY - 1)
        return logits


def load_scale(config: ModelConfig, checkpoint: Checkpoint, memory: int, **how: bool) -> LanguageModel:
    return LanguageModel(Scale(), checkpoint, VOCABULARY, "float32", 4 * VOCABULARY)


@pytest.fixture
def scale(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose model weighs its context."""
    monkeypatch.setattr(model_pool, "load_model", load_scale)
    return bench


def weighed(logprobs: Sequence[float | None]) -> list[int | None]:
    """The weights of the tokens before each token; None where it is not scored."""
    return [None if x is None else round(math.exp(-x) / (VOCABULARY - 1) - 1) for x in logprobs]


def weight(ids: Ids) -> int:
    return int(WEIGHTS[ids].sum())


def rolled(ids: Ids, context: int, every: bool) -> list[Ids]:
    """The context promised for each id but the first: lm-eval's windows, the last one filled from the left."""
    seen = [ids[:at] for at in range(1, min(len(ids), 1 + context))]
    room = context - every
    for first in range(1 + context, len(ids), room):
        end = min(first + room, len(ids))
        seen += [[BOS] * every + ids[end - 1 - room : at] for at in range(first, end)]
    return seen


def strode(ids: Ids, context: int, stride: int, every: bool) -> list[Ids]:
    """The same for windows of ``context`` ids, targets too, each ``stride`` behind the last; BOS in place of the first id."""
    seen: list[Ids] = []
    for at in range(1, len(ids)):
        start = next(start for start in range(0, len(ids), stride) if start + context > at)
        own = min(start, at - 1) if stride < context or start != at else at - 1
        seen.append([BOS, *ids[own + 1 : at]] if every and start else ids[own:at])
    return seen


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 32])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("stride", [None, 5, 11])
def test_documents_have_the_context_that_their_windows_promise(scale: Bench, stride: int | None, every: bool, rows: int):
    windows = {} if stride is None else {"windows": "strided", "stride": stride}
    score = {"text": "{{ t }}", "context": 13, "bos_every_window": every, **windows}
    done = scored(scale, [{"t": text} for text in TEXTS], score, batch={"rows": rows})
    for text, record in zip(TEXTS, done.records, strict=True):
        ids = ids_of(text)
        expected = rolled(ids, 13, every) if stride is None else strode(ids, 13, stride, every)
        assert SPARE not in ids
        assert weighed(record["token_logprobs"]) == [None, *map(weight, expected)]


SHOTS = "Q: What is 2 + 2?\nA: 4\n\nQ: What is 7 + 8?\nA: 15\n\n"
QUESTIONS = ["Q: What is 17 + 5?\nA:", "Q: What is the king?\nA:", "Q:", "Q: What is 17 + 9?\nA:"]
ANSWERS = [" dead", " 22", " 2", " café 東京"]


@pytest.mark.parametrize("rows", [1, 32])
def test_completions_follow_their_whole_prompt(scale: Bench, rows: int):
    pairs = [(SHOTS + question, answer) for question in QUESTIONS for answer in ANSWERS]
    table = [{"q": prompt, "a": answer} for prompt, answer in pairs]
    score = {"completion": "{{ a }}"}
    done = scored(scale, table, score, prompt={"text": "{{ q }}"}, batch={"rows": rows})
    for (prompt, answer), record in zip(pairs, done.records, strict=True):
        ids, first = ids_of(prompt + answer), len(ids_of(prompt))
        assert record["token_ids"] == ids
        found = weighed(record["token_logprobs"])
        assert found[first:] == [weight(ids[:at]) for at in range(first, len(ids))]
        assert record["scored_tokens"] == len(ids) - first


@pytest.mark.parametrize("rows", [1, 32])
def test_choices_after_shared_examples_see_their_own_prompt_alone(scale: Bench, rows: int):
    table = [{"q": SHOTS + question, "c": ANSWERS} for question in QUESTIONS]
    done = scored(scale, table, {"choices": "c"}, prompt={"text": "{{ q }}"}, batch={"rows": rows})
    for row, record in zip(table, done.records, strict=True):
        for answer, logprobs in zip(ANSWERS, record["choice_token_logprobs"], strict=True):
            ids, first = ids_of(f"{row['q']}{answer}"), len(ids_of(str(row["q"])))
            assert weighed(logprobs) == [weight(ids[:at]) for at in range(first, len(ids))]
