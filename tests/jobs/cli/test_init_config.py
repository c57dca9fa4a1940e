"""Tests ``mlx-bulk init``: each printed config runs, agrees with its schema, and holds every setting."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import yaml
from click import Choice
from click.testing import CliRunner
from mlx_bulk.configs.explain import section_of, settings
from mlx_bulk.configs.fields import Section
from mlx_bulk.configs.jobs import JOBS
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.cli import init_config as making
from mlx_bulk.jobs.cli.init_config import EXAMPLES, config_text
from mlx_bulk.jobs.cli.main import cli

from ...configs.structural import breaches

FEWER = {
    "generate": "data.limit=2",
    "score": "data.limit=2",
    "rollout": "data.limit=2",
    "embed": "data.limit=2",
    "classify": "data.limit=2",
    "sweep": "base.data.limit=2",
}
QUICK = ("generate", "embed")


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["init", *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_there_is_one_for_each_job():
    assert list(EXAMPLES) == list(JOBS) == list(FEWER)
    choice = cli.commands["init"].params[0].type
    assert isinstance(choice, Choice)
    assert list(choice.choices) == list(EXAMPLES)


@pytest.mark.parametrize("job", [pytest.param(job, marks=() if job in QUICK else pytest.mark.slow) for job in EXAMPLES])
def test_it_runs_as_it_is(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(printed(job), encoding="utf-8")
    result = CliRunner().invoke(cli, ["run", "job.yaml", "--set", FEWER[job]])
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"outputs/{job}").is_dir()


def test_without_a_job_it_is_generate():
    assert printed() == printed("generate")


@pytest.mark.parametrize("job", EXAMPLES)
def test_its_first_line_names_a_schema_that_it_agrees_with(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = config_text(job)
    found = re.fullmatch(r"# yaml-language-server: \$schema=(file://\S+)", text.splitlines()[0])
    assert found is not None
    schema = json.loads(Path(unquote(urlparse(found[1]).path)).read_text(encoding="utf-8"))
    assert breaches(yaml.safe_load(text), schema, schema) == []


def test_a_schema_below_this_folder_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, named in (("project", "./.venv/schema.json"), ("my project", "./.venv/schema.json")):
        monkeypatch.setattr(making, "files", lambda package, name=name: tmp_path / name / ".venv")
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert config_text("generate").startswith(f"# yaml-language-server: $schema={named}\n")
    monkeypatch.chdir(tmp_path)
    assert config_text("generate").startswith(f"# yaml-language-server: $schema={tmp_path.as_uri()}/my%20project/.venv/schema.json\n")


@pytest.mark.parametrize("job", ["generate", "score"])
def test_every_setting_is_there_with_its_default(job: str, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(config_text(job))
    config = load_config(tmp_path / "job.yaml")
    stated = yaml.safe_load(config_text(job))
    least = type(config).model_validate({**EXAMPLES[job][1], "job": job, "data": config.model_dump()["data"]})
    assert config == least
    assert sorted(keys(stated)) == sorted(settings(type(config)))


def keys(values: object, prefix: str = "") -> list[str]:
    """Returns the dotted keys of all values that are no sections."""
    if not isinstance(values, dict) or not values:
        return [prefix.removesuffix(".")]
    return [key for name, value in values.items() for key in keys(value, f"{prefix}{name}.")]


@pytest.mark.parametrize("job", EXAMPLES)
def test_every_setting_has_its_description_above_it(job: str):
    # Comments are wrapped: they are compared as running text.
    words = " ".join(line.strip().removeprefix("#").strip() for line in config_text(job).splitlines())
    for description in descriptions(JOBS[job]):
        assert description in words


def descriptions(model: type[Section]) -> list[str]:
    own = [field.description or "" for field in model.model_fields.values()]
    inner = [section for field in model.model_fields.values() if (section := section_of(field))]
    return own + [description for section in inner for description in descriptions(section)]


@pytest.mark.parametrize("job", EXAMPLES)
def test_lines_fit_a_terminal_but_for_the_schemas_path(job: str):
    assert max(map(len, config_text(job).splitlines()[1:])) <= 88


def test_the_commands_in_its_head_stand_on_a_line_each():
    head = config_text("generate").splitlines()[:6]
    assert "# Other jobs: mlx-bulk init score | rollout | embed | classify | sweep" in head
    assert "# It runs as it is: mlx-bulk run FILE" in head


def test_each_setting_of_the_example_names_its_default():
    assert "  # Most tokens to generate for a prompt. Default: 256.\n  max_tokens: 32\n" in config_text("generate")
    assert "One of auto, float32,\n  # float16, bfloat16.\n  dtype: auto\n" in config_text("generate")


def test_another_job_is_refused():
    assert CliRunner().invoke(cli, ["init", "rolout"]).exit_code == 2
