"""Measures what the extra ``cluster`` brings beside mlx-bulk, and that each system and Python has wheels for it. Needs a package index.

pip resolves the requirements of mlx-bulk for each system and Python, with and without the extra. What is new is downloaded as wheels. Their
files are counted as they lie on a disk, with the bytecode that pip makes of them, which is taken to be as large as the sources. What a
package requires on another system alone is not seen: pip asks for what its own system needs. The last line is JSON. Exit 1 where there is
no wheel, or where the files take more than 40 MB.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from racing.about import about, table

MOST_MB = 40.0
BLOCK = 4096  # bytes of a disk that a file takes at least
PLATFORMS = {
    "macOS arm64": [f"macosx_{version}_0_arm64" for version in (14, 13, 12, 11)],
    **{
        f"Linux {name}": [f"manylinux2014_{tag}", *(f"manylinux_2_{version}_{tag}" for version in range(17, 36))]
        for name, tag in {"x86-64": "x86_64", "aarch64": "aarch64"}.items()
    },
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> None:
    """Asks pip for each system and Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    project = tomllib.loads(PROJECT.read_text())["project"]
    extra = project["optional-dependencies"]["cluster"]
    found = {f"{name}, {python}": brought(name, python, project["dependencies"], extra) for name in PLATFORMS for python in PYTHONS}
    table({where: (each["mb"], each["packages"], each["failed"]) for where, each in found.items()}, ["MB", "packages", "failed"])
    missed = [where for where, each in found.items() if each["failed"] or each["mb"] > MOST_MB]
    print(json.dumps({"runs": found, "missed": missed, **about()}))
    sys.exit(1 if missed else 0)


def brought(name: str, python: str, base: list[str], extra: list[str]) -> dict[str, Any]:
    """Returns what the extra adds on a system: megabytes, the number of packages, and what pip says where it finds no wheel."""
    wanted = [option for platform in PLATFORMS[name] for option in ("--platform", platform)]
    wanted += ["--python-version", python, "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            before, after = (resolved([*wanted, *requirements]) for requirements in (base, [*base, *extra]))
            new = {package: version for package, version in after.items() if package not in before}
            pins = [f"{package}=={version}" for package, version in new.items()]
            pip("download", "--no-deps", "--dest", folder, *wanted, *pins)
        except subprocess.CalledProcessError as error:
            return {"mb": 0.0, "packages": 0, "failed": error.stderr.strip().splitlines()[-1]}
        sizes = [size(wheel) for wheel in Path(folder).glob("*.whl")]
        return {"mb": round(sum(sizes) / 1e6, 1), "packages": len(sizes), "failed": None}


def resolved(arguments: list[str]) -> dict[str, str]:
    """Returns the packages that pip would install, with their versions. Raises CalledProcessError where one has no wheel."""
    with tempfile.TemporaryDirectory() as target:
        told = pip("install", "--dry-run", "--ignore-installed", "--report", "-", "--quiet", "--target", target, *arguments)
    return {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(told)["install"]}


def pip(*arguments: str) -> str:
    """Runs pip and returns what it prints. Raises CalledProcessError."""
    return subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True, text=True).stdout


def size(wheel: Path) -> int:
    """Returns the bytes of a wheel's files on a disk."""
    with zipfile.ZipFile(wheel) as archive:
        files = [(entry.file_size, 2 if entry.filename.endswith(".py") else 1) for entry in archive.infolist()]
    return sum(times * -(-bytes_ // BLOCK) * BLOCK for bytes_, times in files)


if __name__ == "__main__":
    main()
