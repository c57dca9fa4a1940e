"""Tests the compiled library: its place in the cache, and the fallback where it cannot be compiled."""

import logging
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_bulk.kernels import backend, elementwise, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test looks for the library as a new process does, and compiles it in a third of the time."""
    monkeypatch.setattr(native, "UNITS", dict.fromkeys(native.UNITS, ("-O0",)))
    native.library.cache_clear()
    monkeypatch.setattr(native, "_ahead", [])
    yield
    native.library.cache_clear()


def break_a_unit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = folder / "broken.cpp"
    unit.write_text("this is not C++")
    monkeypatch.setattr(native, "UNITS", {unit: ()})


def test_every_source_file_is_a_unit():
    """Else a function would be missing when the library is opened."""
    assert {unit.name for unit in native.UNITS} == {path.name for path in native.SOURCES.glob("*.cpp")} - {"blas_adapter.cpp"}


@pytest.mark.slow
def test_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.INFO, "mlx_bulk"):
        for _ in range(2):
            native.library.cache_clear()
            assert native.library() is not None
    assert [record.getMessage() for record in caplog.records] == ["compiling kernels for this CPU, once: some seconds"]
    assert [path.suffix for path in (tmp_path / "mlx-bulk" / "kernels").iterdir()] == [".so"]


def test_what_is_compiled_ahead_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    break_a_unit(tmp_path, monkeypatch)
    with caplog.at_level(logging.INFO, "mlx_bulk"):
        native.compile_ahead()
        native.compile_ahead()
        assert native.library() is None
    compiling, refused = caplog.messages
    assert compiling == "compiling kernels for this CPU, once: some seconds"
    assert refused.startswith("the kernels for this CPU cannot be compiled or opened")
    assert list((tmp_path / "mlx-bulk" / "kernels").iterdir()) == []


def test_a_library_that_is_there_is_not_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    break_a_unit(tmp_path, monkeypatch)
    assert native.library() is None
    native.compile_ahead()
    assert native._ahead == []  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
def test_a_changed_source_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    copied = tmp_path / "library.cpp"
    monkeypatch.setattr(native, "UNITS", {copied if unit.name == copied.name else unit: own for unit, own in native.UNITS.items()})
    for text in ("// one", "// two"):
        copied.write_text((native.SOURCES / copied.name).read_text() + text)
        native.library.cache_clear()
        assert native.library() is not None
    assert len(list((tmp_path / "mlx-bulk" / "kernels").iterdir())) == 2


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    (tmp_path / "mlx-bulk").write_text("a file stands where the folder should")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert native.library() is not None
    assert list(temporary.iterdir()) == []
    (said,) = caplog.messages
    assert said.endswith(f"compiled anew at each start, some seconds: {tmp_path / 'mlx-bulk/kernels'} cannot be written (Not a directory)")
    assert mx.allclose(elementwise.silu_on_cpu(mx.ones(3)), mx.sigmoid(mx.ones(3)))  # it is open all the same
    native.library.cache_clear()
    break_a_unit(tmp_path, monkeypatch)
    assert native.library() is None
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_an_empty_library_file_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is not None
    (kept,) = (tmp_path / "mlx-bulk" / "kernels").iterdir()
    kept.unlink()
    kept.touch()
    native.library.cache_clear()
    assert native.library() is not None
    assert kept.stat().st_size


def test_a_compiler_error_gives_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    break_a_unit(tmp_path, monkeypatch)
    assert [native.library(), native.library()] == [None, None]
    assert not native.suits(mx.zeros(1))
    (record,) = caplog.records
    assert record.getMessage().startswith("the kernels for this CPU cannot be compiled or opened")
    assert "error" in record.getMessage()
    assert list((tmp_path / "mlx-bulk" / "kernels").iterdir()) == []


def test_without_a_compiler_there_is_no_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "compiles", lambda: False)
    assert native.library() is None


@pytest.mark.parametrize(("dtype", "suited"), [(mx.float32, True), (mx.float16, False), (mx.bfloat16, False)])
def test_only_float32_suits(dtype: mx.Dtype, suited: bool):
    assert native.suits(mx.zeros(1, dtype)) == suited


@pytest.mark.compiles
def test_a_traced_array_cannot_be_computed():
    with pytest.raises(native.Traced):
        mx.compile(native.dense)(mx.ones(3))


def test_what_g_is_missing_from_a_version_is_no_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A g++ that is there and cannot even say its version."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def broken(*args: object, **kwargs: object) -> None:
        raise subprocess.CalledProcessError(1, ["g++"], stderr="broken")

    monkeypatch.setattr(native.subprocess, "run", broken)
    assert native.library() is None
