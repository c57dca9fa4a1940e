"""Multiple choice with a shared 5-shot prompt on this machine's CPU: questions a second of ours and of mlx-lm's evaluate.

Questions with 4 choices each, text made here, on a random 135 M shape; the peer gets the same BLAS. Ours feeds what all rows
begin with once. Needs the extra `eval`. The last line is JSON; `ratio` is the median over rounds of the peer's seconds to ours.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from racing.options import served
from racing.turns import race, serve

import numpy as np

PEERS = ["ours", "mlx_lm"]
CHOICES, SHOTS = 4, 5
WORDS = "the sea is long and my lord hath said that love will come again when night has gone from thee who art so fair".split()  # noqa: SIM905
Item = tuple[str, list[str]]


def questions(count: int) -> list[Item]:
    """Prompts that begin with the same solved examples, and their choices."""
    rng = random.Random(0)

    def words(low: int, high: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))

    def question() -> str:
        return f"Question: {words(15, 30)}?\nAnswer:"

    shots = "".join(f"{question()} {words(2, 6)}\n\n" for _ in range(SHOTS))
    return [(shots + question(), [f" {words(2, 6)}" for _ in range(CHOICES)]) for _ in range(count)]


def ours(folder: Path, items: list[Item]) -> Callable[[], float]:
    """Tokenized, and through the project's own scorer."""
    from networks import shapes

    from mlx_bulk.runner.core.requests import Passage, ScoreRequest
    from transformers import AutoTokenizer

    setup = shapes.setup(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def passage(context: str, choice: str) -> Passage:
        before, whole = (np.array(tokenizer.encode(text), np.int32) for text in (context, context + choice))
        return Passage(whole, np.arange(len(before), len(whole), dtype=np.int32))

    def total() -> float:
        requests = [ScoreRequest(i, tuple(passage(context, c) for c in choices)) for i, (context, choices) in enumerate(items)]
        return sum(float(scores.logprobs.sum()) for outcome in shapes.scored(shapes.Scorer(setup), requests) for scores in outcome.scores)

    return total


def mlx_lm(folder: Path, items: list[Item]) -> Callable[[], float]:
    """``MLXLM.loglikelihood``, as lm-evaluation-harness calls it."""
    from mlx_bulk.kernels.backend import load_mlx

    load_mlx()
    from mlx_lm.evaluate import MLXLM

    peer = MLXLM(str(folder), use_chat_template=False)
    return lambda: sum(
        float(score) for score, _ in peer.loglikelihood([SimpleNamespace(args=(text, choice)) for text, cs in items for choice in cs])
    )


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    served(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        items = questions(int((args.folder / "questions").read_text()))
        serve(partial({"ours": ours, "mlx_lm": mlx_lm}[args.peer], args.folder, items))
        return
    with tempfile.TemporaryDirectory() as name:
        from networks import shapes

        shapes.save(Path(name), shapes.LLAMA_135M)
        (Path(name) / "questions").write_text(str(args.questions))
        results = race(__file__, PEERS, Path(name), args.rounds)
    for result in results.values():
        result["questions_per_second"] = round(args.questions / statistics.median(result["seconds"]), 2)
    pairs = zip(results["ours"]["seconds"], results["mlx_lm"]["seconds"], strict=True)
    print(json.dumps({"ratio": round(statistics.median(theirs / own for own, theirs in pairs), 2), **results}))


if __name__ == "__main__":
    main()
