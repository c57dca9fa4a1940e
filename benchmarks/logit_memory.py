"""Memory that scoring takes for logits at a vocabulary of 152 k: 16 rows of 2048 tokens through a model with hardly any weights.

The peak while scoring is held against the peak for a vocabulary of 2 k, all else equal. The last line is JSON, in MB; whole
logits would take 19,900 MB. The rows go through the project's own scorer.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from racing.turns import peak_mb

ROWS, TOKENS = 16, 2048
VOCABULARIES = {"small": 2048, "large": 151936}


def peak(vocabulary: int) -> int:
    """The peak in MB of this process, which scores all rows under a random model of two layers of 64."""
    from networks import shapes

    import numpy as np
    from mlx_bulk.runner.core.requests import Passage, ScoreRequest

    with tempfile.TemporaryDirectory() as name:
        tiny = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
        shapes.save(Path(name), shapes.LLAMA_135M | tiny | {"vocab_size": vocabulary})
        setup = shapes.setup(Path(name))
    rng = np.random.default_rng(0)
    positions = np.arange(1, TOKENS, dtype=np.int32)
    requests = [ScoreRequest(i, (Passage(rng.integers(0, vocabulary, TOKENS).astype(np.int32), positions),)) for i in range(ROWS)]
    shapes.scored(shapes.Scorer(setup), requests)
    return peak_mb()


def main() -> None:
    """Measures each vocabulary in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", choices=list(VOCABULARIES))
    chosen = parser.parse_args().vocabulary
    if chosen:
        print(json.dumps(peak(VOCABULARIES[chosen])))
        return
    peaks: dict[str, int] = {}
    for name in VOCABULARIES:
        done = subprocess.run([sys.executable, __file__, "--vocabulary", name], stdout=subprocess.PIPE, text=True, check=True)
        peaks[name] = json.loads(done.stdout.splitlines()[-1])
    weights = round((VOCABULARIES["large"] - VOCABULARIES["small"]) * 64 * 4 / 1e6)
    print(json.dumps({"peak_mb": peaks, "weights_mb": weights, "logits_mb": peaks["large"] - peaks["small"] - weights}))


if __name__ == "__main__":
    main()
