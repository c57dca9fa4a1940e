"""Tests loading a config from a file and overrides: round trips, messages, expansion, common mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs import load as loading
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.sampling import SamplingConfig
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.configs.sweep import SweepConfig

from .written import LEAST, generation, lines, message, one_file, written

CONFIGS = Path(loading.__file__).parent


# Names a path may have without being expanded.
names = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="~$:"), min_size=1)


sections = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(10, 1000),
        "min_tokens": st.integers(0, 10),
        "temperature": st.one_of(st.just(0), st.floats(1e-4, 100)),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(0, 1000),
        "stop": st.one_of(names, st.lists(names)),
        "logit_bias": st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)),
        "seed": st.integers(0, 2**63 - 1),
        "columns": st.dictionaries(st.sampled_from(sorted(set(SamplingConfig.model_fields) - {"columns"})), names),
    },
)


class _Quoting(yaml.SafeDumper):
    """Quotes all strings: what PyYAML leaves bare is a string in YAML 1.1, and 0E0 is a number in 1.2."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@given(
    path=st.one_of(names, st.lists(names, min_size=1, unique=True)),
    keep=st.one_of(st.sampled_from(["all", "none"]), st.lists(names, unique=True)),
    user=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    sampling=sections,
    as_yaml=st.booleans(),
)
@one_file
def test_a_written_config_reads_back_the_same(tmp_path: Path, path: Any, keep: Any, user: str, sampling: Any, as_yaml: bool) -> None:
    values = yaml.safe_load(LEAST) | {"data": {"path": path, "keep": keep}, "prompt": {"user": user}, "sampling": sampling}
    config = GenerateConfig.model_validate(values)
    dumped = config.model_dump(mode="json")
    text = yaml.dump(dumped, Dumper=_Quoting) if as_yaml else json.dumps(dumped)
    assert load_config(written(tmp_path, text)) == config


def test_a_section_left_empty_holds_its_defaults(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, LEAST + "sampling:\nbatch: {}\n")) == load_config(written(tmp_path, LEAST))


@pytest.mark.parametrize(
    ("added", "line"),
    [
        ("sampling: {temperature: -1}", "job.yaml: sampling.temperature: found -1; expected 0 (greedy), or a number from 0.0001 to 100"),
        ("sampling: {temperature: '1'}", 'job.yaml: sampling.temperature: found "1"; expected 0 (greedy), or a number from 0.0001 to 100'),
        (
            "batch: {rows: 99999999999}",
            "job.yaml: batch.rows: found 99999999999; expected auto, or a whole number of at least 1 and below 2147483648",
        ),
        ("sampling: {max_tokens: yes}", 'job.yaml: sampling.max_tokens: found "yes"; expected a whole number of at least 1'),
        ("sampling: {max_token: 5}", "job.yaml: sampling.max_token: no such key; did you mean sampling.max_tokens?"),
        ("batch: {prompt: {user: hi}}", "job.yaml: batch.prompt: no such key; did you mean prompt or logprobs.prompt?"),
        ("temperature: 0", "job.yaml: temperature: no such key; did you mean sampling.temperature?"),
        ("logprobs: {zzz: 0}", "job.yaml: logprobs.zzz: no such key; expected one of tokens, prompt, top, stats"),
        ("sampling: {stop: [a, '']}", 'job.yaml: sampling.stop[1]: found ""; expected a string, or a list of strings, none empty'),
        (
            "sampling: {top_p: null}",
            "job.yaml: sampling.top_p: found null; expected a number above 0 and at most 1; remove the key for its default, 1.0",
        ),
        (
            "sampling: {columns: {temprature: t}}",
            "job.yaml: sampling.columns.temprature: no such sampling setting; did you mean temperature?",
        ),
        (
            "sampling: {min_tokens: 9, max_tokens: 8}",
            "job.yaml: sampling.min_tokens: found 9; expected at most sampling.max_tokens, which is 8",
        ),
        ("on_error: quit", 'job.yaml: on_error: found "quit"; expected quarantine, quarantine_all or fail'),
        ("on_error: failed", 'job.yaml: on_error: found "failed"; expected quarantine, quarantine_all or fail; did you mean fail?'),
        (
            "batch: {prefix_cache: true}",
            "job.yaml: batch.prefix_cache: found true; expected a folder, or null",
        ),
        *(
            (
                f"sampling: {{logit_bias: {{7: 1, {given}: {bias}}}}}",
                f"job.yaml: sampling.logit_bias: found the key {said}; "
                "expected a mapping of token ids (0 or above) to numbers from -100 to 100, each id once",
            )
            for given, said, bias in [
                (-1, "-1", 5),
                ("'-1'", '"-1"', 5),
                ("x", '"x"', 5),
                (1.5, "1.5", 5),
                ("true", "true", 5),
                (-1, "-1", 500),
            ]
        ),
        (
            "sampling: {logit_bias: {7: 1, 8: 101}}",
            "job.yaml: sampling.logit_bias.8: found 101; "
            "expected a mapping of token ids (0 or above) to numbers from -100 to 100, each id once",
        ),
        (
            "sampling: {columns: {1: t}}",
            "job.yaml: sampling.columns: found the key 1; expected a mapping of sampling settings to column names",
        ),
        ("data: {path: [a, é, é]}", 'job.yaml: data.path: found "é" twice; expected each once: remove one of the two'),
        ("data: {path: x, keep: [a, b, a]}", 'job.yaml: data.keep: found "a" twice; expected each once: remove one of the two'),
        (
            "data: {path: [a, '', '']}",
            "job.yaml: data.path[1]: found \"\"; expected a file, glob or folder, a list of them, '-', or "
            "hf:owner/name; --data gives it too",
        ),
        ("sampling: 3", "job.yaml: sampling: found 3; expected a mapping with " + ", ".join(SamplingConfig.model_fields)),
        (
            "logprobs: {tokens: false, top: 5}",
            "job.yaml: logprobs.top: expected it off, since logprobs.tokens and logprobs.prompt are; turn one of them on",
        ),
    ],
)
def test_a_message_is_one_line_that_names_the_fix(tmp_path: Path, added: str, line: str) -> None:
    base = LEAST.replace("data: {path: rows.jsonl}\n", "") if added.startswith("data:") else LEAST
    assert lines(tmp_path, base + added + "\n") == [line]


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ("{}", "prompt: found none of them; expected exactly one of text, messages, user"),
        ("{text: a, user: b}", "prompt: found text and user; expected exactly one of text, messages, user"),
        (
            "{messages: m, system: s}",
            "prompt.system: expected null, since it goes with prompt.user only; put the system turn in the messages column",
        ),
        (
            "{images: i, system: s}",
            "prompt.system: expected null, since it goes with prompt.user only; use prompt.user, or in an embedding job embed.prompt",
        ),
        (
            "{text: a, prefill: p}",
            "prompt.prefill: expected nothing, since prompt.text has no chat template; use prompt.user, or remove it",
        ),
        (
            "{text: a, chat_template_args: {x: 1}}",
            "prompt.chat_template_args: expected nothing, since prompt.text has no chat template; use prompt.user, or remove it",
        ),
    ],
)
def test_prompt_contradictions(tmp_path: Path, prompt: str, line: str) -> None:
    assert lines(tmp_path, LEAST.replace('{user: "{{ question }}"}', prompt)) == [f"job.yaml: {line}"]


def test_hub_settings_need_a_hub_dataset(tmp_path: Path) -> None:
    text = LEAST.replace("rows.jsonl", "rows.jsonl, revision: main")
    assert lines(tmp_path, text) == ["job.yaml: data.revision: expected null, since data.path is no hub dataset (hf:owner/name); remove it"]
    assert generation(written(tmp_path, text), "data.path=hf:owner/name").data.revision == "main"


def test_all_problems_are_shown_at_once_with_their_sources(tmp_path: Path) -> None:
    text = "job: generate\nsampling: {n: 0, top_p: 2}\n"
    found = lines(tmp_path, text, "sampling.top_p=3", "prompt.user=x")
    assert found == [
        "job.yaml: model.path: missing; expected demo, a local folder, or a Hugging Face repo id; --model gives it too",
        "job.yaml: data.path: missing; expected a file, glob or folder, a list of them, '-', or hf:owner/name; --data gives it too",
        "job.yaml: output.path: missing; expected a folder for the run; --output gives it too",
        "--set sampling.top_p=3: sampling.top_p: found 3; expected a number above 0 and at most 1",
        "job.yaml: sampling.n: found 0; expected a whole number of at least 1",
    ]


@pytest.mark.parametrize(
    ("job", "overrides", "line"),
    [
        ("scores", [], 'job.yaml: job: found "scores"; expected generate, score, rollout, embed, classify or sweep; did you mean score?'),
        ("[score]", [], 'job.yaml: job: found ["score"]; expected generate, score, rollout, embed, classify or sweep'),
        ("null", [], "job.yaml: job: found null; expected generate, score, rollout, embed, classify or sweep"),
        (
            "score",
            ["job=sweeps"],
            '--set job=sweeps: job: found "sweeps"; expected generate, score, rollout, embed, classify or sweep; did you mean sweep?',
        ),
    ],
)
def test_a_wrong_job_is_told_alone(tmp_path: Path, job: str, overrides: list[str], line: str) -> None:
    # Which other keys are right depends on it.
    assert lines(tmp_path, f"job: {job}\nzzz: 1\n", *overrides) == [line]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LEAST + "score: {text: x}\n", "score: no such key; it belongs to job: score; remove it, or expected one of "),
        (
            LEAST.replace("generate", "score") + "score: {completion: x}\nsampling: {n: 2}\n",
            "sampling: no such key; it belongs to job: gen",
        ),
        (LEAST + "matrix: {}\n", "matrix: no such key; it belongs to job: sweep; remove it, or expected one of "),
    ],
)
def test_a_key_of_another_job_is_named_as_such(tmp_path: Path, text: str, line: str) -> None:
    (found,) = lines(tmp_path, text)
    assert found.startswith(f"job.yaml: {line}")


def test_the_job_is_required(tmp_path: Path) -> None:
    assert lines(tmp_path, LEAST.replace("job: generate\n", "")) == [
        "job.yaml: job: missing; expected generate, score, rollout, embed, classify or sweep"
    ]
    (line,) = lines(tmp_path, LEAST.replace("job:", "Job:"))
    assert line.endswith("or sweep; found Job, did you mean job?")
    (line,) = lines(tmp_path, "1: generate\n")
    assert line.endswith("classify or sweep")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    assert message(tmp_path / "none.yaml").startswith("job.yaml: no such file; expected a job config (")
    assert "cannot be read: Is a directory" in message(tmp_path)
    assert "job.yaml: empty; expected a job config (" in message(written(tmp_path, "# only a comment\n"))
    assert message(written(tmp_path, "- a\n")).startswith('job.yaml: found ["a"]; expected a mapping with job, model')
    assert ", sampling, tools, reasoning, structured (" in message(written(tmp_path, "just text\n"))
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("job: générer".encode("latin-1"))
    assert message(latin) == "job.yaml: byte 7 is not UTF-8; save the file as UTF-8"
    bom = tmp_path / "bom.yaml"
    bom.write_bytes(b"\xef\xbb\xbf" + LEAST.encode())
    assert load_config(bom).job == "generate"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_load_and_name_the_schema(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=./schema.json\n")
    config = load_config(path)
    assert config.output.path == f"outputs/{path.stem}"
    if isinstance(config, SweepConfig):
        assert cells(config, str(path))
        return
    assert config.model.path == "demo"
    assert isinstance(config.data.path, str)
    assert Path(config.data.path).is_file()


def test_reading_a_config_imports_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from mlx_bulk.configs.load import load_config; load_config(Path(sys.argv[1]));"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'pyarrow', 'datasets', 'numpy', 'huggingface_hub', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(written(tmp_path, LEAST))], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


def test_numbers_of_numpy_are_numbers():
    config = load_config(
        {
            "job": "generate",
            "model": {"path": "demo"},
            "data": {"path": "rows.jsonl", "limit": np.int64(3)},
            "prompt": {"text": "{{ q }}"},
            "sampling": {"temperature": np.float32(0.5), "top_p": np.float64(0.25), "stop_token_ids": [np.int32(7)]},
            "output": {"path": "run"},
        }
    )
    assert isinstance(config, GenerateConfig)
    found = (config.data.limit, config.sampling.temperature, config.sampling.top_p, config.sampling.stop_token_ids[0])
    assert found == (3, 0.5, 0.25, 7)
    assert list(map(type, found)) == [int, float, float, int]
