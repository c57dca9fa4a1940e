"""Scalings of rotary positions, each in an architecture of mlx-lm that reads it; a test's rows are longer than what they begin at.

Plain settings beside those of the architecture's tiny configuration, as a config.json would say them.
"""

from .configs import CONFIGS
from .dense import Config

ORIGINAL = 16  # tokens; the scalings begin behind them
LLAMA3: Config = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
YARN: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "beta_fast": 32, "beta_slow": 1}
LONG: Config = {
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
    "original_max_position_embeddings": ORIGINAL,
}
LINEAR: Config = {"rope_type": "linear", "factor": 4.0}
DYNAMIC: Config = {"rope_type": "dynamic", "factor": 4.0}
SHORT: Config = {"max_position_embeddings": ORIGINAL}  # where `dynamic` begins

# variant -> its architecture, what differs from its tiny configuration
ROPES: dict[str, tuple[str, Config]] = {
    "llama linear": ("llama", {"rope_scaling": LINEAR}),
    "llama dynamic": ("llama", {"rope_scaling": DYNAMIC} | SHORT),
    "llama llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama yarn": ("llama", {"rope_scaling": YARN}),
    "llama longrope": ("llama", {"rope_scaling": LONG | {"rope_type": "longrope"}}),
    "internlm2 dynamic": ("internlm2", {"rope_scaling": DYNAMIC | {"type": "dynamic"}} | SHORT),
    "internlm3 dynamic": ("internlm3", {"rope_scaling": DYNAMIC} | SHORT),
    "phi3 longrope": ("phi3", {"rope_scaling": LONG | {"type": "longrope"}, "original_max_position_embeddings": ORIGINAL}),
    "qwen2 yarn": ("qwen2", {"rope_scaling": YARN}),
    "gemma3_text linear": ("gemma3_text", {"rope_scaling": LINEAR}),
    "gpt_oss yarn": ("gpt_oss", {"rope_scaling": YARN}),
    "telechat3 yarn": ("telechat3", {"rope_scaling": YARN | {"type": "telechat3-yarn"}}),
    "gear yarn": ("gear", {"rope_scaling": YARN}),
}
# A window longer than what a cache grows by.
WIDE: dict[str, tuple[str, Config]] = {f"{name} wide": (name, {"sliding_window": 300}) for name in ("gemma3_text", "gpt_oss", "olmo3")}
VARIANTS: dict[str, Config] = {name: CONFIGS[architecture] | differs for name, (architecture, differs) in (ROPES | WIDE).items()}
