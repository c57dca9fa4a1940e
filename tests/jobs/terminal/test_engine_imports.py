"""The command's process leaves PyTorch out, which transformers would import where it is installed; other processes are left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from mlx_bulk.jobs.terminal import console
{claim}
console.prepare_engine()
import mlx_lm.tokenizer_utils
from transformers.utils import is_torch_available
import torch  # as the code of a tokenizer may
print(is_torch_available(), torch.IMPORTED)
"""


@pytest.fixture
def torch_found(tmp_path: Path) -> Path:
    """A folder with a PyTorch of which only the version counts."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("IMPORTED = True\n__version__ = '2.13.0'\n")
    information = tmp_path / "torch-2.13.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    return tmp_path


def test_the_command_s_process_does_not_import_pytorch(torch_found: Path):
    program = PROGRAM.format(claim="console.own_process()").replace("import torch  #", "assert 'torch' not in sys.modules\nimport torch  #")
    path = f"import sys; sys.path.insert(0, {str(torch_found)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("False True\n", 0), done.stderr


def test_a_process_that_is_not_the_command_s_keeps_its_pytorch():
    program = PROGRAM.split("import mlx_lm")[0].format(claim="")
    found = "from transformers.utils import is_torch_available, import_utils\nimport importlib.util\n"
    same = "print(is_torch_available() == (importlib.util.find_spec('torch') is not None))"
    done = subprocess.run([sys.executable, "-c", program + found + same], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
