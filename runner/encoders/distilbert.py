"""DistilBERT (Sanh et al. 2019): BERT without token types, and with names of its own for everything."""

from typing import Any, ClassVar

from .blocks import BlockShape, PostNormBlock
from .checkpoint_keys import CheckpointKeys
from .embeddings import TokenEmbeddings
from .encoder import Encoder
from .settings import Config, head_width

EPS = 1e-12  # config.json has no name for it


class DistilBertEncoder(Encoder):
    """DistilBERT."""

    defaults: ClassVar[Config] = {
        "vocab_size": 30522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "activation": "gelu",
        "max_position_embeddings": 512,
    }
    width_name: ClassVar[str] = "dim"
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("distilbert.",),
        layers="transformer.layer",
        names={
            "embeddings.word_embeddings": "embeddings.words",
            "embeddings.position_embeddings": "embeddings.positions",
            "embeddings.LayerNorm": "embeddings.norm",
        },
        block_names={
            "attention.q_lin": "query",
            "attention.k_lin": "key",
            "attention.v_lin": "value",
            "attention.out_lin": "attention_output",
            "sa_layer_norm": "attention_norm",
            "ffn.lin1": "mlp_input",
            "ffn.lin2": "mlp_output",
            "output_layer_norm": "mlp_norm",
        },
    )

    def _build(self, config: Config) -> None:
        head_width(config, "dim", "n_heads")
        width = config["dim"]
        self.embeddings = TokenEmbeddings(config["vocab_size"], width, EPS, positions=config["max_position_embeddings"])
        shape = BlockShape(width, config["n_heads"], config["hidden_dim"], EPS, config["activation"])
        self.blocks: list[Any] = [PostNormBlock(shape) for _ in range(config["n_layers"])]
