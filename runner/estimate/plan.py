"""Plans a run of a config for ``mlx-bulk plan``: what it has to do and what it will take, without loading the weights.

The rows go through the code of a run up to the engine, whose batches are forecast. Writes nothing, takes no lock. Knows no
terminal.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ...configs.errors import ConfigError
from ...configs.schema import JobConfig
from ...kernels import backend
from ..data.spooled_stdin import reads_stdin
from ..engine.setup import Setup
from ..models.model_pool import ModelPool
from ..patched_layers.mended_layers import experts_workspace
from ..pipeline.job import Kind
from ..pipeline.loading import outline_models
from ..pipeline.run_spec import RunSpec, with_rows_of_run
from ..policies.policy_engine import sampling_limits
from ..scheduler.limits import Limits
from ..scheduler.prefix_tree import MIN_PREFIX
from .disk import disk_bytes
from .forecast import Work, decoding_work
from .output_folder import OutputState, output_state
from .survey import Survey, survey_rows
from .timing import Calibration, calibrate, longest_completion


@dataclass(slots=True, frozen=True)
class Plan:
    """The work and the needs of a run of ``config``. Sums are of all rows of the input, even if only a sample was read.

    input_bytes: the input's files on disk, None for a hub dataset. work: the most that is possible; expected: with completions as
    long as those measured. limits: of the rows that decode. reserved_bytes: KV cache memory that newer weights and a reference may
    take. weight_bytes: in memory; tower_bytes: those of them that read pictures; copy_bytes: of experts' weights in half precision, which
    a CPU multiplies in float32. uncompared: model types whose pictures nobody compared with transformers. memory_bytes: the device's.
    disk_bytes: of results/ and errors/; free_bytes: on their volume.
    """

    config: JobConfig
    input_bytes: int | None
    context: int | None
    survey: Survey
    limits: Limits
    reserved_bytes: float
    way: str
    work: Work
    expected: Work | None
    weight_bytes: int
    tower_bytes: int
    copy_bytes: int
    uncompared: tuple[str, ...]
    memory_bytes: int
    disk_bytes: int
    free_bytes: int
    calibration: Calibration | None
    output: OutputState

    @property
    def prompt_tokens(self) -> int:
        """Counts the tokens of all rows that can be done; a row with several samples counts once."""
        return round(self.survey.factor * sum(self.survey.lengths))

    @property
    def completions(self) -> int:
        """Counts the completions."""
        return round(self.survey.factor * sum(len(shape.work.samples) for window in self.survey.windows for shape in window))

    @property
    def shared_tokens(self) -> int:
        """Counts the tokens that sharing saves: between passages, between equal texts, or between the samples of a prompt."""
        if not self.survey.generates:
            return round(self.survey.factor * self.survey.separate_tokens) - self.work.prefilled
        again = (shape.prompt_tokens * (len(shape.work.samples) - 1) for window in self.survey.windows for shape in window)
        return round(self.survey.factor * sum(again))

    @property
    def prefix_tokens_saved(self) -> int:
        """Counts the prompt tokens that shared prefixes save."""
        return round(self.survey.factor * self.survey.separate_prompt_tokens) - self.work.prefilled if self.survey.generates else 0

    @property
    def repeated_prefix(self) -> int:
        """The length in tokens of the prefix of all prompts; 0 where it is too short to share, or there is one row."""
        common = 0 if self.survey.common_prefix is None else len(self.survey.common_prefix)
        return common if common >= MIN_PREFIX and self.survey.rows > 1 else 0

    @property
    def rows_left(self) -> int:
        """Counts the rows that a run still has to do."""
        return max(0, self.survey.rows - self.output.rows)

    @property
    def seconds(self) -> float | None:
        """Seconds that a run of all rows takes from start to end; None without a measurement."""
        if self.calibration is None or self.expected is None:
            return None
        return self.calibration.load_seconds + self.calibration.seconds_of(self.expected)

    @property
    def seconds_left(self) -> float | None:
        """Seconds for the rows that are left, if each takes the same time; None without a measurement."""
        if self.calibration is None or self.expected is None or not self.survey.rows:
            return None
        share = self.rows_left / self.survey.rows
        return self.calibration.load_seconds + share * self.calibration.seconds_of(self.expected) if share else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second as in the last line of a run: tokens of texts or of prompts and completions, or tokens scored."""
        if (seconds := self.seconds) is None or self.expected is None:
            return None
        if self.survey.generates or self.survey.texts:
            return (self.prompt_tokens + self.expected.generated) / seconds
        return self.expected.scored / seconds


def plan_run(config: JobConfig, kind: Kind, models: ModelPool | None = None) -> Plan:
    """Returns the plan of one run. With ``models``, loads the model into that pool and times some rows.

    Raises any error that stops a run at its start, and ConfigError if rows come from stdin, which can be read only once.
    """
    if reads_stdin(config.data):
        raise ConfigError("data.path: found '-' (stdin), which can be read only once; save the rows to a file, and plan with --data FILE")
    kind.check(config, [])
    root, config = Path(config.output.path), with_rows_of_run(config)
    spec = RunSpec.of(config, root, kind, afresh=False)
    outlines, setups = zip(*outline_models(spec.models(config), config.batch, spec.job.wanted), strict=True)
    limits = sampling_limits(setups[0].limits, config, outlines[0].parameter_bytes)
    survey = survey_rows(config, spec, setups[: 1 if spec.reference is None else 2], limits)
    calibration = None if models is None or not survey.lengths else calibrate(config, spec, survey, models)
    length = longest_completion if calibration is None else calibration.length
    work, expected = _work(survey, replace(setups[0], limits=limits), calibration)
    sizes = [source.bytes for source in spec.scan.sources]
    return Plan(
        config=config,
        input_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        context=spec.checkpoint.context,
        survey=survey,
        limits=limits,
        reserved_bytes=setups[0].limits.kv_bytes - limits.kv_bytes,
        way="one row at a time" if limits.rows == 1 else "rows of one length" if limits.equal_lengths else "rows of like length",
        work=work,
        expected=expected,
        weight_bytes=sum(model.weight_bytes for model in outlines),
        tower_bytes=sum(model.features.tower.nbytes for model in outlines if model.features is not None),
        copy_bytes=max(experts_workspace(model.network) for model in outlines),
        uncompared=tuple(
            model.features.uncompared.kind for model in outlines if model.features is not None and model.features.uncompared is not None
        ),
        memory_bytes=backend.memory_bytes(),
        disk_bytes=disk_bytes(config, spec.job, survey, length),
        free_bytes=shutil.disk_usage(_existing(root)).free,
        calibration=calibration,
        output=output_state(config, spec),
    )


def _work(survey: Survey, setup: Setup, calibration: Calibration | None) -> tuple[Work, Work | None]:
    """Returns the work of all rows with the longest possible completions, and with completions as long as those measured."""
    if not survey.generates:
        work = survey.work.times(survey.factor)
        return work, work if calibration is not None else None
    most = decoding_work(
        ([shape.request for shape in window] for window in survey.windows), setup, longest_completion, survey.arrangement()
    )
    expected = None
    if calibration is not None:
        windows = ([shape.request for shape in window] for window in survey.windows)
        expected = decoding_work(windows, setup, calibration.length, survey.arrangement()).times(survey.factor)
    return most.times(survey.factor), expected


def _existing(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())
