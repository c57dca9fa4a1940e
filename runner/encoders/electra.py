"""ELECTRA (Clark et al. 2020): BERT whose embeddings may be narrower than its states, with a product between the two."""

from typing import Any, ClassVar

import mlx.core as mx
from mlx import nn

from .attention import AttentionMask
from .bert import SIZES, TABLES, BertEncoder
from .checkpoint_keys import CheckpointKeys
from .settings import Config


class ElectraEncoder(BertEncoder):
    """ELECTRA's discriminator or generator, without its heads."""

    defaults: ClassVar[Config] = SIZES | {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "pad_token_id": 0,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("electra.",),
        layers="encoder.layer",
        names=TABLES | {"embeddings_project": "projection"},
        block_names=BertEncoder.weight_names.block_names,
    )

    def _build(self, config: Config) -> None:
        super()._build(config)
        narrow, width = config["embedding_size"], config["hidden_size"]
        if narrow != width:
            self.projection: Any = nn.Linear(narrow, width)

    @classmethod
    def embedding_width(cls, config: Config) -> int:
        """Returns the width of the embeddings."""
        return config["embedding_size"]

    def _states(self, x: mx.array, mask: AttentionMask) -> mx.array:
        return super()._states(self.projection(x) if "projection" in self else x, mask)
