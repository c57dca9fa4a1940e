"""Errors of data, models and run directories. Their messages say how to mend them."""

from ...configs.errors import BulkError

_MARKS = (
    "out of memory",
    "outofmemory",
    "insufficient memory",
    "unable to allocate",
    "attempting to allocate",
    "malloc",
    "bad_alloc",
    "cannot allocate",
)  # of the errors that mlx and Python raise when an allocation fails


class DataError(BulkError):
    """The input stops the whole job: a file is missing, no row has a column, keys are not unique."""


class ModelError(BulkError):
    """The model, its tokenizer or its adapter cannot be loaded or used."""


class RunDirError(BulkError):
    """The run directory is not usable: not a run, locked by another process, or damaged."""


class DriftError(RunDirError):
    """The run directory belongs to another config, model, tokenizer or input. The message names the differences."""

    exit_code = 4


class OutOfRoom(BulkError):
    """Disk or device memory is full. Finished rows are safe, and the same command continues the run."""

    exit_code = 6


class RowError(Exception):
    """One row cannot be done. It is quarantined, and the job goes on.

    ``stage`` says where it failed: read, request, template, image, tokenize, too_long, sampling, grammar, generate, store. ``name`` tells
    failures of one stage apart: its class, or a word of an API such as "unsupported_parameter".
    """

    def __init__(self, stage: str, message: str, name: str | None = None):
        super().__init__(message)
        self.stage, self.name = stage, name or type(self).__name__


class RunEnded(Exception):
    """The run is to end, and what a thread waits for does not come. No row has failed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns True for the errors that mlx and Python raise when an allocation fails."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(mark in str(error).lower() for mark in _MARKS))


def first_line(error: BaseException, most: int | None = 200) -> str:
    """Returns the first line of an error's message, its class where it has none, cut to ``most`` characters (None: whole).

    A line that ends with a colon goes on to what it announces; a compiled function's signatures are left out.
    """
    line, *others = [text.strip() for text in str(error).strip().splitlines() if text.strip()] or [type(error).__name__]
    if line.endswith(_SIGNATURES):
        line = line.removesuffix(_SIGNATURES)
    elif line.endswith(":") and others:
        line = f"{line} {others[0]}"
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


_SIGNATURES = ". The following argument types are supported:"  # nanobind's, before a line for each
UNFIT = "unfit"  # the stage of rows that this machine has no room for and another one may have; never in errors/
DROP = "drop"  # the stage of groups left out on purpose: these are no errors, though errors/ holds them
