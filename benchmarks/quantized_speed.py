"""Weights of 4 and 8 bits on a CPU: kept as they are in our kernels, against the same weights as float32.

    python benchmarks/quantized_speed.py --data gsm8k_test.jsonl
    python benchmarks/quantized_speed.py --shape 1b --bits 4 --prompts 32 --new 16 --rounds 1

First single products in turns in one process, with mlx's own ``quantized_matmul`` too: it is too slow to run a model beside. Then processes
in turns: greedy completions of ``--prompts`` prompts of GSM8K's lengths, ``--rows`` at once, and as many questions with their answers
scored. The checkpoint is quantized as mlx-lm does, in groups of 64 with scales of float16. Outputs are compared. Where llama.cpp is
installed, it does the same work on the same random weights in its own 4 or 8 bits (Q4_0, Q8_0: groups of 32, and inputs of products rounded
to 8 bits): another rounding, so that its outputs are not compared. The last line is JSON: ``ratio`` holds packed to each peer, ``peak_mb``
the memory of each process.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers.completing import Completing
from racing import agreement
from racing.about import about, table
from racing.lengths import Texts, texts
from racing.options import options, raced
from racing.turns import compare, race, serve

GROUP = 64
WORKS = ("generate", "score")
PEERS = ["packed", "float32", "llama_cpp"]
PRODUCT = (2048, 2048)  # outputs and inputs of the single products
WHOLE = "float32"  # folder of the same weights before they are quantized, for llama.cpp
SLOW_ROWS = 32  # mlx's own product gets no more


def build(peer: str, folder: Path) -> Callable[[], Any]:
    """The peer's work, ready: with too little memory for float32, or with plenty; or llama.cpp's."""
    if peer == "llama_cpp":
        return _build_llama(folder)
    from networks import shapes
    from peers import ours

    shapes.MEMORY = 1 << 20 if peer == "packed" else 1 << 40
    if (folder / "work").read_text() == "generate":
        return ours.generate(folder, Completing.load(folder))
    return ours.score(folder, Texts.load(folder).joined)


def _build_llama(folder: Path) -> Callable[[], Any]:
    from peers import llama_cpp_peer

    bits = int((folder / "bits").read_text())
    if (folder / "work").read_text() == "generate":
        return llama_cpp_peer.generate(folder / WHOLE, Completing.load(folder), bits=bits)
    return llama_cpp_peer.score(folder / WHOLE, Texts.load(folder).joined, bits=bits)


def products(bits: int, seconds: float = 0.3) -> dict[str, dict[str, float]]:
    """Milliseconds of a product of some rows: the least of many turns."""
    from networks import shapes

    from mlx_bulk.kernels import linear
    from mlx_bulk.kernels.quantized import QuantizedWeight

    mx = shapes.mx
    found: dict[str, dict[str, float]] = {}
    words, scales, biases = mx.quantize(mx.random.normal(PRODUCT), GROUP, bits)
    weight = QuantizedWeight(words, scales, biases, bits, GROUP)
    whole = mx.dequantize(*weight.arrays, GROUP, bits)
    for rows in (1, 8, 32, 512):
        x = mx.random.normal((rows, PRODUCT[1]))
        mx.eval(x, whole, *weight.arrays)
        ways = {"packed": partial(linear.on_cpu, x, weight), "float32": partial(linear.on_cpu, x, whole)}
        if rows <= SLOW_ROWS:
            ways["mlx"] = partial(linear.reference, x, weight)
        took: dict[str, float] = dict.fromkeys(ways, float("inf"))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, way in ways.items():
                began = time.perf_counter()
                mx.eval(way())
                took[name] = min(took[name], time.perf_counter() - began)
        found[str(rows)] = {name: round(1e3 * least, 3) for name, least in took.items()}
    return found


def measured(work: str, bits: int, shape: dict[str, Any], asked: Texts, completing: Completing, rounds: int) -> dict[str, Any]:
    """All in turns. Raises DisagreementError where our two ways differ."""
    from networks import shapes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes.save(folder, shape, bits)
        (folder / WHOLE).mkdir()
        shapes.save(folder / WHOLE, shape)
        (folder / "work").write_text(work)
        (folder / "bits").write_text(str(bits))
        asked.save(folder)
        completing.save(folder)
        results = race(__file__, PEERS, folder, rounds)
    own, other, *_ = (its.pop("found") for its in results.values())
    if work == "generate":
        agreed: Any = agreement.greedy("float32", own, other)
        tokens = len(completing.prompts) * completing.new
    else:
        agreed = agreement.sums("float32", own, other)
        tokens = sum(len(row) - 1 for row in asked.joined)
    return {"ratio": compare(results, dict.fromkeys(results, tokens)), "agreement": agreed, **results}


def main() -> None:
    """Runs all, or one peer of a race."""
    parser = options(__doc__, shapes=("135m", "1b", "5m"), prompts=32, new=32, rows=32, rounds=3)
    parser.add_argument("--bits", nargs="+", type=int, choices=(4, 8), default=(4, 8))
    parser.add_argument("--work", nargs="*", choices=WORKS, default=WORKS)
    raced(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder))
        return
    from networks import shapes

    shape = shapes.SHAPES[args.shape]
    asked = texts(args.data, args.prompts, shape["vocab_size"])
    completing = Completing(asked.questions, args.new, args.rows)
    alone = {f"{bits} bits, {rows} rows": its for bits in args.bits for rows, its in products(bits).items()}
    table({name: [its["packed"], its["float32"], its.get("mlx")] for name, its in alone.items()}, ["packed ms", "float32 ms", "mlx ms"])
    runs = {f"{bits} bits {work}": measured(work, bits, shape, asked, completing, args.rounds) for bits in args.bits for work in args.work}
    print()
    table(
        {
            name: [
                *(run["ratio"].get(peer) for peer in PEERS[1:]),
                *(run.get(peer, {}).get(figure) for figure in ("tokens_per_second", "peak_mb") for peer in PEERS),
                run["agreement"],
            ]
            for name, run in runs.items()
        },
        ["to float32", "to llama.cpp", "tok/s packed", "float32", "llama.cpp", "MB packed", "float32", "llama.cpp", "agrees"],
    )
    said = {"shape": args.shape, "prompts": args.prompts, "new": args.new, "rows": args.rows, "lengths": asked.source}
    print(json.dumps({"benchmark": "quantized_speed", **said, "products": alone, "runs": runs, **about()}))


if __name__ == "__main__":
    main()
