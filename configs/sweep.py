"""The settings of a sweep: one job run many times, each time with other values of some settings.

Knows only the shape of a sweep. ``cells.py`` makes the cells and checks them.
"""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from .cluster import ClusterConfig
from .fields import FREE, Expected, Section
from .schema import OutputConfig

_Cell = Annotated[dict[str, object], Field(min_length=1)]


class SweepConfig(Section):
    """A sweep: ``base`` with every combination of the values in ``matrix``, and the cells of ``include``."""

    job: Literal["sweep"] = Field(description="What the job does.")
    base: Annotated[
        dict[str, object],  # a path is opened where the config is read
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        Expected("a job's settings, or the path of a config file"),
    ] = Field(description="The job that all cells begin from, without output and cluster: its settings, or the path of its config file.")
    matrix: Annotated[
        dict[str, Annotated[list[object], Field(min_length=1)]],
        Expected("a mapping of the base's settings (score.context) to lists of values, none empty"),
    ] = Field(default={}, description="Dotted key to a list of values; each combination of them is a cell.")
    include: Annotated[list[_Cell], Expected("a list of mappings of the base's settings to values")] = Field(
        default=[], description="Further cells: what each changes in the base, as a mapping of dotted keys to values."
    )
    exclude: Annotated[list[_Cell], Expected("a list of mappings of the matrix's keys to values")] = Field(
        default=[], description="Combinations of the matrix that are left out: those with all of the given values."
    )
    cluster: Annotated[ClusterConfig | None, FREE, Expected("a mapping with listen or workers, or null")] = Field(
        default=None, description="Workers that share each cell's run, one cell after the other; null runs in one process."
    )
    output: OutputConfig = Field(description="The sweep's folder; each cell's run directory lies in it.")
