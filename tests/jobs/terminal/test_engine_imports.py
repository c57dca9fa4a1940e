"""A command imports what it needs, and no library that only takes its time; processes that are not the command's are left alone."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx_bulk.configs
import pytest
from mlx_bulk.jobs.terminal.transformers_import import remembered

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


READS = """
import builtins, os, sys
from mlx_bulk.jobs.terminal import engine_imports
seen, read = [], builtins.open
builtins.open = lambda file, *words, **options: (seen.append(str(file)), read(file, *words, **options))[1]
{claim}
engine_imports.prepare_engine()
from transformers import AutoTokenizer, LlamaConfig
print(sum(file.endswith("models/gemma/configuration_gemma.py") for file in seen), AutoTokenizer.__name__, LlamaConfig.__module__)
"""


@pytest.mark.slow
def test_the_command_s_process_reads_the_files_of_transformers_once_and_the_next_one_none(tmp_path: Path):
    def reads(claim: str) -> str:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        program = [sys.executable, "-c", READS.format(claim=claim)]
        return subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout

    rest = "AutoTokenizer transformers.models.llama.configuration_llama\n"
    assert [reads("engine_imports.own_process()") for _ in range(2)] == [f"1 {rest}", f"0 {rest}"]
    assert int(reads("").split()[0]) > 1  # as transformers does it


def test_names_in_the_files_of_transformers_are_those_that_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers.utils import import_utils

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    define, code = inspect.unwrap(import_utils.define_import_structure), Path(import_utils.__file__)
    models = code.parent.parent / "models"
    for _ in range(2):  # found, and then remembered
        faster = remembered(define, code)
        assert faster(models, "models") == define(models, "models")
        assert faster(str(models / "__init__.py")) == define(str(models / "__init__.py"))
        assert faster(models / "llama") == define(models / "llama")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with one model, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "import_utils.py").touch()
    (tmp_path / "models" / "one").mkdir(parents=True)
    (tmp_path / "models" / "one" / "file.py").write_text("A")
    return tmp_path


def names_in(library: Path) -> Any:
    """What a process finds there, whose library takes a file's text for the one name that it defines."""

    def define(folder: Path, prefix: str | None) -> Any:
        return {
            frozenset({"torch"}): {
                ".".join(file.relative_to(folder).with_suffix("").parts): {file.read_text()} for file in folder.rglob("*.py")
            }
        }

    return remembered(define, library / "utils" / "import_utils.py")(library / "models", None)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda one: (one / "file.py").write_text("Bb"), {"one.file": {"Bb"}}),
        (lambda one: (one / "more.py").write_text("B"), {"one.file": {"A"}, "one.more": {"B"}}),
        (lambda one: (one / "file.py").rename(one / "other.py"), {"one.other": {"A"}}),
        (lambda one: (one.parents[1] / "utils" / "import_utils.py").write_text("# a new version"), {"one.file": {"A"}}),
    ],
    ids=["another text", "a new file", "another name", "other code"],
)
def test_a_changed_library_is_read_again(library: Path, change: Any, names: Any):
    assert names_in(library) == {frozenset({"torch"}): {"one.file": {"A"}}}
    (kept,) = (library / "cache" / "mlx-bulk" / "transformers").iterdir()
    known = kept.read_bytes()
    change(library / "models" / "one")
    assert names_in(library) == {frozenset({"torch"}): names}
    assert kept.read_bytes() != known


def test_a_damaged_memory_of_names_is_written_again(library: Path):
    found = names_in(library)
    (kept,) = (library / "cache" / "mlx-bulk" / "transformers").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert names_in(library) == found
    assert kept.read_bytes() == whole


def test_what_one_caller_adds_is_not_there_for_the_next(library: Path):
    faster = remembered(lambda folder, prefix: {frozenset(): {"one.file": {"A"}}}, library / "utils" / "import_utils.py")
    faster(library / "models", "models")[frozenset()].clear()
    assert faster(library / "models") == {frozenset(): {"one.file": {"A"}}}


@pytest.mark.parametrize("found", [{("torch",): {"one.file": {"A"}}}, {frozenset(): {"one.file": ["A"]}}, [["one.file"]]])
def test_names_in_another_form_are_left_to_transformers(library: Path, found: Any):
    faster = remembered(lambda folder, prefix: found, library / "utils" / "import_utils.py")
    assert faster(library / "models", "models") == found
    assert not (library / "cache").exists()


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
