"""Makes a checkpoint's config.json small: few layers, narrow, with windows that a short row is longer than.

Goes by the names of settings, never by a model's name. Settings that must stay in proportion are divided by one number, others are
capped, and those that no pattern names stay. Whether a model can be built of the result, tiny_twin.py tries.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

Config = dict[str, Any]
Numbers = list[tuple[str, int]]

VOCABULARY = 131  # a prime: no other size is the same
WINDOW = 8  # tokens
LONGEST = 128  # tokens that a model is trained on, at least

DEPTH = re.compile(r"num_hidden_layers|num_layers|n_layers?|num_transformer_layers")
FROM_END = re.compile(r"num_kv_(shared|reuse)_layers")  # layers counted from the last one
PATTERN = re.compile(r"\w*pattern")  # as a string, it has a letter a layer
VISION = re.compile(r"\w*(vision|audio|visual)\w*")  # what is not text

# Each family is divided by one number, so that queries a key head, heads a group and the like keep their ratios.
STATE_HEADS = re.compile(r"(linear|mamba)_(n|num)_(\w+_)?heads|mamba_n_groups")
STATE_GROUPS = "n_groups"  # is one of those where there are others
HEADS = re.compile(rf"(\w+_)?(num|n)_(?!shared_)(\w+_)?heads?(_per_layer)?|num_attention_groups|o_groups|{STATE_GROUPS}")
HEADS_A_GROUP = re.compile(r"n_heads_in_group|n_shared_head")  # such a ratio
DIMENSIONS = re.compile(r"(?!linear_)(\w+_)?head_dim|kv_channels|hidden_size_per_head|mamba_d_head|rotary_dim|sparse_index_dim")
ROTATED = re.compile(r"\w*rope_head_dim|rotary_dim")
LEAST_ROTATED, LEAST_DIMENSION = 8, 16
DELTA = "short_conv_kernel_size"  # of linear attention whose kernel takes dimensions of heads in multiples of LEAST_STATE
LEAST_STATE = 32
FACTORS = re.compile(r"(short|long)_factor")  # one a pair of rotated dimensions
# A hidden size is often that of all heads: divided by what their number and their dimensions are.
WIDTHS = re.compile(r"hidden_size|d_model|n_embd|model_dim|hidden_dim|block_dim|dim_model_base")
STATE_WIDTH = "mamba_d_ssm"
LEAST_WIDTH = 64

# Settings that depend on no other, and the largest value of each.
VOCABULARIES = re.compile(r"vocab_size(_per_layer_input)?|num_vocab")
WINDOWS = re.compile(r"(?!conv_)(\w+_)?window(_size|_length)?|attention_chunk_size|index_topk|compress_ratios")
CAPS = (
    (WINDOWS, WINDOW),
    *(
        (re.compile(names), most)
        for names, most in (
            (r"(\w+_)?intermediate_size(_\w+)?|(expert_)?ffn_hidden_size|n_inner|(block_)?ff_dim|share_expert_dim", 64),
            (r"(\w+_)?lora_rank|\w+_low_rank_dim|laurel_rank|time_step_rank|mamba_dt_rank", 32),
            (r"(ssm_)?state_size|mamba_d_state|linear_(key|value)_head_dim|routed_expert_hidden_size|moe_latent_size", LEAST_STATE),
            (r"hidden_size_per_layer_input", 16),
            (r"(moe_)?num(_local)?_experts|n_routed_experts", 8),
            (r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts|n_group|num_expert_group|zero_expert_num", 2),
            (r"topk_group|blocksparse_num_local_blocks", 1),
            (r"(sparse|index|candidate)_block_size|(index_|sparse_|candidate_)topk_blocks", WINDOW // 2),
            (r"floor_scale", 2 * WINDOW),
            (r"n_positions|n_ctx", 1024),
        )
    ),
)
# Positions that a scaling of rotations begins at, and what stays in proportion to them.
ORIGINAL = "original_max_position_embeddings"
TRAINED = "max_position_embeddings"


def shrink_config(config: Config, layers: int, of: int, vocabulary: int = VOCABULARY) -> Config:
    """Returns the config of the same model, small, with the first ``layers`` of its ``of`` layers. ``config`` stays as it is."""
    numbers = list(_numbers(config))
    original = next((value for name, value in numbers if name == ORIGINAL), None)
    return _Scale(layers, of, vocabulary, _divisors(numbers), original).shrunken(config)


def window_lengths(config: Config) -> list[int]:
    """Returns all lengths, in tokens, beyond which a model treats a row in another way."""
    return [value for name, value in _numbers(config) if WINDOWS.fullmatch(name) or name == ORIGINAL]


def shrinks(name: str) -> bool:
    """Returns whether a setting of that name is made smaller."""
    families = (DEPTH, FROM_END, STATE_HEADS, HEADS, DIMENSIONS, WIDTHS, VOCABULARIES, *(names for names, _ in CAPS))
    return name == STATE_WIDTH or any(names.fullmatch(name) for names in families)


@dataclass(slots=True, frozen=True)
class _Scale:
    """How settings are made smaller. divisors: by name, of settings that stay in proportion."""

    layers: int
    of: int
    vocabulary: int
    divisors: dict[str, int]
    original: int | None

    def shrunken(self, config: Config) -> Config:
        return {name: value if VISION.fullmatch(name) else self._setting(name, value) for name, value in config.items()}

    def _setting(self, name: str, value: Any) -> Any:
        match value:
            case dict():
                return self.shrunken(cast(Config, value))
            case str() if PATTERN.fullmatch(name) and len(value) == self.of:
                return value[: self.layers]
            case list() | tuple():
                entries = cast(list[Any], value)
                if FACTORS.fullmatch(name):
                    return entries[:: self.divisors[FACTORS.pattern]]
                return [self._setting(name, entry) for entry in (entries[: self.layers] if len(entries) == self.of else entries)]
            case int() if not isinstance(value, bool) and value > 0:
                return self._number(name, value)
            case _:
                return value

    def _number(self, name: str, value: int) -> int:
        if DEPTH.fullmatch(name):
            return min(value, self.layers)
        if FROM_END.fullmatch(name):
            return min(-(-value * self.layers // self.of), self.layers - 1)
        if VOCABULARIES.fullmatch(name):
            return min(value, self.vocabulary)
        if name in self.divisors:
            return max(1, value // self.divisors[name])
        if self.original is not None and name in (ORIGINAL, TRAINED):
            scaled = -(-value * 2 * WINDOW // self.original)
            return max(scaled, LONGEST) if name == TRAINED else scaled
        return next((min(value, most) for names, most in CAPS if names.fullmatch(name)), value)


def _numbers(config: Config) -> Iterator[tuple[str, int]]:
    """Yields all positive integers among the settings, with their names; of lists each entry."""
    for name, value in config.items():
        if VISION.fullmatch(name):
            continue
        for entry in cast(list[Any], value) if isinstance(value, (list, tuple)) else [value]:
            if isinstance(entry, dict):
                yield from _numbers(cast(Config, entry))
            elif isinstance(entry, int) and not isinstance(entry, bool) and entry > 0:
                yield name, entry


def _divisors(numbers: Numbers) -> dict[str, int]:
    """Returns the divisor of each setting that stays in proportion to others."""
    states = {name for name, _ in numbers if STATE_HEADS.fullmatch(name)}
    states |= {STATE_GROUPS} if states else set()
    heads = {name for name, _ in numbers if HEADS.fullmatch(name)} - states
    widths = {name for name, _ in numbers if WIDTHS.fullmatch(name)}
    whole = math.gcd(*_of(numbers, widths))  # 0 where none is said: all divide it
    by_dimensions = _narrower(numbers, whole, max(_of(numbers, heads), default=0))
    ratios = [value for name, value in numbers if HEADS_A_GROUP.fullmatch(name)]
    counts = _of(numbers, heads)
    counts += [count // ratio for count in counts for ratio in ratios if count >= ratio]
    by_heads = _fewer(counts, whole // by_dimensions, max(1, max(_of(numbers, widths), default=0) // (LEAST_WIDTH * by_dimensions)))
    by_states = _fewer(_of(numbers, states), math.gcd(*_of(numbers, {STATE_WIDTH})) // by_dimensions, max(by_heads, LEAST_STATE))
    return (
        dict.fromkeys(heads, by_heads)
        | dict.fromkeys(states, by_states)
        | dict.fromkeys((name for name, _ in numbers if DIMENSIONS.fullmatch(name)), by_dimensions)
        | dict.fromkeys(widths, by_heads * by_dimensions)
        | {STATE_WIDTH: by_states * by_dimensions, FACTORS.pattern: by_dimensions}
    )


def _of(numbers: Numbers, names: set[str]) -> list[int]:
    return [value for name, value in numbers if name in names]


def _narrower(numbers: Numbers, whole: int, heads: int) -> int:
    """Returns the divisor of head dimensions. ``whole`` divides all widths, which are heads x dimensions."""
    least = LEAST_STATE if any(name == DELTA for name, _ in numbers) else LEAST_DIMENSION
    sizes = [(value, LEAST_ROTATED if ROTATED.fullmatch(name) else least) for name, value in numbers if DIMENSIONS.fullmatch(name)]
    if not sizes and whole and heads:
        sizes = [(whole // heads, least)]
    fits = (
        by
        for by in (16, 8, 4, 2)
        if whole % by == 0 and (not whole or whole // by >= LEAST_WIDTH) and all(n % (2 * by) == 0 and n // by >= low for n, low in sizes)
    )
    return next(fits, 1)


def _fewer(counts: list[int], whole: int, most: int) -> int:
    """Returns the divisor, ``most`` at most, of the ``counts`` of heads, which leaves two of each or more; it divides ``whole`` too."""
    several = [count for count in counts if count > 1]
    common = math.gcd(*several, whole)
    return next((by for by in range(min(min(several, default=2) // 2, most), 1, -1) if common % by == 0), 1)
