"""The rules for names: a public name stands for one thing, and a file is named by the thing that it defines."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from .test_layering import ROOT, sources, tree_of

# The parts of a kernel triad (specification, chooser, version for the CPU) have the same three names in each kernel's file.
TRIAD = {"reference", "suits", "on_cpu"}
# Each program's entry point.
ENTRY = {"main"}

VAGUE = {"util", "utils", "helper", "helpers", "misc", "common", "manager", "base"}
NO_NOUN = re.compile(r"(known|opened|loaded|watched|begun|stored|collected|dropped|refused|apart|aligned|on_top|outside|side_by_side)$")


def public_names() -> dict[str, list[str]]:
    """Each public class and function at the top of a file, with the files that define it."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    return places


def test_a_public_name_stands_for_one_thing() -> None:
    several = {name: files for name, files in public_names().items() if len(files) > 1}
    assert {name: files for name, files in several.items() if name not in TRIAD | ENTRY} == {}
    assert all(file.startswith("kernels/") for name in TRIAD for file in several[name])


def test_a_file_is_named_by_what_it_defines() -> None:
    stems = {path: path.stem for path in sources() if not path.stem.startswith("__")}
    assert [str(path.relative_to(ROOT)) for path, stem in stems.items() if NO_NOUN.match(stem) or stem in VAGUE] == []


def test_a_file_of_a_room_does_not_repeat_the_rooms_name() -> None:
    repeated = [path for path in sources() if path.stem.startswith(f"{path.parent.name}_")]
    assert [str(path.relative_to(ROOT)) for path in repeated] == []


def test_files_and_first_sentences_are_short() -> None:
    long_files = {str(path.relative_to(ROOT)): lines for path in sources() if (lines := path.read_text(encoding="utf-8").count("\n")) > 300}
    assert long_files == {}
    first = {str(path.relative_to(ROOT)): sentence(path) for path in sources()}
    assert {path: len(words) for path, words in first.items() if len(words) > 28} == {}


def sentence(path: Path) -> list[str]:
    """The words of the first sentence of a file's docstring."""
    text = ast.get_docstring(tree_of(path)) or ""
    return re.split(r"\.\s", text, maxsplit=1)[0].split()
