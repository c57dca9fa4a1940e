"""``mlx-bulk export``: writes a run's committed records, in input order, as files or as a dataset on the hub."""

from pathlib import Path

from ...configs.errors import ConfigError
from ...configs.visible import visible
from ..terminal.tables import count_text
from .files import export_files
from .result import ExportResult
from .source import ExportedRun
from .table_writers import WRITERS
from .trainer_columns import TRAINERS

FORMATS = (*WRITERS, "openai", *TRAINERS)

_HUB = "hf:"


def export_run(run: Path, kind: str, to: str, *, partial: bool, overwrite: bool, public: bool) -> ExportResult:
    """Exports the run directory ``run`` as ``kind`` (one of FORMATS) to a file, a folder, or "hf:owner/name".

    Raises ConfigError for options that do not go together, and what ``export_files`` and ``hub.upload`` raise.
    """
    source = ExportedRun.at(run, partial=partial)
    if not to.startswith(_HUB):
        if public:
            raise ConfigError(f"--public: goes with --to hf:owner/name, and this is --to {to}; remove it")
        return export_files(source, kind, to, overwrite=overwrite)
    if kind != "parquet":
        raise ConfigError(
            f"--format {kind}: --to {to} is a dataset on the hub, which takes --format parquet alone; say --format parquet, or "
            "name a file or a folder"
        )
    from .hub import upload

    return upload(source, to, to.removeprefix(_HUB), overwrite=overwrite, public=public)


def export_as_text(result: ExportResult) -> str:
    """Returns a line for each note on the export, and one for what was written."""
    failures = f" and {result.failures:,} failure{'s' * (result.failures != 1)}" if result.failures else ""
    return "\n".join(
        [
            *(f"note: {visible(note)}" for note in result.notes),
            f"exported {count_text(result.records, 'record')}{failures} -> {visible(result.to)}",
        ]
    )
