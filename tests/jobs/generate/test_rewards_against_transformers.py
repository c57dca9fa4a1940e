"""Tests rewards of whole runs against transformers, with texts and batches as TRL's GRPOTrainer makes them in _calculate_rewards."""

from pathlib import Path
from typing import Any

import pytest

from ...checkpoints import VOCABULARY, copy_tokenizer
from ...hf_classifiers import PAD, write_classifier
from ..support.bench import ROWS, Bench
from ..support.rollout_runs import SAMPLES, roll

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-4
TEXT = {"text": "{{ q }}"}
CHAT = {"user": "{{ q }}", "system": "Be brief."}


def rewards_of_trl(folder: Path, model: Any, texts: list[str]) -> list[float]:
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(PAD)
    inputs = tokenizer(text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
    with torch.inference_mode():
        return model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0].tolist()


@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text", "bert", "modernbert"])
def test_rewards_are_those_of_trl(bench: Bench, tmp_path: Path, architecture: str, prompt: dict[str, str]):
    from transformers import AutoTokenizer

    folder = tmp_path / "rater"
    model = write_classifier(folder, architecture, 1, vocab_size=VOCABULARY)
    copy_tokenizer(folder)
    done = roll(bench, rewards=[{"model": str(folder), "name": "m"}], prompt=prompt)
    assert done.code == 0, done.stderr
    texts = [record["prompt"] + record["completion"] for record in done.records]
    if prompt is CHAT:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        turns = [("system", "Be brief."), ("user", "q"), ("assistant", "completion")]
        rows = [{"q": ROWS[record["row"]]["q"], "completion": record["completion"]} for record in done.records]
        chats = [[{"role": role, "content": row.get(content, content)} for role, content in turns] for row in rows]
        texts = [str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats]
    truth = rewards_of_trl(folder, model, texts)
    assert len(set(truth)) > len(ROWS) * SAMPLES / 2
    assert [record["rewards"]["m"] for record in done.records] == pytest.approx(truth, abs=TOLERANCE)
