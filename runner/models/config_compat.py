"""Translates settings of a checkpoint that transformers 5 renamed into the names that mlx-lm reads.

It goes by fields. The vision models in ``LEAVE_OUT`` alone go by their type.

transformers 5 saves ``rope_parameters: {rope_theta, rope_type, …}``, or one such dict a layer type. Older checkpoints held
``rope_theta`` and ``rope_scaling``. Most of mlx-lm reads the old names alone: without a translation a model runs with its family's
default theta, silently. A renamed number of experts (Qwen3-MoE's) fails to load instead, and so does the width of LFM2's blocks.
"""

from typing import Any

Config = dict[str, Any]

# layer type in rope_parameters -> the old names of its theta
LAYER_THETA = {
    "full_attention": ("rope_theta",),
    "sliding_attention": ("rope_local_base_freq", "rope_local_theta"),
}
LEAVE_OUT = ("llava", "pixtral", "idefics3", "smolvlm", "internvl")  # vision models whose text config may say little
LABELS = ("id2label", "label2id")  # of a classifier, which a text model is not
OUTER = ("tie_word_embeddings",)  # of a vision model as a whole, and of its text


def mlx_lm_settings(config: Config) -> Config:
    """Returns the entries to add to ``config`` so that old and new names agree. Values under an old name stay."""
    added = _old_names(config)
    inner = config.get("text_config")
    if isinstance(inner, dict):
        text = _with_defaults(inner) if config.get("model_type") in LEAVE_OUT else inner
        names = _old_names(text) | {name: config[name] for name in OUTER if config.get(name) is not None and name not in inner}
        if names or text is not inner:
            added["text_config"] = text | names
        if config.get("vocab_size") is None and "vocab_size" in inner:
            added["vocab_size"] = inner["vocab_size"]  # Gemma 3's: mlx-lm puts its own number over the text's
    return added


def _with_defaults(text: Config) -> Config:
    """Returns a text model's config with what transformers takes where it says nothing: hub configs of vision models leave most out."""
    from transformers import CONFIG_MAPPING

    kind = text.get("model_type", "llama")
    if kind not in CONFIG_MAPPING:
        return text
    own = {name: value for name, value in CONFIG_MAPPING[kind]().to_dict().items() if value is not None and name not in LABELS}
    return own | {"model_type": kind} | text


def _old_names(config: Config) -> Config:
    added: Config = {} if "num_local_experts" not in config else {"num_experts": config["num_local_experts"]}
    if "_sliding_window_pattern" in config:
        added["sliding_window_pattern"] = config["_sliding_window_pattern"]
    if "conv_L_cache" in config and "hidden_size" in config:
        added["block_dim"] = config["hidden_size"]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        _old_rope(rope, added)
    return {name: value for name, value in added.items() if config.get(name) is None}


def _old_rope(rope: Config, added: Config) -> None:
    layers = {kind: params for kind, params in rope.items() if isinstance(params, dict)}
    if not layers:
        _flat(rope, added, ("rope_theta", "rotary_emb_base"))
    for kind, params in layers.items():
        _flat(params, added, LAYER_THETA.get(kind, ()), scaling=kind == "full_attention")


def _flat(rope: Config, added: Config, names: tuple[str, ...], scaling: bool = True) -> None:
    if "rope_theta" in rope:
        added |= dict.fromkeys(names, rope["rope_theta"])
    if not scaling:
        return
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    # None says that nothing is scaled, to model files that ask for one or the other.
    added["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"} if scaled else None
    if "partial_rotary_factor" in rope:
        added["partial_rotary_factor"] = added["rotary_pct"] = rope["partial_rotary_factor"]
