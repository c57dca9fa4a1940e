"""Holds the result of an export: its records, files and notes."""

from dataclasses import dataclass, field

from .table_writers import Notes


@dataclass(slots=True)
class ExportResult:
    """The result of an export. failures: those that it holds; files: (sha256 in hex, path) of each; notes: remarks for its reader."""

    to: str
    records: int
    failures: int = 0
    files: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    notes: Notes = field(default_factory=Notes)
