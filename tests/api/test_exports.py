"""What ``import mlx_bulk`` offers, and what it takes: nothing large until it is used, and the fast BLAS before mlx."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx_bulk
import pytest
from mlx_bulk.kernels import backend

NEEDS_BLAS = pytest.mark.skipif(backend.prepare().library is None, reason="no fast BLAS here")


def output(code: str, folder: Path) -> tuple[str, str]:
    """What a process of its own prints: on stdout, and on stderr."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_every_public_name_is_there_and_documented() -> None:
    assert mlx_bulk.__all__ == sorted(mlx_bulk.__all__)
    assert set(mlx_bulk.__all__) <= set(dir(mlx_bulk))
    for name in mlx_bulk.__all__:
        value: Any = getattr(mlx_bulk, name)
        assert value.__name__ == name
        assert value.__doc__, name


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'mlx_bulk' has no attribute 'nothing'"):
        _ = getattr(mlx_bulk, "nothing")  # noqa: B009 - the type checker knows that it is not there


def test_one_name_is_one_object() -> None:
    from mlx_bulk.configs.errors import BulkError
    from mlx_bulk.jobs import Rollouts
    from mlx_bulk.runner.runs.summary import Summary

    assert (mlx_bulk.BulkError, mlx_bulk.Rollouts, mlx_bulk.Summary) == (BulkError, Rollouts, Summary)
    assert mlx_bulk.run is mlx_bulk.run


def test_errors_and_configs_need_no_mlx(tmp_path: Path) -> None:
    code = "import sys, mlx_bulk; mlx_bulk.BulkError, mlx_bulk.load_config; print('mlx.core' in sys.modules, 'pyarrow' in sys.modules)"
    assert output(code, tmp_path) == ("False False", "")


@pytest.mark.slow
def test_results_are_read_without_mlx(tmp_path: Path) -> None:
    code = "import sys, mlx_bulk; mlx_bulk.results, mlx_bulk.dataset; print('mlx.core' in sys.modules)"
    assert output(code, tmp_path) == ("False", "")


@NEEDS_BLAS
@pytest.mark.slow
@pytest.mark.parametrize("first", ["import mlx_bulk", "import mlx_bulk.configs", "from mlx_bulk import BulkError"])
def test_whatever_of_it_is_imported_before_mlx_puts_the_fast_blas_in(tmp_path: Path, first: str) -> None:
    code = f"{first}\nimport mlx.core\nfrom mlx_bulk.kernels import backend\nprint(backend.prepare().library)"
    assert output(code, tmp_path) == (str(backend.prepare().library), "")


@NEEDS_BLAS
@pytest.mark.slow
def test_mlx_first_is_warned_of_once(tmp_path: Path, model: Path) -> None:
    code = f"import mlx.core\nimport mlx_bulk\nmodel = mlx_bulk.load({str(model)!r})\nprint(len(model.generate(['O'], max_tokens=1)))"
    printed, warned = output(code, tmp_path)
    assert printed == "1"
    assert warned.count("mlx was imported first") == warned.count("put `import mlx_bulk` above all that imports mlx") == 1


@pytest.mark.slow
def test_a_missing_mlx_is_told_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text("raise ImportError('no mlx here')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport mlx_bulk\n"
        "try:\n    mlx_bulk.load\nexcept mlx_bulk.BulkError as error:\n    print(error)"
    )
    printed, _ = output(code, tmp_path)
    assert "mlx is not usable here (no mlx here)" in printed
    assert "pip install" in printed
