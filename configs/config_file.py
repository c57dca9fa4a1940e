"""Reads a config's file into plain values, and tells a file of rows from a config. Knows no settings."""

from pathlib import Path

from .errors import ConfigError
from .explain import shown
from .parse import Scalar, Value, parse
from .schema import GenerateConfig

Values = dict[Scalar, Value]

_EXAMPLE = f"{Path(__file__).parent / 'demo.yaml'} is an example"
_OF_ROWS = (
    *(".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".text"),
    *(".parquet", ".arrow", ".feather", ".ipc", ".gz", ".zst", ".bz2"),
)
_LONGEST = 1 << 20  # bytes of a config whose name is one of rows: a longer file is not parsed to see what it is


def read_config(path: Path) -> Values:
    """Returns the mapping in the YAML file ``path``. Raises ConfigError where there is none, and says where the file holds rows."""
    named_as_rows = path.suffix.lower() in _OF_ROWS and path.is_file()
    try:
        if named_as_rows and path.stat().st_size > _LONGEST:
            raise _rows(path)
        values = _mapping(path)
    except ConfigError:
        if named_as_rows:
            raise _rows(path) from None
        raise
    if named_as_rows and "job" not in values:
        raise _rows(path)
    return values


def _mapping(path: Path) -> Values:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a job config ({_EXAMPLE})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}; expected a YAML file") from None
    values = parse(text, str(path))
    if values is None:
        raise ConfigError(f"{path}: empty; expected a job config ({_EXAMPLE})")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {shown(values)}; expected a mapping with {', '.join(GenerateConfig.model_fields)} ({_EXAMPLE})")
    return values


def _rows(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: this is data, not a config; name it in a config's data.path, or beside a config: mlx-bulk run job.yaml --data {path} "
        "(mlx-bulk init > job.yaml writes a config)"
    )
