"""Gathers all that a session needs before it loads the model: the scanned input, checkpoints, tokenizer, and the job.

The run's identity follows from these: the values that may not change between two starts of one run. Does not know run directories.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from ...configs.errors import BulkError
from ...configs.identity import identity
from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ...kernels import backend, native
from ..core.errors import ModelError
from ..core.images import ImageTable
from ..data.scan import scan
from ..data.scan_result import Scan
from ..data.type_inference import JSON_METADATA
from ..grammar.spec_values import grammar_identity
from ..images.kept_pictures import kept_type
from ..images.processors import image_libraries
from ..images.row_pictures import open_pictures, require_same_processor
from ..images.sources import FileReader
from ..models import checkpoint as checkpoints
from ..models import reference_checkpoint as references
from ..models.checkpoint import Checkpoint
from ..models.device_memory import memory_for
from ..models.model_pool import ModelChoice, dequantizes, memory_shares
from ..models.reference_checkpoint import vocabulary_of
from ..models.reward_checkpoint import RewardModel, find_reward_model
from ..patched_layers.joined_projections import joining_key
from ..runs.drift import columns_of, require_adoptable
from ..runs.run_files import rows_wanted
from ..store.results import recorded_schema
from ..text import tokenizer as tokenizers
from .job import Job, Kind, Parts

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class RunSpec:
    """The scanned input, the checkpoints, the job made of them, and the chat template in use. images: see ``Setup``."""

    scan: Scan
    checkpoint: Checkpoint
    reference: Checkpoint | None
    job: Job
    template: str | None
    reward_models: tuple[RewardModel, ...] = ()
    images: ImageTable | None = None

    @classmethod
    def of(cls, config: JobConfig, folder: Path, kind: Kind, afresh: bool) -> Self:
        """Scans the input, finds the checkpoint, loads the tokenizer, and makes the job. ``folder``, ``afresh``: see ``scan``.

        Columns that records in ``folder`` have, and the fields within them, stand in the order that they have there, whatever order the
        input now gives them.
        """
        scanned = scan(config.data, folder, afresh)
        if not afresh and (recorded := recorded_schema(folder)) is not None and "input" in recorded.names:
            scanned = scanned.in_order_of(recorded.field("input").type)
        _warn(config, scanned)
        return cls.of_scan(scanned, config, kind)

    @classmethod
    def of_scan(cls, scanned: Scan, config: JobConfig, kind: Kind, files: FileReader | None = None) -> Self:
        """Makes the spec of an input that is scanned already. files: see ``PictureSources``.

        Raises ConfigError and ModelError where no run can begin.
        """
        kind.check(config, scanned.column_types)
        kept = scanned.input_type(config.data.keep)
        checkpoint = checkpoints.find_checkpoint(config.loaded, adapter_key=config.adapter_key)
        tokenizer = _tokenizer_of(checkpoint, config)
        vocabulary = vocabulary_of(checkpoint, tokenizer)
        pictures = open_pictures(config, checkpoint.folder, checkpoint.config, tokenizer, scanned.schema, files)
        reference = (
            None if config.reference is None else references.find_reference(config.reference, vocabulary, tokenizer, config.reference_key)
        )
        if pictures is not None and reference is not None:
            require_same_processor(pictures, reference.folder, reference.config, tokenizer, config.reference_key)
        reward_models = _reward_models(config)
        eos = frozenset(i for i in tokenizer.eos | checkpoint.eos if 0 <= i < vocabulary)
        family = str(checkpoint.config.get("model_type"))
        compared = None if reference is None else reference.context
        if pictures is not None:
            kept = kept_type(kept, config)
        parts = Parts(
            config,
            scanned.column_types,
            kept,
            tokenizer,
            checkpoint.context,
            compared,
            vocabulary,
            family,
            eos,
            checkpoint,
            scanned.census,
            reward_models,
            pictures,
        )
        return cls(scanned, checkpoint, reference, kind(parts), tokenizer.chat_template, reward_models, parts.images)

    def identity(self, config: JobConfig) -> dict[str, Any]:
        """Returns what must not change between two starts of the run, flat: config key or name of a fingerprint -> JSON value."""
        template, reference = self.template, dict[str, str]()
        if self.reference is not None:
            reference = {
                f"{config.reference_key}.{key}": value for key, value in checkpoints.checkpoint_fingerprints(self.reference).items()
            }
        machine: dict[str, Any] = {}
        if config.batch.deterministic:  # bits are promised, and they are this machine's and these libraries'
            machine = {"device": backend.device_name(), "BLAS": backend.product_build(), "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
            machine["kernels"] = native.name()
            if machine["device"] == "cuda":
                machine["joined projections"] = joining_key()
            if machine["device"] == "cpu":  # a BLAS splits a product among its threads, and adds in another order with fewer
                machine["threads"] = backend.threads()
            machine |= self._dequantized(config)
            if self.images is not None:
                machine |= image_libraries()
            if "grammar_complete" in self.job.schema.names:
                machine["llguidance"] = version("llguidance")
        return {
            **machine,
            **identity(config),
            **grammar_identity(config),
            **(self.job.grouping.fingerprints() if self.job.grouping is not None else {}),
            **checkpoints.checkpoint_fingerprints(self.checkpoint),
            **(checkpoints.module_fingerprints(self.checkpoint) if self.job.pooling is not None else {}),
            **(checkpoints.image_processor_fingerprint(self.checkpoint) if self.images is not None else {}),
            **reference,
            **{key: value for each in self.reward_models for key, value in each.fingerprints().items()},
            "prompt.chat_template": None if template is None else f"sha256 {sha256(template.encode()).hexdigest()}",
            **columns_of(self.job.schema),
        }

    def models(self, config: JobConfig) -> list[ModelChoice]:
        """Returns the models to load: the model, then the reference if there is one, then the reward models."""
        choices = [ModelChoice(config.loaded, self.checkpoint, self.job.pooling, self.images)]
        if config.reference is not None and self.reference is not None:
            choices.append(ModelChoice(config.reference, self.reference, images=self.images))
        return choices + [ModelChoice(each.config, each.checkpoint, each.pooling) for each in self.reward_models]

    def _dequantized(self, config: JobConfig) -> dict[str, bool]:
        """Returns how each model's quantized weights are held. That depends on the memory that is there, and changes bits."""
        choices = self.models(config)
        keys = [
            "model",
            *([] if self.reference is None else [config.reference_key]),
            *(f"rewards.{each.label}" for each in self.reward_models),
        ]
        whole = map(dequantizes, choices, memory_shares(choices, memory_for(config.batch)))
        return {f"{key}.dequantized": each for key, each in zip(keys, whole, strict=True) if each is not None}


def with_rows_of_run(config: JobConfig) -> JobConfig:
    """Returns ``config`` with the rows of a complete run as the limit, where it asks for fewer of them; see ``rows_wanted``."""
    limit = rows_wanted(Path(config.output.path), config.data.limit, config.rounds if isinstance(config, RolloutConfig) else 1)
    return config.model_copy(update={"data": config.data.model_copy(update={"limit": limit})})


def refusal_reasons(configs: Sequence[JobConfig], kinds: Mapping[str, Kind], adopt: tuple[str, ...]) -> list[str | None]:
    """Returns for each config why its run could not start over, in their order: None where input, model and tokenizer are there.

    A sweep asks this for all its runs before it marks the first old one for removal. Reads no weights and no rows, and changes
    nothing in a run directory. Inputs that several configs share are scanned once. ``adopt``: as in ``Start``.
    """
    scans: dict[str, Scan] = {}
    return [_why_refused(config, kinds[config.job], adopt, scans) for config in configs]


def _why_refused(config: JobConfig, kind: Kind, adopt: tuple[str, ...], scans: dict[str, Scan]) -> str | None:
    data = config.data.model_dump_json()
    try:
        if data not in scans:
            scans[data] = scan(config.data, Path(config.output.path), afresh=True)
        require_adoptable(adopt, RunSpec.of_scan(scans[data], config, kind).identity(config).keys())
    except BulkError as error:
        return str(error)
    except Exception as error:  # a fault of ours, or of a library: the start would meet it too
        return f"{type(error).__name__}: {error}"
    return None


def _warn(config: JobConfig, scanned: Scan) -> None:
    """Logs what is allowed and may surprise."""
    keep = config.data.keep
    for column in scanned.schema:
        if column.metadata == JSON_METADATA and (keep == "all" or column.name in keep):
            log.warning("column %r holds values of several kinds: the records keep it as JSON text", column.name)
    if config.prompt.too_long == "truncate_right" and config.prompt.sources not in ([], ["text"]):
        log.warning("prompt.too_long: truncate_right cuts the start of the assistant's turn off a chat that is too long")


def _reward_models(config: JobConfig) -> tuple[RewardModel, ...]:
    """Finds the reward models of a rollout job, in the config's order. Raises ModelError where one is none."""
    if not isinstance(config, RolloutConfig):
        return ()
    chats = config.prompt.sources != ["text"]
    return tuple(
        find_reward_model(reward, f"rewards[{number}].model", chats)
        for number, reward in enumerate(config.rewards)
        if reward.model is not None
    )


def _tokenizer_of(checkpoint: Checkpoint, config: JobConfig) -> tokenizers.Tokenizer:
    """Loads the model's tokenizer. Raises ModelError, about config.json where that is to blame: transformers reads it too."""
    prompt = config.prompt
    try:
        return tokenizers.load_tokenizer(checkpoint.folder, prompt.chat_template, prompt.chat_template_args, config.model.trust_remote_code)
    except ModelError as error:
        if shapes := checkpoints.impossible_shapes(checkpoint.config):
            raise ModelError(f"model.path: {checkpoint.folder} cannot be loaded: {shapes}") from error
        raise
