"""A Llama checkpoint as a GGUF file, for llama.cpp: in float32, or its matrices in few bits. Knows that one architecture."""

import json
from pathlib import Path
from typing import Any

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GROUP = 32  # numbers that share a scale; rows of another length stay in float32


def write(folder: Path, bits: int | None = None) -> Path:
    """Writes ``model.gguf`` into the checkpoint's folder, unless it is there; its path.

    bits: of its matrices, 4 (Q4_0) or 8 (Q8_0); None for float32.
    """
    import gguf
    from safetensors.numpy import load_file

    kind = gguf.GGMLQuantizationType["F32" if bits is None else f"Q{bits}_0"]
    path = folder / ("model.gguf" if bits is None else f"model-{bits}.gguf")
    if path.exists():
        return path
    shape = json.loads((folder / "config.json").read_text())
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_dimension_count(shape["hidden_size"] // heads)
    writer.add_rope_freq_base(shape["rope_theta"])
    _add_vocabulary(writer, folder, shape["vocab_size"])
    for name, array in load_file(folder / "model.safetensors").items():
        turned = heads if name.endswith("q_proj.weight") else kv_heads if name.endswith("k_proj.weight") else 0
        paired = _pairs(array, turned) if turned else array
        if bits is None or paired.ndim == 1 or paired.shape[-1] % GROUP:
            writer.add_tensor(_name(name), paired)
        else:
            writer.add_tensor(_name(name), gguf.quantize(paired, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: Any, folder: Path, size: int) -> None:
    """The tokenizer's tokens; nobody tokenizes with them here."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    writer.add_token_types([1] * size)
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]])


def _name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.weight"


def _pairs(array: Any, heads: int) -> Any:
    """Rows of a projection [heads x D, H] from rotary halves to rotary pairs, as llama.cpp turns neighbours."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
