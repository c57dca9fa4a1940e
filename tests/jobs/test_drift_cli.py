"""What may change between two starts of a run and what may not, through the real command; and what a user can vouch for."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.runner.documents import read_document, write_document
from mlx_bulk.runner.durable import read_lines
from mlx_bulk.runner.manifest import RunDir

from ..checkpoints import write_adapter
from .bench import ROWS, Bench, Done, Record

WAYS_OUT = "Go back to what the run has, choose another --output, or start over with --overwrite"
CHAT: dict[str, Any] = {"user": "{{ q }}", "chat_template": "[{{ messages[0].content }}]"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The standard job, done with a copy of the model."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(model, folder / "model")
    assert Bench(folder, folder / "model").run().code == 0
    return folder


@pytest.fixture
def bench(tmp_path: Path, made: Path) -> Bench:
    """A bench with a finished run, and a model that a test may change in place."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return Bench(tmp_path, tmp_path / "model")


def kept(bench: Bench) -> dict[str, bytes]:
    """What the run has finished, and what it says it is."""
    paths = [bench.root / "run" / name for name in ("run.json", "commits.jsonl", "results/part-00000000.arrow")]
    return {path.name: path.read_bytes() for path in paths}


def refused(bench: Bench, done: Done, before: dict[str, bytes], *keys: str) -> list[str]:
    """The lines that say what differs, of a start that was refused for changes of ``keys``, all of which can be adopted."""
    assert done.code == 4, done.stderr
    assert kept(bench) == before
    assert done.last_line.startswith(WAYS_OUT)
    assert done.last_line.endswith(" ".join(f"--adopt {key}" for key in keys) + " goes on.")
    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("  ")]
    assert list(dict.fromkeys(line.partition(":")[0] for line in lines)) == list(keys)
    return lines


# ---------------------------------------------------------------------------------------------------------------- model


def rewritten(path: Path, content: bytes) -> None:
    """Other contents under the same name; the size stays where it can, and the mtime and the inode always."""
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def requantized(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    rewritten(path, bytes(content))


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


# --------------------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"sampling": {"seed": 1}}, "sampling.seed: the run has 0, the config now says 1"),
        ({"sampling": {"top_p": 0.5}}, "sampling.top_p: the run has 1.0, the config now says 0.5"),
        ({"sampling": {"stop": ["."]}}, 'sampling.stop: the run has [], the config now says ["."]'),
        ({"prompt": {"text": "{{ id }}"}}, 'prompt.text: the run has "{{ q }}", the config now says "{{ id }}"'),
        ({"data": {"key": "id"}}, 'data.key: the run has null, the config now says "id"'),
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
        ({"data": {"limit": 3}}, "data.limit: the run covers 5 rows, the config now says 3"),
    ],
)
def test_what_would_cut_the_parts_otherwise_is_refused_for_good(bench: Bench, sections: dict[str, Any], line: str):
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
def test_what_only_steers_may_change(bench: Bench, options: tuple[str, ...], sections: dict[str, Any]):
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
    monkeypatch.setattr("mlx_bulk.runner.pipeline.version", lambda name: "0.99" if name == "mlx" else None)
    lines = refused(bench, bench.run(batch=batch), before, "mlx", "mlx-lm")
    assert lines[0].endswith(', this machine now has "0.99"')


# ---------------------------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([*ROWS[:4], {**ROWS[4], "q": "Exeunt."}], id="changed"),
        pytest.param([ROWS[1], ROWS[0], *ROWS[2:]], id="reordered"),
        pytest.param(ROWS[:4], id="truncated"),
        pytest.param([{"id": "new", "q": "first"}, *ROWS], id="put before"),
    ],
)
def test_another_input_is_refused(bench: Bench, rows: list[Record]):
    before = kept(bench)
    refused(bench, bench.run(rows=rows), before, "data.path")


def test_an_input_without_rows_is_refused(bench: Bench):
    done = bench.run(rows=[])
    assert done.code == 4
    assert "  data.path: source 1 was " in done.stderr


def test_an_input_that_grew_extends_the_run_and_one_that_moved_is_the_same(bench: Bench):
    assert "complete already" in bench.run(data={"path": str((bench.root / "rows.jsonl").rename(bench.root / "moved.jsonl"))}).last_line
    extended = bench.run(rows=[*ROWS, {"id": "f", "q": "more"}])
    assert (extended.code, len(extended.records)) == (0, 6)
    assert "the input gave 5 rows and gives 6 now; the run is extended" in extended.stderr
    assert [line["event"] for line in read_lines(extended.output / "sessions.jsonl")] == ["start", "end", "extended", "start", "end"]


def test_equal_bytes_read_as_another_format_are_refused(bench: Bench):
    """Without kept columns nothing but the format tells JSON lines from text."""
    (bench.root / "same.txt").write_text('{"text": "a"}\n')
    section = {"path": str(shutil.copy(bench.root / "same.txt", bench.root / "same.jsonl")), "keep": "none"}
    prompt = {"text": "{{ text }}"}
    assert bench.run("--overwrite", data=section, prompt=prompt).code == 0
    before = kept(bench)
    (line,) = refused(bench, bench.run(data=section | {"path": str(bench.root / "same.txt")}, prompt=prompt), before, "data.path")
    assert "same.jsonl (jsonl, 1 rows" in line
    assert "same.txt (text, 1 rows" in line


def test_rows_from_stdin_stay_the_runs_though_the_commits_are_lost(bench: Bench):
    assert bench.run("--data", "-", "--overwrite", stdin='{"q": "one"}\n').code == 0
    (bench.root / "run/commits.jsonl").unlink()
    assert bench.run("--data", "-", stdin='{"q": "other"}\n').code == 4
    assert (bench.root / "run/stdin.jsonl").read_text() == '{"q": "one"}\n'
    assert [record["prompt"] for record in bench.run("--data", "-", stdin="").records] == ["one"]


def test_rows_from_stdin_that_are_refused_leave_those_the_run_has(bench: Bench):
    first, kept_rows = '{"q": "one"}\n', bench.root / "run/stdin.jsonl"
    assert bench.run("--data", "-", "--overwrite", stdin=first).code == 0
    done = bench.run("--data", "-", stdin=first + '{"q": "two", "extra": 1}\n')
    assert (done.code, "column input.extra" in done.stderr) == (4, True)
    assert [file.name for file in kept_rows.parent.glob("*stdin*")] == [kept_rows.name]
    assert kept_rows.read_text() == first
    kept_rows.with_name("stdin.jsonl.new").write_text("left by a process that was killed")
    assert bench.run("--data", "-", stdin="").last_line.startswith("complete already: 1 of 1 rows")
    assert [file.name for file in kept_rows.parent.glob("*stdin*")] == [kept_rows.name]


def test_rows_from_stdin_are_in_their_place_before_the_run_says_that_it_has_them(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    first, longer = '{"q": "one"}\n', '{"q": "one"}\n{"q": "two"}\n'
    assert bench.run("--data", "-", "--overwrite", stdin=first).code == 0
    owner: Any = RunDir

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as during:
        during.setattr(owner, "_store", fails)
        assert bench.run("--data", "-", stdin=longer).code == 6
    assert [record["prompt"] for record in bench.run("--data", "-", stdin="").records] == ["one", "two"]


def test_a_kept_column_of_another_type_is_refused_by_name(bench: Bench):
    before = kept(bench)
    done = bench.run(rows=[*ROWS, {"id": 6, "q": "an id that is a number"}])
    assert done.code == 4
    assert "  column input.id: the run has " in done.stderr
    assert ", the input now gives " in done.stderr
    assert "--adopt" not in done.stderr
    assert kept(bench) == before


# ---------------------------------------------------------------------------------------------------------------- adopt


def test_a_user_can_vouch_for_a_change_once(bench: Bench):
    before = kept(bench)
    requantized(bench.model)
    assert bench.run().code == 4
    adopted = bench.run("--adopt", "model.weights")
    assert adopted.code == 0
    assert f"mlx-bulk: {adopted.output}: adopted: model.weights: the run has sha256 " in adopted.stderr
    assert "complete already: 5 of 5 rows" in adopted.last_line
    again = bench.run("--adopt", "model.weights")  # the same command may be given again
    assert (again.code, "adopted" in again.stderr, bench.run().code) == (0, False, 0)
    assert [line["key"] for line in read_lines(adopted.output / "sessions.jsonl") if line["event"] == "adopted"] == ["model.weights"]
    assert kept(bench)["part-00000000.arrow"] == before["part-00000000.arrow"]


def test_what_comes_after_an_adopted_change_is_done_by_the_new_settings(bench: Bench):
    rows = [*ROWS, {"id": "f", "q": "more"}]
    short = {"max_tokens": 3}
    assert bench.run(rows=rows, sampling=short).code == 4
    done = bench.run("--adopt", "sampling.max_tokens", rows=rows, sampling=short)
    assert done.code == 0
    assert [record["completion_tokens"] for record in done.records] == [6] * 5 + [3]


def test_rows_that_were_in_flight_are_done_by_the_input_that_was_adopted(bench: Bench):
    rows: list[Record] = [*ROWS[:4], {"id": "e", "q": None}]
    assert bench.run("--overwrite", rows=rows, on_error="fail", output={"fsync_seconds": 0}).code == 5
    shorter = bench.run("--adopt", "data.path", rows=ROWS[1:3])
    assert (shorter.code, [record["prompt"] for record in shorter.records]) == (0, [row["q"] for row in ROWS[1:3]])


def test_another_input_is_taken_where_the_user_vouches_for_it(bench: Bench):
    mended = [{**ROWS[0], "q": "What is 2 + 2 ?"}, *ROWS[1:]]
    before = kept(bench)
    done = bench.run("--adopt", "data.path", rows=mended)
    assert done.code == 0
    assert kept(bench)["part-00000000.arrow"] == before["part-00000000.arrow"]
    assert bench.run(rows=mended).code == 0
    assert bench.run(rows=ROWS).code == 4
    shorter = bench.run("--adopt", "data.path", rows=mended[1:])
    assert shorter.code == 4
    assert "committed with 5 rows, the input now gives it 4" in shorter.last_line


def test_a_sweeps_cells_adopt_the_change_each(bench: Bench):
    config = yaml.safe_load(bench.write_config().read_text(encoding="utf-8"))
    del config["output"]
    sweep = {"job": "sweep", "base": config, "matrix": {"sampling.max_tokens": [2, 3]}, "output": {"path": str(bench.root / "out")}}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    assert bench.command(path).code == 0
    requantized(bench.model)
    assert bench.command(path).code == 4
    assert bench.command(path, "--adopt", "model.weights").code == 0
    assert bench.command(path).code == 0


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sampling.sed", "--adopt sampling.sed: is no key of this run's identity; did you mean sampling.seed"),
        ("weights", "--adopt weights: is no key of this run's identity; did you mean model.weights"),
        ("batch.memory", "--adopt batch.memory: is no key of this run's identity"),
    ],
)
def test_a_key_that_is_none_is_a_usage_error(bench: Bench, key: str, said: str):
    before = kept(bench)
    done = bench.run("--adopt", key)
    assert done.code == 2
    assert said in done.last_line
    assert kept(bench) == before


# --------------------------------------------------------------------------------------------------------------- damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["summary.json", "stats.arrow", "inputs.json", "run.json"])
@pytest.mark.parametrize("damage", [flip, empty, Path.unlink])
def test_a_damaged_small_file_is_written_again(bench: Bench, name: str, damage: Callable[[Path], None]):
    path = bench.root / "run" / name
    before = path.read_bytes()
    damage(path)
    done = bench.run()
    if (name, damage) == ("run.json", Path.unlink):
        assert done.code == 5
        assert "has finished rows but no run.json to say whose" in done.last_line
        return
    assert done.code == 0
    assert "complete already: 5 of 5 rows" in done.last_line
    assert ("run.json: was damaged; it is rebuilt" in done.stderr) == (name == "run.json")
    if name == "stats.arrow":
        assert path.read_bytes() == before
    else:
        assert read_document(path).keys() == json.loads(before).keys() - {"check"}
    assert bench.run().code == 0


def test_a_damaged_run_json_is_not_rebuilt_from_another_config(bench: Bench):
    flip(bench.root / "run/run.json")
    done = bench.run(sampling={"seed": 1})
    assert done.code == 5
    assert "run.json: is damaged, and by sessions.jsonl this config, model or input is not what the run had" in done.last_line
    assert bench.run().code == 0


@pytest.mark.parametrize("name", ["sessions.jsonl", "metrics.jsonl"])
def test_damaged_notes_are_said_once_and_stop_nothing(bench: Bench, name: str):
    flip(bench.root / "run" / name)
    done = bench.run()
    assert done.code == 0
    assert done.stderr.count("(their checksums do not fit) are taken out; the file as it was is " + name + ".damaged") == 1
    assert "taken out" not in bench.run().stderr


def test_a_summary_that_was_not_written_at_the_end_is_written_at_the_next_start(bench: Bench):
    """As after a kill between the closing line of the commits and the summary: it is still the one of the session before."""
    path = bench.root / "run/summary.json"
    whole = read_document(path)
    write_document(path, whole | {"complete": False, "rows": 3, "records": 3, "statistics": None})
    assert bench.run().code == 0
    same = ("complete", "rows", "of", "records", "errors", "statistics")
    assert {name: read_document(path)[name] for name in same} == {name: whole[name] for name in same}


def test_a_run_says_where_its_relative_paths_start(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(bench.root)
    assert bench.run("--overwrite", data={"path": "rows.jsonl"}).code == 0
    assert read_document(bench.root / "run/run.json")["cwd"] == str(bench.root)
