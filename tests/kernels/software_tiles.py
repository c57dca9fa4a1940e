"""Compiles the kernels with tiles in software (``software_tiles.h``), for processors without Intel AMX."""

from pathlib import Path

from mlx_bulk.kernels import native


def use_software_tiles() -> None:
    """Lets the library of this process multiply in such tiles. Call it before the library is opened; it needs AVX-512."""
    native.COMMAND = (*native.COMMAND, f'-DSOFTWARE_TILES="{Path(__file__).with_suffix(".h")}"')
