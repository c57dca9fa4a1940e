"""Tests which changes of model and config between two starts of a run are taken, and which are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.kernels import backend

from ..checkpoints import write_adapter
from ..jobs.support.bench import Bench
from ..jobs.support.drifted_runs import bench as bench
from ..jobs.support.drifted_runs import kept, refused, requantized, rewritten
from ..jobs.support.drifted_runs import made as made

CHAT: dict[str, Any] = {"user": "{{ q }}", "chat_template": "[{{ messages[0].content }}]"}


def merged_otherwise(folder: Path) -> None:
    path = folder / "tokenizer.json"
    rewritten(path, path.read_bytes() + b"\n")


def stopped_otherwise(folder: Path) -> None:
    rewritten(folder / "generation_config.json", json.dumps({"bos_token_id": 0, "eos_token_id": [2, 5]}).encode())


def asked_otherwise(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    rewritten(path, path.read_bytes() + b"{# another #}")


CHANGED_MODELS: list[tuple[Callable[[Path], None], list[str]]] = [
    (requantized, ["model.weights"]),
    (merged_otherwise, ["model.tokenizer"]),
    (stopped_otherwise, ["model.generation_config"]),
    (asked_otherwise, ["model.chat_template"]),
]


@pytest.mark.parametrize(("change", "keys"), CHANGED_MODELS)
def test_a_model_changed_in_place_is_refused(bench: Bench, change: Callable[[Path], None], keys: list[str]):
    before = kept(bench)
    change(bench.model)
    for line in refused(bench, bench.run(), before, *keys):
        assert ": the run has sha256 " in line
        assert ", now it is sha256 " in line


def test_another_adapter_under_the_same_name_is_refused(bench: Bench):
    adapter = write_adapter(bench.model, bench.root / "adapter", "lora")
    assert bench.run("--overwrite", model={"adapter": str(adapter)}).code == 0
    before = kept(bench)
    weights = adapter / "adapters.safetensors"
    rewritten(weights, weights.read_bytes()[:-4] + b"\0\0\0\0")
    refused(bench, bench.run(model={"adapter": str(adapter)}), before, "model.adapter")
    assert refused(bench, bench.run(), before, "model.adapter")[0].endswith(', now it is "none"')


def test_another_chat_template_in_the_config_is_refused(bench: Bench):
    assert bench.run("--overwrite", prompt=CHAT).code == 0
    before = kept(bench)
    refused(bench, bench.run(prompt=CHAT | {"chat_template": "({{ messages[0].content }})"}), before, "prompt.chat_template")
    # The same template in a file is the same template.
    (bench.root / "chat.jinja").write_text(CHAT["chat_template"])
    assert bench.run(prompt=CHAT | {"chat_template": str(bench.root / "chat.jinja")}).code == 0
    args = refused(bench, bench.run(prompt=CHAT | {"chat_template_args": {"a": 1}}), before, "prompt.chat_template_args")
    assert args == ['prompt.chat_template_args: the run has {}, the config now says {"a": 1}']


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"sampling": {"seed": 1}}, "sampling.seed: the run has 0, the config now says 1"),
        ({"sampling": {"top_p": 0.5}}, "sampling.top_p: the run has 1.0, the config now says 0.5"),
        ({"sampling": {"stop": ["."]}}, 'sampling.stop: the run has [], the config now says ["."]'),
        ({"prompt": {"text": "{{ id }}"}}, 'prompt.text: the run has "{{ q }}", the config now says "{{ id }}"'),
        ({"model": {"dtype": "float16"}}, 'model.dtype: the run has "auto", the config now says "float16"'),
    ],
)
def test_a_setting_that_shapes_results_is_refused(bench: Bench, sections: dict[str, Any], line: str):
    before = kept(bench)
    assert refused(bench, bench.run(**sections), before, line.partition(":")[0]) == [line]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"batch": {"rows_per_shard": 2}}, "batch.rows_per_shard: the run has 1024, the config now says 2"),
        ({"data": {"keep": "none"}}, 'data.keep: the run has "all", the config now says "none"'),
        ({"logprobs": {"top": 1}}, "logprobs.top: the run has 0, the config now says 1"),
    ],
)
def test_changes_of_the_shard_layout_are_never_accepted(bench: Bench, sections: dict[str, Any], line: str):
    before = kept(bench)
    done = bench.run(**sections)
    assert done.code == 4
    assert f"  {line}\n" in done.stderr
    assert "--adopt" not in done.stderr
    key = line.partition(":")[0]
    adopted = bench.run("--adopt", key, **sections)
    assert adopted.code in (2, 4)
    assert "cannot be adopted: " in adopted.stderr
    assert kept(bench) == before


@pytest.mark.parametrize("options", [(), ("--adopt", "data.key")], ids=["as it is", "adopted"])
def test_rows_that_have_no_keys_get_none(bench: Bench, options: tuple[str, ...]):
    before = kept(bench)
    done = bench.run(*options, data={"key": "id"})
    said = 'data.key: the run has null, the config now says "id"; finished rows have no keys of their own, and would stay so'
    assert (done.code, f"  {said}\n" in done.stderr, "--adopt" in done.stderr) == (4, True, False)
    assert kept(bench) == before


@pytest.mark.parametrize(
    ("options", "sections"),
    [
        (("--log-level", "debug"), {}),
        ((), {"batch": {"memory": 0.3, "stall_seconds": 7}}),
        ((), {"batch": {"rows": 2, "tokens": 64}}),
        ((), {"output": {"fsync_seconds": 0}}),
        ((), {"on_error": "fail"}),
        ((), {"data": {"limit": 5}}),
    ],
)
def test_settings_that_only_steer_may_change(bench: Bench, options: tuple[str, ...], sections: dict[str, Any]):
    before = kept(bench)
    done = bench.run(*options, **sections)
    assert done.code == 0
    assert "complete already: 5 of 5 rows" in done.last_line
    assert {name: kept(bench)[name] for name in before if name != "run.json"} == {n: c for n, c in before.items() if n != "run.json"}


def test_a_deterministic_run_holds_its_batches_and_its_machine_fast(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    batch = {"deterministic": True, "rows": 2}
    if bench.run("--overwrite", batch=batch).code == 5:
        pytest.skip("no slot independence on this device: the mode is refused")
    before = kept(bench)
    assert refused(bench, bench.run(batch=batch | {"rows": 4}), before, "batch.rows") == [
        "batch.rows: the run has 2, the config now says 4"
    ]
    if backend.device_name() == "cpu":  # a BLAS adds in another order with other threads
        with monkeypatch.context() as patched:
            patched.setattr("mlx_bulk.kernels.backend.threads", lambda: 99)
            lines = refused(bench, bench.run(batch=batch), before, "threads")
        assert lines == [f"threads: the run has {backend.threads()}, this machine now has 99"]
    monkeypatch.setattr("mlx_bulk.runner.pipeline.run_spec.version", lambda name: "0.99" if name == "mlx" else None)
    lines = refused(bench, bench.run(batch=batch), before, "mlx", "mlx-lm")
    assert lines[0].endswith(', this machine now has "0.99"')
