"""``mlx-bulk eval``: runs tasks of lm-evaluation-harness on one model by a config, and writes the results to a folder.

Tasks, prompts and metrics are lm-eval's, the model is jobs/harness's. results.json is written last; once it exists, everything does.
"""

import json
import logging
import subprocess
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configs.errors import BulkError, ConfigError
from ...configs.eval import EvalConfig
from ...configs.fields import nearest
from ...runner.core.errors import DataError, OutOfRoom, RunDirError
from ...runner.files.atomic import replacing
from ...runner.models.device_memory import is_out_of_memory

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class Evaluation:
    """The result of an evaluation: lm-eval's line of settings with its tables, and the path of results.json."""

    tables: str
    results: Path


def run_evaluation(config: EvalConfig) -> Evaluation:
    """Runs the tasks and writes results.json, and the samples if the config asks for them.

    Raises ConfigError where lm-eval or a task is missing, RunDirError where the folder is a run's, and the model's errors.
    """
    _require_folders(config)
    try:
        import lm_eval  # pyright: ignore[reportMissingImports]
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
        from lm_eval.utils import make_table  # pyright: ignore[reportMissingImports]

        from .. import harness  # noqa: F401  # pyright: ignore[reportUnusedImport]  (it registers the model)
        from ..harness.requests import check_settings
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; mlx-bulk eval needs lm-evaluation-harness: pip install 'mlx-bulk[eval]'"
        ) from None
    check_settings(config.gen_kwargs)
    arguments = model_args(config)
    manager = TaskManager(include_path=[str(Path(path).expanduser()) for path in config.include_path], metadata=arguments)
    tasks = match_tasks(config.tasks, manager)
    results = _evaluate(lm_eval.simple_evaluate, config, arguments, tasks, manager)
    tables = [make_table(results)] + ([make_table(results, "groups")] if results.get("groups") else [])
    return Evaluation("\n".join([_header(config, arguments), *tables]), _write(Path(config.output.path), results, config.log_samples))


def _require_folders(config: EvalConfig) -> None:
    """Raises RunDirError where the output folder holds a run, ConfigError where a folder of include_path is missing."""
    folder = Path(config.output.path)
    if (folder / "run.json").exists():
        raise RunDirError(f"output.path: {folder} holds a run of mlx-bulk run; choose another folder for the results of an evaluation")
    included = [Path(path).expanduser() for path in config.include_path]
    if missing := [path for path in included if not path.is_dir()]:
        kind = "a file" if missing[0].exists() else "no folder"
        raise ConfigError(f"include_path: found {kind} {missing[0]}; expected a folder with task files")


def _evaluate(
    simple_evaluate: Any, config: EvalConfig, arguments: dict[str, Any], tasks: list[str], manager: "TaskManager"
) -> dict[str, Any]:
    """Runs the tasks with lm-eval's ``simple_evaluate``, whose decorator hides its parameters; returns lm-eval's results.

    Raises OutOfRoom, the model's errors, and DataError for all others.
    """
    seeds = config.seeds
    try:
        with _quiet_git():
            return simple_evaluate(
                model="mlx-bulk",
                model_args=arguments,
                tasks=tasks,
                task_manager=manager,
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
    named = {"rows": "batch_size", "tokens": "batch_tokens", "memory": "memory"}
    seed = {"seed": config.seeds.sampling} if config.seeds.sampling else {}
    return {"pretrained": model.pop("path"), **model, **{named[key]: value for key, value in batch.items()}, **seed}


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


def _write(folder: Path, results: dict[str, Any], log_samples: bool) -> Path:
    """Removes the files of an earlier evaluation, and writes the samples, then results.json, each atomically."""
    from lm_eval.utils import handle_non_serializable  # pyright: ignore[reportMissingImports]

    def to_json(value: Any, indent: int | None) -> bytes:
        text = json.dumps(value, indent=indent, default=handle_non_serializable, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    folder.mkdir(parents=True, exist_ok=True)
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
    return path
