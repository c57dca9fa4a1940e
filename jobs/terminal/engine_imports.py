"""Imports mlx and the libraries around it, for the commands that need an engine. Leaves out what nothing of ours uses.

Only a process that is the command's alone decides what is left out; in a notebook other code may need it. Imports nothing heavy itself.
"""

import gc
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from .transformers_import import remember_names

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
    """Loads mlx as ``prepare_mlx``. In the command's own process it also makes transformers faster, and hides two libraries from it.

    Where PyTorch is installed, tokenizers would import it, which takes seconds and slows the model's thread. trio is another way to wait
    for the hub, and takes a tenth of a second. Nothing of ours needs them. Code that comes with a tokenizer can import them all the same.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if _own.is_set() and "transformers" not in sys.modules:
        remember_names()
    if _own.is_set() and "torch" not in sys.modules:
        hidden: dict[str, Any] = {name: None for name in ("torch", "trio") if name not in sys.modules}  # as Python marks what is not there
        sys.modules.update(hidden)
        try:
            from transformers.utils.import_utils import is_torch_available

            is_torch_available()  # it remembers the answer
        finally:
            for name in hidden:
                del sys.modules[name]
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
