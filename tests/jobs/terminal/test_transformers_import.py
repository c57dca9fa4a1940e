"""The command remembers which names transformers' models define; what it remembers is never another library's, or an older one's."""

import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from mlx_bulk.jobs.terminal import transformers_import
from mlx_bulk.jobs.terminal.transformers_import import remembered
from mlx_bulk.runner.files.checked_json import read_document, write_document

READS = """
import builtins, os, sys
from mlx_bulk.jobs.terminal import engine_imports
seen, read = [], builtins.open
builtins.open = lambda file, *words, **options: (seen.append(str(file)), read(file, *words, **options))[1]
{claim}
engine_imports.prepare_engine()
from transformers import AutoTokenizer, LlamaConfig
print(sum(file.endswith("models/gemma/configuration_gemma.py") for file in seen), AutoTokenizer.__name__, LlamaConfig.__module__)
"""


@pytest.mark.slow
def test_the_command_s_process_reads_the_files_of_transformers_once_and_the_next_one_none(tmp_path: Path):
    def reads(claim: str) -> str:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        program = [sys.executable, "-c", READS.format(claim=claim)]
        return subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout

    rest = "AutoTokenizer transformers.models.llama.configuration_llama\n"
    assert [reads("engine_imports.own_process()") for _ in range(2)] == [f"1 {rest}", f"0 {rest}"]
    assert int(reads("").split()[0]) > 1  # as transformers does it


def test_names_in_the_files_of_transformers_are_those_that_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers.utils import import_utils

    def listed(names: Any) -> Any:
        """With the order: where two modules define a name, the last one counts."""
        return [(libraries, list(of.items())) for libraries, of in names.items()]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    define, code = inspect.unwrap(import_utils.define_import_structure), Path(import_utils.__file__)
    models = code.parent.parent / "models"
    with_prefix, without = listed(define(models, "models")), listed(define(str(models / "__init__.py")))
    for _ in range(2):  # found, and then remembered
        faster = remembered(define, code)
        assert listed(faster(models, "models")) == with_prefix
        assert listed(faster(str(models / "__init__.py"))) == without
        assert faster(models / "llama") == define(models / "llama")
    assert len(list((tmp_path / "mlx-bulk" / "transformers").iterdir())) == 1


@dataclass(slots=True)
class Library:
    """A library with one model, which takes a file's text for the one name that it defines."""

    root: Path
    kept: Path
    reads: int = 0

    @property
    def model(self) -> Path:
        return self.root / "models" / "one"

    def define(self, folder: Path, prefix: str | None = None) -> Any:
        self.reads += 1
        files = [file for file in folder.rglob("*.py") if not file.name.startswith("modular_")]
        return {frozenset({"torch"}): {".".join(file.relative_to(folder).with_suffix("").parts): {file.read_text()} for file in files}}

    def names(self) -> Any:
        """What a new process finds."""
        return remembered(self.define, self.root / "utils" / "import_utils.py")(self.root / "models", None)

    def memory(self) -> Path:
        (kept,) = self.kept.iterdir()
        return kept


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(transformers_import, "time_ns", lambda: time_ns() + 60 * 10**9)  # the files were written a minute ago
    made = Library(tmp_path / "library", tmp_path / "cache" / "mlx-bulk" / "transformers")
    made.model.mkdir(parents=True)
    (made.root / "utils").mkdir()
    (made.root / "utils" / "import_utils.py").touch()
    (made.model / "file.py").write_text("A")
    return made


ONE = {frozenset({"torch"}): {"one.file": {"A"}}}


def same_size(library: Library) -> None:
    """With the old mtime, as ``cp -p`` leaves it."""
    old = (library.model / "file.py").stat()
    (library.model / "file.py").write_text("B")
    os.utime(library.model / "file.py", ns=(old.st_atime_ns, old.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda library: (library.model / "file.py").write_text("Bb"), {"one.file": {"Bb"}}),
        (same_size, {"one.file": {"B"}}),
        (lambda library: (library.model / "more.py").write_text("B"), {"one.file": {"A"}, "one.more": {"B"}}),
        (lambda library: (library.model / "file.py").rename(library.model / "other.py"), {"one.other": {"A"}}),
        (lambda library: (library.root / "utils" / "import_utils.py").write_text("# a new version"), {"one.file": {"A"}}),
    ],
    ids=["another text", "another text of this size and time", "a new file", "another name", "other code"],
)
def test_a_changed_library_is_read_again(library: Library, change: Any, names: Any):
    assert library.names() == library.names() == ONE
    assert library.reads == 1
    change(library)
    assert library.names() == library.names() == {frozenset({"torch"}): names}
    assert library.reads == 2


@pytest.mark.parametrize("damage", [lambda kept: kept.write_bytes(kept.read_bytes()[:99]), lambda kept: write_document(kept, {"stamp": 1})])
def test_a_damaged_memory_of_names_is_written_again(library: Library, damage: Any):
    assert library.names() == ONE
    whole = library.memory().read_bytes()
    damage(library.memory())
    assert library.names() == ONE
    assert library.memory().read_bytes() == whole


def test_names_of_another_form_of_this_memory_are_found_anew(library: Library):
    assert library.names() == ONE
    values = read_document(library.memory())
    write_document(library.memory(), values | {"names": {"one.file": "A"}})
    assert library.names() == ONE


def test_a_library_that_has_just_changed_is_not_remembered(library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers_import, "time_ns", time_ns)
    assert library.names() == ONE
    assert not library.kept.exists()


def test_files_that_transformers_does_not_read_may_be_anything(library: Library):
    (library.model / "modular_one.py").symlink_to(library.root / "nowhere.py")
    assert library.names() == library.names() == ONE
    assert library.reads == 1


def test_names_of_a_library_without_its_files_are_left_to_it(library: Library):
    (library.root / "utils" / "import_utils.py").unlink()
    assert library.names() == library.names() == ONE
    assert library.reads == 2
    assert not library.kept.exists()


def test_a_library_at_any_path_is_remembered(library: Library):
    library.root = library.root.rename(library.root.with_name(os.fsdecode(b"\xff")))
    assert library.names() == library.names() == ONE
    assert library.reads == 1


def test_what_one_caller_adds_is_not_there_for_the_next(library: Library):
    faster = remembered(library.define, library.root / "utils" / "import_utils.py")
    faster(library.root / "models", "models")[frozenset({"torch"})].clear()
    assert faster(library.root / "models") == ONE


@pytest.mark.parametrize(
    "found",
    [{("torch",): {"one.file": {"A"}}}, {frozenset(): {"one.file": ["A"]}}, {frozenset(): {None: {"A"}}}, [["A"]]],
    ids=["libraries in a tuple", "names in a list", "a module without a name", "lists"],
)
def test_names_in_another_form_are_left_to_transformers(library: Library, found: Any):
    faster = remembered(lambda folder, prefix=None: found, library.root / "utils" / "import_utils.py")
    assert faster(library.root / "models", "models") == found
    assert not library.kept.exists()
