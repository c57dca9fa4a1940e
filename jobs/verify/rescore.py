"""``mlx-bulk verify --rescore RUN``: scores the stored tokens again in one pass each, under each record's own policy.

The weights and tokens are the same, the shapes are not: in float32 no logprob may differ by more than the promised bounds.
"""

from pathlib import Path

from tqdm import tqdm

from ...configs.sampling import FILTER_NAMES
from ...runner.core.logprob_options import LogprobOptions
from ...runner.engine.setup import Setup
from ...runner.images.row_pictures import has_vision_tower
from ...runner.pipeline.stored_model import run_model
from ...runner.rescore.second_scores import rescored
from ...runner.rescore.stored_records import StoredRecord, stored_records
from ...runner.scoring.kept_logprobs import kept_logprobs
from ..kinds import KINDS
from .logprob_diff import LogprobComparison


def rescore_run(run: Path) -> LogprobComparison:
    """Compares the stored logprobs of the run directory ``run`` with those that its policies give now.

    Raises RunDirError for a run without completions, ModelError where a policy or the model is missing or changed.
    """
    with run_model(run) as model:
        batch = model.config.batch.model_copy(update={"deterministic": False, "kv_bits": None})
        stored = model.input(KINDS[model.config.job]) if has_vision_tower(model.checkpoint.config) else None
        images = None if stored is None else stored.spec.images
        loaded = model.load(batch, LogprobOptions(echo=True), images)
        comparison = LogprobComparison("rescored", loaded.float32, kv_bits=model.config.batch.kv_bits)
        for name, label, setup in model.policies(loaded):
            for records in tqdm(stored_records(model.run, model.config, name), unit=" batches", disable=None, leave=False):
                if stored is not None and images is not None:
                    records = stored.with_pictures(records, comparison.lost.add)  # noqa: PLW2901
                _compare(setup, records, label, comparison)
        return comparison


def _compare(setup: Setup, records: list[StoredRecord], policy: str, comparison: LogprobComparison) -> None:
    comparison.records += len(records)
    for temperature in sorted({record.temperature for record in records}, key=lambda value: -1.0 if value is None else value):
        alike = [record for record in records if record.temperature == temperature]
        for second in rescored(setup, alike, temperature):
            record, logprobs, tempered = second.record, second.logprobs, second.tempered
            for figure, stored in record.figures.items():
                if figure == "logprobs":
                    comparison.add(policy, figure, stored, logprobs)
                elif (reason := _hidden(record, figure)) is not None:
                    comparison.leave_out(reason)
                elif figure == "sampled_logprobs" and record.filtered:
                    assert record.kept is not None
                    assert record.temperature
                    kept = kept_logprobs(setup, record.prompt, record.completion, record.kept, record.temperature)
                    comparison.add(policy, figure, stored, kept)
                else:
                    comparison.add(policy, figure, stored, tempered)


def _hidden(record: StoredRecord, figure: str) -> str | None:
    """Returns why a figure cannot be computed from the record, or None."""
    if record.temperature is None:
        return f"{figure}: the record does not say its temperature"
    if figure == "tempered_logprobs":
        return None
    if record.temperature == 0:
        return f"{figure}: greedy, so all are 0"
    if record.edited:
        return f"{figure}: penalties, DRY, a bias or min_tokens; --replay works them out"
    if record.guided and not (record.filtered and record.kept is not None):  # the kept ids are those that the grammar allowed too
        return f"{figure}: under a grammar, or with reasoning whose end was forced; --replay works them out"
    if record.filtered and record.kept is None:
        return f"{figure}: filters ({FILTER_NAMES}) without logprobs.kept; --replay works them out"
    return None
