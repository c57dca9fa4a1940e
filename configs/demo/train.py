"""Trains the embedded demo model: a 2.8 M-parameter Llama that speaks Shakespeare and adds two numbers.

    python configs/demo/train.py tinyshakespeare.txt --out configs/demo

README.md beside it gives the commands that made the weights.
This script makes the held-out scenes, the questions, the tokenizer and the weights. It knows the format of the text (speeches separated
by blank lines, each opened by its speaker's name) and nothing of the package.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.platform == "linux":  # a BLAS opened before mlx takes the place of the slow one in its wheel
    try:
        ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        print("no OpenBLAS on this system: training takes a day", file=sys.stderr)

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [BOS, START, END]
CAST_WINDOW = 8  # speeches
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float16",
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def scenes(text: str) -> list[str]:
    """Cuts the text where the cast changes: no speaker of the last eight speeches is among the next eight.

    The text carries no scene headings; a changed cast is what a reader would go by.
    """
    speeches = text.strip().split("\n\n")
    names = [s.split(":", 1)[0] for s in speeches]
    cuts = [0]
    for i in range(CAST_WINDOW, len(names) - CAST_WINDOW):
        before, after = set(names[i - CAST_WINDOW : i]), set(names[i : i + CAST_WINDOW])
        if not before & after and i - cuts[-1] > CAST_WINDOW:
            cuts.append(i)
    return ["\n\n".join(speeches[a:b]) for a, b in zip(cuts, [*cuts[1:], len(speeches)], strict=True)]


def sums() -> tuple[list[str], list[str]]:
    """Returns all a + b and a - b for 0 <= a, b < 100, shuffled and split: sums for training, and unseen sums."""
    every = [f"{a} {sign} {b}" for a in range(100) for b in range(100) for sign in "+-"]
    random.Random(0).shuffle(every)
    return every[:-2000], every[-2000:]


def answer(question: str) -> str:
    """Returns the full answer to a sum: ``answer("17 + 25") == "17 + 25 = 42"``."""
    a, sign, b = question.split()
    return f"{question} = {int(a) + int(b) if sign == '+' else int(a) - int(b)}"


def rendered_question(question: str) -> str:
    """Returns the chat up to the assistant's turn, as the chat template renders it."""
    return f"{START}user\nWhat is {question}?{END}\n{START}assistant\n"


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Trains a byte-level BPE with digits as single tokens. It puts BOS before a text, as Llama 3's tokenizer does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=CONFIG["vocab_size"],
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tokenizer


def training_windows(tokenizer: Tokenizer, texts: list[str], options: argparse.Namespace) -> Iterator[tuple[list[int], list[float]]]:
    """Yields endless windows of ``length + 1`` token ids with the weight of each in the loss.

    A window is of sums in chats with chance ``share``, of bare sums with chance ``drills``, else of scenes, which are one
    stream, each opened by BOS. With ``answers_only`` what can't be known (the question) has no weight.
    """
    rng = random.Random(options.seed)
    shown, _ = sums()
    stream = [i for text in texts for i in tokenizer.encode(text).ids]
    size = options.length + 1
    while True:
        kind = rng.random()
        if kind >= options.share + options.drills:
            at = rng.randrange(len(stream) - size)
            yield stream[at : at + size], [1.0] * size
            continue
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < size:
            q = rng.choice(shown)
            result = answer(q).removeprefix(q)
            parts = (rendered_question(q), f"{q}{result}{END}\n") if kind < options.share else (q, f"{result}\n")
            for text, weight in zip(parts, (0.0 if options.answers_only else 1.0, 1.0), strict=True):
                part = tokenizer.encode(text, add_special_tokens=text.startswith(START)).ids
                ids += part
                weights += [weight] * len(part)
        yield ids[:size], weights[:size]


def held_out(model: nn.Module, tokenizer: Tokenizer, texts: list[str], context: int = 512) -> float:
    """Returns the perplexity a token of the texts, in windows of ``context``, each token scored once."""
    nll = count = 0.0
    for text in texts:
        ids = tokenizer.encode(text).ids
        for at in range(0, len(ids) - 1, context):
            window = mx.array([ids[at : at + context + 1]])
            nll += nn.losses.cross_entropy(model(window[:, :-1]), window[:, 1:], reduction="sum").item()
            count += window.shape[1] - 1
    return float(mx.exp(mx.array(nll / count)).item())


def accuracy(model: nn.Module, tokenizer: Tokenizer, questions: list[str]) -> float:
    """Returns the share of questions answered right when sampled at temperature 1."""
    mx.random.seed(0)
    right = 0
    prompts: dict[int, list[tuple[str, list[int]]]] = {}
    for q in questions:
        ids = tokenizer.encode(rendered_question(q)).ids
        prompts.setdefault(len(ids), []).append((q, ids))
    for group in prompts.values():  # rows of one length need no padding
        cache, x, out = make_prompt_cache(model), mx.array([ids for _, ids in group]), []
        for _ in range(16):
            x = mx.random.categorical(model(x, cache=cache)[:, -1])[:, None]
            out.append(x)
        for (q, _), ids in zip(group, mx.concatenate(out, 1).tolist(), strict=True):
            completion = ids[: ids.index(2)] if 2 in ids else ids
            right += tokenizer.decode(completion) == answer(q)
    return right / len(questions)


def measure(model: nn.Module, tokenizer: Tokenizer, texts: list[str]) -> None:
    """Prints the perplexity of the held-out texts and the share of fresh sums that are right."""
    _, fresh = sums()
    perplexity, right = held_out(model, tokenizer, texts), accuracy(model, tokenizer, fresh[:1000])
    print(f"held-out perplexity {perplexity:.2f}, sums {right:.3f}", flush=True)


def train(model: nn.Module, tokenizer: Tokenizer, texts: list[str], unseen: list[str], options: argparse.Namespace) -> None:
    """Trains with AdamW, a warm-up and a cosine schedule. Prints progress, and saves the model regularly and at the end."""
    decay = optim.cosine_decay(options.rate, options.steps, options.rate * 0.05)
    warm = optim.linear_schedule(0.0, options.rate, 100)
    optimizer = optim.AdamW(learning_rate=optim.join_schedules([warm, decay], [100]), weight_decay=0.1)
    state = [model.state, optimizer.state]

    def loss(x: mx.array, y: mx.array, weights: mx.array) -> mx.array:
        return (nn.losses.cross_entropy(model(x), y) * weights).sum() / weights.sum()

    def step(x: mx.array, y: mx.array, weights: mx.array) -> mx.array:
        value, grads = nn.value_and_grad(model, loss)(x, y, weights)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(model, grads)
        return value

    step = mx.compile(step, inputs=state, outputs=state)
    source = training_windows(tokenizer, texts, options)
    tic, mean = time.perf_counter(), 0.0
    for at in range(1, options.steps + 1):
        rows = [next(source) for _ in range(options.rows)]
        ids, weights = (mx.array(part) for part in zip(*rows, strict=True))
        value = step(ids[:, :-1], ids[:, 1:], weights[:, 1:])
        mx.eval(state, value)
        mean += value.item() / 100
        if at % 100 == 0:
            rate = at * options.rows * options.length / (time.perf_counter() - tic)
            print(f"{at} loss {mean:.3f} {rate:.0f} tokens/s", flush=True)
            mean = 0.0
        if at % 1000 == 0 or at == options.steps:
            save(model, tokenizer, options.out)
            measure(model, tokenizer, unseen)


def save(model: nn.Module, tokenizer: Tokenizer, out: Path) -> None:
    """Writes a folder that transformers and mlx-lm both load; weights in float16."""
    out.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(tree_map(lambda a: a.astype(mx.float16), model.parameters())))
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    names = {"bos_token": BOS, "eos_token": END, "pad_token": BOS}

    def write(name: str, value: dict[str, Any]) -> None:
        (out / name).write_text(json.dumps(value, indent=2) + "\n")

    write("config.json", CONFIG)
    write("generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0})
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "clean_up_tokenization_spaces": False}
    write("tokenizer_config.json", kind | names)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    """Writes one JSON object a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main() -> None:
    """Reads the text, writes data, tokenizer and weights into ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--start", type=Path, help="folder of weights to go on from")
    parser.add_argument("--steps", type=int, default=3000, help="0 only measures the model in --start")
    parser.add_argument("--length", type=int, default=128, help="tokens a window")
    parser.add_argument("--rows", type=int, default=16, help="windows a step")
    parser.add_argument("--share", type=float, default=0.25, help="share of windows that are sums in chats")
    parser.add_argument("--drills", type=float, default=0.0, help="share of windows that are sums without a chat around them")
    parser.add_argument("--answers-only", action="store_true", help="what the user asks does not count in the loss")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mx.set_default_device(mx.cpu if sys.platform == "linux" and not mx.cuda.is_available() else mx.gpu)
    mx.random.seed(options.seed)

    every = scenes(options.text.read_text())
    unseen, texts = every[5::8], [s for i, s in enumerate(every) if i % 8 != 5]
    print(f"{len(every)} scenes, {sum(map(len, unseen)):,} characters of {len(unseen)} held out", flush=True)
    shown, fresh = sums()
    tokenizer = make_tokenizer([*texts, *(f"{rendered_question(q)}{answer(q)}{END}\n" for q in shown[:500])])
    options.out.mkdir(parents=True, exist_ok=True)
    write_lines(options.out / "documents.jsonl", [{"text": s} for s in unseen])
    write_lines(options.out / "questions.jsonl", [{"question": f"What is {q}?", "answer": answer(q)} for q in fresh[:1000]])
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    if options.start is not None:
        model.load_weights(str(options.start / "model.safetensors"))
        model.set_dtype(mx.float32)
    if options.steps:
        train(model, tokenizer, texts, unseen, options)
    else:
        measure(model, tokenizer, unseen)


if __name__ == "__main__":
    main()
