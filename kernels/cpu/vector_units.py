"""The vector units of an x86-64 processor that products may use. ``MLX_BULK_CPU`` leaves out the wider ones; unset, all are used.

So the results and the speed of a weaker machine can be had on a stronger one. Other processors have one kind of units, and no choice.
``generic`` leaves out all our kernels: the CPU then computes by mlx's operations, step by step as a GPU does.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "MLX_BULK_CPU"
GENERIC = "generic"
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(slots=True, frozen=True)
class Units:
    """g++'s options that leave out all wider units, environment variables that limit a BLAS alike, and Linux's name for the units."""

    options: tuple[str, ...]
    blas: dict[str, str]
    flag: str


_NO_TILES = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
# For some processors (AMD's Zen, some of ARM's) g++ rounds a product before it adds it in one instance of a template, and not in another.
# A row's bits would then depend on how many rows there are.
_ALL_FMA = ("--param=avoid-fma-max-bits=0",)
UNITS = {
    "avx2": Units((*_NO_TILES, "-mno-avx512f"), {"OPENBLAS_CORETYPE": "Haswell", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "avx2"),
    "avx512": Units(_NO_TILES, {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}, "avx512f"),
    "amx": Units((), {}, "amx_bf16"),
}


class UnknownUnits(ValueError):
    """``MLX_BULK_CPU`` names no units."""


def compiler_options() -> Sequence[str]:
    """Returns g++'s options for the units allowed. Raises UnknownUnits."""
    wish = os.environ.get(VARIABLE)
    if platform.machine() != "x86_64" or not wish or wish == GENERIC:
        return _ALL_FMA
    if wish not in UNITS:
        raise UnknownUnits(f"{VARIABLE}={wish}: expected {', '.join(UNITS)} or {GENERIC}; unset it for the widest units of this processor")
    return (*_ALL_FMA, *UNITS[wish].options)


def heeds(wish: str) -> bool:
    """Returns True where this processor has a choice for which a value of the variable stands."""
    return wish == GENERIC or platform.machine() == "x86_64"


def generic() -> bool:
    """Returns True when a CPU shall compute by mlx's operations alone, as a GPU does."""
    return os.environ.get(VARIABLE) == GENERIC


def lacking() -> str | None:
    """Says which units the variable names that this processor does not have; None where it has them, or Linux does not say."""
    wish = os.environ.get(VARIABLE, "")
    has = _present()
    if wish not in UNITS or not has or wish in has:
        return None
    return f"{VARIABLE}={wish}: this processor has no such units; the kernels and the BLAS use the widest that it has, {has[-1]}"


def units_in_use() -> str:
    """Returns the name of the widest units that our kernels use here; "" where nobody says which there are."""
    wish = os.environ.get(VARIABLE, "")
    allowed = list(UNITS)[: list(UNITS).index(wish) + 1] if wish in UNITS else list(UNITS)
    return next((name for name in reversed(_present()) if name in allowed), "")


def _present() -> list[str]:
    """Returns the names of this processor's units, the narrowest first; none where Linux does not say."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return [name for name, units in UNITS.items() if units.flag in flags]


def limit_blas() -> None:
    """Limits the BLAS that is opened next to the units allowed. Variables of the BLAS that are set already win. Ignores unknown units."""
    units = UNITS.get(os.environ.get(VARIABLE, ""))
    if units is not None and platform.machine() == "x86_64":
        for name, value in units.blas.items():
            os.environ.setdefault(name, value)
