"""Tests classifications by the real command against sentence-transformers' CrossEncoder and transformers, each row alone, float32."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from ..checkpoints import BOS, DEMO, EOS, TOKENIZER
from ..encoder_checkpoints import tiny_bert, tiny_roberta
from ..hf_classifiers import write_classifier
from ..jobs.support.bench import Bench, Done

pytestmark = pytest.mark.oracle

WORDS = ("apples", "bad", "buys", "cats", "cost", "day", "dogs", "each", "good", "has", "how", "less", "many", "more", "price", "two")


def texts(count: int, seed: int, longest: int = 30) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


def classify(root: Path, model: Path, rows: list[dict[str, Any]], *options: str, **sections: Any) -> Done:
    bench = Bench(root, model)
    config = {
        "job": "classify",
        "model": {"path": str(model)},
        "data": {"path": str(bench.write_rows(rows)), "keep": "none"},
        "output": {"path": str(root / "run")},
        **sections,
    }
    (root / "config.yaml").write_text(yaml.safe_dump(config))
    done = bench.command(root / "config.yaml", *options)
    assert done.code == 0, done.stderr
    return done


def demo_tokenizer(folder: Path, chat_template: str | None = None) -> None:
    """Puts the demo's tokenizer into a checkpoint's folder, with a chat template in place of its own."""
    for name in TOKENIZER:
        shutil.copy(DEMO / name, folder / name)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)


def cross_encoder(folder: Path, **settings: Any) -> Any:
    from sentence_transformers import CrossEncoder  # pyright: ignore[reportMissingImports]  (the extra oracle has it)

    return CrossEncoder(str(folder), device="cpu", model_kwargs={"attn_implementation": "eager", "dtype": "float32"}, **settings)


def alone(model: Any, pairs: list[tuple[str, str]], **settings: Any) -> NDArray[np.float64]:
    """Scores of sentence-transformers, one pair at a time."""
    return np.array([model.predict([pair], show_progress_bar=False, **settings)[0] for pair in pairs], np.float64)


PAIRS = [*zip(texts(20, 1, 12), texts(20, 2, 90), strict=True), (" ".join(WORDS * 9), " ".join(WORDS * 4)), ("cats", ""), ("", "dogs")]
ROWS = [{"q": query, "d": document} for query, document in PAIRS]
PAIR = {"query": "{{ q }}", "document": "{{ d }}"}


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_cross_encoders_over_pairs(tmp_path: Path, kind: str, labels: int) -> None:
    name = {} if kind == "bert" else {"model_type": "xlm-roberta"}
    folder = (tiny_bert if kind == "bert" else tiny_roberta)(tmp_path / "model", labels, **name)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification" if kind == "bert" else "XLMRobertaForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    model = cross_encoder(folder)
    model.max_seq_length = 128
    import torch  # pyright: ignore[reportMissingImports]

    truth = alone(model, PAIRS, activation_fn=torch.nn.Identity()).reshape(len(PAIRS), labels)
    assert truth.std(axis=0).min() > 0.03
    done = classify(tmp_path, folder, ROWS, classify=PAIR)
    np.testing.assert_allclose([record["logits"] for record in done.records], truth, rtol=0, atol=2e-5)
    scores = np.array([record["score"] for record in done.records])
    np.testing.assert_allclose(scores, alone(model, PAIRS).reshape(len(PAIRS), labels).max(axis=1), rtol=0, atol=2e-5)
    whole = [len(ids) for ids in model.tokenizer([list(pair) for pair in PAIRS])["input_ids"]]
    assert [record["truncated"] for record in done.records] == [length > 128 for length in whole]
    assert 0 < sum(length > 128 for length in whole) < len(whole)
    if labels == 1:
        ranked(tmp_path, folder, model)


def ranked(root: Path, folder: Path, model: Any) -> None:
    """Documents are ranked as sentence-transformers ranks them."""
    rows = [{"q": query, "docs": texts(9, seed, 40)} for seed, query in enumerate(texts(4, 3))]
    done = classify(root, folder, rows, "--overwrite", classify={"query": "{{ q }}", "documents": "docs"})
    for row, record in zip(rows, done.records, strict=True):
        theirs = model.rank(row["q"], row["docs"], show_progress_bar=False)
        assert record["ranking"] == [each["corpus_id"] for each in theirs]
        np.testing.assert_allclose([record["scores"][at] for at in record["ranking"]], [each["score"] for each in theirs], atol=1e-5)


RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements.<|im_end|>\n<|im_start|>user\n<Instruct>: "
    "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('Find it.') }}\n<Query>: "
    "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n<Document>: "
    "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize("prompt", [None, "Find the answer."])
def test_a_generative_reranker_as_sentence_transformers_saves_it(tmp_path: Path, prompt: str | None) -> None:
    """As Qwen3-Reranker: LogitScore over a causal language model, the pair by the chat template's own roles."""
    from sentence_transformers import CrossEncoder  # pyright: ignore[reportMissingImports]
    from sentence_transformers.base.modules import Transformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.cross_encoder.modules import LogitScore  # pyright: ignore[reportMissingImports]

    plain = tmp_path / "plain"
    write_classifier(
        plain, "qwen3", None, vocab_size=2048, max_position_embeddings=200, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=EOS
    )
    demo_tokenizer(plain, RERANKER)
    body = Transformer(str(plain), transformer_task="text-generation", processor_kwargs={"padding_side": "left", "model_max_length": 200})
    made = CrossEncoder(
        modules=[body, LogitScore(301, 302)], prompts={"find": prompt} if prompt else None, default_prompt_name="find" if prompt else None
    )
    made.save(str(tmp_path / "model"))
    model = cross_encoder(tmp_path / "model")
    import torch  # pyright: ignore[reportMissingImports]

    truth = alone(model, PAIRS, activation_fn=torch.nn.Identity())
    assert truth.std() > 0.3
    done = classify(tmp_path, tmp_path / "model", ROWS, classify=PAIR)
    np.testing.assert_allclose([record["logits"][0] for record in done.records], truth, rtol=0, atol=1e-5)
    np.testing.assert_allclose([record["score"] for record in done.records], alone(model, PAIRS), rtol=0, atol=1e-5)
    assert any(record["truncated"] for record in done.records)


def reward_model(folder: Path) -> Any:
    """A Qwen3 with one label and the demo's tokenizer, whose pad is the end of a turn, as transformers' own."""
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS}
    model = write_classifier(folder, "qwen3", 1, vocab_size=2048, **ids)
    demo_tokenizer(folder)
    return model


def rewards(model: Any, folder: Path, chats: list[list[dict[str, str]]]) -> NDArray[np.float64]:
    """Logits of transformers, each chat alone through its template."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found: list[float] = []
    for chat in chats:
        ids = tokenizer.apply_chat_template(chat, tokenize=True, return_tensors="pt", return_dict=True)
        assert ids["input_ids"][0].tolist().count(BOS) == 1
        with torch.no_grad():
            found.append(model(**ids).logits[0, 0].item())
    return np.array(found)


def test_a_reward_model_on_200_preferences_has_transformers_winners(tmp_path: Path) -> None:
    model = reward_model(tmp_path / "model")
    questions = [[{"role": "user", "content": text}] for text in texts(200, 4, 12)]
    better, worse = (
        [[*question, {"role": "assistant", "content": text}] for question, text in zip(questions, texts(200, seed, 40), strict=True)]
        for seed in (5, 6)
    )
    worse[7] = better[7]
    rows = [{"chosen": one, "rejected": other} for one, other in zip(better, worse, strict=True)]
    done = classify(tmp_path, tmp_path / "model", rows, classify={"chosen": "chosen", "rejected": "rejected"})
    chosen, rejected = (rewards(model, tmp_path / "model", chats) for chats in (better, worse))
    assert np.std(chosen) > 0.5
    np.testing.assert_allclose([record["chosen_score"] for record in done.records], chosen, rtol=0, atol=2e-5)
    np.testing.assert_allclose([record["rejected_score"] for record in done.records], rejected, rtol=0, atol=2e-5)
    margins = np.array([record["margin"] for record in done.records])
    assert np.sign(margins).tolist() == np.sign(np.where(np.abs(chosen - rejected) < 1e-6, 0, chosen - rejected)).tolist()
    said = json.loads((done.output / "summary.json").read_text())["statistics"]
    assert (said["ties"], said["acc"]) == (1, pytest.approx(((chosen > rejected + 1e-6).sum() + 0.5) / 200))


def test_a_language_model_asked_for_two_tokens_is_transformers(tmp_path: Path) -> None:
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    model = write_classifier(folder, "llama", None, vocab_size=2048, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=None)
    demo_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{"q": text} for text in texts(20, 7)]
    done = classify(tmp_path, folder, rows, prompt={"user": "{{ q }}"}, classify={"true_token": "y", "false_token": "n"})
    yes, no = (tokenizer.encode(token, add_special_tokens=False)[0] for token in "yn")
    for row, record in zip(rows, done.records, strict=True):
        chat = [{"role": "user", "content": row["q"]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            logits = model(**ids).logits[0, -1]
        assert record["logits"][0] == pytest.approx((logits[yes] - logits[no]).item(), abs=1e-5)
