"""A command imports what it needs, and no library that only takes its time; processes that are not the command's are left alone."""

import json
import subprocess
import sys
from pathlib import Path

import mlx_bulk.configs
import pytest

DEMO = Path(mlx_bulk.configs.__path__[0]) / "demo.yaml"

PROGRAM = """
import sys
from mlx_bulk.jobs.terminal import engine_imports
{claim}
engine_imports.prepare_engine()
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


@pytest.mark.slow
def test_the_command_s_process_does_not_import_pytorch(torch_found: Path):
    program = PROGRAM.format(claim="engine_imports.own_process()").replace(
        "import torch  #", "assert 'torch' not in sys.modules\nimport torch  #"
    )
    path = f"import sys; sys.path.insert(0, {str(torch_found)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("False True\n", 0), done.stderr


@pytest.mark.slow
def test_a_process_that_is_not_the_command_s_keeps_its_pytorch():
    program = PROGRAM.split("import mlx_lm")[0].format(claim="")
    found = "from transformers.utils import is_torch_available, import_utils\nimport importlib.util\n"
    same = "print(is_torch_available() == (importlib.util.find_spec('torch') is not None))"
    done = subprocess.run([sys.executable, "-c", program + found + same], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


# Imported by no command of ours that reads local files and draws no chart in its own process.
UNUSED = ("torch", "trio", "pandas", "datasets", "pyarrow.dataset", "scipy", "sklearn", "matplotlib", "lm_eval", "vl_convert", "requests")
ENGINE = ("mlx.core", "mlx_lm", "transformers", "tokenizers", "huggingface_hub", "jinja2")
RECORDS = ("numpy", "pyarrow", "pydantic", "yaml", "tqdm")

IMPORTED = """
import json, sys
from mlx_bulk.jobs.cli.main import main
sys.argv = ["mlx-bulk", *json.loads(sys.argv[1])]
try:
    main()
finally:
    print(json.dumps([name for name in json.loads({names!r}) if name in sys.modules]))
"""


def imported(names: tuple[str, ...], *words: str | Path) -> list[str]:
    """Returns which of ``names`` the command of these words imports."""
    program = IMPORTED.format(names=json.dumps(names))
    run = [sys.executable, "-c", program, json.dumps([str(word) for word in words])]
    return json.loads(subprocess.run(run, capture_output=True, text=True, check=False).stdout.splitlines()[-1])


def test_a_command_s_help_imports_no_library_but_click():
    assert imported(UNUSED + ENGINE + RECORDS, "run", "--help") == []


def test_status_imports_no_engine_and_no_settings(tmp_path: Path):
    found = imported((*UNUSED, *ENGINE, "pydantic", "yaml", "tqdm"), "status", tmp_path)
    assert found == []


@pytest.mark.slow
def test_a_plan_imports_no_library_that_it_does_not_use(tmp_path: Path):
    assert imported(UNUSED, "plan", DEMO, "--output", tmp_path / "run") == []


@pytest.mark.slow
def test_a_run_and_its_report_import_no_library_that_they_do_not_use(tmp_path: Path):
    assert imported(UNUSED, "run", DEMO, "--limit", "3", "--output", tmp_path / "run") == []
    assert imported(UNUSED, "report", tmp_path / "run") == []


LEFT_OUT = """
import gc, sys
from mlx_bulk.jobs.terminal.engine_imports import engine_imports, own_process
own_process()
with engine_imports(reads_hub=False):
    frozen = gc.isenabled()
import pyarrow as pa
pa.array([1.0, None])
print("pandas" in sys.modules, frozen, gc.isenabled(), gc.get_freeze_count() > 10_000)
import pandas
frame = pandas.DataFrame({"number": [1.0, None], "text": ["a", None]})
table = pa.Table.from_pandas(frame)
print(table.to_pylist(), table.to_pandas().equals(frame))
"""


@pytest.mark.slow
def test_pandas_is_left_out_and_there_for_who_imports_it():
    done = subprocess.run([sys.executable, "-c", LEFT_OUT], capture_output=True, text=True, check=False)
    rows = [{"number": 1.0, "text": "a"}, {"number": None, "text": None}]
    assert done.stdout.splitlines() == ["False False True True", f"{rows} True"], done.stderr


COMPILED = """
import sys
from mlx_bulk.kernels import backend
backend.load_mlx()
from mlx_bulk.kernels import native
from mlx_bulk.jobs.terminal.engine_imports import engine_imports, own_process
native.compile_ahead = lambda: print("compiles;", *(name for name in ("mlx.core", "transformers") if name in sys.modules))
own_process()
with engine_imports(reads_hub=False, kernels=True):
    print("transformers" in sys.modules)
"""


def test_kernels_are_compiled_while_libraries_are_imported():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["compiles; mlx.core", "True"], done.stderr
