"""Makes ``import transformers`` faster: it reads the files of all its models, some 1,700, for the names that they define.

What it finds stays the same. The names are remembered in the user's cache; the files are read again when one of them has changed.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from inspect import signature
from pathlib import Path
from time import time_ns
from types import ModuleType
from typing import Any, Protocol

from ...kernels.backend import cache_folder
from ...runner.files.checked_json import read_document
from ...runner.files.file_stamp import Stamp, is_settled, stamp_of
from ...runner.files.user_cache import remember

Names = dict[frozenset[str], dict[str, set[str]]]  # the names that each module defines, by the libraries that they need

_FORM = 1  # of what is remembered; another one for each change of it
_NOT_READ = ("convert_", "modular_")  # files of transformers whose names begin so define nothing that it offers


class Define(Protocol):
    """transformers' function that finds names."""

    def __call__(self, module_path: Any, /, prefix: str | None = None) -> Names:
        """Finds the names in a folder, or in the folder of a file; ``prefix`` comes before the names of modules."""
        ...


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
        kept = cache_folder("transformers") / f"{blake2b(os.fsencode(models), digest_size=16).hexdigest()}.json"
        if (stamps := _stamps(models, code)) is None:
            return None
        stamp = blake2b(repr((_FORM, stamps)).encode(), digest_size=16).hexdigest()
        if (known := _recalled(kept, stamp)) is not None:
            return known
        if not _is_as_expected(found := define(models, None)):
            return None
        now = time_ns()
        if _stamps(models, code) == stamps and all(is_settled(changed, now) for _, _, changed in stamps):
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


def _stamps(models: Path, code: Path) -> list[tuple[str, int, Stamp]] | None:
    """Returns path, size and stamp of the file ``code`` and of all files in ``models`` that transformers reads; None where one has none."""
    found, folders = list[tuple[str, int, Stamp]](), [str(models)]
    try:
        found.append((str(code), (stat := code.stat()).st_size, stamp_of(stat)))
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders += [entry.path] if entry.name != "__pycache__" else []
                    elif entry.name.endswith(".py") and not entry.name.startswith(_NOT_READ):
                        found.append((entry.path, (stat := entry.stat()).st_size, stamp_of(stat)))
    except OSError:
        return None
    return sorted(found)


def _recalled(kept: Path, stamp: str) -> Names | None:
    try:
        known = read_document(kept)
        return _decoded(known["names"]) if known["stamp"] == stamp else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or damaged: it is only a memory
        return None


def _is_as_expected(found: Any) -> bool:
    """Returns whether this version of transformers gives names in the form that is remembered."""

    def are_texts(some: Any, kind: type) -> bool:
        return isinstance(some, kind) and all(isinstance(each, str) for each in some)

    return isinstance(found, dict) and all(
        are_texts(libraries, frozenset) and are_texts(of, dict) and all(are_texts(some, set) for some in of.values())
        for libraries, of in found.items()
    )


def _encoded(names: Names) -> list[Any]:
    return [[sorted(libraries), {module: sorted(some) for module, some in of.items()}] for libraries, of in names.items()]


def _decoded(encoded: list[Any]) -> Names:
    return {frozenset(libraries): {module: set(some) for module, some in of.items()} for libraries, of in encoded}
