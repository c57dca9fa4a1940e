"""A run from end to end: the only file that joins files and engine.

config -> reader -> prompts -> tokenizer -> planner -> engine -> writer -> statistics. Rows are read and tokenized, and records
written, beside the model's work (preparing.py, writer.py); this thread alone touches the model.
"""

import json
import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa

from ..configs.errors import ConfigError
from ..configs.schema import BatchConfig, RunConfig, identity
from ..kernels import backend
from . import model as models
from . import tokenizer as tokenizers
from .durable import replacing
from .engine import Engine, Progress
from .errors import ModelError, OutOfRoom
from .inputs import Scan
from .job import Job
from .manifest import RunDir
from .memory import is_out_of_memory, kv_bytes, peak_bytes
from .model import Checkpoint, Model
from .planner import Backlog, Limits, reach
from .prefill import Setup
from .preparing import Desk
from .probes import Found, probe, slots_independent
from .prompts import Rendered, compile_prompt
from .reader import read
from .records import Request
from .recovery import Recovered
from .scan import FILE_NAME, scan
from .tokenizer import Tokenizer
from .watch import Counts, Watch
from .writer import Writer

log = logging.getLogger("mlx_bulk")

ROWS = {"cpu": 32, "metal": 64, "cuda": 256}  # decoding at once, when batch.rows is auto
TOKENS = {"cpu": 2048, "metal": 4096, "cuda": 16384}  # in one prefill, when batch.tokens is auto
LOGIT_BYTES = {"cpu": 32 << 20, "metal": 256 << 20, "cuda": 512 << 20}  # of one chunk's float32 logits, when the prompt is echoed


@dataclass(slots=True, frozen=True)
class Parts:
    """What a job kind is made from, once the input and the checkpoint are known."""

    config: RunConfig
    columns: list[str]
    kept: pa.StructType | None
    render: Callable[[dict[str, Any]], Rendered]
    tokenizer: Tokenizer
    context: int | None
    vocabulary: int


@dataclass(slots=True, frozen=True)
class Summary:
    """How a run ended. Counts of rows, records and errors are the run's; tokens, seconds and waste this session's."""

    output: Path
    rows: int
    of: int
    records: int
    errors: int
    prompt_tokens: int
    generated_tokens: int
    seconds: float
    padding_waste: float
    peak_memory_bytes: int
    complete: bool


def run(config: RunConfig, make: Callable[[Parts], Job], overwrite: bool, stopped: Callable[[], bool], quiet: bool) -> Summary:
    """Runs the job, or what is left of it. ``stopped`` is asked between steps whether to end early.

    Raises a BulkError for what stops the job; what was finished until then is safe.
    """
    _early_checks(config)
    with RunDir.open(Path(config.output.path), overwrite) as run_dir:
        session = _Session(config, run_dir, quiet)
        try:
            summary = session.run(make, stopped)
        except BaseException as error:
            if session.started:
                run_dir.session_ended({"how": type(error).__name__, "message": str(error)})
            raise
        run_dir.session_ended({"how": "complete" if summary.complete else "stopped", "rows": summary.rows, "errors": summary.errors})
        return summary


def _early_checks(config: RunConfig) -> None:
    """What is wrong with the templates, said before any file is opened."""
    compile_prompt(config.prompt, [])


class _Session:
    """One start of a run: everything between the open directory and the summary."""

    def __init__(self, config: RunConfig, run_dir: RunDir, quiet: bool):
        self.config, self.run_dir, self.quiet = config, run_dir, quiet
        self.started = False
        self.begin = monotonic()

    def run(self, make: Callable[[Parts], Job], stopped: Callable[[], bool]) -> Summary:
        config, run_dir = self.config, self.run_dir
        found = scan(config.data, run_dir.root)
        render = compile_prompt(config.prompt, found.columns)
        kept = found.input_type(config.data.keep)
        checkpoint = models.find(config.model)
        tokenizer = tokenizers.load(
            checkpoint.folder, config.prompt.chat_template, config.prompt.chat_template_args, config.model.trust_remote_code
        )
        if config.prompt.text is None and not tokenizer.has_chat_template:
            raise ConfigError(
                f"prompt: the tokenizer in {checkpoint.folder} has no chat template; "
                "set prompt.chat_template, or use prompt.text for a base model"
            )
        job = make(Parts(config, found.columns, kept, render, tokenizer, checkpoint.context, _vocabulary(checkpoint, tokenizer)))
        run_dir.bind(
            {
                "config": config.model_dump(mode="json"),
                "identity": self._identity(checkpoint, tokenizer, job),
                "inputs": found.fingerprint(),
            }
        )
        found.save(run_dir.root / FILE_NAME)
        recovered = run_dir.recover(found.rows, config.batch.rows_per_shard, job.schema)
        writer = Writer(run_dir, job.schema, found.rows, config.batch.rows_per_shard, recovered, config.output.fsync_seconds)
        progress, complete = Progress(), True
        if found.rows == 0:
            log.warning("%s: the input has no rows; there is nothing to do", config.data.path)
        elif len(recovered.committed) * config.batch.rows_per_shard < found.rows:
            progress, complete = self._generate(found, checkpoint, tokenizer, job, writer, recovered, stopped)
        if complete:
            writer.finish()
            self._write_statistics(job)
        else:
            writer.close()
        return self._summary(found, writer, progress, complete)

    def _identity(self, checkpoint: Checkpoint, tokenizer: Tokenizer, job: Job) -> dict[str, Any]:
        template = tokenizer.chat_template
        machine: dict[str, Any] = {}
        if self.config.batch.deterministic:  # bits are promised, and they are this machine's and these libraries'
            machine = {"device": backend.device_name(), "BLAS": str(backend.prepare()), "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
        return {
            **machine,
            **identity(self.config),
            **models.fingerprints(checkpoint),
            "prompt.chat_template": None if template is None else f"sha256 {sha256(template.encode()).hexdigest()}",
            "record schema": sha256(job.schema.serialize()).hexdigest(),
        }

    def _generate(
        self,
        found: Scan,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer,
        job: Job,
        writer: Writer,
        recovered: Recovered,
        stopped: Callable[[], bool],
    ) -> tuple[Progress, bool]:
        """Runs the model over what is left; the engine's counts, and whether everything is done."""
        config, per_shard = self.config, self.config.batch.rows_per_shard
        log.info("%d rows from %s; BLAS: %s", found.rows, config.data.path, backend.prepare())
        setup = self._load(checkpoint, job)
        rows = read(found, config.data, lambda position: position // per_shard in recovered.committed)
        engine = Engine(setup, tokenizer.eos | checkpoint.eos, tokenizer.stopper)
        desk = Desk(
            job,
            rows,
            writer,
            recovered,
            per_shard,
            lambda request: _too_large(request, setup.limits),
            fail_fast=config.on_error == "fail",
            whole_shards=setup.static,
        )

        def counts() -> Counts:
            return Counts(writer.rows, found.rows, writer.errors)

        try:
            with Watch(engine.progress, counts, self.run_dir.add_metrics, config.batch.stall_seconds, self.quiet):
                try:
                    for outcome in engine.run(Backlog(desk.next_window), lambda: stopped() or desk.failed):
                        desk.put(outcome)
                finally:
                    desk.close()
        except BaseException as error:
            writer.close()
            if is_out_of_memory(error):
                cure = "lower batch.memory, batch.rows or batch.tokens and run the same command again"
                raise OutOfRoom(f"out of device memory ({error}); what was finished is safe: {cure}") from error
            raise
        return engine.progress, not stopped()

    def _load(self, checkpoint: Checkpoint, job: Job) -> Setup:
        """Loads the model, finds out how it runs in a batch, and notes both as this session's start."""
        model = models.load(self.config.model, checkpoint, int(self.config.batch.memory * backend.memory_bytes()))
        way = probe(model.network, model.vocabulary, model.dtype.split("/")[0])
        setup = self._setup(model, way, job)
        self.run_dir.session(_about(self.config, model, way, setup))
        self.started = True
        log.info("%s: %s on %s, %s", checkpoint.folder.name, model.dtype, backend.device_name(), _said(way, setup))
        return setup

    def _setup(self, model: Model, way: Found, job: Job) -> Setup:
        config, device = self.config.batch, backend.device_name()
        rows = ROWS[device] if config.rows == "auto" else config.rows
        tokens = TOKENS[device] if config.tokens == "auto" else config.tokens
        workspace = 2 * LOGIT_BYTES[device]
        room = kv_bytes(config.memory, model.weight_bytes, workspace)
        limits = Limits(1 if way.way == "alone" else rows, tokens, room, way.token_bytes, way.row_bytes, even=way.way != "padded")
        if config.deterministic and not slots_independent(model.network, model.vocabulary, limits.rows):
            raise ModelError("batch.deterministic: with this model and device a row's bits depend on its batch mates; set it to false")
        padded = way.way == "padded"
        return Setup(model.network, model.vocabulary, limits, job.wanted, padded, config.deterministic, LOGIT_BYTES[device])

    def _write_statistics(self, job: Job) -> None:
        table = job.statistics(self.run_dir.root)
        with replacing(self.run_dir.stats) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def _summary(self, found: Scan, writer: Writer, p: Progress, complete: bool) -> Summary:
        summary = Summary(
            output=self.run_dir.root,
            rows=writer.rows,
            of=found.rows,
            records=writer.records,
            errors=writer.errors,
            prompt_tokens=p.prompt,
            generated_tokens=p.generated,
            seconds=round(monotonic() - self.begin, 3),
            padding_waste=round(1 - p.prompt / p.padded, 4) if p.padded else 0.0,
            peak_memory_bytes=peak_bytes(),
            complete=complete,
        )
        values = {name: getattr(summary, name) for name in summary.__slots__}
        self.run_dir.write_summary(json.loads(json.dumps(values, default=str)))
        return summary


def _vocabulary(checkpoint: Checkpoint, tokenizer: Tokenizer) -> int:
    """Width of the logits as config.json says, or the tokenizer's size."""
    text = checkpoint.config | (checkpoint.config.get("text_config") or {})
    return int(text.get("vocab_size") or tokenizer.size)


def _too_large(request: Request, limits: Limits) -> str | None:
    """Why a request cannot run even alone, or None."""
    need = limits.kv(1, reach(request))
    if need <= limits.kv_bytes:
        return None
    return (
        f"{len(request.prompt.ids)} prompt tokens and up to {request.work.sampling.max_tokens} more need {need / 1e9:.2f} GB of KV cache, "
        f"{limits.kv_bytes / 1e9:.2f} GB are there; shorten the prompt, lower sampling.max_tokens, or raise batch.memory"
    )


def _said(way: Found, setup: Setup) -> str:
    """One phrase on how rows share a batch."""
    if way.way == "padded":
        return f"batches of up to {setup.limits.rows} rows"
    how = "batches of rows of one length" if way.way == "exact" else "one row at a time"
    return f"{how}, slower but right ({way.reason})"


def _about(config: RunConfig, model: Model, way: Found, setup: Setup) -> dict[str, Any]:
    """A session's line: what the results may depend on beyond the run's identity."""
    free: BatchConfig = config.batch
    return {
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "transformers", "pyarrow", "numpy")},
        "host": platform.node(),
        "platform": platform.platform(),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "model": str(model.checkpoint.folder),
        "dtype": model.dtype,
        "batch": {**free.model_dump(mode="json"), "rows": setup.limits.rows, "tokens": setup.limits.tokens},
        "probe": {"way": way.way, "difference": way.difference, "reason": way.reason},
    }
