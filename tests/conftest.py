"""What every test shares: the rule for oracle tests, a cache folder of its own, a tiny model and a bench to run jobs on it.

The fast BLAS is opened before any test imports mlx. What mlx-bulk remembers of files and models goes to a folder of this session.
Oracle tests run where their libraries are, and always where CI asks for them.
"""

import gc
import importlib.metadata
import importlib.util
import logging
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: threads of their BLAS, and torch's, would wait for each other, awake
    for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")

# Importing it opens the BLAS, which reads the variable then.
from mlx_bulk.kernels import backend

# A shared machine is slow at times. Each run draws other examples: fewer at once show as much in the end.
settings.register_profile("shared machine", parent=settings(), deadline=None, max_examples=50)
settings.load_profile("shared machine")
backend.prepare()
# Tests change model files under way: what a run of them remembers is for no one else. The hub's files stay where they are.
os.environ.setdefault("HF_HOME", str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"))
# Compiled kernels stay too, under the hash of their sources: compiling them takes each process ten seconds of a core, on CUDA minutes.
_remembered = tempfile.TemporaryDirectory(prefix="mlx-bulk-cache-")
_kept = {kind: backend.cache_folder(kind).expanduser().absolute() for kind in ("kernels", "cuda")}
os.environ["XDG_CACHE_HOME"] = _remembered.name
backend.cache_folder("kernels").parent.mkdir(parents=True)
for _kind, _folder in _kept.items():
    _folder.mkdir(parents=True, exist_ok=True)
    backend.cache_folder(_kind).symlink_to(_folder, target_is_directory=True)

# Installed packages stay as they are, and each of some thousand runs reads the metadata of nine.
importlib.metadata.version = cache(importlib.metadata.version)

# These import mlx, and so come behind the backend.
import mlx.core as mx  # noqa: E402
from mlx_bulk.jobs.report import report  # noqa: E402

from .checkpoints import loaded, write_checkpoint  # noqa: E402
from .jobs.support.bench import Bench  # noqa: E402
from .kernels.software_tiles import use_software_tiles  # noqa: E402
from .marked_files import is_left_out, require_named_marks  # noqa: E402
from .work_units import UnitScheduling  # noqa: E402

if os.environ.get("MLX_BULK_SOFTWARE_TILES") == "1":
    use_software_tiles()

_draw_report = report.report_at_end


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    """Keeps tests together that share a fixture; a ``--dist`` of the command line wins."""
    return UnitScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files without a mark out of ``-m slow`` and ``-m oracle``."""
    return is_left_out(collection_path, config.getoption("markexpr") or "") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sees to it that these files name their marks; before pytest deselects any test."""
    require_named_marks(items)


def pytest_collection_finish() -> None:
    """Thousands of tests and the libraries stay to the end: each full collection of garbage would look through them all."""
    gc.freeze()


def log_report_line(folder: Path) -> None:
    """Prints a run's line on its report without drawing the report, which takes a second."""
    logging.getLogger("mlx_bulk").info("report: %s", folder / "report.html")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test of the CPU's own path elsewhere, and an oracle test without the libraries of the extra. Sets whether mlx compiles.

    With MLX_BULK_ORACLE=1 an oracle test without its libraries fails instead. Hundreds of tests run jobs, many in fixtures of a whole
    module, which come behind this: reports at their ends are drawn for tests that are marked ``draws`` alone.
    """
    if backend.on_cpu_path() and backend.compiles():
        (mx.enable_compile if _compiles(item) else mx.disable_compile)()
    report.report_at_end = log_report_line if item.get_closest_marker("draws") is None else _draw_report
    if (only := item.get_closest_marker("cpu_path")) is not None and not backend.on_cpu_path():
        (why,) = only.args
        pytest.skip(f"only where our own kernels compute: {why}")
    if item.get_closest_marker("oracle") is None or os.environ.get("MLX_BULK_ORACLE") == "1":
        return
    for library in ("torch", "lm_eval", "accelerate", "sentence_transformers", "mteb"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; pip install -e '.[oracle]'")


def _compiles(item: pytest.Item) -> bool:
    """Returns whether mlx compiles functions in a test, as it does for a user. g++ takes most of a second for each of some hundred.

    On the CPU's path our kernels leave such functions to mlx while it traces them. So tests of whole architectures are marked ``compiles``.
    """
    return any(item.get_closest_marker(mark) for mark in ("compiles", "slow", "oracle"))


@pytest.fixture(autouse=True)
def _reset_log() -> None:
    """Resets the log. A quiet command in this process would silence the next test's warnings."""
    log = logging.getLogger("mlx_bulk")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    log.propagate = True


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def network(model: Path) -> Any:
    return loaded(model).network


@pytest.fixture
def bench(tmp_path: Path, model: Path) -> Bench:
    return Bench(tmp_path, model)
