"""Tests imports as pages show them, in their order: each ends with the fast BLAS where there is one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.kernels import backend

from .pages import PAGES, blocks

pytestmark = pytest.mark.slow

_IMPORT = re.compile(r"^(?:import|from) .+$", re.MULTILINE)


def imports_of_both() -> list[object]:
    """The imports of each block that takes in mlx and this project."""
    found: list[object] = []
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            imports = _IMPORT.findall(block.text) if block.language == "python" and not block.not_run else []
            roots = {line.split()[1].partition(".")[0] for line in imports}
            if "mlx_bulk" in roots and roots & {"mlx", "mlx_lm"}:
                found.append(pytest.param(imports, id=f"{page.name}:{block.line}"))
    return found


def blas_behind(imports: list[str], folder: Path) -> tuple[str, str]:
    """The library that was put in, and what stands on stderr."""
    code = "\n".join([*imports, "from mlx_bulk.kernels import backend", "print(backend.prepare().library)"])
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("imports", imports_of_both())
def test_imports_of_a_page_put_the_fast_blas_in(imports: list[str], tmp_path: Path):
    library, said = blas_behind(imports, tmp_path)
    assert library == str(backend.prepare().library)
    assert "imported first" not in said


@pytest.mark.skipif(backend.prepare().library is None, reason="no fast BLAS here")
def test_mlx_first_is_noticed(tmp_path: Path):
    library, said = blas_behind(["import mlx_lm", "from mlx_bulk.jobs import Rollouts"], tmp_path)
    assert library == "None"
    assert "put `import mlx_bulk` above" in said
