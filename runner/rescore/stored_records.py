"""Reads a run's records for computing their logprobs again: prompt, completion, sampling parameters and stored logprobs.

Reads committed parts alone. Knows no models.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.sampling import FILTERS
from ...configs.schema import GenerateConfig
from ..core.arrays import Floats, Ids
from ..core.images import PromptImage
from ..policies.recorded_policies import policy_names
from ..store.results import read_results

FIGURES = ("logprobs", "tempered_logprobs", "sampled_logprobs")
_EDITS_OFF: dict[str, Any] = {
    "logit_bias": {},
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}


@dataclass(slots=True, frozen=True)
class StoredRecord:
    """One record, identified by row, round and sample: its number when it was drawn. figures: its stored logprobs [N] by name.

    temperature: None where it is not stored. edited: penalties, DRY, a bias or min_tokens may have changed its logits; filtered: one
    of ``FILTERS`` may have left tokens out; kept: the ids that they left a token, where those are stored. guided:
    a grammar held the completion, or the end of its reasoning was forced. images: those that the ids of ``prompt`` stand for.
    """

    row: int
    round: int
    sample: int
    prompt: Ids
    completion: Ids
    figures: dict[str, Floats]
    temperature: float | None
    edited: bool
    filtered: bool
    kept: list[Ids] | None
    guided: bool
    images: tuple[PromptImage, ...] = ()


def stored_records(run: Path, config: GenerateConfig, policy: str | None) -> Iterator[list[StoredRecord]]:
    """Yields the committed records of a run, batch by batch: those of one ``policy`` (``Policy.name``), or all."""
    for batch in read_results(run):
        if policy is not None:
            batch = batch.filter(pa.array(np.array(policy_names(batch)) == policy))  # noqa: PLW2901
        if batch.num_rows:
            yield [stored_record(values, config) for values in batch.to_pylist()]


def stored_record(values: dict[str, Any], config: GenerateConfig) -> StoredRecord:
    """Returns the record whose columns are ``values``."""
    sampling = config.sampling

    def setting(name: str) -> Any:
        """Returns the record's own value, or the config's; None where an input column gave it and the record lacks it."""
        return values[name] if name in values else None if config.rows_bring(name) else getattr(sampling, name)

    return StoredRecord(
        row=values["row"],
        round=values.get("round", 0),
        sample=values.get("group_sample", values["sample"]),
        prompt=np.array(values["prompt_ids"], np.int32),
        completion=np.array(values["completion_ids"], np.int32),
        figures={name: np.array(values[name], np.float32) for name in FIGURES if values.get(name) is not None},
        temperature=setting("temperature"),
        edited=any(config.rows_bring(name) or getattr(sampling, name) != off for name, off in _EDITS_OFF.items()),
        filtered=any(setting(name) is None or float(setting(name)) != off for name, off in FILTERS.items()),
        guided=values.get("grammar_complete") is not None or bool(values.get("reasoning_forced")),
        kept=None if values.get("kept_ids") is None else [np.array(ids, np.int32) for ids in values["kept_ids"]],
    )
