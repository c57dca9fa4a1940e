"""Scoring speed on this machine: tokens a second of ours and of every peer, on random weights in a real model's shape.

    python benchmarks/score_speed.py --data gsm8k_test.jsonl

64 texts of GSM8K's questions and answers. transformers gets batches sorted by length, the best of several batch sizes, no mask (pads
stand on the right), and its head in chunks, or (transformers_logits) all logits of a batch at once, as lm-eval's backend asks for
them; mlx-lm's evaluate gets the same BLAS and sorted batches of 8; llama.cpp sorted texts, all that fit a call. For information:
transformers in bfloat16, llama.cpp with its default cache and attention. Those that are not installed are left out: the extra `bench`
has them. The last line is JSON; ``ratio`` holds the median over rounds of a peer's seconds to ours, ``peak_share`` 2 x parameters
FLOP a token of ours to what matrix products reach in the same run.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers import llama_cpp_peer, mlx_lm_peer, torch_peer
from racing import agreement
from racing.about import about, table
from racing.lengths import Texts, texts
from racing.options import numbered, options, raced
from racing.turns import compare, race, serve

import sgemm

HALF = ("transformers_bfloat16", "llama_cpp_half")  # for information: held to nothing
PEERS = ["ours", "sgemm", "transformers", "transformers_logits", "mlx_lm", "llama_cpp", *HALF]


def build(peer: str, folder: Path) -> Callable[[], Any]:
    """The peer's work, ready."""
    if peer == "sgemm":
        return sgemm.gflops(int((folder / "sgemm_width").read_text()))
    rows = Texts.load(folder).joined
    if peer == "ours":
        from peers import ours

        return ours.score(folder, rows)
    if peer == "mlx_lm":
        mlx_lm_peer.fast()
        return mlx_lm_peer.score(folder, rows)
    if peer.startswith("llama_cpp"):
        return llama_cpp_peer.score(folder, rows, half=peer in HALF)
    return torch_peer.score(folder, rows, "bfloat16" if peer in HALF else "float32", logits=peer.endswith("logits"))


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = options(__doc__, texts=64, rounds=3, sgemm_width=sgemm.WIDTH)
    numbered(parser)
    raced(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder))
        return
    with tempfile.TemporaryDirectory() as name:
        from networks import shapes

        folder, shape = Path(name), shapes.SHAPES[args.shape]
        parameters = shapes.save(folder, shape, numbers=args.numbers)
        rows = texts(args.data, args.texts, shape["vocab_size"])
        rows.save(folder)
        (folder / "sgemm_width").write_text(str(args.sgemm_width))
        results = race(__file__, ["ours", *(peer for peer in args.peers if peer != "ours")], folder, args.rounds)
    found = {peer: result.pop("found") for peer, result in results.items()}
    peak = found.pop("sgemm", None)
    bounds = {peer: float("inf") if peer in HALF else agreement.SUM for peer in found if peer != "ours"}
    agreed = {peer: agreement.sums(peer, found["ours"], found[peer], bound) for peer, bound in bounds.items()}
    ratio = compare(results, dict.fromkeys(found, sum(len(row) - 1 for row in rows.joined)))
    share = {} if peak is None else {"peak_share": round(2e-9 * parameters * results["ours"]["tokens_per_second"] / peak, 3)}
    table(
        {peer: [results[peer]["tokens_per_second"], ratio.get(peer), agreed.get(peer)] for peer in found},
        ["tok/s", "ours to it", "sums differ by"],
    )
    asked = {"shape": args.shape, "numbers": args.numbers, "texts": args.texts, "lengths": rows.source, "parameters": parameters}
    figures = {"ratio": ratio, "agreement": agreed, "sgemm_gflops": peak, **share}
    print(json.dumps({"benchmark": "score_speed", **asked, **figures, **results, **about()}))


if __name__ == "__main__":
    main()
