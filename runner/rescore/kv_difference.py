"""Measures what quantized keys and values change: a sample of a run's completions is scored again in full precision.

The sample follows from the records alone, so a run gives the same one however often it was continued. What comes of it lies in a file
beside the statistics, and in their first row. A measurement that fails costs a line in the log and no finished work.
"""

import heapq
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig, JobConfig
from ..core.errors import first_line
from ..engine.setup import Setup
from ..files.checked_json import json_number, read_document, write_document
from ..policies.policy_store import PolicyStore, put_policy_on
from ..policies.recorded_policies import policy_names
from ..store.paths import RunPaths
from ..store.results import read_results
from .logprob_gap import LogprobGap
from .second_scores import rescored, without_pictures
from .stored_records import StoredRecord, stored_record

log = logging.getLogger("mlx_bulk")

COMPLETIONS = 32
SHARE, LEAST_TOKENS = 0.03, 1 << 14  # of the run's tokens, prompts with them; a sample may always have so many
_UNREAD = "it was never measured, or its file is damaged"
_WITHOUT_MODEL = "only workers had the model"
_UNMEASURED = "the process ended while it was measured"


@dataclass(slots=True, frozen=True)
class KVDifference:
    """d = logprob in full precision - stored logprob, over the ``tokens`` of some ``completions``, in nats.

    mean: of d; abs_mean, largest: of |d|; std: of d. greedy_tokens: those whose most likely token in quantized caches is known;
    greedy_changed: for how many of them the model in full precision has another. reason: why nothing was measured, else None.
    """

    bits: int
    completions: int = 0
    tokens: int = 0
    mean: float | None = None
    abs_mean: float | None = None
    largest: float | None = None
    std: float | None = None
    greedy_tokens: int = 0
    greedy_changed: int | None = None
    reason: str | None = None


_TYPES = {
    **dict.fromkeys(("bits", "completions", "tokens", "greedy_tokens", "greedy_changed"), pa.int64()),
    **dict.fromkeys(("mean", "abs_mean", "largest", "std"), pa.float64()),
    "reason": pa.string(),
}


def measure_kv_difference(paths: RunPaths, config: JobConfig, setup: Setup, stopped: Callable[[], bool]) -> None:
    """Measures the difference for a run whose rows are all done, and writes it. Does nothing for a run that quantizes nothing.

    setup: of the run's model. Ends early when ``stopped``, and does nothing where the run was stopped before.
    Raises OSError where nothing can be written; any other failure is noted.
    """
    bits = config.batch.kv_bits
    if bits is None or not isinstance(config, GenerateConfig) or stopped():
        return
    write_document(paths.kv_difference, asdict(KVDifference(bits, reason=_UNMEASURED)))
    log.info("keys and values were kept in %d bits: some completions are scored again in full precision, to say what that changed", bits)
    limits = replace(setup.limits, kv_bytes=bits / 32 * setup.limits.kv_bytes)  # they count quantized tokens, and a scorer's are not
    try:
        found = _measured(paths.root, config, replace(setup, kv=None, static=False, limits=limits), bits, stopped)
    except Exception as error:  # the run itself is done
        found = KVDifference(bits, reason=first_line(error))
        log.warning("what %d bits change could not be measured: %s", bits, found.reason)
    write_document(paths.kv_difference, asdict(found))


def with_kv_difference(statistics: pa.Table, paths: RunPaths, config: JobConfig) -> pa.Table:
    """Returns the statistics with the measured difference in their first row, as columns ``kv_…``; as they are without one."""
    if config.batch.kv_bits is None or not statistics.num_rows:
        return statistics
    try:
        values = read_document(paths.kv_difference)
    except (OSError, ValueError):
        values = asdict(KVDifference(config.batch.kv_bits, reason=_UNREAD if config.cluster is None else _WITHOUT_MODEL))
    for name, kind in _TYPES.items():
        column = pa.array([values.get(name), *[None] * (statistics.num_rows - 1)], kind)
        statistics = statistics.append_column(f"kv_{name}", column)
    return statistics


def _measured(run: Path, config: GenerateConfig, setup: Setup, bits: int, stopped: Callable[[], bool]) -> KVDifference:
    if not config.logprobs.tokens:
        return KVDifference(bits, reason="logprobs.tokens is false, so the records hold no logprobs to compare")
    chosen = _chosen(run)
    gap, completions, known, changed = LogprobGap(), 0, 0, 0
    placeholder = None if setup.images is None else setup.images.placeholder
    for under, records in _by_policy(run, config, setup, chosen):
        for second in rescored(under, without_pictures(records, placeholder), None, stopped):
            stored = second.record.figures["logprobs"]
            gap.add(stored, second.logprobs)
            completions += 1
            if _draws_greedily(second.record):
                known += len(stored)
                changed += int((~second.greedy).sum())
    if stopped():
        return KVDifference(bits, reason="the run was stopped before it was measured")
    if not gap.tokens:
        why = "the run has no completions" if placeholder is None else "the run has no completions of prompts without pictures"
        return KVDifference(bits, reason=why)
    return KVDifference(
        bits,
        completions,
        gap.tokens,
        json_number(gap.sum / gap.tokens),
        json_number(gap.mean),
        json_number(gap.largest),
        json_number(gap.std),
        known,
        changed if known else None,
    )


def _draws_greedily(record: StoredRecord) -> bool:
    """Returns whether the record's tokens are those that the model with quantized caches found most likely."""
    return record.temperature == 0 and not (record.edited or record.filtered or record.guided)


def _chosen(run: Path) -> list[int]:
    """Returns the places of the sample's records among all records: the lowest hashes of their rows' keys, as far as tokens allow."""
    tokens = 0

    def hashes() -> Iterator[tuple[bytes, int, int]]:
        nonlocal tokens
        at = 0
        for batch in read_results(run):
            lengths = batch.column("prompt_tokens").to_numpy() + batch.column("completion_tokens").to_numpy()
            tokens += int(lengths.sum())
            rounds = batch.column("round").to_pylist() if "round" in batch.schema.names else [0] * batch.num_rows
            for key, round_number, sample, length in zip(
                batch.column("key").to_pylist(), rounds, batch.column("sample").to_pylist(), lengths.tolist(), strict=True
            ):
                name = json.dumps([key, round_number, sample]).encode()
                yield blake2b(name, digest_size=8).digest(), at, length
                at += 1

    lowest = heapq.nsmallest(COMPLETIONS, hashes())
    room, places = max(LEAST_TOKENS, SHARE * tokens), list[int]()
    for _, at, length in lowest:
        if places and length > room:
            break
        room -= length
        places.append(at)
    return sorted(places)


def _by_policy(run: Path, config: GenerateConfig, setup: Setup, places: list[int]) -> Iterator[tuple[Setup, list[StoredRecord]]]:
    """Yields the records at these places by the policy that sampled them, with a setup in which that policy is on the network."""
    found: dict[str | None, list[StoredRecord]] = {}
    begin = 0
    for batch in read_results(run):
        mine = batch.take(pa.array([at - begin for at in places if begin <= at < begin + batch.num_rows], pa.int64()))
        begin += batch.num_rows
        names = policy_names(mine) if isinstance(config, RolloutConfig) else [None] * mine.num_rows
        for values, name in zip(mine.to_pylist(), names, strict=True):
            found.setdefault(name, []).append(stored_record(values, config))
    for name, records in found.items():
        if name is not None and setup.adapters is not None:
            store = PolicyStore(RunPaths(run).policies, setup.adapters.weights())
            put_policy_on(setup.adapters, store.policy(name))
        yield setup.split_anew(), records
