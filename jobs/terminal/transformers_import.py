"""Makes ``import transformers`` faster: it reads the files of all its models, some 1,700, for the names that they define.

What it finds stays the same. It is remembered in the user's cache, and read again when one of the files has changed.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from ...kernels.backend import cache_folder
from ...runner.files.checked_json import read_document
from ...runner.files.user_cache import remember

Names = dict[frozenset[str], dict[str, set[str]]]  # the names that each module defines, by the libraries that they need
Define = Callable[[Any, str | None], Names]


def remember_names() -> None:
    """Lets a later ``import transformers`` remember the names in its models' files. Call it before any import of it."""
    sys.meta_path.insert(0, _ModelFiles)


class _ModelFiles:
    """An import hook for the module of transformers that reads the files."""

    name = "transformers.utils.import_utils"

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the module's own spec, which then remembers; None for other modules."""
        if name != cls.name:
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Remembering(spec.loader)
        return spec


class _Remembering(Loader):
    """Loads a module as ``loader`` does, and then replaces its function. A version of transformers with another one stays as it is."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leaves it to the loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code."""
        self._loader.exec_module(module)
        functions = vars(module)
        define = functions.get("define_import_structure")
        if define is not None and list(signature(define).parameters) == ["module_path", "prefix"] and module.__file__ is not None:
            functions["define_import_structure"] = remembered(define, Path(module.__file__))


def remembered(define: Define, code: Path) -> Define:
    """Returns ``define`` with a memory of what it found in the folder ``models`` beside the folder of its file ``code``."""
    models = code.parent.parent / "models"

    @cache
    def names() -> Names | None:
        kept = cache_folder("transformers") / f"{blake2b(str(models).encode(), digest_size=16).hexdigest()}.json"
        stamp = blake2b(repr(sorted(_stamps(models, code))).encode(), digest_size=16).hexdigest()
        try:
            if (known := read_document(kept))["stamp"] == stamp:
                return _decoded(known["names"])
        except (OSError, ValueError, KeyError):  # not remembered yet, or damaged: it is only a cache
            pass
        if not _is_as_expected(found := define(models, None)):
            return None
        remember(kept, {"stamp": stamp, "names": _encoded(found)})
        return found

    def defined(module_path: Any, prefix: str | None = None) -> Names:
        path = Path(module_path)
        all_models = models in (path, path.parent if path.is_file() else None)
        if not all_models or (found := names()) is None:
            return define(module_path, prefix)
        before = "" if prefix is None else f"{prefix}."
        return {libraries: {before + module: set(some) for module, some in of.items()} for libraries, of in found.items()}

    return defined


def _stamps(models: Path, code: Path) -> Iterator[tuple[str, int, int]]:
    """Yields path, size and mtime of the file ``code`` and of all Python files in ``models``."""
    folders = [str(models)]
    yield str(code), (stat := code.stat()).st_size, stat.st_mtime_ns
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    yield entry.path, (stat := entry.stat()).st_size, stat.st_mtime_ns
                elif entry.is_dir() and entry.name != "__pycache__":
                    folders.append(entry.path)


def _is_as_expected(found: Any) -> bool:
    """Returns whether this version of transformers gives names in the form that is remembered."""
    return isinstance(found, dict) and all(
        isinstance(libraries, frozenset) and isinstance(of, dict) and all(isinstance(some, set) for some in of.values())
        for libraries, of in found.items()
    )


def _encoded(names: Names) -> list[Any]:
    return [[sorted(libraries), {module: sorted(some) for module, some in of.items()}] for libraries, of in names.items()]


def _decoded(encoded: list[Any]) -> Names:
    return {frozenset(libraries): {module: set(some) for module, some in of.items()} for libraries, of in encoded}
