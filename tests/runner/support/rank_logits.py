"""A program: computes logits of a checkpoint, in one process or as a rank of a group, and saves them.

    python rank_logits.py CHECKPOINT OUTPUT [BACKEND]

OUTPUT gets the logits of a prefill [2, 6, V] and of two decode steps [2, 2, V], and the rank's weight bytes.
"""

import sys
from pathlib import Path

import mlx_bulk  # noqa: F401  # pyright: ignore[reportUnusedImport] - opens the BLAS before mlx
import numpy as np
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import load_model
from mlx_bulk.runner.ranks.joined_group import joined_group
from mlx_bulk.runner.ranks.ranks import ALONE, Ranks

IDS = np.array([[5, 9, 2, 77, 31, 8, 200, 3], [1, 4, 4, 9, 120, 17, 6, 90]], np.int32)


def save(folder: str, output: str, ranks: Ranks) -> None:
    config = ModelConfig(path=folder)
    model = load_model(config, find_checkpoint(config), 1 << 40, ranks=ranks)
    network, caches = Network(model.network), make_caches(model.network, 2, padded=True)
    logits = [np.array(network(IDS[:, a:b], caches)) for a, b in ((0, 6), (6, 7), (7, 8))]
    way = np.array(str(model.split.way))
    np.savez(f"{output}-{ranks.rank}.npz", logits=np.concatenate(logits, axis=1), weights=model.weight_bytes, way=way)
    for _ in range(2):  # a rank that ends breaks the connection: the second time all have saved
        ranks.gather(None)


if __name__ == "__main__":
    folder, output, *backend = sys.argv[1:]
    Path(output).parent.mkdir(exist_ok=True)
    if backend:
        joined_group(backend[0], 60, lambda ranks: save(folder, output, ranks))
    else:
        save(folder, output, ALONE)
