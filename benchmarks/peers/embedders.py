"""Checkpoints of random weights in an embedder's shape, as sentence-transformers saves them, with the demo's tokenizer."""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 30522
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {  # the name of a config's class in transformers, and its settings
    "minilm": (
        "BertConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "qwen3": (
        "Qwen3Config",
        {
            "vocab_size": 1000,
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "intermediate_size": 1536,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
        },
    ),
}
POOLING = {"minilm": "mean", "qwen3": "lasttoken"}
GRAPH = "graph.onnx"  # in a folder of an encoder


def save(folder: Path, name: str) -> tuple[int, int]:
    """Writes the checkpoint, and an encoder's graph; returns the parameters, and the ids that its tokenizer has."""
    from networks import shapes  # the BLAS must be in before mlx

    import torch
    import transformers

    kind, settings = SHAPES[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(getattr(transformers, kind)(**settings), attn_implementation="eager").float().eval()
    model.save_pretrained(folder)
    shapes.save_tokenizer(folder, settings["vocab_size"])
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    pooling = {"word_embedding_dimension": settings["hidden_size"], "pooling_mode": POOLING[name]}
    for file, said in (
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": 512}),
    ):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(said))
    if kind == "BertConfig":
        save_graph(model, folder / GRAPH)
    return sum(parameter.numel() for parameter in model.parameters()), settings["vocab_size"]


def save_graph(model: Any, path: Path) -> None:
    """Writes an encoder of transformers as an ONNX graph, for onnxruntime and OpenVINO."""
    import torch

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    names, some = ["input_ids", "attention_mask"], torch.ones(2, 9, dtype=torch.long)
    axes = {name: {0: "rows", 1: "tokens"} for name in (*names, "states")}
    torch.onnx.export(
        States(), (some, some), str(path), input_names=names, output_names=["states"], dynamic_axes=axes, opset_version=17, dynamo=False
    )
