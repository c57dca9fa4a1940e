"""Imports mlx and the libraries around it, for the commands that need an engine. Leaves out what nothing of ours uses.

Only a process that is the command's alone decides what is left out; in a notebook other code may need it. Imports nothing heavy itself.
"""

import gc
import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_own = threading.Event()


def own_process() -> None:
    """Notes that this process is the command's alone, so that it may be decided here which libraries are there."""
    _own.set()


@contextmanager
def engine_imports(reads_hub: bool = True, kernels: bool = False) -> Generator[None]:
    """Prepares the engine, and lets the block import what it needs of it.

    With ``kernels`` the CPU kernels are compiled meanwhile, where this machine has none yet: a model will be loaded here. Without
    ``reads_hub`` pandas is left out too: only ``datasets``, which reads datasets of the hub, has tables of it. The garbage collector
    waits, and then never looks at what was imported: a million objects that stay, at which it would look again and again.
    """
    if not _own.is_set():
        _prepare(kernels)
        yield
        return
    gc.disable()
    try:
        _prepare(kernels)
        if not reads_hub:
            _leave_out_pandas()
        yield
    finally:
        gc.freeze()
        gc.enable()


def _prepare(kernels: bool) -> None:
    if kernels:
        prepare_mlx()
        from ...kernels.native import compile_ahead

        compile_ahead()  # before anything else: importing transformers alone takes a second, on one core
    prepare_engine()


def prepare_engine() -> None:
    """Loads mlx as ``prepare_mlx``. In the command's own process it also keeps transformers from importing PyTorch, see also ``_OneScan``.

    Where PyTorch is installed, tokenizers would import it, which takes seconds and slows the model's thread. Nothing of ours needs it.
    Code that comes with a tokenizer can import it all the same.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if _own.is_set() and "transformers" not in sys.modules:
        sys.meta_path.insert(0, _OneScan)
    if _own.is_set() and "torch" not in sys.modules:
        hidden: dict[str, Any] = {"torch": None}  # as Python marks a module that is not there
        sys.modules.update(hidden)
        try:
            from transformers.utils.import_utils import is_torch_available

            is_torch_available()  # it remembers the answer
        finally:
            del sys.modules["torch"]
    prepare_mlx()


def prepare_mlx() -> None:
    """Loads mlx with its fast BLAS, before anything else imports it. Raises ModelError where that fails."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings address programmers
    from ...kernels.backend import BackendError, load_mlx
    from ...runner.core.errors import ModelError

    try:
        load_mlx()
    except BackendError as error:
        raise ModelError(str(error)) from error


class _OneScan:
    """An import hook by which transformers reads the files of its models once, not twice: that takes a quarter of a second.

    It remembers what it has found in a folder, but only of the last 128 folders, and there are some 450.
    """

    name = "transformers.utils.import_utils"

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the module's own spec, whose function then remembers all folders; None for other modules."""
        if name != cls.name:
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Remembering(spec.loader)
        return spec


class _Remembering(Loader):
    """Loads a module as ``loader`` does, and then lets its search of folders remember all of them."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leaves it to the loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code. A version of transformers without that function stays as it is."""
        self._loader.exec_module(module)
        search = vars(module).get("create_import_structure_from_path")
        if search is not None and hasattr(search, "__wrapped__"):
            vars(module)[search.__name__] = cache(search.__wrapped__)


class _NoPandas:
    """An import hook for which pandas is not installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raises ModuleNotFoundError for pandas, and leaves other modules to other hooks."""
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def _leave_out_pandas() -> None:
    """Keeps pyarrow from importing pandas, which takes half a second: it does so at its first array, and remembers whether it could.

    Who imports pandas later gets it, and ``to_pandas`` works.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
