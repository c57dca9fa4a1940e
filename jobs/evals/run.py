"""The run directory of an evaluation: opened when lm-eval asks for the first answers, closed when the results are written.

An answer goes to the journal of its shard as soon as it is there; a later start takes it from there, or from the committed part.
Which request a row asks is bound by run.json: a hash of each task's requests, and the fingerprints of model and tokenizer.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...configs.eval import EvalConfig
from ...configs.identity import free, identity
from ...runner.core.errors import RunDirError
from ...runner.core.host_process import HostProcess
from ...runner.core.outcomes import Failure, Outcome
from ...runner.core.shard_layout import Layout
from ...runner.engine.interface import Progress
from ...runner.files.checked_lines import read_lines
from ...runner.files.disk_space import require_room, room_on
from ...runner.models.checkpoint import checkpoint_fingerprints
from ...runner.pipeline.progress_display import Watch
from ...runner.runs.drift import columns_of
from ...runner.runs.run_dir import RunDir, Start
from ...runner.runs.run_files import is_sweep, unchecked_run
from ...runner.runs.throughput import Counts
from ...runner.store.writer import Writer
from .answer_records import SCHEMA, Answer, answer_failure, answer_record, kept_answers, require_same_places
from .request_list import RequestList

if TYPE_CHECKING:
    from ..harness.model import EvalModel  # which imports lm-eval

log = logging.getLogger("mlx_bulk")

_SAVE_SECONDS = 1.0


class EvalRun:
    """One start of an evaluation, as a context manager around it; the ``Answers`` of its model.

    tasks: returns lm-eval's tasks, once their requests are built. It is called with the first requests.
    """

    def __init__(self, config: EvalConfig, start: Start, host: HostProcess, tasks: Callable[[], Mapping[str, Any]]):
        self.config, self._start, self._host, self._tasks = config, start, host, tasks
        self.folder = Path(config.output.path)
        self.rows = self.known = 0  # requests of all tasks; those that had an answer at the start
        self.writer: Writer | None = None
        self._model: EvalModel | None = None
        self._progress = Progress()
        self._run_dir: RunDir | None = None
        self._requests: RequestList | None = None
        self._answers: dict[int, Answer] = {}
        self._call: list[int] = []
        self._noted = False
        self._open = ExitStack()

    def serve(self, model: "EvalModel", progress: Progress) -> None:
        """Is told the model whose answers it keeps, and the counts of its work. Call it before lm-eval asks for answers."""
        self._model, self._progress = model, progress

    # ------------------------------------------------------------------------------------------------------ as Answers

    def begin(self, requests: Sequence[Any]) -> Mapping[int, Answer]:
        """Is given the requests of one call; opens the run directory with the first. Raises RunDirError, DriftError, OutOfRoom."""
        if self._requests is None:
            self._requests = RequestList(self._tasks())
            self._open_folder(self._requests)
        self._call = self._requests.positions(requests)
        return {place: self._answers[row] for place, row in enumerate(self._call) if row in self._answers}

    def loaded(self, info: Mapping[str, Any]) -> None:
        """Notes the start, with the facts about the model, and begins to write metrics."""
        run_dir, writer = self._opened
        run_dir.session({"model_info": dict(info), "settings": free(self.config), "words": self._start.words})
        self._noted = True

        def counts() -> Counts:
            return Counts(writer.rows, self.rows, writer.errors)

        self._open.enter_context(Watch(self._progress, counts, run_dir.add_metrics, "nothing"))
        self._open.callback(writer.wait)  # the last line of metrics counts every row

    def add(self, place: int, outcome: Outcome, answer: Any) -> None:
        """Writes an answer, or the failure that took its place."""
        assert self._requests is not None, "a call has begun"
        row, (_, writer) = self._call[place], self._opened
        request = self._requests.at(row)
        if isinstance(outcome, Failure):
            writer.fail(answer_failure(row, request, outcome))
        else:
            writer.add(row, 0, answer_record(request, outcome, answer))

    def stopped(self) -> bool:
        """Returns True when a signal asked for the end."""
        return self._host.stopped()

    def model_info(self) -> dict[str, Any] | None:
        """Returns the facts about the model that the last session with one noted."""
        if self._run_dir is None:
            return None
        noted = [line["model_info"] for line in read_lines(self._run_dir.sessions) if "model_info" in line]
        return noted[-1] if noted else None

    # ------------------------------------------------------------------------------------------------- the run directory

    def finish(self, write: Callable[[RunDir], None]) -> None:
        """Makes all answers durable, calls ``write`` for the results, and declares the run complete."""
        run_dir, writer = self._opened
        writer.close()
        write(run_dir)
        writer.finish()

    def __enter__(self) -> "EvalRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.__exit__(kind, error, trace)

    def _note_end(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        run_dir, writer = self._opened
        if self._noted:
            how = "complete" if kind is None else "stopped" if kind is KeyboardInterrupt else kind.__name__
            with suppress(OSError) if error is not None else nullcontext():  # the error itself matters more than the note of it
                run_dir.session_ended({"how": how, "message": str(error or ""), "rows": writer.rows, "errors": writer.errors})

    @property
    def failed(self) -> int:
        """Requests that have no answer: the model's logits are not numbers, or memory does not hold them."""
        return 0 if self.writer is None else self.writer.errors

    @property
    def _opened(self) -> tuple[RunDir, Writer]:
        assert self._run_dir is not None, "a call has begun"
        assert self.writer is not None, "a call has begun"
        return self._run_dir, self.writer

    def _open_folder(self, requests: RequestList) -> None:
        require_eval_folder(self.folder)
        assert self._model is not None, "serve comes first"
        self.rows = requests.rows
        description = {
            "config": self.config.model_dump(mode="json"),
            "cwd": str(Path.cwd()),
            "identity": eval_identity(self.config, self._model),
            "inputs": requests.inputs,
        }
        layout = Layout.of(description)
        run_dir = self._run_dir = self._open.enter_context(RunDir.open(self.folder, lambda folder: True))
        self._open.enter_context(room_on(run_dir.root))
        if self._start.overwrite or run_dir.doomed.exists():
            run_dir.replace(description, self._start.adopt)
        elif self._start.adopt:  # what is adopted may change what a request asks, not which one it is
            run_dir.bind(description, self._start.adopt, lambda: require_same_places(run_dir.root, requests))
        else:
            run_dir.bind(description)
        recovered = run_dir.recover(layout, SCHEMA, self._start.retry_errors)
        self._answers = kept_answers(run_dir.root, [request.kind for request in requests])
        self.known = len(self._answers)
        if self.known < self.rows:
            require_room(run_dir.results)
        if self.known:
            log.info("%s: %d of %d requests have their answers already", run_dir.root, self.known, self.rows)
        self.writer = Writer(run_dir, run_dir.identity, SCHEMA, layout, recovered, self.config.output.fsync_seconds)
        self._open.push(self._note_end)
        self._open.callback(self.writer.close)
        for shard in set(range(layout.shards)) - recovered.committed:
            for row in layout.rows_of(shard):
                self.writer.admit(row, 1)
        self._open.enter_context(self._host.saving(self._save))

    def _save(self) -> bool:
        """Saves what is finished. Called in a thread of its own when the process must end in the middle of a step."""
        run_dir, writer = self._opened
        saved = Event()
        writer.flush(saved.set)
        done = saved.wait(_SAVE_SECONDS)
        if self._noted:
            run_dir.session_ended({"how": "stopped", "rows": writer.rows, "errors": writer.errors})
        return done


def eval_identity(config: EvalConfig, model: "EvalModel") -> dict[str, Any]:
    """Returns what must not change between two starts of an evaluation, beside its requests, as run.json has it."""
    prints = checkpoint_fingerprints(model.checkpoint)
    if model.config.tokenizer is not None:
        prints["model.tokenizer"] = model.tokenizer_fingerprint
    return {**identity(config), **prints, **columns_of(SCHEMA)}


def require_eval_folder(folder: Path) -> None:
    """Raises RunDirError where ``folder`` holds a run of another kind, or a sweep."""
    run = unchecked_run(folder)
    known = (folder / ".lock").exists() and run is None  # a damaged run.json: it is rebuilt, or its own message says more
    if is_sweep(folder) or ((folder / "run.json").exists() and not known and (run is None or run["config"]["job"] != "eval")):
        raise RunDirError(f"output.path: {folder} holds a run of mlx-bulk run; choose another folder for the results of an evaluation")
