"""Compiles the kernels with tiles in software (``software_tiles.h``), for processors without Intel AMX."""

import hashlib
from pathlib import Path

from mlx_bulk.kernels import native

HEADER = Path(__file__).with_suffix(".h")


def use_software_tiles() -> None:
    """Lets the library of this process multiply in such tiles. Call it before the library is opened; it needs AVX-512."""
    version = hashlib.sha256(HEADER.read_bytes()).hexdigest()  # a library is kept under the hash of its command
    native.COMMAND = (*native.COMMAND, f'-DSOFTWARE_TILES="{HEADER}"', f"-DSOFTWARE_TILES_VERSION={version}")
