"""Embedding speed on this machine: texts a second of ours and of every peer, on random weights in a real model's shape.

    python benchmarks/embed_speed.py --data gsm8k_test.jsonl
    python benchmarks/embed_speed.py --data gsm8k_test.jsonl --shape qwen3 --texts 96

Token ids of the lengths of GSM8K's questions. Shapes: all-MiniLM-L6-v2's (BERT, mean) and a decoder of 107 M (Qwen3, last token). Peers:
sentence-transformers on torch, and for the encoder its graph in onnxruntime and OpenVINO; all in float32, sorted by length, in batches
of the size that is best for each. Vectors must agree with ours: cosine at least 0.99999, no number further than 1e-5. transformers
builds the checkpoint and torch the graph, so both must be installed (the extra `bench` has them). ``--model`` takes a real encoder's
folder instead, for random ids of its vocabulary. The last line is JSON; ``ratio`` holds the median over rounds of a peer's seconds to
ours.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers import embedders
from peers.embed_peers import PEERS
from racing.about import about, table
from racing.agreement import vectors as agree
from racing.lengths import Texts, texts
from racing.options import options, raced
from racing.turns import compare, race, serve

import numpy as np

DECODER_PEERS = ("ours", "sentence_transformers")


def build(peer: str, folder: Path) -> Callable[[], Any]:
    """The peer's work, ready: embeds the questions and keeps the vectors in ``folder``."""
    work = PEERS[peer](folder, Texts.load(folder).questions)

    def kept() -> str:
        np.save(folder / f"{peer}.npy", work())
        return f"{peer}.npy"

    return kept


def real(folder: Path, model: Path) -> tuple[int, int]:
    """Copies a real encoder's folder and adds its graph; returns what ``embedders.save`` does."""
    import transformers

    shutil.copytree(model, folder, dirs_exist_ok=True)
    loaded = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").float().eval()
    embedders.save_graph(loaded, folder / embedders.GRAPH)
    return sum(parameter.numel() for parameter in loaded.parameters()), loaded.config.vocab_size


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = options(__doc__, shapes=list(embedders.SHAPES), texts=1319, rounds=3)
    parser.add_argument("--model", type=Path, help="A real encoder's folder, as sentence-transformers saves it.")
    raced(parser, list(PEERS))
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters, vocabulary = embedders.save(folder, args.shape) if args.model is None else real(folder, args.model)
        asked = texts(args.data, args.texts, vocabulary)
        asked.save(folder)
        served = [peer for peer in args.peers if peer != "ours" and (args.shape == "minilm" or peer in DECODER_PEERS)]
        results = race(__file__, ["ours", *served], folder, args.rounds)
        found = {peer: np.load(folder / result.pop("found")) for peer, result in results.items()}
    agreed = {peer: agree(peer, found["ours"], their) for peer, their in found.items() if peer != "ours"}
    tokens = sum(map(len, asked.questions))
    ratio = compare(results, dict.fromkeys(found, tokens))
    table(
        {
            peer: [its["tokens_per_second"], ratio.get(peer), *agreed.get(peer, {"cosine": "", "largest_difference": ""}).values()]
            for peer, its in results.items()
        },
        ["tok/s", "ours to it", "least cosine", "numbers differ by"],
    )
    said = {"shape": args.shape if args.model is None else args.model.name, "texts": args.texts, "lengths": asked.source}
    figures = {"parameters": parameters, "tokens": tokens, "ratio": ratio, "agreement": agreed}
    print(json.dumps({"benchmark": "embed_speed", **said, **figures, **results, **about()}))


if __name__ == "__main__":
    main()
