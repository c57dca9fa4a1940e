"""Tests the settings: defaults, bounds, contradictions, identity, and the shipped JSON schema."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.configs import load as loading
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.eval import EvalConfig
from mlx_bulk.configs.explain import settings
from mlx_bulk.configs.fields import Section
from mlx_bulk.configs.identity import identity
from mlx_bulk.configs.jobs import JOBS
from mlx_bulk.configs.sampling import SamplingConfig
from mlx_bulk.configs.schema import GenerateConfig
from pydantic import ValidationError

from .structural import breaches

CONFIGS = Path(loading.__file__).parent


def config(**sections: Any) -> GenerateConfig:
    """The smallest job, with ``sections`` in place of its own."""
    least = {
        "job": "generate",
        "model": {"path": "demo"},
        "data": {"path": "rows.jsonl"},
        "prompt": {"user": "{{ question }}"},
        "output": {"path": "out"},
    }
    return GenerateConfig.model_validate(least | sections)


def test_the_defaults_are_the_contracts() -> None:
    job = config()
    assert (job.sampling.max_tokens, job.sampling.temperature, job.sampling.top_p, job.sampling.n, job.sampling.seed) == (
        256,
        1.0,
        1.0,
        1,
        0,
    )
    assert (job.logprobs.tokens, job.logprobs.prompt, job.logprobs.top, job.logprobs.stats) == (True, False, 0, False)
    assert (job.batch.rows, job.batch.tokens, job.batch.memory, job.batch.rows_per_shard) == ("auto", "auto", 0.8, 1024)
    assert (job.data.format, job.data.split, job.data.keep, job.data.limit) == ("auto", None, "all", None)
    assert (job.on_error, job.output.fsync_seconds, job.model.dtype, job.prompt.too_long) == ("quarantine", 5, "auto", "error")


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().sampling.n = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_every_setting_says_what_it_is_in_one_line() -> None:
    def descriptions(model: type[Section]) -> list[str | None]:
        found: list[str | None] = []
        for field in model.model_fields.values():
            kind = field.annotation
            found.append(field.description)
            if isinstance(kind, type) and issubclass(kind, Section):
                found += descriptions(kind)
        return found

    lines = descriptions(GenerateConfig)
    assert len(lines) > len(settings(GenerateConfig))
    assert all(line and "\n" not in line and line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("section", "setting", "good", "bad"),
    [
        ("sampling", "temperature", [0, 0.0, 1e-4, 1, 100], [-1, 1e-5, 101, True, "1", None, float("inf"), float("nan")]),
        ("sampling", "top_p", [1, 0.01], [0, 1.01, -0.5]),
        ("sampling", "top_k", [0, 50], [-1, 2.0, False]),
        ("sampling", "min_p", [0, 0.99], [1, -0.1]),
        ("sampling", "typical_p", [1, 0.2], [0, 1.01]),
        ("sampling", "xtc_probability", [0, 0.5, 1], [-0.1, 1.01]),
        ("sampling", "xtc_threshold", [0.001, 0.5], [0, 0.51]),
        ("sampling", "repetition_penalty", [0.5, 1, 2], [0, -1]),
        ("sampling", "presence_penalty", [-2, 0, 2], [-2.1, 2.1]),
        ("sampling", "frequency_penalty", [-2, 0, 2], [-2.1, 2.1]),
        ("sampling", "dry_multiplier", [0, 0.8], [-1, 101]),
        ("sampling", "dry_base", [1, 1.75], [0.99, 101]),
        ("sampling", "dry_allowed_length", [1, 9], [0, 1.5]),
        ("sampling", "dry_range", [0, 512], [-1]),
        ("sampling", "dry_sequence_breakers", [[], ["\n"], "."], [[""], "", 5]),
        ("sampling", "max_tokens", [1, 4096], [0, 1.0, True, "8"]),
        ("sampling", "n", [1, 16], [0]),
        ("sampling", "seed", [0, 2**63 - 1], [-1, 2**63]),
        ("sampling", "stop", [[], ["a"], "a"], ["", [""], [1], 5]),
        ("sampling", "stop_token_ids", [[], [0, 5]], [[-1], ["5"], 5]),
        ("sampling", "logit_bias", [{}, {5: 1, "6": -100}], [{5: 101}, {"x": 1}, {-1: 0}, {5: 1, "5": 2}, {True: 1}, [5]]),
        ("sampling", "columns", [{"seed": "s", "n": "meta.n"}], [{"columns": "c"}, {"seed": ""}, {"seed": 1}]),
        ("logprobs", "top", [0, 20], [21, -1]),
        ("batch", "rows", ["auto", 1], [0, "many", 1.5, True]),
        ("batch", "tokens", ["auto", 4096], [0, None]),
        ("batch", "prefill_tokens", ["auto", 1], [0, None, 0.5]),
        ("batch", "memory", [0.1, 1], [0, 1.1]),
        ("batch", "stall_seconds", [0.5], [0]),
        ("batch", "prefix_cache", [None, "kv"], ["", 1, True]),
        ("batch", "kv_bits", [None, 4, 8], [0, 2, 16, "8", True, 4.5]),
        ("data", "keep", ["all", "none", [], ["a", "b"]], ["some", ["a", "a"], [""]]),
        ("data", "limit", [None, 1], [0, True]),
    ],
)
def test_bounds(section: str, setting: str, good: list[object], bad: list[object]) -> None:
    base: dict[str, object] = {"path": "rows.jsonl"} if section == "data" else {}
    for value in good:
        config(**{section: {**base, setting: value}})
    for value in bad:
        with pytest.raises(ValidationError):
            config(**{section: {**base, setting: value}})


def test_integers_are_taken_for_numbers_and_a_string_for_a_list() -> None:
    sampling = SamplingConfig.model_validate({"temperature": 0, "stop": "END", "logit_bias": {"7": 2}})
    assert isinstance(sampling.temperature, float)
    assert sampling.stop == ["END"]
    assert sampling.logit_bias == {7: 2.0}


def test_identity_holds_what_shapes_results_and_nothing_that_steers() -> None:
    keys = set(identity(config()))
    free = {
        "model.path",
        "model.revision",
        "model.adapter",
        "data.path",
        "data.delimiter",
        "data.revision",
        "data.limit",
        "data.unknown_fields",
        "data.other_models",
        "data.fetch",
        "data.max_image_pixels",
        "batch.image_memory",
        "batch.rows",
        "batch.tokens",
        "batch.prefill_tokens",
        "batch.memory",
        "batch.prefix_cache",
        "batch.stall_seconds",
        "on_error",
        "cluster",
        "output.path",
        "output.fsync_seconds",
    }
    unset = {
        "prompt.images",
        "model.unchecked_images",
        "batch.kv_bits",
        "batch.kv_group",
        "batch.kv_start",
    }  # runs that were begun before these keys keep their identity
    assert keys == set(settings(GenerateConfig)) - free - unset


@pytest.mark.parametrize(
    ("job", "batch", "line"),
    [
        (
            {"job": "generate", "prompt": {"text": "x"}},
            {"deterministic": True},
            "found 64, which does nothing with batch.deterministic: no row decodes while another is prefilled; remove it",
        ),
        (
            {"job": "score", "score": {"text": "x"}},
            {},
            "found 64; expected auto, since a job of the kind score generates no completions, and no row waits for a prefill; remove it",
        ),
    ],
)
def test_prefill_tokens_are_refused_where_no_row_decodes_beside_a_prefill(job: dict[str, Any], batch: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loading.load_config({"model": "demo", "data": "rows.jsonl", "output": "out", "batch": {"prefill_tokens": 64, **batch}, **job})
    assert f"batch.prefill_tokens: {line}" in str(caught.value)


def test_batch_sizes_are_part_of_a_deterministic_runs_identity() -> None:
    kept = identity(config(batch={"deterministic": True, "rows": 8}))
    assert kept["batch.rows"] == 8
    assert kept["batch.tokens"] == "auto"


def test_identity_is_json_and_sees_a_change() -> None:
    one = identity(config(sampling={"logit_bias": {5: 1}}))
    other = identity(config(sampling={"logit_bias": {5: 2}}))
    assert json.loads(json.dumps(one)) == one
    assert {key for key in one if one[key] != other[key]} == {"sampling.logit_bias"}


def test_the_shipped_json_schema_is_current() -> None:
    write = "import json; from mlx_bulk.configs.load import json_schema; print(json.dumps(json_schema(), indent=2))"
    rewrite = f"python -c '{write}' > configs/schema.json"
    assert json.loads((CONFIGS / "schema.json").read_text()) == loading.json_schema(), f"schema.json is old; run: {rewrite}"


MODELS: dict[str, type[Section]] = {**JOBS, "eval": EvalConfig}
LEAST: dict[str, dict[str, Any]] = {
    "generate": {"model": {"path": "demo"}, "data": {"path": "x"}, "prompt": {"text": "x"}, "output": {"path": "out"}},
    "score": {"model": {"path": "demo"}, "data": {"path": "x"}, "score": {"text": "x"}, "output": {"path": "out"}},
    "eval": {"model": {"path": "demo"}, "tasks": ["x"], "output": {"path": "out"}},
    "rollout": {"model": {"path": "demo"}, "data": {"path": "x"}, "prompt": {"text": "x"}, "rounds": 2, "output": {"path": "out"}},
    "embed": {"model": {"path": "demo"}, "data": {"path": "x"}, "prompt": {"text": "x"}, "output": {"path": "out"}},
    "classify": {"model": {"path": "demo"}, "data": {"path": "x"}, "prompt": {"text": "x"}, "output": {"path": "out"}},
    "sweep": {"base": {"job": "score"}, "matrix": {"data.limit": [1, 2]}, "output": {"path": "out"}},
}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_json_schema_takes_the_shipped_examples(path: Path) -> None:
    schema = loading.json_schema()
    assert breaches(yaml.safe_load(path.read_text(encoding="utf-8")), schema, schema) == []


@pytest.mark.parametrize("job", MODELS)
def test_the_json_schema_tells_each_jobs_keys_apart(job: str) -> None:
    schema = loading.json_schema()
    least = {"job": job, **LEAST[job]}
    assert breaches(least, schema, schema) == []
    assert breaches(least | {"zzz": 1}, schema, schema) == [".zzz: unknown"]
    for other in LEAST.keys() - {job}:
        foreign = LEAST[other].keys() - set(MODELS[job].model_fields)
        assert breaches(least | {name: LEAST[other][name] for name in foreign}, schema, schema) == [f".{name}: unknown" for name in foreign]
    for name in LEAST[job].keys() - {"prompt", "matrix", "rounds"}:  # which have defaults
        assert breaches({key: value for key, value in least.items() if key != name}, schema, schema) == [f".{name}: required"]
    assert breaches(least | {"output": {"path": "x", "pth": "y"}}, schema, schema) == [".output.pth: unknown"]
    short = dict.fromkeys(LEAST[job].keys() & {"model", "data", "output"}, "x")
    assert breaches(least | short, schema, schema) == []
    assert breaches(least | {"output": 5}, schema, schema) == [".output: anyOf"]


def test_the_json_schema_needs_a_job_that_there_is() -> None:
    schema = loading.json_schema()
    assert breaches({"job": "train"}, schema, schema) == [".job: enum"]
    assert ".job: required" in breaches({}, schema, schema)


@pytest.mark.parametrize(
    ("score", "broken"),
    [
        ({"text": "x", "context": 0}, [".score.context: anyOf"]),
        ({"text": "x", "windows": "all"}, [".score.windows: enum"]),
        ({"text": "x", "reference": {"path": "demo"}}, []),
        ({"text": "x", "reference": {"dtype": "auto"}}, [".score.reference: anyOf"]),
        ({"text": ""}, [".score.text: anyOf"]),
    ],
)
def test_the_json_schema_holds_the_bounds_of_settings(score: dict[str, Any], broken: list[str]) -> None:
    schema = loading.json_schema()
    assert breaches({"job": "score", **LEAST["score"], "score": score}, schema, schema) == broken


def test_the_json_schema_accepts_a_single_stop_string_and_knows_every_setting() -> None:
    definitions: Any = loading.json_schema()["$defs"]
    stop = definitions["SamplingConfig"]["properties"]["stop"]
    assert {"type": "string"} in stop["anyOf"]
    assert set(definitions["BatchConfig"]["properties"]) == {
        key.split(".")[1] for key in settings(GenerateConfig) if key.startswith("batch.")
    }


def test_a_split_that_is_not_set_is_the_split_of_older_runs() -> None:
    """Runs begun when data.split had the default train go on: which files are read is held by their content."""
    assert identity(config())["data.split"] == identity(config(data={"path": "a", "split": "train"}))["data.split"] == "train"
    assert identity(config(data={"path": "a", "split": "test"}))["data.split"] == "test"
    assert "data.delimiter" not in identity(config(data={"path": "a", "delimiter": ";"}))  # it is part of the input's format
