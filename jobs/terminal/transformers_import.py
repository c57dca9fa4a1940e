"""Makes ``import transformers`` faster: it reads the files of all its models, some 1,700, for the names in their ``__all__``.

It would read them twice, and split each into lines. Both together take half a second. What it finds stays the same.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_DECLARED = "__all__"


def read_models_faster() -> None:
    """Lets a later ``import transformers`` read its models' files once, and split only their ends. Call it before any import of it."""
    sys.meta_path.insert(0, _ModelFiles)


class _ModelFiles:
    """An import hook for the module of transformers that reads the files."""

    name = "transformers.utils.import_utils"

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the module's own spec, whose functions are then the faster ones; None for other modules."""
        if name != cls.name:
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Faster(spec.loader)
        return spec


class _Faster(Loader):
    """Loads a module as ``loader`` does, and then replaces its two functions. A version of transformers without them stays as it is."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leaves it to the loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code."""
        self._loader.exec_module(module)
        functions = vars(module)
        search = functions.get("create_import_structure_from_path")
        if search is not None and hasattr(search, "__wrapped__"):
            functions[search.__name__] = cache(search.__wrapped__)  # its own remembers the last 128 folders, and there are some 450
        if (fetch := functions.get("fetch__all__")) is not None:
            functions[fetch.__name__] = from_declaration(fetch)


def from_declaration(fetch: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns ``fetch`` for the end of a file alone: from the last line that begins with ``__all__``, at which it looks anyway."""

    def fetched(content: str) -> Any:
        at = content.rfind("\n" + _DECLARED)
        return fetch(content[at + 1 :] if at >= 0 or content.startswith(_DECLARED) else "")

    return fetched
