"""Tiny checkpoints whose chat template thinks and calls tools, and completions of theirs as the engine would give them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Sample
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer
from transformers import AddedToken, AutoTokenizer

from .checkpoints import DEMO, EOS, LLAMA, write_checkpoint

# As Qwen's: `thinking` is open, closed or left to the model, which is the default.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
Write calls as <tool_call>
{"name": …, "arguments": …}
</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls %}{% set tool_call = call.function %}<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if thinking == "open" %}{{ '<think>\\n' }}{% elif thinking == "closed" %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
WIDTH = 2076  # of the logits: more than the tokenizer has tokens, and no multiple of 32
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def write_thinker(folder: Path, template: str = TEMPLATE, *, special: bool = False) -> Path:
    """Writes a random model of two layers with the demo's tokenizer, to which the marks are added. special: decoding drops them."""
    write_checkpoint(folder, {**LLAMA, "vocab_size": WIDTH, "max_position_embeddings": 1024})
    hf = AutoTokenizer.from_pretrained(DEMO)
    hf.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in MARKS], special_tokens=special)
    hf.chat_template = template
    hf.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, 0]}))
    return folder


def thinker_tokenizer(folder: Path, **options: Any) -> Tokenizer:
    """The tokenizer of such a checkpoint."""
    return load_tokenizer(write_thinker(folder, **options), None, {}, trust_remote_code=False)


def completed(tokenizer: Tokenizer, text: str, finish: str = "stop", sample: int = 0) -> Generated:
    """A finished completion with this text; EOS ends it, unless its end is ``length``."""
    ids = tokenizer.encode_text(text).ids
    ids = np.append(ids, np.int32(EOS)) if finish == "stop" else ids
    logprobs = np.zeros(len(ids), np.float32)
    return Generated(0, Sample(sample, 7), ids, Scores(logprobs), logprobs, finish, None, None)
