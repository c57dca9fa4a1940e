"""Lists what is wrong in mlx-vlm 0.7.10 with rows that hold pictures, each with a script that shows it on a tiny random model.

A script fails where the fault is, so that a newer mlx-vlm without it is noticed. Knows nothing of ours but what it does about each.
"""

from dataclasses import dataclass

PRELUDE = '''\
import importlib
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_vlm.generate.ar import BatchGenerator
from mlx_vlm.models.cache import make_prompt_cache
from mlx_vlm.utils import update_module_configs

IMAGE, START, END, WIDTH = 290, 292, 293, 64
TEXT = dict(
    vocab_size=300, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=2048, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False,
)
PATCHES = dict(
    depth=3, hidden_size=64, intermediate_size=96, out_hidden_size=64, num_heads=4, patch_size=16, spatial_merge_size=2,
    temporal_patch_size=2, in_channels=3,
)
MARKS = dict(image_token_id=IMAGE, video_token_id=291, vision_start_token_id=START, vision_end_token_id=END, vocab_size=300)
ROPE = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
CONFIGS = {
    "gemma3": dict(
        text_config=dict(
            TEXT, num_hidden_layers=6, model_type="gemma3_text", sliding_window=32, query_pre_attn_scalar=16, mm_tokens_per_image=4,
        ),
        vision_config=dict(
            model_type="siglip_vision_model", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            image_size=56, patch_size=14,
        ),
        image_token_index=IMAGE, pad_token_id=0,
    ),
    "qwen3_vl": dict(
        text_config=dict(TEXT, model_type="qwen3_vl_text", rope_scaling=ROPE),
        vision_config=dict(PATCHES, model_type="qwen3_vl", num_position_embeddings=64, deepstack_visual_indexes=[0, 1]),
        image_token_index=IMAGE, video_token_index=291, **MARKS,
    ),
    "llava": dict(
        text_config=dict(TEXT, model_type="llama"),
        vision_config=dict(
            model_type="clip_vision_model", hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            image_size=56, patch_size=14, projection_dim=64,
        ),
        image_token_index=IMAGE,
    ),
    "qwen2_vl": dict(TEXT, rope_scaling=ROPE, vision_config=dict(PATCHES, model_type="qwen2_vl", embed_dim=64, mlp_ratio=2), **MARKS),
    "qwen2_5_vl": dict(
        TEXT, rope_scaling=ROPE, vision_config=dict(
            PATCHES, model_type="qwen2_5_vl", window_size=64, fullatt_block_indexes=[1], tokens_per_second=2,
        ), **MARKS,
    ),
}

def build(name):
    family = importlib.import_module(f"mlx_vlm.models.{name}")
    settings = {"model_type": name, **CONFIGS[name]}
    settings.setdefault("text_config", {key: value for key, value in settings.items() if key != "vision_config"})
    config = family.ModelConfig.from_dict(settings)
    config = update_module_configs(config, family, settings, ["text", "vision", "projector"])
    mx.random.seed(0)
    model = family.Model(config)
    model.update(tree_map(lambda weight: weight + 0.2 * mx.random.normal(weight.shape), model.parameters()))
    return model

def picture(name, tokens, seed):
    """What the tower takes: pixels, and the size of a picture of so many tokens in a row."""
    key = mx.random.key(seed)
    if name == "gemma3":
        return {"pixel_values": mx.random.normal((1, 3, 56, 56), key=key)}
    return {"pixel_values": mx.random.normal((4 * tokens, 3 * 2 * 16 * 16), key=key), "image_grid_thw": mx.array([[1, 2, 2 * tokens]])}

def row(model, name, tokens, seed, more=(), **settings):
    """A row's ids, and what mlx-vlm makes of it by itself: a picture of ``tokens`` tokens (none: 0) between words."""
    marks = [START, *[IMAGE] * tokens, END] if tokens else []
    ids = mx.array([[5, 6, *marks, *range(20 + seed, 27 + seed), *more]])
    for state in ("_rope_deltas", "_position_ids"):
        if hasattr(model.language_model, state):
            setattr(model.language_model, state, None)
    inputs = picture(name, tokens, seed) if tokens else {"pixel_values": None}
    made = model.get_input_embeddings(ids, inputs.pop("pixel_values"), mask=mx.ones(ids.shape, mx.int32), **inputs, **settings)
    return ids, {key: value for key, value in made.to_dict().items() if value is not None}

def logits(model, ids, made):
    """The row's logits [T, V] in one call, as mlx-vlm's own generator makes it."""
    given = {key: value for key, value in made.items() if key != "attention_mask_4d"}
    return model.language_model(ids, cache=make_prompt_cache(model.language_model), **given).logits[0]

class Tokenizer:
    eos_token_ids = []
    class stopping_criteria:
        add_eos_token_ids = staticmethod(lambda *ids: None)
        __new__ = lambda cls, *ids: False

def first_logprobs(model, rows):
    """Logprobs of each row's first token by mlx-vlm's BatchGenerator, by token id."""
    generator = BatchGenerator(
        model.language_model, Tokenizer, top_logprobs_k=300, prefill_batch_size=len(rows), completion_batch_size=len(rows)
    )
    order = generator.insert([ids[0].tolist() for ids, _ in rows], 1, prompt_kwargs=[made for _, made in rows])
    found = {}
    while len(found) < len(rows):
        for answer in generator.next()[1]:
            found.setdefault(answer.uid, dict(answer.top_logprobs))
    generator.close()
    return [found[uid] for uid in order]

def moved(one, other):
    return max(abs(one[token] - other[token]) for token in one)
'''


@dataclass(slots=True, frozen=True)
class VisionFault:
    """Something wrong in mlx-vlm's model of one architecture, what is done about it here, and a script that fails for it."""

    name: str
    architecture: str
    what: str
    done: str
    script: str


SCALED = """\
model = build("gemma3")
ids, made = row(model, "gemma3", 4, 1)
hidden = model.vision_tower(picture("gemma3", 4, 1)["pixel_values"].transpose(0, 2, 3, 1), output_hidden_states=True)[0]
features = model.multi_modal_projector(hidden)[0]
body_makes = made["inputs_embeds"][0, 3:7] * WIDTH**0.5  # the body multiplies all embeddings by the root of its width
assert mx.abs(body_makes - features).max().item() < 1e-4 * mx.abs(features).max().item()
"""
BOTH_WAYS = """\
model = build("gemma3")
ids, made = row(model, "gemma3", 4, 1)
other = {**made, "inputs_embeds": mx.array(made["inputs_embeds"])}
other["inputs_embeds"][0, 6] = -other["inputs_embeds"][0, 6]  # the picture's last token
seen = mx.abs(logits(model, ids, other) - logits(model, ids, made))[3].max().item()  # by its first
assert seen > 0
"""
IN_PLACE = """\
model = build("gemma3")
ids, made = row(model, "gemma3", 4, 1)
before = mx.array(made["inputs_embeds"])
mx.eval(before, logits(model, ids, made))
assert mx.array_equal(made["inputs_embeds"], before).item()
"""
IN_A_BATCH = """\
model = build(NAME)
rows = [row(model, NAME, tokens, seed) for seed, tokens in enumerate(MIX)]
alone = [first_logprobs(model, [row(model, NAME, tokens, seed)])[0] for seed, tokens in enumerate(MIX)]
assert max(map(moved, first_logprobs(model, rows), alone)) < 1e-3
"""
CACHED = """\
model = build("qwen3_vl")
inputs = picture("qwen3_vl", 6, 1)
features = model.vision_tower(inputs["pixel_values"], inputs["image_grid_thw"])[0]
plain = logits(model, *row(model, "qwen3_vl", 6, 1))
again = logits(model, *row(model, "qwen3_vl", 6, 1, cached_image_features=features))
assert mx.abs(plain - again).max().item() < 1e-3
"""
RENAMED = """\
family = importlib.import_module("mlx_vlm.models.idefics3")
renamed = {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}  # as transformers 5 saves it
text = {name: value for name, value in TEXT.items() if name != "rope_theta"}
read = family.TextConfig.from_dict({**text, **renamed, "model_type": "llama"})
assert read.rope_theta == 12345.0
"""
SAVED = """\
if SAVED_BY == 5:
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": TEXT["rope_theta"], "mrope_section": [2, 3, 3]}}
    del text["rope_theta"]
    marks = {key: value for key, value in MARKS.items() if key != "vocab_size"}
    CONFIGS[NAME] = dict(text_config=text, vision_config=CONFIGS[NAME]["vision_config"], **marks)
try:
    loaded = build(NAME)
except TypeError:  # settings that it asks for, and does not look for where they are
    loaded = None
assert loaded is not None
"""
NAMED = """\
model = build(NAME)
own = dict(tree_flatten(model.parameters()))
read = own if SAVED_BY == 4 else {key.replace("vision_tower.vision_model.", "vision_tower."): array for key, array in own.items()}
for part in (model, model.vision_tower):  # as its loader does
    read = part.sanitize(read) if hasattr(part, "sanitize") else read
assert read.keys() == own.keys()
"""
ACTIVATION = """\
layers = importlib.import_module(f"mlx_vlm.models.{NAME}.vision")
config = importlib.import_module(f"mlx_vlm.models.{NAME}.config").VisionConfig.from_dict(dict(PATCHES, model_type=NAME))
layer = getattr(layers, LAYER)(config)
act = layer.act_fn if "act_fn" in layer else layer.activation_fn
assert abs(act(mx.array(1.0)).item() - 0.841345) < 2e-5  # x times the normal distribution at x
"""


def not_exact(name: str, layer: str) -> str:
    """A script that looks at a layer's GELU, which is the exact one in transformers."""
    return f"NAME, LAYER = {name!r}, {layer!r}\n{ACTIVATION}"


def saved_by(version: int, name: str) -> str:
    """A script that loads a model as this version of transformers saves it: settings of the Qwens, weights of the others."""
    return f"SAVED_BY, NAME = {version}, {name!r}\n{SAVED if name.startswith('qwen') else NAMED}"


def in_a_batch(name: str, *tokens: int) -> str:
    """A script that runs rows with pictures of so many tokens, or none, in one batch and alone."""
    return f"NAME, MIX = {name!r}, {tokens!r}\n{IN_A_BATCH}"


VISION_FAULTS = (
    VisionFault(
        "gemma3 scale",
        "gemma3",
        "features are divided by the root of `config.hidden_size`, by default another model's, and multiplied by that of the text's",
        "the tower is given the text's size",
        SCALED,
    ),
    VisionFault(
        "gemma3 mask",
        "gemma3",
        "a picture's tokens see only those before them; Gemma 3's see their whole picture",
        "the mask of a call shows each its picture (`ImageBlocks`), and no call cuts one",
        BOTH_WAYS,
    ),
    VisionFault(
        "gemma3 embeddings",
        "gemma3",
        "the body multiplies the caller's embeddings in place: kept ones are wrong in the next call",
        "each call gets an array of its own (`ImageEmbedding`)",
        IN_PLACE,
    ),
    VisionFault(
        "qwen3_vl batch",
        "qwen3_vl",
        "in a batch rows get DeepStack features that are not theirs, also rows without pictures",
        "features come with their places in the call (`PlacedFeatures`)",
        in_a_batch("qwen3_vl", 0, 6),
    ),
    VisionFault(
        "qwen3_vl cached features",
        "qwen3_vl",
        "with features that were kept, those of DeepStack are left out",
        "both are kept together (`ImageFeatures`)",
        CACHED,
    ),
    *(
        VisionFault(
            f"{name} GELU",
            name,
            "GELU is the form with tanh where transformers has the exact one: logprobs move by 1e-3",
            "the tower's layers get the right form (`GELU_FORMS`)",
            not_exact(name, layer),
        )
        for name, layer in (("internvl", "MLP"), ("qwen3_vl_moe", "PatchMerger"))
    ),
    VisionFault(
        "transformers 5",
        "idefics3",
        "what transformers 5 saves as `rope_parameters` is not read: positions turn by a default, silently",
        "settings get their older names too (`mlx_lm_settings`)",
        RENAMED,
    ),
    *(
        VisionFault(
            f"{name} settings of transformers 5",
            name,
            "what transformers 5 saves fails to load: the text's settings are looked for elsewhere, or under older names",
            "settings get their older names and places too (`mlx_lm_settings`, `open_tower`)",
            saved_by(5, name),
        )
        for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
    ),
    *(
        VisionFault(
            f"{name} names of transformers 5",
            name,
            "what transformers 5 saves fails to load: its names of the tower's weights have no `vision_model`",
            "a weight is known by the rest of its name (`open_tower`)",
            saved_by(5, name),
        )
        for name in ("gemma3", "llava")
    ),
)
