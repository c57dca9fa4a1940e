"""Tests what a compiled library is made of, and what makes it another one."""

import ctypes
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from mlx_bulk.kernels.backend import compiles
from mlx_bulk.kernels.cpu.compilation import Build, build_key, shared_library

pytestmark = pytest.mark.skipif(not compiles(), reason="it takes g++")


def build_in(folder: Path, of_one: tuple[str, ...] = (), of_both: tuple[str, ...] = ()) -> Build:
    """Two units: one calls the other's function."""
    files = {
        "one.cpp": '#include "both.h"\n#ifndef MORE\n#define MORE 0\n#endif\nint number() { return 40 + MORE; }\n',
        "two.cpp": '#include "both.h"\nextern "C" int answer() { return number() + 2; }\n',
        "both.h": "int number();\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    units = {folder / "one.cpp": of_one, folder / "two.cpp": ()}
    return Build(units, [folder / "both.h"], ("g++", "-O0", *of_both, "-shared", "-fPIC"))


def test_units_are_linked_and_each_has_its_options(tmp_path: Path):
    kept = tmp_path / "kept"
    with ExitStack() as opening:
        plain = shared_library(build_in(tmp_path), kept, opening)
        other = shared_library(build_in(tmp_path, ("-DMORE=5",)), kept, opening)
        assert [ctypes.CDLL(str(path)).answer() for path in (plain, other)] == [42, 47]
    assert sorted(kept.iterdir()) == sorted([plain, other])  # no parts are left


def test_every_file_and_every_option_is_in_the_key(tmp_path: Path):
    keys = {build_key(build_in(tmp_path, *options)) for options in ((), (("-O2",),), ((), ("-O2",)), (("-DA",),))}
    for name in ("one.cpp", "two.cpp", "both.h"):
        build = build_in(tmp_path)
        with (tmp_path / name).open("a") as file:
            file.write("// changed\n")
        keys.add(build_key(build))
    assert len(keys) == 7


def test_units_are_compiled_beside_each_other(tmp_path: Path):
    """Each unit's compiler waits for the other's, and gives up after a minute."""
    one, two = tmp_path / "one.begun", tmp_path / "two.begun"
    os.mkfifo(one)
    os.mkfifo(two)
    waits = f'case "$*" in *" -c "*one.cpp) echo > {one}; cat {two};; *" -c "*two.cpp) cat {one}; echo > {two};; esac'
    compiler = tmp_path / "compiler"
    compiler.write_text(f"""#!/bin/sh
[ "$1" = --version ] && exit
timeout 60 sh -c '{waits}' sh "$@" > /dev/null || exit
exec g++ "$@"
""")
    compiler.chmod(0o755)
    build = build_in(tmp_path)
    with ExitStack() as opening:
        path = shared_library(Build(build.units, build.headers, (str(compiler), *build.command[1:])), tmp_path / "kept", opening)
        assert ctypes.CDLL(str(path)).answer() == 42
