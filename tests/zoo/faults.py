"""Lists what is wrong in mlx-lm, as far as the zoo shows it, each with a script that shows it.

A script fails where the fault is, so that a newer mlx-lm without it is noticed. Knows nothing of ours but what it does about each.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    """Something wrong in the named architectures, what is done about it here, and a script that fails for each of them.

    ``raises``: a pattern of what it fails with.
    """

    architectures: tuple[str, ...]
    what: str
    done: str
    shows: Callable[[str], str]
    raises: str = "AssertionError: $"

    @property
    def script(self) -> str:
        """The script for the first of them."""
        return self.shows(self.architectures[0])


def _shown(name: str, check: str, config: Config | None = None) -> str:
    """A script that builds an architecture from its tiny configuration and checks it."""
    read = signature(import_module(f"mlx_lm.models.{name}").ModelArgs).parameters
    said = {key: value for key, value in (CONFIGS[name] if config is None else config).items() if key in read and key != "model_type"}
    settings = ", ".join([f'"{name}"', *(f"{key}={value!r}" for key, value in said.items())])
    lines = textwrap.fill(settings, 120, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return f"model = build(\n{lines}\n)\n{check}\n"


def _batched(name: str, calls: int = 1) -> str:
    more = f", calls={calls}" if calls > 1 else ""
    return _shown(name, IN_A_BATCH.replace("(model)", f"(model{more})"))


IN_A_BATCH = "assert in_a_batch(model) < 1e-3"
DYNAMIC: Config = {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "rope_type": "dynamic", "factor": 4.0}}
NO_MERGE = "AttributeError: type object '(ChunkedKVCache|LayerCache)' has no attribute 'merge'"
LENGTH_1 = "ValueError: .*Only length-1 arrays can be converted"
BROADCAST = r"AssertionError: $|ValueError: \[broadcast_shapes\]"
EXACT, JOINED = "batches of one length", "prompts of one length are prefilled together, and join the rows that decode"
IN_BATCHES = (
    Fault(
        ("mamba", "jamba", "rwkv7", "bailing_moe_linear"),
        "recurrent layers take pads into their state: neither the cache's mask nor its lengths are looked at",
        JOINED,
        _batched,
    ),
    Fault(
        ("recurrent_gemma",),
        "the same of its convolution and its gated recurrence, which are given no mask at all",
        EXACT,
        _batched,
    ),
    Fault(
        ("nemotron_h",),
        "`ssm_update` is called without the cache's lengths: a padded row's state is lost",
        JOINED,
        _batched,
    ),
    Fault(
        ("olmo_hybrid",),
        "the states of its convolutions are cut at a call's end instead of the row's",
        JOINED,
        _batched,
    ),
    Fault(
        ("baichuan_m1",),
        "the key and value that it keeps of the last token, for its convolution of two, are a pad's",
        JOINED,
        _batched,
    ),
    Fault(
        ("longcat_flash_ngram",),
        "the last tokens that it keeps for its n-grams are pads",
        EXACT,
        _batched,
    ),
    Fault(
        ("afm7",),
        "layers that reuse keys rotate their queries by the cache's slots, pads and all (`offset=S - L`), not by `cache.offset`",
        EXACT,
        _batched,
    ),
    Fault(
        ("minimax_m3_vl",),
        "its blocks of keys are cut over cache slots: pads on the left shift a row's blocks, and others are chosen",
        EXACT,
        _batched,
    ),
    Fault(
        ("mamba2", "falcon_h1", "granitemoehybrid", "plamo2"),
        "`ssm_attn` reads a row's last state at `min(lengths, step) - 1`, beyond the end of a call that is shorter than the row: "
        "garbage, or NaN, where padded prompts are prefilled in several calls",
        "lengths are cut to each call (`cache.announce_call`), so they are padded",
        partial(_batched, calls=3),
    ),
    Fault(
        ("gemma2",),
        "its own attention has scores of five axes, and a batch's mask has four: `[broadcast_shapes]`, or other rows' masks where "
        "there are as many rows as heads of keys",
        "its attention gives such a mask an axis more (`mended_layers.CappedAttention`), so it is padded",
        _batched,
        BROADCAST,
    ),
    Fault(("phi3small",), "the same of its block-sparse attention", EXACT, _batched, BROADCAST),
    Fault(
        ("gpt_bigcode",),
        "positions come of `np.arange(cache.offset, …)`, and a batch's offset is an array",
        EXACT,
        _batched,
        LENGTH_1,
    ),
    Fault(("llama4",), "`ChunkedKVCache` has no `merge`: there are no batches of unlike lengths", EXACT, _batched, NO_MERGE),
    Fault(("deepseek_v41",), "nor has its `LayerCache`", EXACT, _batched, NO_MERGE),
    Fault(
        ("nemotron-nas",),
        "it makes a cache for a layer whose attention is a linear layer, and `BatchKVCache.finalize` crashes on a cache that nobody fills",
        "a cache that nobody fills is left alone (`finish_padding`), so it is padded",
        _batched,
        "AttributeError: 'NoneType' object has no attribute 'shape'",
    ),
    Fault(
        ("internlm3", "internlm2"),
        "`DynamicNTKScalingRoPE` compares a batch's offsets with a number (any architecture with `rope_scaling` of type `dynamic`)",
        "batches of one length, prompts in one call",
        lambda name: _shown(name, IN_A_BATCH, CONFIGS[name] | DYNAMIC),
        LENGTH_1,
    ),
)

BY_STEPS = """\
whole = model(mx.arange(40)[None], cache=make_prompt_cache(model))[0, 30:]
caches = make_prompt_cache(model)
model(mx.arange(30)[None], cache=caches)
steps = mx.concatenate([model(mx.array([[token]]), cache=caches)[0] for token in range(30, 40)])
assert mx.abs(steps - whole)[:, :100].max().item() < 1e-3"""
IN_CALLS = """\
tokens = mx.arange(640)[None] * 7 % 97
whole, caches = model(tokens, cache=make_prompt_cache(model))[0], make_prompt_cache(model)
parts = mx.concatenate([model(part, cache=caches)[0] for part in mx.split(tokens, 40, axis=1)])
assert mx.abs(parts - whole).max().item() < 1e-3"""
WITHOUT_CACHES = "assert mx.abs(model(mx.arange(9)[None]) - model(mx.arange(9)[None], cache=make_prompt_cache(model))).max().item() < 1e-3"
QUANTIZED = "from mlx_lm.utils import quantize_model\nquantize_model(model, {}, 32, 4)[0](mx.array([[1]]))"
IN_ANY_CALL = (
    Fault(
        ("plamo3",),
        "its mask shows `window_size + 1` tokens within a call, its caches keep `window_size`: decoding gives other logits than one call",
        "prompts in one call; what follows them is decoded as mlx-lm does",
        partial(_shown, check=BY_STEPS),
    ),
    Fault(
        ("phi3small",),
        "a call's block-sparse mask is cut from the end of its blocks: wrong unless the tokens are a multiple of the block size",
        "prompts in one call; their logprobs are what mlx-lm makes them",
        partial(_shown, check=BY_STEPS),
    ),
    Fault(
        ("deepseek_v41",),
        "it rounds activations to 4 and 8 bits on the way (`_fake_quant_fp4`): float32's last bits decide how, so that rows of hundreds of "
        "tokens have other logprobs, by up to 0.1, with each way of cutting them into calls or batches",
        "as mlx-lm does; the table's rows are of up to 65 tokens",
        partial(_shown, check=IN_CALLS),
    ),
    Fault(
        ("gemma3n",),
        "without caches the layers that share keys attend to other ones than with caches (2.9 in a logprob)",
        "it is always given caches",
        partial(_shown, check=WITHOUT_CACHES),
    ),
    Fault(
        ("afm7",),
        "it cannot be quantized: `FusedLinear.to_quantized` lacks the argument `mode`",
        "checkpoints that are not quantized run",
        partial(_shown, check=QUANTIZED),
        r"TypeError: FusedLinear\.to_quantized\(\) got an unexpected keyword argument 'mode'",
    ),
    Fault(
        ("llama4_text",),
        "quantized, its tied head multiplies with packed weights: a crash",
        "checkpoints that are not quantized run",
        partial(_shown, check=QUANTIZED),
        r"ValueError: \[matmul\] Last dimension of first input",
    ),
    Fault(
        ("olmo",),
        "importing the file ends the process where the package ai2-olmo is not installed, which it does not use; where it seems to be, any "
        "prompt crashes: the mask `causal` is added to scores",
        "the job ends with a message",
        lambda _: (
            """\
import sys, types
sys.modules["hf_olmo"] = types.ModuleType("hf_olmo")
settings = dict(d_model=64, n_layers=1, mlp_hidden_size=128, n_heads=4, vocab_size=100, embedding_size=100)
build("olmo", **settings)(mx.array([[1, 2]]))
"""
        ),
        "ValueError: Cannot perform inplace addition on an mlx.core.array and str",
    ),
)
FAULTS = IN_BATCHES + IN_ANY_CALL
