"""Tests what pip installs: every package and data file of the repository, under names that shadow nobody else's."""

import os
import re
import shutil
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


def rooms() -> list[str]:
    """Every folder of ours that holds Python files; configs/demo is installed as data, its script too."""
    return sorted({path.parent.as_posix() for path in tracked("mlx_bulk", *FOLDERS) if path.suffix == ".py"} - {"configs/demo"})


def package_of(folder: str) -> str:
    return folder if folder == "mlx_bulk" else "mlx_bulk." + folder.replace("/", ".")


def test_mlx_has_one_floor_on_every_system() -> None:
    """macOS takes it without an extra; other packages' own floors may be lower."""
    asked = [
        *PROJECT["project"]["dependencies"],
        *(PROJECT["project"]["optional-dependencies"][name][0] for name in ("cpu", "cuda12", "cuda13")),
    ]
    floors = [re.sub(r"^mlx(\[\w+\])?>=", "", line) for line in asked if re.match(r"mlx\W", line) and not line.startswith("mlx-")]
    assert [floor.partition(";")[2].strip() for floor in floors] == ["platform_system == 'Darwin'", "", "", ""]
    assert len({floor.partition(";")[0] for floor in floors}) == 1


def test_every_folder_is_a_listed_package() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(map(package_of, rooms()))
    assert SETUPTOOLS["package-dir"] == {package_of(folder): folder for folder in ["mlx_bulk", *FOLDERS]}


def test_every_tracked_file_is_installed() -> None:
    data: dict[str, list[str]] = SETUPTOOLS["package-data"]
    packages, left_out = rooms(), list[str]()
    for path in tracked("mlx_bulk", *FOLDERS):
        room = next(str(parent) for parent in path.parents if parent.as_posix() in packages)
        inside = path.relative_to(room)
        patterns = data["*"] + data.get(package_of(room), [])
        module = path.suffix == ".py" and len(inside.parts) == 1
        # A glob's * stays within a folder, so that the pattern must have as many parts as the path.
        covered = any(inside.match(pattern) and len(inside.parts) == len(Path(pattern).parts) for pattern in patterns)
        if not module and not covered:
            left_out.append(str(path))
    assert left_out == [], "add them to package-data in pyproject.toml"


def test_each_package_says_that_it_is_typed() -> None:
    assert [folder for folder in ["mlx_bulk", *FOLDERS] if not (ROOT / folder / "py.typed").is_file()] == []


def test_the_type_checkers_links_lead_to_the_folders() -> None:
    links = {path.name: path.resolve() for path in (ROOT / ".typing" / "mlx_bulk").iterdir()}
    assert links == {"__init__.py": ROOT / "mlx_bulk" / "__init__.py"} | {folder: ROOT / folder for folder in FOLDERS}


def test_the_root_is_no_package() -> None:
    assert not (ROOT / "__init__.py").exists()


# ------------------------------------------------------------------------------------------------- ways to be imported

# What each way must give: the package, its sub-packages, and one module object under whichever name it is imported.
IMPORTS = """
import sys
import mlx_bulk
import mlx_bulk.jobs
from mlx_bulk import jobs
from mlx_bulk.jobs.terminal import closing_line
assert jobs is mlx_bulk.jobs is sys.modules["mlx_bulk.jobs"]
assert not [name for name in sys.modules if name.split(".")[0] in ("jobs", "runner", "kernels", "configs")]
assert mlx_bulk.BulkError("x").exit_code == 5
print(mlx_bulk.__file__, jobs.__file__, closing_line.__file__)
"""


def imported(folder: Path, *, isolated: bool = False, **environment: str) -> list[Path]:
    """The files from which a process started in ``folder`` imports the package; isolated: without the packages installed."""
    options = ["-S"] if isolated else []
    done = subprocess.run(
        [sys.executable, *options, "-c", IMPORTS],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Path(file) for file in done.stdout.split()]


OURS = [ROOT / "mlx_bulk" / "__init__.py", ROOT / "jobs" / "__init__.py", ROOT / "jobs" / "terminal" / "closing_line.py"]


def test_it_is_imported_as_it_is_installed(tmp_path: Path) -> None:
    files = imported(tmp_path)
    assert files[1].parent.parent in (files[0].parent, files[0].parents[1])  # a wheel's, or a clone's


def test_it_is_imported_with_the_root_as_working_directory() -> None:
    assert imported(ROOT) == OURS


def test_it_is_imported_with_the_root_on_the_path(tmp_path: Path) -> None:
    assert imported(tmp_path, PYTHONPATH=str(ROOT)) == OURS


def test_it_is_imported_from_the_root_without_being_installed(tmp_path: Path) -> None:
    site = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    assert imported(tmp_path, isolated=True, PYTHONPATH=site) == OURS


@pytest.mark.slow
def test_it_is_imported_from_a_wheel(tmp_path: Path) -> None:
    # What an installed wheel is, without building one: each package's files in the place that pyproject.toml gives them.
    for package in SETUPTOOLS["packages"]:
        folder = ROOT / next(folder for folder in rooms() if package_of(folder) == package)
        (tmp_path / package.replace(".", "/")).mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.py"):
            shutil.copy(file, tmp_path / package.replace(".", "/"))
    site = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path.endswith("site-packages"))])
    package = tmp_path / "mlx_bulk"
    files = [package / "__init__.py", *(package / file.relative_to(ROOT) for file in OURS[1:])]
    assert imported(ROOT / "tests", isolated=True, PYTHONPATH=site) == files


def test_importing_it_loads_nothing_large() -> None:
    script = "import sys, mlx_bulk; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    large = {
        "mlx",
        "mlx_lm",
        "numpy",
        "pyarrow",
        "pydantic",
        "transformers",
        "tokenizers",
        "datasets",
        "huggingface_hub",
        "yaml",
        "click",
        "tqdm",
    }
    assert set(done.stdout.split()) & large == set()
