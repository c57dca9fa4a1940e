"""``mlx-bulk plan``: what a run of a config would have to do, and what it would take, found without loading the weights.

The rows go through the code that a run uses, up to the engine, whose batches are forecast. Writes nothing, takes no lock. How
it reads on a terminal is ``plan_text.py``'s.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ...configs.errors import ConfigError
from ...configs.schema import JobConfig
from ...kernels import backend
from ..data.sources import reads_stdin
from ..engine.setup import Setup
from ..models.model_pool import ModelPool
from ..pipeline.job import Kind
from ..pipeline.loading import outline_models
from ..pipeline.run_spec import RunSpec
from ..policies.policy_engine import sampling_limits
from ..scheduler.limits import Limits
from ..scheduler.prefix_tree import MIN_PREFIX
from .disk import disk_bytes
from .forecast import Work, decoding
from .output_folder import OutputState, found_in_output
from .survey import Survey, surveyed
from .timing import Calibration, calibrated, to_the_end


@dataclass(slots=True, frozen=True)
class Plan:
    """What a run of ``config`` comes to. Sums are of all rows of the input, also where only some were looked at.

    input_bytes: of the input's files as they lie, None for a hub dataset. work: the most that there can be; expected: with
    completions as long as those measured. limits: of the rows that decode; aside_bytes: what newer weights and a reference may take
    of the room for KV caches. weight_bytes: as they will stand in memory. memory_bytes: the device's. disk_bytes: of results/ and
    errors/, free_bytes: on their volume.
    """

    config: JobConfig
    input_bytes: int | None
    context: int | None
    survey: Survey
    limits: Limits
    aside_bytes: float
    way: str
    work: Work
    expected: Work | None
    weight_bytes: int
    memory_bytes: int
    disk_bytes: int
    free_bytes: int
    calibration: Calibration | None
    found: OutputState

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all rows that can be done, those of a row with several samples once."""
        return round(self.survey.factor * sum(self.survey.lengths))

    @property
    def completions(self) -> int:
        """How many completions are asked for."""
        return round(self.survey.factor * sum(len(shape.work.samples) for window in self.survey.windows for shape in window))

    @property
    def shared_tokens(self) -> int:
        """Tokens that are fed for several passages, or several samples of a prompt, at once: how many times they are not fed."""
        if not self.survey.generates:
            return round(self.survey.factor * self.survey.separate_tokens) - self.work.prefilled
        again = (shape.prompt_tokens * (len(shape.work.samples) - 1) for window in self.survey.windows for shape in window)
        return round(self.survey.factor * sum(again))

    @property
    def alike_tokens(self) -> int:
        """Tokens of prompts that are not fed again, as rows begin alike."""
        return round(self.survey.factor * self.survey.fed_apart) - self.work.prefilled if self.survey.generates else 0

    @property
    def repeated_prefix(self) -> int:
        """Tokens that all prompts begin with and that are worth sharing: 0 where they are too few, or there is one row."""
        common = 0 if self.survey.common is None else len(self.survey.common)
        return common if common >= MIN_PREFIX and self.survey.rows > 1 else 0

    @property
    def rows_left(self) -> int:
        """Rows that a run would still have to do."""
        return max(0, self.survey.rows - self.found.rows)

    @property
    def seconds(self) -> float | None:
        """How long a run of all rows takes from its start to its end, None where nothing was measured."""
        if self.calibration is None or self.expected is None:
            return None
        return self.calibration.load_seconds + self.calibration.seconds_of(self.expected)

    @property
    def seconds_left(self) -> float | None:
        """The same for the rows that are left, if each takes as long as any."""
        if self.calibration is None or self.expected is None or not self.survey.rows:
            return None
        share = self.rows_left / self.survey.rows
        return self.calibration.load_seconds + share * self.calibration.seconds_of(self.expected) if share else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second as the last line of a run counts them: those of prompts and completions, or those scored."""
        if (seconds := self.seconds) is None or self.expected is None:
            return None
        return (self.prompt_tokens + self.expected.generated if self.survey.generates else self.expected.scored) / seconds


def planned(config: JobConfig, kind: Kind, models: ModelPool | None = None) -> Plan:
    """The plan of one run; with ``models`` the model is loaded into them and rows are timed. Raises what stops a run at its start.

    Raises ConfigError where rows come from stdin: what is read to plan is gone when the run begins.
    """
    if reads_stdin(config.data):
        raise ConfigError("data.path: found '-' (stdin), which can be read only once; save the rows to a file, and plan with --data FILE")
    kind.check(config, [])
    root = Path(config.output.path)
    known = RunSpec.of(config, root, kind, afresh=False)
    outlines, setups = zip(*outline_models(known.models(config), config.batch, known.job.wanted), strict=True)
    limits = sampling_limits(setups[0].limits, config, outlines[0].weight_bytes)
    survey = surveyed(config, known, setups, limits)
    calibration = None if models is None or not survey.lengths else calibrated(config, known, survey, models)
    length = to_the_end if calibration is None else calibration.length
    work, expected = _work(survey, replace(setups[0], limits=limits), calibration)
    sizes = [source.bytes for source in known.found.sources]
    return Plan(
        config=config,
        input_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        context=known.checkpoint.context,
        survey=survey,
        limits=limits,
        aside_bytes=setups[0].limits.kv_bytes - limits.kv_bytes,
        way="one row at a time" if limits.rows == 1 else "rows of one length" if limits.equal_lengths else "rows of like length",
        work=work,
        expected=expected,
        weight_bytes=sum(model.weight_bytes for model in outlines),
        memory_bytes=backend.memory_bytes(),
        disk_bytes=disk_bytes(config, known.job, survey, length),
        free_bytes=shutil.disk_usage(_existing(root)).free,
        calibration=calibration,
        found=found_in_output(config, known),
    )


def _work(survey: Survey, setup: Setup, calibration: Calibration | None) -> tuple[Work, Work | None]:
    """The work of all rows at most, and with completions as those that were measured."""
    if not survey.generates:
        work = survey.work.times(survey.factor)
        return work, work if calibration is not None else None
    most = decoding(([shape.request for shape in window] for window in survey.windows), setup, to_the_end, survey.arranged())
    expected = None
    if calibration is not None:
        windows = ([shape.request for shape in window] for window in survey.windows)
        expected = decoding(windows, setup, calibration.length, survey.arranged()).times(survey.factor)
    return most.times(survey.factor), expected


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())
