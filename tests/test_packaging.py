"""What pip installs: every package and data file of the repository, under names that shadow nobody else's."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
FOLDERS = ["configs", "kernels", "runner", "jobs"]


def tracked(*folders: str) -> list[Path]:
    """Files that git tracks or would track, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [Path(line) for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_our_kernels_folder_is_not_taken_for_hugging_faces() -> None:
    # With the repository's root on sys.path, transformers finds our folder where it looks for Hugging Face's `kernels`, and
    # may import it under that name to ask for a version. That must neither fail nor count as the real package.
    script = (
        "import transformers, mlx_lm; from transformers import AutoTokenizer; from transformers.utils import is_kernels_available;"
        "import importlib.util; print(importlib.util.find_spec('kernels').origin); print(is_kernels_available())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(ROOT / "kernels" / "__init__.py"), "False"]


def test_every_folder_is_a_listed_package() -> None:
    packages = [f"mlx_bulk.{folder}" for folder in FOLDERS]
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages)
    assert SETUPTOOLS["package-dir"] == {f"mlx_bulk.{folder}": folder for folder in FOLDERS}
    sources = {str(path.parent) for path in tracked(*FOLDERS) if path.suffix == ".py"}
    # demo holds files that are installed as data; its script is one of them.
    assert sources - {"configs/demo"} == set(FOLDERS)


def test_every_tracked_file_is_installed() -> None:
    data: dict[str, list[str]] = SETUPTOOLS["package-data"]
    left_out: list[str] = []
    for path in tracked(*FOLDERS):
        inside = path.relative_to(path.parts[0])
        patterns = data["*"] + data.get(f"mlx_bulk.{path.parts[0]}", [])
        module = path.suffix == ".py" and len(inside.parts) == 1
        # A glob's * stays within a folder, so that the pattern must have as many parts as the path.
        covered = any(inside.match(pattern) and len(inside.parts) == len(Path(pattern).parts) for pattern in patterns)
        if not module and not covered:
            left_out.append(str(path))
    assert left_out == [], "add them to package-data in pyproject.toml"


def test_each_package_says_that_it_is_typed() -> None:
    assert [folder for folder in FOLDERS if not (ROOT / folder / "py.typed").is_file()] == []


def test_the_type_checkers_links_lead_to_the_folders() -> None:
    links = {path.name: path.resolve() for path in (ROOT / ".typing" / "mlx_bulk").iterdir()}
    assert links == {folder: ROOT / folder for folder in FOLDERS}


def test_there_is_no_package_file_that_would_end_the_namespace() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "mlx_bulk").exists()
