"""Tests that docs/config.md follows the schema, and that shipped configs name that schema for editors."""

import json
from pathlib import Path

import mlx_bulk.configs
import pytest
import yaml
from mlx_bulk.configs.eval import EvalConfig
from mlx_bulk.configs.explain import settings
from mlx_bulk.configs.jobs import JOBS

from ..configs.structural import breaches
from .config_page import PAGE, page

CONFIGS = Path(mlx_bulk.configs.__path__[0])


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/config.md is old; run: python -m tests.docs.config_page"


@pytest.mark.parametrize("job", [*JOBS, "eval"])
def test_every_setting_is_on_it(job: str):
    for key in settings(JOBS.get(job, EvalConfig)):
        assert f"| `{key}` |" in page(), key


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_configs_first_line_leads_to_a_schema_that_it_agrees_with(path: Path):
    text = path.read_text(encoding="utf-8")
    first = text.splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=./"), "editors read the schema's path from the first line"
    schema = json.loads((path.parent / first.partition("=")[2]).read_text(encoding="utf-8"))
    assert breaches(yaml.safe_load(text), schema, schema) == []
