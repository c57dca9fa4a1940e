"""What is wrong in mlx-lm, as far as the zoo shows it: in padded batches, in any call, in loading; each with a script that shows it.

A script fails where the fault is, so that a newer mlx-lm without it is noticed. Knows nothing of ours but what it does about each.
"""

import textwrap
from dataclasses import dataclass
from importlib import import_module
from inspect import signature

from .configs import CONFIGS, Config

PRELUDE = '''\
import importlib
import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

def build(name, **config):
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({"model_type": name, **config}))
    model.update(tree_map(lambda weight: weight + 0.2 * mx.random.normal(weight.shape), model.parameters()))
    return model

def in_a_batch(model, calls=1):
    """What a step's logits behind a prompt of 9 tokens, padded on the right to 24, differ by from one call of the row alone."""
    tokens = mx.stack([mx.arange(3, 27), mx.where(mx.arange(24) < 9, mx.arange(13, 37), 0)])
    caches = [type(cache).merge([cache, cache]) for cache in make_prompt_cache(model)]
    for cache in caches:
        cache.prepare(lengths=[24, 9], right_padding=[0, 15])
    for part in mx.split(tokens, calls, axis=1):
        model(part, cache=caches)
    for cache in caches:
        cache.finalize()
    step = model(mx.array([[50], [51]]), cache=caches)[1, -1]
    alone = model(mx.array([[*range(13, 22), 51]]), cache=make_prompt_cache(model))[0, -1]
    return mx.abs(step - alone).max().item()
'''


@dataclass(slots=True, frozen=True)
class Fault:
    """Something wrong in the named architectures, what is done about it here, and a script that fails for it."""

    architectures: tuple[str, ...]
    what: str
    done: str
    script: str


def _shown(name: str, check: str, config: Config | None = None) -> str:
    """A script that builds an architecture from its tiny configuration and checks it."""
    read = signature(import_module(f"mlx_lm.models.{name}").ModelArgs).parameters
    said = {key: value for key, value in (CONFIGS[name] if config is None else config).items() if key in read and key != "model_type"}
    settings = ", ".join([f'"{name}"', *(f"{key}={value!r}" for key, value in said.items())])
    lines = textwrap.fill(settings, 120, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return f"model = build(\n{lines}\n)\n{check}\n"


def _batched(name: str, calls: int = 1) -> str:
    more = f", calls={calls}" if calls > 1 else ""
    return _shown(name, f"assert in_a_batch(model{more}) < 1e-3")


EXACT, JOINED = "batches of one length", "prompts of one length are prefilled together, and join the rows that decode"
IN_BATCHES = (
    Fault(
        ("mamba", "jamba", "rwkv7", "bailing_moe_linear"),
        "recurrent layers take pads into their state: neither the cache's mask nor its lengths are looked at",
        JOINED,
        _batched("mamba"),
    ),
    Fault(
        ("recurrent_gemma",),
        "the same of its convolution and its gated recurrence, which are given no mask at all",
        EXACT,
        _batched("recurrent_gemma"),
    ),
    Fault(
        ("nemotron_h",),
        "`ssm_update` is called without the cache's lengths: a padded row's state is lost",
        JOINED,
        _batched("nemotron_h"),
    ),
    Fault(
        ("olmo_hybrid",),
        "the states of its convolutions are cut at a call's end instead of the row's",
        JOINED,
        _batched("olmo_hybrid"),
    ),
    Fault(
        ("baichuan_m1",),
        "the key and value that it keeps of the last token, for its convolution of two, are a pad's",
        JOINED,
        _batched("baichuan_m1"),
    ),
    Fault(
        ("longcat_flash_ngram",),
        "the last tokens that it keeps for its n-grams are pads",
        EXACT,
        _batched("longcat_flash_ngram"),
    ),
    Fault(
        ("afm7",),
        "layers that reuse keys rotate their queries by the cache's slots, pads and all (`offset=S - L`), not by `cache.offset`",
        EXACT,
        _batched("afm7"),
    ),
    Fault(
        ("minimax_m3_vl",),
        "its blocks of keys are cut over cache slots: pads on the left shift a row's blocks, and others are chosen",
        EXACT,
        _batched("minimax_m3_vl"),
    ),
    Fault(
        ("mamba2", "falcon_h1", "granitemoehybrid", "plamo2"),
        "`ssm_attn` reads a row's last state at `min(lengths, step) - 1`, beyond the end of a call that is shorter than the row: "
        "garbage, or NaN, where padded prompts are prefilled in several calls",
        "lengths are cut to each call (`cache.announce_call`), so they are padded",
        _batched("mamba2", calls=3),
    ),
    Fault(
        ("gemma2", "phi3small"),
        "its own attention has scores of five axes, and a batch's mask has four: `[broadcast_shapes]`, or other rows' masks where "
        "there are as many rows as heads of keys",
        EXACT,
        _batched("gemma2"),
    ),
    Fault(
        ("gpt_bigcode",),
        "positions come of `np.arange(cache.offset, …)`, and a batch's offset is an array",
        EXACT,
        _batched("gpt_bigcode"),
    ),
    Fault(("llama4",), "`ChunkedKVCache` has no `merge`: there are no batches of unlike lengths", EXACT, _batched("llama4")),
    Fault(("deepseek_v41",), "so has its `LayerCache`", EXACT, _batched("deepseek_v41")),
    Fault(
        ("nemotron-nas",),
        "it makes a cache for a layer whose attention is a linear layer, and `BatchKVCache.finalize` crashes on a cache that nobody fills",
        "a cache that nobody fills is left alone (`cache.settle`), so it is padded",
        _batched("nemotron-nas"),
    ),
    Fault(
        ("internlm2", "internlm3"),
        "`DynamicNTKScalingRoPE` compares a batch's offsets with a number (any architecture with `rope_scaling` of type `dynamic`)",
        "batches of one length, prompts in one call",
        _shown(
            "internlm3",
            "assert in_a_batch(model) < 1e-3",
            CONFIGS["internlm3"] | {"max_position_embeddings": 16, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        ),
    ),
)

BY_STEPS = """\
whole = model(mx.arange(40)[None], cache=make_prompt_cache(model))[0, 30:]
caches = make_prompt_cache(model)
model(mx.arange(30)[None], cache=caches)
steps = mx.concatenate([model(mx.array([[token]]), cache=caches)[0] for token in range(30, 40)])
assert mx.abs(steps - whole)[:, :100].max().item() < 1e-3"""
WITHOUT_CACHES = "assert mx.abs(model(mx.arange(9)[None]) - model(mx.arange(9)[None], cache=make_prompt_cache(model))).max().item() < 1e-3"
QUANTIZED = "from mlx_lm.utils import quantize_model\nquantize_model(model, {}, 32, 4)[0](mx.array([[1]]))"
IN_ANY_CALL = (
    Fault(
        ("plamo3",),
        "its mask shows `window_size + 1` tokens within a call, its caches keep `window_size`: decoding gives other logits than one call",
        "prompts in one call; what follows them is decoded as mlx-lm does",
        _shown("plamo3", BY_STEPS),
    ),
    Fault(
        ("phi3small",),
        "a call's block-sparse mask is cut from the end of its blocks: wrong unless the tokens are a multiple of the block size",
        "prompts in one call; their logprobs are what mlx-lm makes them",
        _shown("phi3small", BY_STEPS),
    ),
    Fault(
        ("gemma3n",),
        "without caches the layers that share keys attend to other ones than with caches (2.9 in a logprob)",
        "it is always given caches",
        _shown("gemma3n", WITHOUT_CACHES),
    ),
    Fault(
        ("afm7",),
        "it cannot be quantized: `FusedLinear.to_quantized` lacks the argument `mode`",
        "nothing",
        _shown("afm7", QUANTIZED),
    ),
    Fault(
        ("llama4_text",),
        "quantized, its tied head multiplies with packed weights: a crash",
        "nothing",
        _shown("llama4_text", QUANTIZED),
    ),
    Fault(
        ("olmo",),
        "importing the file ends the process where the package ai2-olmo is not installed, which it does not use; where it seems to be, any "
        "prompt crashes: the mask `causal` is added to scores",
        "the job ends with a message",
        """\
import sys, types
sys.modules["hf_olmo"] = types.ModuleType("hf_olmo")
settings = dict(d_model=64, n_layers=1, mlp_hidden_size=128, n_heads=4, vocab_size=100, embedding_size=100)
build("olmo", **settings)(mx.array([[1, 2]]))
""",
    ),
)
FAULTS = IN_BATCHES + IN_ANY_CALL
