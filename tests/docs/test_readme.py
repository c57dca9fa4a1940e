"""README as a newcomer reads it: its job runs, and its Python reads what comes out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def mlx_bulk(*arguments: str, cwd: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mlx_bulk.jobs", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which README's main command has run (its path is the packaged one's)."""
    folder = tmp_path_factory.mktemp("readme")
    config = Path(__file__).parents[2] / "configs" / "demo.yaml"
    mlx_bulk("run", str(config), "--set", "data.limit=8", cwd=folder)
    return folder


def test_quick_start_is_exactly_two_commands() -> None:
    install_and_run, install_and_test = blocks("bash")
    assert install_and_run == "pip install -e '.[cpu]' && mlx-bulk run configs/demo.yaml\n"
    assert install_and_test == "pip install -e '.[cpu,test]' && pytest\n"


@pytest.mark.parametrize("code", blocks("python"), ids=["datasets", "pyarrow", "polars"])
def test_python_reads_the_records(demo: Path, code: str) -> None:
    if "polars" in code:
        pytest.importorskip("polars")
    done = subprocess.run([sys.executable, "-c", code], cwd=demo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the example prints nothing"


def test_job_yaml_runs(tmp_path: Path) -> None:
    """The example config as it stands, but for the model, which here is the one that needs no download."""
    [job, _] = blocks("yaml")
    assert yaml.safe_load(job)["model"]["path"] != "demo", "the example shows a model of one's own"
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "questions.jsonl").write_text('{"question": "What is 1 + 2?"}\n{"question": "What is 3 + 4?"}\n')
    mlx_bulk("run", "job.yaml", "--model", "demo", "--set", "sampling.max_tokens=8", cwd=tmp_path)
    assert (tmp_path / "outputs/questions/results/part-00000000.arrow").exists()


def test_perplexity_yaml_runs(tmp_path: Path) -> None:
    """The example as it stands, but for both models."""
    [_, job] = blocks("yaml")
    (tmp_path / "perplexity.yaml").write_text(job)
    (tmp_path / "documents.jsonl").write_text('{"text": "The king is dead.", "source": "a"}\n{"text": "Long live", "source": "b"}\n')
    mlx_bulk("run", "perplexity.yaml", "--model", "demo", "--set", "score.reference=demo", cwd=tmp_path)
    assert (tmp_path / "outputs/perplexity/stats.arrow").exists()


def test_named_files_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not (Path(__file__).parents[2] / link).exists()]
    assert not missing
