"""Tests a classifier in this process: its figures are those of a run of the same rows, and errors are clear."""

import json
from pathlib import Path
from typing import Any

import mlx_bulk
import numpy as np
import pytest

from ..encoder_checkpoints import tiny_bert
from ..jobs.support.bench import Bench, Done
from ..jobs.support.classifiers import write_classifier

TEXTS = ["How many apples?", "A longer text, with café and two cats.", "O", "Good. ", " bad dogs"]
PAIRS = [("how many apples", text) for text in TEXTS]
CHATS = [[{"role": "user", "content": "How many?"}, {"role": "assistant", "content": text}] for text in TEXTS]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "three", 3)


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("models") / "reward")


def run(bench: Bench, model: Path, rows: list[dict[str, Any]], **sections: Any) -> Done:
    done = bench.score(rows=rows, job="classify", model={"path": str(model)}, **sections)
    assert done.code == 0, done.stderr
    return done


def require_same(results: list[mlx_bulk.ClassifyResult], done: Done) -> None:
    for result, record in zip(results, done.records, strict=True):
        np.testing.assert_allclose(result.logits, record["logits"], rtol=0, atol=1e-5)  # float32 in another batch
        assert result.score == pytest.approx(record["score"], abs=1e-5)
        assert (result.label, result.tokens, result.truncated) == (record.get("label"), record["tokens"], record["truncated"])
        assert result.error is None


def test_texts_are_classified_as_in_a_run(bench: Bench, three: Path) -> None:
    classifier = mlx_bulk.load_classifier(three, activation="softmax", max_length=8)
    assert classifier.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    results = classifier.classify(TEXTS)
    settings = {"activation": "softmax", "max_length": 8}
    require_same(results, run(bench, three, [{"q": text} for text in TEXTS], prompt={"text": "{{ q }}"}, classify=settings))
    assert [len(result.logits) for result in results] == [3] * len(TEXTS)
    assert results[1].truncated
    assert results[0].logits.dtype == np.float32
    assert np.ptp([result.logits[0] for result in results]) > 0.1


def test_pairs_are_read_with_their_types(bench: Bench, three: Path) -> None:
    results = mlx_bulk.load_classifier(three).classify_pairs(PAIRS)
    rows = [{"q": query, "d": document} for query, document in PAIRS]
    require_same(results, run(bench, three, rows, classify={"query": "{{ q }}", "document": "{{ d }}"}))


def test_chats_go_through_the_template(bench: Bench, reward: Path) -> None:
    classifier = mlx_bulk.load_classifier(str(reward))
    assert classifier.labels == ()
    results = classifier.classify_chats(CHATS)
    require_same(results, run(bench, reward, [{"m": chat} for chat in CHATS], prompt={"messages": "m"}))
    assert results[0].label is None


def test_two_tokens_make_a_classifier_of_a_chat_model(bench: Bench, model: Path) -> None:
    tokens: dict[str, Any] = {"true_token": "a", "false_token": "b"}
    classifier = mlx_bulk.load_classifier(model, **tokens)
    assert classifier.labels == ("b", "a")
    require_same(classifier.classify(TEXTS), run(bench, model, [{"q": t} for t in TEXTS], prompt={"text": "{{ q }}"}, classify=tokens))


def test_an_input_that_cannot_be_done_has_an_error_and_the_others_go_on(three: Path) -> None:
    classifier = mlx_bulk.load_classifier(three, max_length=8)
    good, bad = classifier.classify(["a", "two cats " * 9], too_long="error")
    assert good.error is None
    assert bad.error is not None
    assert bad.error.stage == "too_long"
    assert (len(bad.logits), bad.label, bad.score) == (0, None, None)
    with pytest.raises(mlx_bulk.BulkError, match="row 1 failed at too_long"):
        classifier.classify(["a", "two cats " * 9], too_long="error", on_error="fail")


def test_what_is_wrong_is_named(three: Path, model: Path) -> None:
    classifier = mlx_bulk.load_classifier(three)
    wrong: Any = [("a", "b"), "ab"]
    with pytest.raises(TypeError, match=r"pairs\[1\]: found 'ab'; expected two texts, \(query, document\)"):
        classifier.classify_pairs(wrong)
    with pytest.raises(mlx_bulk.BulkError, match="chat template"):
        classifier.classify_chats(CHATS)
    with pytest.raises(mlx_bulk.BulkError, match=r"classify\.max_length: found 4096; expected at most 128"):
        mlx_bulk.load_classifier(three, max_length=4096)
    with pytest.raises(mlx_bulk.BulkError, match=r"classify\.true_token"):
        mlx_bulk.load_classifier(model)
    assert classifier.classify([]) == classifier.classify_pairs([]) == []


def test_a_chat_template_of_ones_own(three: Path, tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    own = mlx_bulk.load_classifier(three, chat_template=template)
    (joined,) = own.classify_chats([[{"role": "user", "content": "two"}, {"role": "assistant", "content": "cats"}]])
    (text,) = own.classify(["two cats"])
    assert json.dumps(joined.tokens) == json.dumps(text.tokens - 2)  # a chat template writes its special tokens itself
