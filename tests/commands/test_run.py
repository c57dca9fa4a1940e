"""Tests every key of the config: each has a visible effect.

``sampling`` has its own file; ``test_every_key_of_the_config_is_tested`` says where each key of the config is tested.
"""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.explain import settings
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.runner.store import journal

from ..checkpoints import write_adapter
from ..jobs.support.bench import ROWS, Bench, Done, Record
from ..jobs.support.finished_runs import column, prompts, session
from . import test_run_inputs

DEMO_CHAT = "<|endoftext|><|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


CHAT: list[Record] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go."}]


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """The standard job as it is: greedy, six tokens, five rows."""
    return Bench(tmp_path_factory.mktemp("standard"), model).run()


def summary(done: Done) -> dict[str, Any]:
    return json.loads((done.output / "summary.json").read_text())


def parts(done: Done) -> list[str]:
    return sorted(path.name for path in (done.output / "results").iterdir())


Effect = tuple[dict[str, Any], Callable[[Done], Any], Any]  # sections, what is looked at, what is seen


EFFECTS: dict[str, list[Effect]] = {
    "data.key": [({"data": {"key": "id"}}, lambda d: column(d, "key"), ["a", "b", "c", "d", "e"])],
    "data.limit": [({"data": {"limit": 2}}, lambda d: column(d, "row"), [0, 1])],
    "data.keep": [
        ({"data": {"keep": "all"}}, lambda d: column(d, "input"), ROWS),
        ({"data": {"keep": ["q"]}}, lambda d: column(d, "input"), [{"q": row["q"]} for row in ROWS]),
        ({"data": {"keep": "none"}}, lambda d: "input" in d.table.schema.names, False),
        ({"data": {"keep": []}}, lambda d: "input" in d.table.schema.names, False),
    ],
    "prompt.text": [({"prompt": {"text": "{{ id }}: {{ q[:3] }}"}}, lambda d: prompts(d)[0], "a: Wha")],
    "prompt.user": [({"prompt": {"user": "{{ q }}!"}}, lambda d: prompts(d)[2], DEMO_CHAT.format("O!"))],
    "prompt.system": [
        (
            {"prompt": {"user": "{{ q }}", "system": "Be {{ id }}."}},
            lambda d: prompts(d)[2],
            "<|endoftext|><|im_start|>system\nBe c.<|im_end|>\n" + DEMO_CHAT.format("O").removeprefix("<|endoftext|>"),
        )
    ],
    "prompt.prefill": [({"prompt": {"user": "{{ q }}", "prefill": "{{ id }}) "}}, lambda d: prompts(d)[2], DEMO_CHAT.format("O") + "c) ")],
    "prompt.chat_template": [
        ({"prompt": {"user": "{{ q }}", "chat_template": "[{{ messages[0].content }}]"}}, lambda d: prompts(d)[2], "[O]"),
    ],
    "prompt.chat_template_args": [
        (
            {
                "prompt": {
                    "user": "{{ q }}",
                    "chat_template": "{{ mood }}|{{ messages[0].content }}",
                    "chat_template_args": {"mood": "glad"},
                }
            },
            lambda d: prompts(d)[2],
            "glad|O",
        )
    ],
    "logprobs.tokens": [({"logprobs": {"tokens": False}}, lambda d: "logprobs" in d.table.schema.names, False)],
    "logprobs.prompt": [({"logprobs": {"prompt": True}}, lambda d: [len(x) for x in column(d, "prompt_logprobs")], [9, 29, 2, 6, 15])],
    "logprobs.top": [({"logprobs": {"top": 2}}, lambda d: [len(x) for x in column(d, "top_ids")[0]], [2] * 6)],
    "logprobs.stats": [({"logprobs": {"stats": True}}, lambda d: column(d, "ranks")[0], [1] * 6)],
    "batch.rows": [
        ({"batch": {"rows": 2}}, lambda d: session(d)["batch"]["rows"], 2),
        ({"batch": {"rows": 1}}, lambda d: summary(d)["session"]["padding_waste"], 0.0),
    ],
    "batch.tokens": [
        ({"batch": {"tokens": 7}}, lambda d: session(d)["batch"]["tokens"], 7),
        ({"batch": {"tokens": 7}}, lambda d: summary(d)["session"]["padding_waste"], 0.0),
    ],
    "batch.prefill_tokens": [
        ({"batch": {"prefill_tokens": 7}}, lambda d: session(d)["batch"]["prefill_tokens"], 7),
        ({"batch": {"tokens": 40}}, lambda d: session(d)["batch"]["prefill_tokens"], 40),
    ],
    "batch.memory": [({"batch": {"memory": 1e-6}}, lambda d: (d.code, "raise batch.memory, or use a smaller" in d.last_line), (6, True))],
    "batch.rows_per_shard": [({"batch": {"rows_per_shard": 2}}, parts, [f"part-{i:08}.arrow" for i in range(3)])],
    "model.dtype": [({"model": {"dtype": "float16"}}, lambda d: session(d)["dtype"], "float16")],
}


ELSEWHERE: dict[str, str] = {
    "job": "tests/configs/test_load.py: later kinds are refused by name",
    "model.path": "test_another_model_gives_other_logprobs",
    "model.revision": "tests/runner/test_checkpoint.py: what is asked of the hub",
    "model.adapter": "test_an_adapter_changes_the_run",
    "model.trust_remote_code": "test_code_that_comes_with_a_model_runs_only_if_trusted",
    "data.path": "test_inputs_of_many_files",
    "data.format": "test_formats",
    "data.split": "test_a_hub_dataset",
    "data.delimiter": "tests/runner/formats/test_csv_delimiter.py",
    "data.config": "test_a_hub_dataset",
    "data.revision": "tests/configs/test_load.py: refused without a hub dataset",
    "prompt.messages": "test_messages",
    "prompt.too_long": "tests/jobs/test_generate.py",
    **dict.fromkeys(("data.other_models", "data.unknown_fields"), "tests/jobs/generate/test_openai_rows.py"),
    **dict.fromkeys(("prompt.tools", "prompt.tool_choice"), "tests/jobs/generate/test_completion_answers.py"),
    "prompt.parallel_tool_calls": "tests/runner/answers/test_answer.py",
    **dict.fromkeys(
        (f"reasoning.{name}" for name in ("budget", "marks", "message", "strip")), "tests/jobs/generate/test_completion_answers.py"
    ),
    **dict.fromkeys(
        (f"structured.{name}" for name in ("choice", "column", "grammar", "json_schema")), "tests/commands/test_structured_runs.py"
    ),
    **dict.fromkeys((f"structured.{name}" for name in ("regex", "unsupported", "whitespace")), "tests/runner/grammar/test_grammars.py"),
    **dict.fromkeys(("tools.parse", "tools.parser"), "tests/jobs/generate/test_completion_answers.py"),
    "on_error": "tests/jobs/test_cli_refusals.py",
    "batch.prefix_cache": "tests/jobs/test_prefix_cache.py",
    "batch.kv_bits": "tests/commands/test_kv_quantization.py",
    "batch.kv_group": "tests/commands/test_kv_quantization.py",
    "batch.kv_start": "tests/commands/test_kv_quantization.py",
    "batch.stall_seconds": "tests/runner/test_watch.py",
    "batch.deterministic": "test_deterministic_rows_do_not_depend_on_other_rows",
    "cluster": "tests/configs/test_cluster.py",
    "model.unchecked_images": "tests/runner/checks/test_uncompared_models.py",
    "prompt.images": "tests/commands/test_runs_with_pictures.py",
    "data.fetch": "tests/runner/images/test_sources.py",
    "data.max_image_pixels": "tests/runner/images/test_pictures.py",
    "batch.image_memory": "tests/commands/test_picture_runs.py",
    "output.path": "test_output_is_where_it_is_asked_for",
    "output.fsync_seconds": "test_fsync_seconds",
}


def test_every_key_of_the_config_is_tested():
    ours = {key for key in settings(GenerateConfig) if not key.startswith("sampling.")}
    assert sorted(ours) == sorted(EFFECTS.keys() | ELSEWHERE.keys())
    named = [name for name in ELSEWHERE.values() if name.startswith("test_")]
    assert [name for name in named if name not in globals() | vars(test_run_inputs)] == []


@pytest.mark.parametrize(
    ("key", "effect"), [pytest.param(key, effect, id=f"{key}-{i}") for key, effects in EFFECTS.items() for i, effect in enumerate(effects)]
)
def test_a_key_has_its_effect(bench: Bench, standard: Done, key: str, effect: Effect):
    sections, look, seen = effect
    done = bench.run(**sections)
    assert look(done) == seen
    if key != "data.keep":  # whose first effect is the default
        with suppress(KeyError):  # a column that the standard job does not have
            assert look(standard) != seen


@pytest.mark.parametrize("batch", [{"rows": 1}, {"rows": 2}, {"tokens": 7}, {"rows_per_shard": 2}])
def test_batches_and_shards_change_no_answer(bench: Bench, standard: Done, batch: dict[str, int]):
    done = bench.run(batch=batch)
    # Of float32 only the order of sums changes; the tiny model's greedy choices are not near-ties.
    assert column(done, "completion_ids") == column(standard, "completion_ids")
    for mine, theirs in zip(column(done, "logprobs"), column(standard, "logprobs"), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)


def test_another_model_gives_other_logprobs(bench: Bench, standard: Done):
    done = bench.run(model={"path": "demo"})
    assert column(done, "prompt_ids") == column(standard, "prompt_ids")
    assert column(done, "logprobs") != column(standard, "logprobs")


@pytest.mark.parametrize("kind", ["lora", pytest.param("dora", marks=pytest.mark.slow)])
def test_an_adapter_changes_the_run(bench: Bench, model: Path, standard: Done, kind: str):
    adapter = write_adapter(model, bench.root / kind, kind)
    done = bench.run(model={"adapter": str(adapter)})
    assert done.code == 0
    assert column(done, "logprobs") != column(standard, "logprobs")
    refused = bench.run()
    assert refused.code == 4
    assert "  model.adapter: the run has " in refused.stderr


def test_code_that_comes_with_a_model_runs_only_if_trusted(bench: Bench, model: Path, standard: Done):
    folder = shutil.copytree(model, bench.root / "own")
    (folder / "own.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_file": "own.py"}))
    refused = bench.run(model={"path": str(folder)})
    assert refused.code == 5
    assert refused.last_line.endswith("it needs code that comes with it (own.py); set model.trust_remote_code if you trust it")
    trusted = bench.run("--overwrite", model={"path": str(folder), "trust_remote_code": True})
    assert column(trusted, "logprobs") == column(standard, "logprobs")
    (folder / "own.py").write_text("from mlx_lm.models.llama import Model, ModelArgs  # changed\n")
    assert bench.run(model={"path": str(folder), "trust_remote_code": True}).code == 4


def test_messages(bench: Bench):
    rows: list[Record] = [{"c": {"turns": CHAT}}, {"c": {"turns": []}}]
    done = bench.run(rows=rows, prompt={"messages": "c.turns"})
    assert done.code == 3
    (prompt,) = prompts(done)
    assert prompt == (
        "<|endoftext|><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
        "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert column(done, "prompt_ids")[0].count(0) == 1  # the template writes BOS; the tokenizer adds none
    assert [error["stage"] for error in done.errors] == ["template"]


def test_a_chat_template_in_a_file_is_part_of_the_identity_by_its_contents(bench: Bench):
    path = bench.root / "chat.jinja"
    path.write_text("<{{ messages[0].content }}>")
    prompt = {"user": "{{ q }}", "chat_template": str(path)}
    assert prompts(bench.run(prompt=prompt))[2] == "<O>"
    assert bench.run(prompt=prompt).code == 0
    path.write_text("({{ messages[0].content }})")
    assert bench.run(prompt=prompt).code == 4


def test_deterministic_rows_do_not_depend_on_other_rows(bench: Bench):
    batch = {"rows": 4, "deterministic": True}
    rows: list[Record] = [{"q": "x" * n} for n in (9, 7, 5, 3)]
    first = bench.run(rows=rows, batch=batch, sampling={"temperature": 1.0})
    if first.code == 5:
        assert "batch.deterministic: with this model and device a row's bits depend on its batch mates" in first.last_line
        return
    others: list[Record] = [rows[0], *({"q": "y" * len(row["q"])} for row in rows[1:])]
    second = bench.run("--overwrite", rows=others, batch=batch, sampling={"temperature": 1.0})
    assert first.records[0] == second.records[0]
    assert first.records[1]["logprobs"] != second.records[1]["logprobs"]


def test_output_is_where_it_is_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNS", str(bench.root / "runs"))
    done = bench.run(output={"path": "${RUNS}/deep/er"})
    assert done.code == 0
    assert parts(Done(0, "", "", bench.root / "runs/deep/er", done.table, [])) == ["part-00000000.arrow"]


@pytest.mark.parametrize(("seconds", "synced"), [(0, True), (1000, False)])
def test_fsync_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float, synced: bool):
    calls: list[Path] = []
    sync = journal.sync_journal

    def counted(path: Path) -> None:
        calls.append(path)
        sync(path)

    monkeypatch.setattr(journal, "sync_journal", counted)
    # Rows that leave at different steps: with 0 seconds each is synced before the shard is complete.
    rows: list[Record] = [{"q": "a", "m": n} for n in range(1, 20)]
    done = bench.run(rows=rows, sampling={"columns": {"max_tokens": "m"}}, output={"fsync_seconds": seconds})
    assert done.code == 0
    assert bool(calls) == synced


def test_the_run_directory_holds_what_the_contract_names(bench: Bench):
    done = bench.run()
    names = {path.name for path in done.output.iterdir()}
    assert {
        "run.json",
        "inputs.json",
        "sessions.jsonl",
        "results",
        "errors",
        "journal",
        "commits.jsonl",
        "stats.arrow",
        "summary.json",
    } <= names
    assert list((done.output / "journal").iterdir()) == []
    run = json.loads((done.output / "run.json").read_text())
    fingerprints = ("model.weights", "model.tokenizer", "model.chat_template", "model.adapter", "column completion", "column input.q")
    assert set(fingerprints) <= run["identity"].keys()
    assert all(re.fullmatch("[0-9a-f]{64}|none", run["identity"][name]) for name in fingerprints[:4])
    start, end = (json.loads(line) for line in (done.output / "sessions.jsonl").read_text().splitlines())
    assert {"versions", "host", "device", "blas", "kernels", "batch", "probe", "dtype"} <= start.keys()
    assert (end["event"], end["how"], end["rows"]) == ("end", "complete", 5)
