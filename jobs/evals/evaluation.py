"""``mlx-bulk eval``: runs tasks of lm-evaluation-harness on one model by a config, in a run directory, and writes the results there.

Tasks, prompts and metrics are lm-eval's, the model is jobs/harness's, and run.py keeps the answers. results.json is written after the
samples; once it exists, they do.
"""

import json
import logging
import subprocess
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...configs.errors import BulkError, ConfigError
from ...configs.eval import EvalConfig
from ...configs.fields import nearest
from ...runner.core.errors import DataError, OutOfRoom, is_out_of_memory
from ...runner.core.host_process import HostProcess
from ...runner.files.atomic import replacing
from ...runner.files.file_stamp import sha256
from ...runner.runs.run_dir import RunDir, Start
from .figures import figures_table
from .request_audit import RESULT_FILES
from .request_list import RequestList
from .run import EvalRun, require_eval_folder

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class Evaluation:
    """The result of an evaluation: lm-eval's line of settings with its tables, and the path of results.json.

    requests: of all tasks. known: those that an earlier start had answered. failed: those that have no answer.
    """

    tables: str
    results: Path
    requests: int
    known: int
    failed: int


def run_evaluation(config: EvalConfig, start: Start, host: HostProcess) -> Evaluation:
    """Runs the tasks, or what is left of them, and writes results.json, and the samples if the config asks for them.

    Raises ConfigError where lm-eval or a task is missing, RunDirError where the folder is another run's, DriftError where the run was
    started with something else, KeyboardInterrupt where ``host`` stopped it, and the model's errors.
    """
    harness = _harness(config)
    with EvalRun(config, start, host, lambda: harness.tasks.tasks) as run:
        lm = harness.model(answers=run, **harness.arguments)
        run.serve(lm.eval_model, lm.progress)
        results = _evaluate(harness, config, lm)
        results["config"]["model"] = "mlx-bulk"
        tables = [harness.table(results)] + ([harness.table(results, "groups")] if results.get("groups") else [])
        run.finish(lambda run_dir: _write(run_dir, results, config.log_samples))
        text = "\n".join([_header(config, harness.arguments), *tables])
        return Evaluation(text, run.folder / "results.json", run.rows, run.known, run.failed)


def build_requests(config: EvalConfig) -> tuple[RequestList, Any]:
    """Loads the tasks and builds all their requests. Returns these, and the ``BulkLM`` that they are for, without weights.

    Raises as ``run_evaluation`` does before its first request.
    """
    harness = _harness(config)
    lm = harness.model(answers=_UntilBuilt(), **harness.arguments)
    with suppress(_AllBuiltError):
        _evaluate(harness, config, lm)
    return RequestList(harness.tasks.tasks), lm


class _AllBuiltError(BaseException):
    """Ends lm-eval's evaluation at its first request. lm-eval's tasks may catch an Exception."""


class _UntilBuilt:
    """The ``Answers`` of a model that is asked for none."""

    def begin(self, requests: Sequence[Any]) -> Mapping[int, Any]:
        """Raises ``_AllBuiltError``."""
        raise _AllBuiltError


@dataclass(slots=True, frozen=True)
class _Harness:
    """lm-eval, ready for a config: ``simple_evaluate``, ``make_table``, our model for it, its arguments, the tasks and their names."""

    evaluate: Any
    table: Any
    model: Any
    arguments: dict[str, Any]
    tasks: "_LoadedTasks"
    names: list[str]


def _harness(config: EvalConfig) -> _Harness:
    """Checks what needs no model, and finds the tasks. Raises ConfigError, RunDirError."""
    _require_folders(config)
    try:
        import lm_eval  # pyright: ignore[reportMissingImports]
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
        from lm_eval.utils import make_table  # pyright: ignore[reportMissingImports]

        from ..harness import BulkLM
        from ..harness.requests import check_settings
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; mlx-bulk eval needs lm-evaluation-harness: pip install 'mlx-bulk[eval]'"
        ) from None
    check_settings(config.gen_kwargs)
    arguments = model_args(config)
    manager = TaskManager(include_path=[str(Path(path).expanduser()) for path in config.include_path], metadata=arguments)
    names = match_tasks(config.tasks, manager)
    return _Harness(lm_eval.simple_evaluate, make_table, BulkLM, arguments, _LoadedTasks(manager), names)


class _LoadedTasks:
    """lm-eval's task manager, which keeps the tasks that it loaded last, by name."""

    def __init__(self, manager: "TaskManager"):
        self._manager = manager
        self.tasks: dict[str, Any] = {}

    def load(self, names: Any) -> Any:
        """Loads tasks and groups as lm-eval's manager does."""
        loaded = self._manager.load(names)
        self.tasks = loaded["tasks"]
        return loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def _require_folders(config: EvalConfig) -> None:
    """Raises RunDirError where the output folder holds another run, ConfigError where a folder of include_path is missing."""
    require_eval_folder(Path(config.output.path))
    included = [Path(path).expanduser() for path in config.include_path]
    if missing := [path for path in included if not path.is_dir()]:
        kind = "a file" if missing[0].exists() else "no folder"
        raise ConfigError(f"include_path: found {kind} {missing[0]}; expected a folder with task files")


def _evaluate(harness: _Harness, config: EvalConfig, lm: Any) -> dict[str, Any]:
    """Runs the tasks with lm-eval's ``simple_evaluate``, whose decorator hides its parameters; returns lm-eval's results.

    Raises OutOfRoom, the model's errors, and DataError for all others.
    """
    seeds = config.seeds
    try:
        with _quiet_git():
            return harness.evaluate(
                model=lm,
                model_args=harness.arguments,
                tasks=harness.names,
                task_manager=harness.tasks,
                num_fewshot=config.num_fewshot,
                limit=config.limit,
                apply_chat_template=config.apply_chat_template,
                fewshot_as_multiturn=config.fewshot_as_multiturn,
                system_instruction=config.system_instruction,
                gen_kwargs=config.gen_kwargs or None,
                log_samples=config.log_samples,
                random_seed=seeds.random,
                numpy_random_seed=seeds.numpy,
                fewshot_random_seed=seeds.fewshot,
            )
    except BulkError:
        raise
    except Exception as error:  # tasks run code of their own, and load data from anywhere
        if is_out_of_memory(error):
            raise OutOfRoom(f"out of device memory ({error}); lower batch.memory, batch.rows or batch.tokens") from error
        reason = (str(error).strip().splitlines() or [""])[0]
        raise DataError(f"lm-eval: {type(error).__name__}: {reason} (--log-level debug shows where)") from error


def model_args(config: EvalConfig) -> dict[str, Any]:
    """Returns the config's model, batch and seed as arguments of the model ``mlx-bulk``, without those at their defaults."""
    model = config.model.model_dump(mode="json", exclude_defaults=True)
    batch = config.batch.model_dump(mode="json", exclude_defaults=True)
    named = {"rows": "batch_size", "tokens": "batch_tokens", "memory": "memory"}  # rows_per_shard is the run's, not the model's
    seed = {"seed": config.seeds.sampling} if config.seeds.sampling else {}
    return {"pretrained": model.pop("path"), **model, **{named[key]: value for key, value in batch.items() if key in named}, **seed}


def _header(config: EvalConfig, arguments: dict[str, Any]) -> str:
    """Returns the line that lm-eval's own command prints above its tables."""
    return (
        f"mlx-bulk ({arguments}), gen_kwargs: ({config.gen_kwargs}), limit: {config.limit}, "
        f"num_fewshot: {config.num_fewshot}, batch_size: {config.batch.rows}"
    )


@contextmanager
def _quiet_git() -> Generator[None]:
    """Silences git's complaint when lm-eval asks for the commit of a working directory that is no repository."""
    from lm_eval import evaluator  # pyright: ignore[reportMissingImports]

    def commit() -> str | None:
        try:
            described = subprocess.run(["git", "describe", "--always"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        except (subprocess.CalledProcessError, OSError):
            return None
        return described.stdout.decode().strip()

    own = evaluator.get_git_commit_hash
    evaluator.get_git_commit_hash = commit
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = own


def match_tasks(names: Iterable[str], manager: "TaskManager") -> list[str]:
    """Returns the tasks, groups and tags of ``names``, with patterns matched; paths of files stay. Raises ConfigError for others."""
    index: list[str] = sorted(manager.task_index)
    tasks: list[str] = []
    for name in names:
        if matches := [name] if name in index or Path(name).is_file() else manager.match_tasks([name]):
            tasks += matches
            continue
        near = nearest(name, index)
        fix = f"did you mean {near}?" if near else "`lm-eval ls tasks` lists them; include_path adds folders with your own"
        raise ConfigError(f"tasks: no task, group, tag or file {name}; {fix}")
    return list(dict.fromkeys(tasks))


def _write(run_dir: RunDir, results: dict[str, Any], log_samples: bool) -> None:
    """Replaces the files of an earlier evaluation: the samples, then results.json, then the figures; each atomically."""
    from lm_eval.utils import handle_non_serializable  # pyright: ignore[reportMissingImports]

    def to_json(value: Any, indent: int | None) -> bytes:
        text = json.dumps(value, indent=indent, default=handle_non_serializable, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    folder = run_dir.root
    path = folder / "results.json"
    path.unlink(missing_ok=True)  # first: its presence means that the files beside it are whole
    for old in folder.glob("samples_*.jsonl"):
        old.unlink()
    samples: dict[str, list[Any]] = results.pop("samples", {})
    for task, rows in samples.items() if log_samples else ():
        with replacing(folder / f"samples_{task.replace('/', '__')}.jsonl") as file:
            file.writelines(to_json(row, None) for row in rows)
    with replacing(path) as file:
        file.write(to_json(results, 2))
    table = figures_table(results)
    with replacing(run_dir.stats) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    written = {file.name: sha256(file) for file in (path, *sorted(folder.glob("samples_*.jsonl")))}
    run_dir.write_summary({"job": "eval", "stats_sha256": sha256(run_dir.stats), RESULT_FILES: written})
