"""Adds date, machine and versions to a benchmark's figures, and prints its table."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("mlx-bulk", "mlx", "mlx-lm", "numpy", "transformers", "torch", "llama-cpp-python")
UNITS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}


def about() -> dict[str, Any]:
    """The last keys of a benchmark's JSON line."""
    from mlx_bulk.kernels.backend import prepare

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {package: found for package in PACKAGES if (found := _version(package))},
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "blas": str(prepare()),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Its name, and its widest units for float32: kernels and BLAS choose by them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = said.get("flags", "").split()
    units = [shown for flag, shown in UNITS.items() if flag in flags]
    held = f" (held to {limit})" if (limit := os.environ.get("MLX_BULK_CPU")) else ""
    return said.get("model name", platform.processor()) + (f" with {', '.join(units)}" if units else "") + held


def table(rows: Mapping[str, Sequence[object]], columns: Sequence[str]) -> None:
    """Prints one line a key."""
    cells = [["", *columns], *([name, *("" if value is None else str(value) for value in values)] for name, values in rows.items())]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
