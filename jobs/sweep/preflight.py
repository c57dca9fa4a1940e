"""Whether new runs can take the places of old ones: asked of all of them before one of the old is marked for removal.

Knows what ``Known`` knows, neither weights nor rows; changes nothing in a run directory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...configs.errors import BulkError
from ...configs.schema import JobConfig
from ...runner.data.scan import Scan, scan
from ...runner.pipeline.job import Kind
from ...runner.pipeline.run_spec import RunSpec
from ...runner.runs.drift import require_adoptable


def hindrances(configs: Sequence[JobConfig], kinds: Mapping[str, Kind], adopt: tuple[str, ...]) -> list[str | None]:
    """What keeps the run of each config from starting over, in their order: None where its input, model and tokenizer are known.

    Inputs that several configs share are scanned once. ``adopt``: as in ``Start``.
    """
    scans: dict[str, Scan] = {}
    return [_hindrance(config, kinds[config.job], adopt, scans) for config in configs]


def _hindrance(config: JobConfig, kind: Kind, adopt: tuple[str, ...], scans: dict[str, Scan]) -> str | None:
    named = config.data.model_dump_json()
    try:
        if named not in scans:
            scans[named] = scan(config.data, Path(config.output.path), afresh=True)
        require_adoptable(adopt, RunSpec.over(scans[named], config, kind).identity(config).keys())
    except BulkError as error:
        return str(error)
    except Exception as error:  # a fault of ours, or of a library: the start would meet it too
        return f"{type(error).__name__}: {error}"
    return None
