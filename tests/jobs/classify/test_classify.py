"""Tests what a row becomes for the model, and what its logits become in a record, without a loaded model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.configs.errors import BulkError
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.store.arrow_builder import record_batch

from ...checkpoints import BOS
from ...encoder_checkpoints import tiny_bert
from ...runner.support.small_tokenizers import demo
from ..support.classifiers import ids_of, job_of, record_of, write_classifier

QUESTION, GOOD, BAD = "What is 2 and 2?", "It is 4.", "Who knows?"
ASKED, ANSWERED = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": GOOD}
WORSE = {"role": "assistant", "content": BAD}
PREFERENCE = {"chosen": "chosen", "rejected": "rejected"}


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("models") / "reward")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("models") / "three", 3, ["good", "bad", "none"])


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "cross", 1)


def chat(*messages: dict[str, str], **variables: Any) -> list[int]:
    ids = demo().hf.apply_chat_template(list(messages), tokenize=True, return_dict=True, **variables)["input_ids"]
    assert ids.count(BOS) == 1
    return ids


def text(content: str) -> list[int]:
    return demo().encode(content).ids.tolist()


# ------------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("prompt", "classify", "expected"),
    [
        ({"text": "{{ q }}"}, {}, text(QUESTION)),
        ({"text": "{{ q }}"}, {"completion": " {{ a }}"}, text(f"{QUESTION} {GOOD}")),
        ({"user": "{{ q }}"}, {}, chat(ASKED)),
        ({"user": "{{ q }}"}, {"completion": "{{ a }}"}, chat(ASKED, ANSWERED)),
        ({"user": "{{ q }}", "system": "Be short."}, {}, chat({"role": "system", "content": "Be short."}, ASKED)),
        ({"messages": "m"}, {}, chat(ASKED, ANSWERED)),
        ({"user": "{{ q }}", "chat_template_args": {"add_generation_prompt": True}}, {}, chat(ASKED, add_generation_prompt=True)),
    ],
)
def test_a_prompt_is_one_text_or_one_finished_chat(reward: Path, prompt: Any, classify: Any, expected: list[int]) -> None:
    row = {"q": QUESTION, "a": GOOD, "m": [ASKED, ANSWERED]}
    assert ids_of(job_of(reward, [row], classify, prompt=prompt), row) == [expected]


def test_the_token_after_a_chat_is_asked_for_behind_a_generation_prompt() -> None:
    row = {"q": QUESTION}
    job = job_of("demo", [row], {"true_token": "y", "false_token": "n"}, prompt={"user": "{{ q }}", "prefill": "So "})
    assert ids_of(job, row) == [demo().encode_text(demo().chat_text([ASKED], "So ")).ids.tolist()]
    assert record_of(job, row, [[0.5]])["label"] == "y"
    assert record_of(job, row, [[-0.5]])["label"] == "n"
    assert record_of(job, row, [[2.0]])["score"] == pytest.approx(1 / (1 + np.exp(-2.0)), rel=1e-6)


# --------------------------------------------------------------------------------------------------------- preferences


@pytest.mark.parametrize(
    ("row", "prompt", "expected"),
    [
        ({"chosen": [ASKED, ANSWERED], "rejected": [ASKED, WORSE]}, {}, [chat(ASKED, ANSWERED), chat(ASKED, WORSE)]),
        (
            {"p": [ASKED], "chosen": [ANSWERED], "rejected": [WORSE]},
            {"messages": "p"},
            [chat(ASKED, ANSWERED), chat(ASKED, WORSE)],
        ),
        ({"p": QUESTION, "chosen": GOOD, "rejected": BAD}, {"user": "{{ p }}"}, [chat(ASKED, ANSWERED), chat(ASKED, WORSE)]),
        ({"p": QUESTION, "chosen": GOOD, "rejected": BAD}, {"text": "{{ p }} "}, [text(f"{QUESTION} {GOOD}"), text(f"{QUESTION} {BAD}")]),
        ({"chosen": GOOD, "rejected": BAD}, {}, [text(GOOD), text(BAD)]),
        (
            {"chosen": json.dumps([ASKED, ANSWERED]), "rejected": json.dumps([ASKED, WORSE])},
            {},
            [chat(ASKED, ANSWERED), chat(ASKED, WORSE)],
        ),
        ({"chosen": "[1] is cited", "rejected": "[]"}, {}, [text("[1] is cited"), text("[]")]),
    ],
)
def test_a_preference_is_two_chats_or_two_texts(reward: Path, row: Any, prompt: Any, expected: Any) -> None:
    assert ids_of(job_of(reward, [row], PREFERENCE, prompt=prompt), row) == expected


def test_a_margin_is_the_difference_of_the_scores(reward: Path) -> None:
    row = {"chosen": GOOD, "rejected": BAD}
    record = record_of(job_of(reward, [row], PREFERENCE), row, [[1.5], [-0.25]])
    assert (record["chosen_score"], record["rejected_score"], record["margin"], record["truncated"]) == (1.5, -0.25, 1.75, False)
    assert record["tokens"] == len(text(GOOD)) + len(text(BAD))


@pytest.mark.parametrize(
    ("row", "prompt", "said"),
    [
        ({"chosen": None, "rejected": BAD}, {}, "classify.chosen: 'chosen' holds null; expected a text, or a list of messages"),
        ({"chosen": GOOD, "rejected": []}, {}, "classify.rejected: 'rejected' holds []; expected a text, or a list of messages"),
        ({"chosen": GOOD, "rejected": [{"r": 1}]}, {}, r"rejected[0] is {"),
        ({"chosen": [ASKED], "rejected": BAD}, {"text": "a"}, "classify.chosen: found messages behind prompt.text; give turns"),
    ],
)
def test_an_answer_of_another_kind_is_an_error_of_its_row(reward: Path, row: Any, prompt: Any, said: str) -> None:
    with pytest.raises(RowError) as error:
        ids_of(job_of(reward, [row], PREFERENCE, prompt=prompt), row)
    assert said in str(error.value)


def test_a_chat_for_a_model_without_a_chat_template_is_an_error_of_its_row(cross: Path) -> None:
    row = {"chosen": [ASKED, ANSWERED], "rejected": BAD}
    with pytest.raises(
        RowError, match=r"classify\.chosen: found messages, and the model's tokenizer has no chat template; set prompt\.chat"
    ):
        ids_of(job_of(cross, [row], PREFERENCE), row)


# ------------------------------------------------------------------------------------------------- pairs and documents


def test_documents_are_pairs_with_one_query(cross: Path) -> None:
    row = {"q": "how many apples", "docs": ["two apples each day", "", "cats"], "best": "cats"}
    job = job_of(cross, [row], {"query": "{{ q }}", "documents": "docs", "label": "best"})
    theirs = job.parts.tokenizer.hf([["how many apples", document] for document in row["docs"]])
    [request] = job.requests(Row(0, "0", row))
    assert [one.ids.tolist() for one in request.inputs] == theirs["input_ids"]
    assert [[] if one.types is None else one.types.tolist() for one in request.inputs] == theirs["token_type_ids"]
    record = record_of(job, row, [[-1.0], [2.0], [2.0]])
    assert record["ranking"].tolist() == [1, 2, 0]  # equals stay in their order
    assert record["scores"] == pytest.approx(1 / (1 + np.exp([1.0, -2.0, -2.0])), rel=1e-6)
    assert (record["true_label"], record["correct"], record["logits"].tolist()) == (2, False, [-1.0, 2.0, 2.0])
    batch = record_batch(job.schema, [record])
    assert batch.schema.field("scores").type == pa.list_(pa.float32())


@pytest.mark.parametrize("documents", [[], None, "text", [1], {"a": 1}])
def test_a_row_without_documents_is_an_error(cross: Path, documents: Any) -> None:
    row = {"q": "how many", "docs": documents}
    with pytest.raises(RowError, match=r"classify\.documents: 'docs' holds .* expected"):
        ids_of(job_of(cross, [row, {"docs": ["a"]}], {"query": "{{ q }}", "documents": "docs"}), row)


def test_a_pair_may_have_an_instruction_before_its_query(cross: Path) -> None:
    row = {"q": "apples", "d": "two"}
    job = job_of(cross, [row], {"query": "{{ q }}", "document": "{{ d }}", "instruction": "how many "})
    assert ids_of(job, row) == [job.parts.tokenizer.hf("how many apples", "two")["input_ids"]]


ROLES = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}<Instruct>: {{ m.content }}\n{% endif %}"
    "{% if m.role == 'query' %}<Query>: {{ m.content }}\n{% elif m.role == 'document' %}<Document>: {{ m.content }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% if add_generation_prompt %}!!{% endif %}"
)
YES = {"true_token": "y", "false_token": "n"}


@pytest.mark.parametrize("parts", [False, True])
def test_a_chat_template_with_the_roles_of_a_pair_is_used(parts: bool) -> None:
    template = ROLES.replace("m.content", "m.content[0].text") if parts else ROLES
    row = {"q": "apples", "d": "two"}
    pair = {"query": "{{ q }}", "document": "{{ d }}", **YES}
    for instruction in (None, "Find it."):
        job = job_of("demo", [row], pair | {"instruction": instruction}, prompt={"chat_template": template})
        asked = "" if instruction is None else f"<Instruct>: {instruction}\n"
        expected = f"{demo().hf.bos_token}{asked}<Query>: apples\n<Document>: two<|im_end|>\n"
        assert ids_of(job, row) == [demo().encode_text(expected).ids.tolist()]


def test_any_chat_model_judges_a_pair_in_qwen3_rerankers_words() -> None:
    row = {"q": "apples", "d": "two"}
    job = job_of("demo", [row], {"query": "{{ q }}", "document": "{{ d }}", **YES})
    task = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "y" or "n".'
    )
    instruct = "Given a web search query, retrieve relevant passages that answer the query"
    user = f"<Instruct>: {instruct}\n<Query>: apples\n<Document>: two"
    expected = demo().chat_text([{"role": "system", "content": task}, {"role": "user", "content": user}], "")
    assert ids_of(job, row) == [demo().encode_text(expected).ids.tolist()]
    without = "{{ raise_exception('no system') if messages[0].role == 'system' }}<|im_start|>{{ messages[0].content }}"
    job = job_of("demo", [row], {"query": "{{ q }}", "document": "{{ d }}", **YES}, prompt={"chat_template": without})
    assert ids_of(job, row) == [demo().encode_text(f"<|im_start|>{task}\n\n{user}").ids.tolist()]


def test_a_pair_that_is_too_long_keeps_the_end_of_its_template() -> None:
    row = {"q": "apples", "d": "two " * 100}
    job = job_of("demo", [row], {"query": "{{ q }}", "document": "{{ d }}", "max_length": 60, **YES}, prompt={"chat_template": ROLES})
    [ids] = ids_of(job, row)
    assert (len(ids), demo().spelled(np.array(ids[-2:], np.int32))[0]) == (60, "<|im_end|>\n")
    [request] = job.requests(Row(0, "0", row))
    assert request.truncated == 1


@pytest.mark.parametrize(
    ("classify", "prompt", "cut"),
    [
        ({}, {"text": "{{ t }}"}, True),
        ({}, {"user": "{{ t }}"}, False),
        ({"completion": " so"}, {"text": "{{ t }}"}, False),
        ({"chosen": "t", "rejected": "u"}, {}, False),
        ({"true_token": "y"}, {"text": "{{ t }}"}, False),
    ],
)
@pytest.mark.parametrize("too_long", ["auto", "truncate_right"])
def test_by_default_nothing_is_cut_whose_end_counts(reward: Path, classify: Any, prompt: Any, cut: bool, too_long: str) -> None:
    row = {"t": GOOD * 60, "u": GOOD * 60}
    job = job_of(reward, [row], {**classify, "too_long": too_long}, prompt=prompt)
    if cut or too_long != "auto":
        assert [request.truncated > 0 for request in job.requests(Row(0, "0", row))] == [True]
        return
    with pytest.raises(RowError, match="tokens, and the model takes 96; shorten it, or set"):
        job.requests(Row(0, "0", row))


# ------------------------------------------------------------------------------------------------- labels and settings


@pytest.mark.parametrize(
    ("label", "true", "correct"),
    [("bad", "bad", True), (1, "bad", True), ("0", "good", False), (2.0, "none", False), (None, None, None), ("", None, None)],
)
def test_labels_are_compared_by_name_or_index(three: Path, label: Any, true: str | None, correct: bool | None) -> None:
    row = {"t": GOOD, "l": label}
    record = record_of(job_of(three, [row], {"label": "l"}, prompt={"text": "{{ t }}"}), row, [[0.5, 0.75, 0.75]])
    assert (record["label"], record["score"], record["true_label"], record["correct"]) == ("bad", 0.75, true, correct)
    assert record["logits"].tolist() == [0.5, 0.75, 0.75]


@pytest.mark.parametrize(("activation", "score"), [("auto", 2.0), ("sigmoid", 0.880797), ("softmax", 0.7053845)])
def test_the_score_is_the_winners_through_the_activation(three: Path, activation: str, score: float) -> None:
    row = {"t": GOOD}
    record = record_of(job_of(three, [row], {"activation": activation}, prompt={"text": "{{ t }}"}), row, [[2.0, 1.0, -1.0]])
    assert (record["label"], record["score"]) == ("good", pytest.approx(score, rel=1e-6))


def test_a_label_that_is_none_of_the_models_is_an_error(three: Path) -> None:
    row = {"t": GOOD, "l": "great"}
    with pytest.raises(
        RowError, match=r'classify\.label: found "great"; expected an index from 0 to 2, or the text of a label: "good", "b'
    ):
        ids_of(job_of(three, [row], {"label": "l"}, prompt={"text": "{{ t }}"}), row)


def test_true_and_false_are_labels_of_two_tokens() -> None:
    row = {"t": GOOD, "l": True}
    job = job_of("demo", [row], {**YES, "label": "l"}, prompt={"user": "{{ t }}"})
    assert (record_of(job, row, [[1.0]])["correct"], record_of(job, row, [[-1.0]])["correct"]) == (True, False)


@pytest.mark.parametrize(
    ("model", "classify", "prompt", "said"),
    [
        ("reward", {"label": "l"}, {"text": "a"}, "classify.label: the model gives one score and no labels to compare with"),
        ("three", PREFERENCE, {}, "classify.chosen: the model has 3 labels; expected one with a single score"),
        ("three", {"query": "q", "documents": "l"}, {}, "classify.documents: the model has 3 labels; expected one with a single score"),
        ("reward", {}, {"user": "a", "prefill": "b"}, "prompt.prefill: a classifier reads chats that are finished"),
        ("reward", {"activation": "softmax"}, {"text": "a"}, "classify.activation: found softmax, which is always 1"),
        ("reward", {"max_length": 97}, {"text": "a"}, "classify.max_length: found 97; expected at most 96, the model's positions"),
        (
            "cross",
            {"max_length": 2},
            {"text": "a"},
            "classify.max_length: found 2; expected at least 3, since the tokenizer puts 2 special",
        ),
        (
            "cross",
            {"max_length": 4, "query": "q", "documents": "l"},
            {},
            "found 4; expected at least 5, since the tokenizer puts 3 special",
        ),
        ("cross", {}, {"user": "a"}, "prompt: the model's tokenizer has no chat template"),
        ("demo", {"true_token": "yes indeed"}, {"text": "a"}, "classify.true_token: found 'yes indeed', which is"),
        ("demo", {}, {"text": "a"}, "classify.true_token"),
    ],
)
def test_what_the_model_does_not_allow_is_refused(request: Any, model: str, classify: Any, prompt: Any, said: str) -> None:
    folder = model if model == "demo" else request.getfixturevalue(model)
    with pytest.raises(BulkError) as error:
        _ = job_of(folder, [{"l": 1, "chosen": "a", "rejected": "b"}], classify, prompt=prompt).pooling
    assert said in str(error.value)
