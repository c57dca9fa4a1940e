"""``mlx-bulk eval``: lm-evaluation-harness's tasks on one model, by a config; results go to a folder.

Tasks, prompts and metrics are lm-eval's, the model is harness.py's. Samples are written first: results.json is there when all is.
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
    """What an evaluation came to: lm-eval's line of its settings and its tables, and the file with the results."""

    tables: str
    results: Path


def run_evaluation(config: EvalConfig) -> Evaluation:
    """Runs the tasks and writes results.json, and the samples where they are asked for.

    Raises ConfigError where lm-eval or a task is missing, RunDirError where the folder is a run's, and what the model raises.
    """
    folder = Path(config.output.path)
    if (folder / "run.json").exists():
        raise RunDirError(f"output.path: {folder} holds a run of mlx-bulk run; choose another folder for the results of an evaluation")
    included = [Path(path).expanduser() for path in config.include_path]
    if missing := [path for path in included if not path.is_dir()]:
        found = "a file" if missing[0].exists() else "no folder"
        raise ConfigError(f"include_path: found {found} {missing[0]}; expected a folder with task files")
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
    manager = TaskManager(include_path=[str(path) for path in included], metadata=arguments)
    tasks = match_tasks(config.tasks, manager)
    seeds = config.seeds
    run: Any = lm_eval.simple_evaluate  # its decorator hides its parameters
    try:
        with _quiet_git():
            results = run(
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
    tables = [make_table(results)] + ([make_table(results, "groups")] if results.get("groups") else [])
    return Evaluation("\n".join([_header(config, arguments), *tables]), _write(folder, results, config.log_samples))


def model_args(config: EvalConfig) -> dict[str, Any]:
    """The config's model, batch and seed as arguments of the model ``mlx-bulk``; those at their defaults are left out."""
    model = config.model.model_dump(mode="json", exclude_defaults=True)
    batch = config.batch.model_dump(mode="json", exclude_defaults=True)
    named = {"rows": "batch_size", "tokens": "batch_tokens", "memory": "memory"}
    seed = {"seed": config.seeds.sampling} if config.seeds.sampling else {}
    return {"pretrained": model.pop("path"), **model, **{named[key]: value for key, value in batch.items()}, **seed}


def _header(config: EvalConfig, arguments: dict[str, Any]) -> str:
    """The line that lm-eval's own command prints above its tables."""
    return (
        f"mlx-bulk ({arguments}), gen_kwargs: ({config.gen_kwargs}), limit: {config.limit}, "
        f"num_fewshot: {config.num_fewshot}, batch_size: {config.batch.rows}"
    )


@contextmanager
def _quiet_git() -> Generator[None]:
    """Lets lm-eval ask for the commit of the working directory without git's complaint where it is no repository."""
    from lm_eval import evaluator  # pyright: ignore[reportMissingImports]

    def commit() -> str | None:
        try:
            asked = subprocess.run(["git", "describe", "--always"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        except (subprocess.CalledProcessError, OSError):
            return None
        return asked.stdout.decode().strip()

    own = evaluator.get_git_commit_hash
    evaluator.get_git_commit_hash = commit
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = own


def match_tasks(names: Iterable[str], manager: "TaskManager") -> list[str]:
    """The tasks, groups and tags that ``names`` mean; patterns are matched, paths of files stay. Raises ConfigError for others."""
    known: list[str] = sorted(manager.task_index)
    found: list[str] = []
    for name in names:
        if matches := [name] if name in known or Path(name).is_file() else manager.match_tasks([name]):
            found += matches
            continue
        near = nearest(name, known)
        fix = f"did you mean {near}?" if near else "`lm-eval ls tasks` lists them; include_path adds folders with your own"
        raise ConfigError(f"tasks: no task, group, tag or file {name}; {fix}")
    return list(dict.fromkeys(found))


def _write(folder: Path, results: dict[str, Any], log_samples: bool) -> Path:
    """Removes what an earlier evaluation left, and writes the samples, then results.json, each whole."""
    from lm_eval.utils import handle_non_serializable  # pyright: ignore[reportMissingImports]

    def written(value: Any, indent: int | None) -> bytes:
        text = json.dumps(value, indent=indent, default=handle_non_serializable, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    path.unlink(missing_ok=True)  # first: it says that what lies beside it is whole
    for old in folder.glob("samples_*.jsonl"):
        old.unlink()
    samples: dict[str, list[Any]] = results.pop("samples", {})
    for task, rows in samples.items() if log_samples else ():
        with replacing(folder / f"samples_{task.replace('/', '__')}.jsonl") as file:
            file.writelines(written(row, None) for row in rows)
    with replacing(path) as file:
        file.write(written(results, 2))
    return path
