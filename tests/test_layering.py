"""The order of rooms: who may import whom, which modules are public, and which rooms must start without mlx.

A room imports rooms above it in ``ORDER``, and its own files without a circle. A folder reaches into another folder's room
through the modules that the room's docstring lists as public. docs/contributing.md says what each room is for.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

ROOMS = """
    configs kernels/cpu kernels/cuda kernels kernels/blocks kernels/recurrent kernels/sampling
    runner runner/core runner/files runner/formats runner/data runner/templates runner/text runner/images runner/grammar runner/answers
    runner/scheduler runner/quantized_kv runner/caches runner/patched_layers runner/layers runner/encoders runner/vision runner/pooling
    runner/ranks runner/models runner/engine runner/scoring runner/pool_engine runner/twins runner/checks runner/store runner/runs
    runner/policies runner/rescore runner/pipeline
    runner/leasing runner/parcels runner/cluster runner/network runner/worker runner/estimate
    jobs/terminal jobs/statistics jobs/rewards jobs/openai jobs/generate jobs/score jobs/embed jobs/classify jobs jobs/harness
    jobs/evals jobs/export jobs/sweep jobs/status
    jobs/plan jobs/compare jobs/report_data jobs/report jobs/verify jobs/supervision jobs/worker jobs/cli
    mlx_bulk
"""
ORDER = [str(room) for room in ROOMS.split()]

FOLDERS = {
    "configs": set[str](),
    "kernels": set[str](),
    "runner": {"kernels", "configs"},
    "jobs": {"runner", "kernels", "configs"},
    "mlx_bulk": {"jobs", "runner", "kernels", "configs"},
}
# The API for Python stands above all rooms and imports whatever module it needs. Its imports are absolute: in a clone the folders do
# not lie within it.
API = "mlx_bulk"
# `python -m mlx_bulk.jobs` is the command: this one file of jobs/ stands above all its rooms.
ENTRY_POINTS = {"jobs/__main__"}
MOST_FILES = 14  # of a room, besides __init__ and __main__
# Rooms whose modules answer before a model is loaded: importing any of them loads no mlx.
WITHOUT_MLX = [
    "runner/core/errors",
    "runner/core/shard_layout",
    "runner/files",
    "runner/runs",
    "jobs/terminal",
    "jobs/status",
    "jobs/supervision",
    "jobs/worker",
]

Module = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Import:
    """One import of ours: the line it stands on and the module that it names, as parts below the root."""

    line: int
    module: Module


def sources() -> list[Path]:
    """Every Python file of the folders but the demo model's training script, which is data."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "demo" not in path.parts)


def module_of(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room_of(module: Module) -> str:
    """The room in which a module lies: the longest entry of ``ORDER`` that it begins with."""
    inner = "/".join(module[:2])
    return inner if inner in ORDER else module[0]


def is_module(module: Module) -> bool:
    path = ROOT.joinpath(*module)
    return path.with_suffix(".py").is_file() or path.is_dir()


@cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> list[Import]:
    """The imports of ours in a file of ours."""
    return list(imports(tree_of(path), packages_of(path)))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A file's statements, at any depth: a twelfth of its nodes. No expression holds an import."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        within: Any = getattr(tree, field, None)
        for node in within if isinstance(within, list) else ():
            yield node
            yield from statements(node)


def imports(tree: ast.Module, package: Module) -> Iterator[Import]:
    """The imports of ours in a file that lies in ``package``. A name that the rules forbid is given as a module that no room has."""
    ours = {API, *FOLDERS}
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] in ours):
            module = tuple((node.module or "").split("."))
            allowed = (module[0] == API and not node.level) if package[0] == API else bool(node.level)
            if not allowed:
                yield Import(node.lineno, ("forbidden", "." * node.level + (node.module or "")))
                continue
            base = package[: len(package) - node.level + 1]
            target = (*base, *filter(None, module)) if node.level else _below_root(module)
            for name in node.names:
                inner = (*target, name.name) if target != (API,) else _below_root((API, name.name))
                yield Import(node.lineno, inner if is_module(inner) else target)
        elif isinstance(node, ast.Import):
            named = [name.name for name in node.names if name.name.split(".")[0] in ours]
            yield from (Import(node.lineno, ("forbidden", name)) for name in named)


def _below_root(module: Module) -> Module:
    """Where the module of an absolute import lies in a clone: ``mlx_bulk.jobs.kinds`` in jobs/."""
    return module[1:] if module[0] == API and len(module) > 1 and module[1] in FOLDERS else module


@cache
def public_modules(room: str) -> frozenset[str] | None:
    """The modules that a room's docstring lists behind ``Public:``; None where it says "all"."""
    text = ast.get_docstring(tree_of(ROOT / room / "__init__.py")) or ""
    listed = re.search(r"Public: ([^.]*)\.", text)
    assert listed is not None, (
        f"{room}/__init__.py: its docstring says which modules are public, as 'Public: a, b.', 'Public: all.' or 'none'"
    )
    names = re.sub(r"\(.*?\)", "", listed[1])
    words = {word.strip() for word in names.split(",")}
    return None if words == {"all"} else frozenset(words - {"none"})


def broken_rules(found_imports: Iterable[Import], module: Module) -> list[str]:
    """Returns the rules that a file with these imports breaks, as readable lines."""
    room, broken = room_of(module), list[str]()
    for found in found_imports:
        target, place = found.module, f"{'/'.join(module)}.py:{found.line}"
        if target[0] == "forbidden":
            broken.append(f"{place} imports {target[1]}; imports of ours are relative, and in {API}/ absolute, as `from … import …`")
            continue
        other = room_of(target)
        if target[0] not in {module[0], *FOLDERS[module[0]]}:
            broken.append(
                f"{place} imports {'/'.join(target)}; {module[0]} may import {', '.join(sorted(FOLDERS[module[0]])) or 'nothing'}"
            )
        elif "/".join(module) not in ENTRY_POINTS and ORDER.index(other) > ORDER.index(room):
            broken.append(f"{place} imports {'/'.join(target)}; {other} stands below {room} in ORDER")
        elif module[0] != API and target[0] != module[0] and "/" in other and len(target) > 2:
            public = public_modules(other)
            if public is not None and target[2] not in public:
                broken.append(
                    f"{place} imports {'/'.join(target)}, which is not public; {other} offers {', '.join(sorted(public)) or 'nothing'}"
                )
    return broken


def packages_of(path: Path) -> Module:
    return path.relative_to(ROOT).parent.parts


def test_imports_go_one_way() -> None:
    assert [broken for path in sources() for broken in broken_rules(imports_of(path), module_of(path))] == []


def circle_in(arrows: dict[Module, Iterable[Module]]) -> list[Module]:
    """The modules of a circle of imports, or none."""
    try:
        list(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def test_no_file_imports_itself_in_a_circle() -> None:
    arrows = {module_of(path): {found.module for found in imports_of(path)} for path in sources()}
    # A package may import its own modules (harness does, to register its model).
    assert (
        circle_in({module: {target for target in targets if module[: len(target)] != target} for module, targets in arrows.items()}) == []
    )


def test_every_folder_with_python_is_a_room() -> None:
    folders = {"/".join(packages_of(path)) for path in sources()}
    assert folders == set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_a_room_is_small_and_says_what_it_is_for(room: str) -> None:
    files = [path for path in (ROOT / room).glob("*.py") if path.stem not in {"__init__", "__main__"}]
    if room != "configs":  # its files are one a section of the config
        assert len(files) <= MOST_FILES, f"{room} has {len(files)} files; a room with a second purpose becomes two rooms"
    if "/" in room:
        text = ast.get_docstring(tree_of(ROOT / room / "__init__.py")) or ""
        assert "Public: " in text
        stems = {path.stem for path in files}
        assert (public_modules(room) or set()) - {"the package itself"} <= stems


@pytest.mark.slow
@pytest.mark.parametrize("room", WITHOUT_MLX)
def test_rooms_that_start_at_once_load_no_mlx(room: str) -> None:
    path = ROOT / room
    names = [module_of(file) for file in sorted(path.glob("*.py"))] if path.is_dir() else [tuple(room.split("/"))]
    modules = ["mlx_bulk." + ".".join(name) for name in names]
    script = f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; print('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


@pytest.mark.parametrize(
    ("module", "source", "broken"),
    [
        ("configs/load", "from .schema import RunConfig", False),
        ("configs/load", "from ..runner.core.errors import DataError", True),
        ("kernels/backend", "def f():\n    from ..configs import errors", True),
        ("runner/engine/engine", "from ...kernels.sampling.draw import launch", False),
        ("runner/engine/engine", "from ...kernels import logprobs", False),
        ("runner/engine/engine", "from ..layers.kv_cache import fresh", False),
        ("runner/engine/engine", "from ..checks import engine_setup", True),
        ("runner/engine/engine", "from ... import jobs", True),
        ("runner/engine/engine", "from ...jobs.cli.main import main", True),
        ("jobs/cli/main", "import mlx_bulk.runner.engine.engine", True),
        ("jobs/cli/main", "from kernels import logprobs", True),
        ("jobs/cli/main", "import json\nfrom mlx_lm import load", False),
        ("jobs/cli/main", "from ...runner.pipeline import session", False),
        ("jobs/cli/main", "from ...runner.store import journal", True),
        ("jobs/__main__", "from .cli.main import main", False),
        ("jobs/kinds", "from .cli.main import main", True),
        ("jobs/kinds", "from mlx_bulk import run", True),
        ("jobs/kinds", "from ..mlx_bulk.records import Completion", True),
        ("mlx_bulk/model", "from mlx_bulk.runner.store import journal", False),
        ("mlx_bulk/model", "from mlx_bulk.records import Completion", False),
        ("mlx_bulk/model", "from mlx_bulk import jobs", False),
        ("mlx_bulk/model", "from .records import Completion", True),
        ("mlx_bulk/model", "from jobs.kinds import KINDS", True),
    ],
)
def test_the_rules_see_what_they_forbid(module: str, source: str, broken: bool) -> None:
    parts = tuple(module.split("/"))
    assert bool(broken_rules(imports(ast.parse(source), parts[:-1]), parts)) == broken


def test_a_circle_is_seen() -> None:
    assert set(circle_in({("a",): [("b",)], ("b",): [("a",)]})) == {("a",), ("b",)}
    assert circle_in({("a",): [("b",)], ("b",): []}) == []


def test_the_page_for_contributors_has_a_line_a_room() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z_/]+?)/?` \|", page.split("## Rooms")[1].split("## Where")[0], re.MULTILINE)
    assert listed == [room for room in ORDER if room != "runner"]


def test_the_files_that_the_page_for_contributors_names_are_there() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:configs|kernels|runner|jobs|tests|mlx_bulk)/[a-z_/]+\.(?:py|h))`", page)
    assert len(files) > 20
    assert [file for file in files if not (ROOT / file).is_file()] == []
