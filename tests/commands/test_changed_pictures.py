"""Tests what commands say of a run whose pictures have changed since, are gone, or came only now."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.images import named_files

from ..vision_folders import drawn, picture_bytes, write_vision_model

pytestmark = pytest.mark.oracle
ONE, OTHER = picture_bytes(drawn(40, 40)), picture_bytes(drawn(40, 40, 3))


@pytest.fixture(scope="module", name="model")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_vision_model(folder, "qwen2_vl")
    return folder


@pytest.fixture(name="begin")
def a_beginning(tmp_path: Path, model: Path) -> Path:
    """The config of a run of three rows, whose pictures are there."""
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(ONE)
    rows: list[dict[str, Any]] = [{"q": f"what is {number}?", "image": f"{number}.png"} for number in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "job": "generate",
        "model": {"path": str(model)},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "prompt": {"user": "{{ q }}", "images": "image"},
        "sampling": {"max_tokens": 4, "temperature": 0},
        "output": {"path": str(tmp_path / "run")},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "config.yaml"


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def run(config: Path, *more: str) -> Result:
    return command("run", config, "--no-supervised", *more)


@pytest.mark.parametrize("how", ["--replay", "--rescore"])
def test_nothing_is_verified_where_all_pictures_have_changed_or_are_gone(begin: Path, how: str) -> None:
    assert run(begin).exit_code == 0
    folder = begin.parent
    assert command("verify", folder / "run", how).exit_code == 0
    for number in range(2):
        (folder / f"{number}.png").write_bytes(OTHER)
    (folder / "2.png").unlink()
    found = command("verify", folder / "run", how)
    assert found.exit_code == 5, found.output
    assert "left out: 3 records: their picture has changed or is gone (rows 0 to 2)\n" in found.stdout
    assert "nothing could be compared, so nothing is verified; put the input back as it was" in found.stdout
    assert "other tokens" not in found.stdout
    assert "bounds" not in found.stdout
    anew = json.loads(command("verify", folder / "run", how, "--json").stdout)["anew"]
    assert (anew["passed"], anew["left_out"]) == (False, {"their picture has changed or is gone": 3})


@pytest.mark.parametrize("how", ["--replay", "--rescore"])
def test_records_of_other_pictures_are_compared(begin: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "BLOCK", 2)
    assert run(begin).exit_code == 0
    (begin.parent / "2.png").write_bytes(OTHER)
    found = command("verify", begin.parent / "run", how)
    assert found.exit_code == 0, found.output
    assert "left out: 1 record: their picture has changed or is gone (row 2)\n" in found.stdout
    assert " 8 tokens  mean" in found.stdout
    assert "within float32's bounds" in found.stdout


def test_vectors_of_changed_pictures_are_left_out(begin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "BLOCK", 2)
    config = yaml.safe_load(begin.read_text()) | {"job": "embed", "embed": {"pooling": "lasttoken"}, "prompt": {"images": "image"}}
    del config["sampling"]
    begin.write_text(yaml.safe_dump(config))
    made = run(begin)
    assert made.exit_code == 0, made.output
    (begin.parent / "2.png").unlink()
    found = command("verify", begin.parent / "run", "--rescore")
    assert found.exit_code == 0, found.output
    assert "2 records of 3 rows, spread evenly: " in found.stdout
    assert "left out: 1 record: their picture has changed or is gone (row 2)\n" in found.stdout
    (begin.parent / "0.png").write_bytes(OTHER)
    found = command("verify", begin.parent / "run", "--rescore")
    assert found.exit_code == 5, found.output
    assert "nothing could be compared, so nothing is verified" in found.stdout


def test_a_picture_that_only_failed_rows_name_may_come_later(begin: Path) -> None:
    folder = begin.parent
    (folder / "1.png").unlink()
    assert run(begin).exit_code == 3
    (folder / "1.png").write_bytes(OTHER)
    refused = run(begin)
    assert refused.exit_code == 4
    assert "data.path: a picture that one of rows 0 to 2 names is new, changed or gone" in refused.stderr
    assert "failed rows alone name them: with --retry-errors the same command does these rows." in refused.stderr
    retried = run(begin, "--retry-errors")
    assert retried.exit_code == 0, retried.output
    assert "pictures are there now that were not; the failed rows that name them are tried again" in retried.stderr
    assert run(begin).exit_code == 0
    assert "pictures are there now" not in run(begin, "--retry-errors").stderr
    assert command("verify", folder / "run", "--replay").exit_code == 0


def test_a_picture_of_a_finished_row_may_not_change_with_it(begin: Path) -> None:
    folder = begin.parent
    (folder / "1.png").unlink()
    assert run(begin).exit_code == 3
    (folder / "1.png").write_bytes(OTHER)
    (folder / "0.png").write_bytes(OTHER)
    assert "failed rows alone" not in run(begin).stderr
    assert run(begin, "--retry-errors").exit_code == 4
    (folder / "0.png").write_bytes(ONE)
    (folder / "rows.jsonl").write_text((folder / "rows.jsonl").read_text().replace("what", "who"))
    assert run(begin, "--retry-errors").exit_code == 4


def test_a_picture_that_was_cut_off_is_mended_and_adopted(begin: Path) -> None:
    folder = begin.parent
    (folder / "1.png").write_bytes(ONE[:60])
    assert run(begin).exit_code == 3
    (folder / "1.png").write_bytes(ONE)
    refused = run(begin, "--retry-errors")
    assert refused.exit_code == 4
    assert "--adopt data.path goes on" in refused.stderr
    assert run(begin, "--retry-errors", "--adopt", "data.path").exit_code == 0


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_plan_says_that_the_run_would_be_refused(begin: Path, change: str) -> None:
    assert run(begin).exit_code == 0
    assert "complete already, nothing is left to do" in " ".join(command("plan", begin).stdout.split())  # lines are cut as paths are long
    picture = begin.parent / "1.png"
    picture.write_bytes(OTHER) if change == "changed" else picture.unlink()
    planned = command("plan", begin)
    assert planned.exit_code == 0
    told = "data.path: a picture that one of rows 0 to 2 names is new, changed or gone"
    assert "a run of this config would be refused:" in " ".join(planned.stdout.split())
    assert told in " ".join(planned.stdout.split())
    output = json.loads(command("plan", begin, "--json").stdout)["output"]
    assert (output["state"], output["reasons"]) == ("refused", [told])
    assert told in run(begin).stderr
