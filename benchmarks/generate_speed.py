"""Generation speed on this machine: new tokens a second of ours and of every peer, on random weights in a real model's shape.

    python benchmarks/generate_speed.py --shape 135m --data gsm8k_test.jsonl
    python benchmarks/generate_speed.py --shape 5m --rows 64 --sampled --peers transformers_sorted

Prompts of GSM8K's lengths, ``--new`` tokens each, greedy or drawn (temperature 0.8, top-p 0.95, a seed a row), each new token with its
logprob, ``--rows`` rows at once. Peers: mlx-lm's ``batch_generate`` as installed (on the first ``--slow-prompts`` prompts alone: its
BLAS is the slow one) and with the BLAS that ours uses, transformers in float32 as the prompts come and sorted by length, llama.cpp in
float32; for information transformers in bfloat16 (sorted) and llama.cpp with its default cache and attention. Those that are not
installed are left out: the extra `bench` has them. The last line is JSON: ``ratio`` holds the median over rounds of ours to a peer's
tokens a second, ``agreement`` how the outputs compare.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers import llama_cpp_peer, mlx_lm_peer, torch_peer
from peers.completing import Completing
from racing import agreement
from racing.about import about, table
from racing.lengths import texts
from racing.options import numbered, options, raced
from racing.turns import compare, race, serve

import sgemm

SAMPLED = {"temperature": 0.8, "top_p": 0.95}
SLOW = "mlx_lm"
HALF = ("transformers_bfloat16", "llama_cpp_half")  # for information: held to nothing
PEERS = ["ours", "sgemm", SLOW, "mlx_lm_fast", "transformers", "transformers_sorted", "llama_cpp", *HALF]


def build(peer: str, folder: Path) -> Callable[[], Any]:
    """The peer's work, ready."""
    work = Completing.load(folder)
    if peer == "ours":
        from peers import ours

        return ours.generate(folder, work)
    if peer == SLOW:
        run = mlx_lm_peer.generate(folder, work.first(int((folder / "slow").read_text())))
        mlx_lm_peer.generate(folder, work.first(1, 2))()
        return run
    if peer == "mlx_lm_fast":
        mlx_lm_peer.fast()
        return mlx_lm_peer.generate(folder, work)
    if peer.startswith("llama_cpp"):
        return llama_cpp_peer.generate(folder, work, half=peer in HALF)
    if peer == "sgemm":
        return sgemm.gflops()
    dtype = "bfloat16" if peer in HALF else "float32"
    return torch_peer.generate(folder, work, ordered=peer != "transformers", dtype=dtype)


def agreements(results: dict[str, dict[str, Any]], greedy: bool) -> dict[str, dict[str, float]]:
    """How each peer's last output compares with ours; one in half precision is held to nothing."""
    own = results["ours"]["found"]
    found: dict[str, dict[str, float]] = {}
    for peer in [peer for peer in results if peer not in ("ours", "sgemm")]:
        bound = float("inf") if peer in HALF else agreement.LOGPROB
        held = partial(agreement.greedy, bound=bound) if greedy else agreement.drawn
        found[peer] = held(peer, own, results[peer]["found"])
    return found


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = options(__doc__, prompts=64, new=64, rows=32, slow_prompts=4, rounds=3)
    parser.add_argument("--sampled", action="store_true")
    numbered(parser)
    raced(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder), warm_up=args.peer != SLOW)
        return
    with tempfile.TemporaryDirectory() as name:
        from networks import shapes

        folder, shape = Path(name), shapes.SHAPES[args.shape]
        parameters = shapes.save(folder, shape, numbers=args.numbers)
        prompts = texts(args.data, args.prompts, shape["vocab_size"])
        work = Completing(prompts.questions, args.new, args.rows, **(SAMPLED if args.sampled else {}))
        work.save(folder)
        (folder / "slow").write_text(str(args.slow_prompts))
        results = race(__file__, ["ours", *(peer for peer in args.peers if peer != "ours")], folder, args.rounds)
    agreed = agreements(results, work.greedy)
    found = {peer: result.pop("found") for peer, result in results.items()}
    ratio = compare(results, {peer: sum(map(len, found[peer]["ids"])) for peer in ("ours", *agreed)})
    table(
        {peer: [results[peer]["tokens_per_second"], ratio.get(peer), agreed.get(peer)] for peer in ("ours", *agreed)},
        ["tok/s", "ours to it", "agrees"],
    )
    asked = {name: getattr(args, name) for name in ("shape", "numbers", "prompts", "new", "rows", "sampled")}
    asked |= {"slow_prompts": args.slow_prompts, "lengths": prompts.source, "parameters": parameters}
    figures = {"ratio": ratio, "agreement": agreed, "sgemm_gflops": found.get("sgemm")}
    print(json.dumps({"benchmark": "generate_speed", **asked, **figures, **results, **about()}))


if __name__ == "__main__":
    main()
