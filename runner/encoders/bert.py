"""BERT (Devlin et al. 2019), and its kin: RoBERTa, XLM-R and CamemBERT have other positions, ELECTRA narrower embeddings."""

from typing import Any, ClassVar

import mlx.core as mx
from mlx import nn

from .attention import AttentionMask
from .blocks import BlockShape, PostNormBlock
from .checkpoint_keys import CheckpointKeys
from .embeddings import TokenEmbeddings
from .encoder import Encoder
from .settings import Config, check_setting, head_width

SIZES: Config = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
TABLES = {
    "embeddings.word_embeddings": "embeddings.words",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.token_type_embeddings": "embeddings.types",
    "embeddings.LayerNorm": "embeddings.norm",
}


class BertEncoder(Encoder):
    """BERT: positions are columns, and the block's norms stand behind the residuals."""

    defaults: ClassVar[Config] = SIZES | {"pad_token_id": 0}
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("bert.", "roberta.", "model."),
        layers="encoder.layer",
        names=TABLES,
        block_names={
            "attention.self.query": "query",
            "attention.self.key": "key",
            "attention.self.value": "value",
            "attention.output.dense": "attention_output",
            "attention.output.LayerNorm": "attention_norm",
            "intermediate.dense": "mlp_input",
            "output.dense": "mlp_output",
            "output.LayerNorm": "mlp_norm",
        },
    )

    def _build(self, config: Config) -> None:
        check_setting(config, "position_embedding_type", ("absolute",), "absolute")
        check_setting(config, "is_decoder", (False,), False)
        head_width(config, "hidden_size", "num_attention_heads")
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = TokenEmbeddings(
            config["vocab_size"],
            self.embedding_width(config),
            eps,
            positions=config["max_position_embeddings"],
            types=config["type_vocab_size"],
            pad=self.position_pad(config),
        )
        shape = BlockShape(width, config["num_attention_heads"], config["intermediate_size"], eps, config["hidden_act"])
        self.blocks: list[Any] = [PostNormBlock(shape) for _ in range(config["num_hidden_layers"])]

    @classmethod
    def embedding_width(cls, config: Config) -> int:
        """Returns the width of the embeddings, which is that of the states."""
        return config["hidden_size"]

    @classmethod
    def position_pad(cls, config: Config) -> int | None:
        """Returns the id behind which positions begin (``TokenEmbeddings``); None where they are columns."""
        del config
        return None

    @classmethod
    def max_positions(cls, config: Config) -> int:
        """Returns how many tokens a text may have: the table's rows without those before the first position."""
        config = cls.settings(config)
        pad = cls.position_pad(config)
        return config["max_position_embeddings"] - (0 if pad is None else pad + 1)


class RobertaEncoder(BertEncoder):
    """RoBERTa (Liu et al. 2019), XLM-R and CamemBERT: positions begin behind the pad's id."""

    defaults: ClassVar[Config] = SIZES | {"vocab_size": 50265, "pad_token_id": 1}

    @classmethod
    def position_pad(cls, config: Config) -> int | None:
        """Returns the pad's id."""
        return config["pad_token_id"]


class ElectraEncoder(BertEncoder):
    """ELECTRA (Clark et al. 2020), discriminator or generator, without its heads: a product stands between embeddings and states."""

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
