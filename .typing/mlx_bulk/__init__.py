"""Bulk LLM generation, scoring, embedding and classification on Apple's MLX, from Python: the public API.

    import mlx_bulk  # above anything that imports mlx

    summary = mlx_bulk.run("job.yaml", overrides=["data.limit=8"])
    table = mlx_bulk.results("outputs/questions")
    model = mlx_bulk.load("demo")
    results = model.generate(["What is 12 + 30?"], max_tokens=32, n=2)
    vectors = mlx_bulk.load_embedder("path/of/a/model").embed(["a text"])  # [1, D]

The names in ``__all__`` are stable; docs/python.md says what is promised. Everything below the sub-packages may change.
Importing this package opens the fast BLAS, which must come before mlx. It loads neither mlx nor any other large library.
"""

from importlib import import_module
from importlib.metadata import version as _installed_version
from pathlib import Path
from typing import TYPE_CHECKING

_folder = Path(__file__).parent
if not (_folder / "jobs").is_dir():  # a clone: the sub-packages lie beside this folder, not in it
    __path__.append(str(_folder.parent))

from mlx_bulk.kernels import backend as _backend  # noqa: E402

_backend.prepare()

if TYPE_CHECKING:
    from mlx_bulk.classifier import Classifier, load_classifier
    from mlx_bulk.configs.errors import BulkError
    from mlx_bulk.configs.load import load_config
    from mlx_bulk.embedder import Embedder, load_embedder
    from mlx_bulk.job_run import CellResult, run, sweep
    from mlx_bulk.jobs.generate.trainer_api import Rollouts
    from mlx_bulk.local_model import Model, load
    from mlx_bulk.records import ClassifyResult, Completion, GenerateResult, RecordError, ScoreResult
    from mlx_bulk.result_tables import dataset, results
    from mlx_bulk.runner.runs.summary import Summary

    __version__: str

_MODULES = {
    "BulkError": "configs.errors",
    "CellResult": "job_run",
    "Classifier": "classifier",
    "ClassifyResult": "records",
    "Completion": "records",
    "Embedder": "embedder",
    "GenerateResult": "records",
    "Model": "local_model",
    "RecordError": "records",
    "Rollouts": "jobs.generate.trainer_api",
    "ScoreResult": "records",
    "Summary": "runner.runs.summary",
    "dataset": "result_tables",
    "load": "local_model",
    "load_classifier": "classifier",
    "load_config": "configs.load",
    "load_embedder": "embedder",
    "results": "result_tables",
    "run": "job_run",
    "sweep": "job_run",
}

_WITH_MLX = {"classifier", "embedder", "job_run", "jobs.generate.trainer_api", "local_model"}

__all__ = [
    "BulkError",
    "CellResult",
    "Classifier",
    "ClassifyResult",
    "Completion",
    "Embedder",
    "GenerateResult",
    "Model",
    "RecordError",
    "Rollouts",
    "ScoreResult",
    "Summary",
    "dataset",
    "load",
    "load_classifier",
    "load_config",
    "load_embedder",
    "results",
    "run",
    "sweep",
]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used."""
    if name == "__version__":
        return _installed_version("mlx-bulk")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] in _WITH_MLX:
        _load_mlx()
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def _load_mlx() -> None:
    """Loads mlx with everything in place. Raises ModelError where it is missing, or installed in two builds at once."""
    from mlx_bulk.runner.core.errors import ModelError

    try:
        _backend.load_mlx()
    except _backend.BackendError as error:
        raise ModelError(str(error)) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
