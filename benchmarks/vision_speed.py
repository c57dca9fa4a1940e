"""Speed of rows with pictures on this machine, against mlx-vlm's BatchGenerator: rows that ask about pictures which several of them share.

    python benchmarks/vision_speed.py
    python benchmarks/vision_speed.py --shape smolvlm --rows 16 --pictures 4 --new 4

Random weights, pixels of noise, questions of random ids. Both get prepared pixels. mlx-vlm's rows are prepared one by one, as its server
does; it computes with the same BLAS as ours. Tokens are drawn greedily. ``equal_rows`` counts the rows with the same tokens: all.
transformers makes the checkpoint, so torch must be installed (the extra `bench` has both). The last line is JSON; ``ratio`` holds the
median over rounds of mlx-vlm's seconds to ours.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from peers import ours
from peers.completing import Completing
from racing.about import about, table
from racing.options import options, raced
from racing.turns import compare, race, serve

import mlx_bulk  # above all that imports mlx: both compute with its BLAS
import numpy as np
from mlx_bulk.kernels import backend

PEERS = ("ours", "mlx_vlm")
VOCABULARY, PLACEHOLDER, START, END = 8192, 8000, 8002, 8003
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
SIDE = 8  # tokens of a picture in height and width


def save(shape: str, folder: Path) -> None:
    """Writes a random checkpoint with the names of transformers 4, which mlx-vlm reads."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    if shape == "qwen2_5_vl":
        vision = {
            "depth": 8,
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_heads": 6,
            "out_hidden_size": 512,
            "fullatt_block_indexes": [3, 7],
        }
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
        marks = {"image_token_id": PLACEHOLDER, "video_token_id": 8001, "vision_start_token_id": START, "vision_end_token_id": END}
        text = TEXT | {"rope_parameters": rope, "tie_word_embeddings": False}
        made: Any = hf.Qwen2_5_VLForConditionalGeneration(hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **marks))
    else:
        vision = {
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 6,
            "image_size": 224,
            "patch_size": 14,
        }
        text = TEXT | {"model_type": "llama", "pad_token_id": 0}
        more: dict[str, Any] = {"image_token_id": PLACEHOLDER, "scale_factor": 2, "pad_token_id": 0, "tie_word_embeddings": False}
        made = hf.SmolVLMForConditionalGeneration(hf.SmolVLMConfig(text_config=text, vision_config=vision, **more))
    made.float().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    rope = config["text_config"].pop("rope_parameters")
    config["text_config"]["rope_theta"] = rope["rope_theta"]
    if shape == "qwen2_5_vl":
        config["vision_config"]["model_type"] = shape
        config["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        config = {name: value for name, value in config.pop("text_config").items() if name != "model_type"} | config
    (folder / "config.json").write_text(json.dumps(config))


def pixels(shape: str, picture: int) -> dict[str, np.ndarray[Any, Any]]:
    """What a processor would make of one picture."""
    noise = np.random.default_rng(picture)
    if shape == "qwen2_5_vl":
        values = noise.standard_normal((4 * SIDE * SIDE, 3 * 2 * 14 * 14), np.float32)
        return {"pixel_values": values, "image_grid_thw": np.array([[1, 2 * SIDE, 2 * SIDE]])}
    return {"pixel_values": noise.standard_normal((1, 1, 3, 224, 224), np.float32)}


def asked(rows: int) -> list[list[list[int]]]:
    """Each row's ids before and after its picture. mlx-vlm gives a picture of Qwen's its positions only behind START."""
    rng = np.random.default_rng(0)
    return [[[1, 5, START], [END, *rng.integers(10, 7900, rng.integers(8, 25)).tolist()]] for _ in range(rows)]


def with_ours(folder: Path, work: dict[str, Any]) -> Callable[[], Any]:
    """Our engine."""
    backend.load_mlx()
    from mlx_bulk.configs.schema import BatchConfig, ModelConfig
    from mlx_bulk.runner.core.images import ImageTable
    from mlx_bulk.runner.core.logprob_options import LogprobOptions
    from mlx_bulk.runner.models.checkpoint import find_checkpoint
    from mlx_bulk.runner.models.model_pool import ModelChoice
    from mlx_bulk.runner.pipeline.loading import load_models

    table, config = ImageTable(PLACEHOLDER), ModelConfig(path=str(folder))
    models = load_models([ModelChoice(config, find_checkpoint(config), images=table)], BatchConfig(), LogprobOptions())
    grid = (1, SIDE, SIDE)
    images = [table.register(str(i), SIDE * SIDE, grid, partial(pixels, work["shape"], i)) for i in range(work["pictures"])]
    own = [[*before, *images[i % len(images)].ids.tolist(), *after] for i, (before, after) in enumerate(asked(work["rows"]))]
    made = ours.requests(Completing(own, work["new"], work["rows"]))
    requests = [replace(one, prompt=replace(one.prompt, images=(images[one.row % len(images)],))) for one in made]

    def run() -> Any:
        assert models.model.features is not None
        models.model.features.clear()  # each round begins with no picture read
        done = ours.shapes.generated(ours.engine(models.setup), requests)
        return [outcome.ids.tolist() for outcome in done]

    return run


def with_mlx_vlm(folder: Path, work: dict[str, Any]) -> Callable[[], Any]:
    """mlx-vlm's generator of batches."""
    mx = backend.load_mlx()
    from mlx_vlm.generate.ar import BatchGenerator
    from mlx_vlm.utils import load_model

    model: Any = load_model(folder)
    text = model.language_model

    class Endless:
        """A tokenizer that ends nothing."""

        eos_token_ids: tuple[int, ...] = ()
        stopping_criteria: Any = type("Never", (), {"add_eos_token_ids": lambda *_: None, "__call__": lambda *_: False})()

    def run() -> Any:
        generator = BatchGenerator(text, Endless(), prefill_batch_size=work["rows"], completion_batch_size=work["rows"])
        prompts, features = [], []
        for row, (before, after) in enumerate(asked(work["rows"])):
            ids = mx.array([[*before, *[PLACEHOLDER] * SIDE * SIDE, *after]])
            inputs = {name: mx.array(value) for name, value in pixels(work["shape"], row % work["pictures"]).items()}
            for name in ("_rope_deltas", "_position_ids"):
                if hasattr(text, name):
                    setattr(text, name, None)
            made = model.get_input_embeddings(ids, inputs.pop("pixel_values"), mask=mx.ones(ids.shape, mx.int32), **inputs)
            prompts.append(ids[0].tolist())
            features.append({name: value for name, value in made.to_dict().items() if value is not None})
        numbers = generator.insert(prompts, work["new"], prompt_kwargs=features)
        found: dict[Any, list[int]] = {number: [] for number in numbers}
        while generator.has_work:
            for one in generator.next()[1]:
                found[one.uid].append(int(one.token))
        generator.close()
        return [found[number][: work["new"]] for number in numbers]

    return run


def build(peer: str, folder: Path) -> Callable[[], Any]:
    """The peer's work, ready."""
    work = json.loads((folder / "work.json").read_text())
    return (with_ours if peer == "ours" else with_mlx_vlm)(folder, work)


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = options(__doc__, shapes=["qwen2_5_vl", "smolvlm"], rows=64, pictures=16, new=16, rounds=3)
    raced(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(args.shape, folder)
        work = {"shape": args.shape, "rows": args.rows, "pictures": args.pictures, "new": args.new}
        (folder / "work.json").write_text(json.dumps(work))
        results = race(__file__, list(args.peers), folder, args.rounds)
    found = {peer: result.pop("found") for peer, result in results.items()}
    same = {peer: sum(a == b for a, b in zip(found["ours"], theirs, strict=True)) for peer, theirs in found.items() if peer != "ours"}
    ratio = compare(results, dict.fromkeys(found, args.rows * args.new))
    table(
        {peer: [its["tokens_per_second"], ratio.get(peer, ""), same.get(peer, "")] for peer, its in results.items()},
        ["tok/s", "ours to it", "equal rows"],
    )
    print(json.dumps({"benchmark": "vision_speed", **work, **results, "ratio": ratio, "equal_rows": same, **about()}))


if __name__ == "__main__":
    assert mlx_bulk
    main()
