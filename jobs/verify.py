"""``mlx-bulk verify RUN``: a run's account as text for a person, as JSON for machines, and as an exit code.

Counts nothing itself; that is ``runner/account.py``.
"""

import json
from collections.abc import Iterator
from contextlib import chdir, nullcontext
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ..configs.visible import visible
from ..runner.account import Account, account, described_run
from ..runner.errors import RunDirError
from .ending import QUARANTINED
from .sweep import SWEEP_FILE

_UNSOUND = 5  # exit code: not complete, damaged, or over another input than it began with
_SHOWN = 20


def verified(run: Path) -> Account:
    """The account of the run directory ``run``, whose input is looked for from where the run was started.

    A bar on a terminal shows how far it is. Raises RunDirError where there is no run to give account of.
    """
    if (run / SWEEP_FILE).is_file():
        raise RunDirError(f"{run}: is a sweep. Its cells are runs: verify the folders in it one by one.")
    run = run.absolute()
    began_in = Path(described_run(run)["cwd"])
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        return account(run, lambda shards: tqdm(shards, unit=" shards", disable=None, leave=False))


def exit_code(found: Account) -> int:
    """0 for a run that is complete and sound, 3 if rows of it are quarantined, 5 for anything else."""
    if not found.complete:
        return _UNSOUND
    return QUARANTINED if found.errors else 0


def account_as_json(found: Account) -> str:
    """The account as one JSON object."""
    errors = [{"stage": stage, "error": error, "count": count} for (stage, error), count in found.errors.most_common()]
    values = asdict(found) | {"run": str(found.run), "errors": errors, "complete": found.complete, "exit_code": exit_code(found)}
    return json.dumps(values, indent=2, ensure_ascii=False)


def account_as_text(found: Account) -> str:
    """The account as a line each for input, results, errors, open rows and parts, a line for each thing wrong, and the verdict."""
    wrong = [f"wrong: {problem.place}: {problem.what}; {problem.cure}" for problem in found.problems[:_SHOWN]]
    if len(found.problems) > _SHOWN:
        wrong.append(f"wrong: {len(found.problems) - _SHOWN:,} more; --json lists them all")
    lines = [f"{name:<9}{text}" for name, text in _counts(found)]
    return "\n".join(visible(line) for line in [*lines, *wrong, _verdict(found)])


def _counts(found: Account) -> Iterator[tuple[str, str]]:
    yield "run", f"{found.run} ({found.job})"
    now = "cannot be read" if found.input_rows is None else f"{found.input_rows:,} rows"
    yield "input", now if found.input_rows == found.rows else f"{now}; the run covers {found.rows:,} rows"
    yield "results", f"{found.records:,} records"
    kinds = ", ".join(f"{count:,} {stage} ({error})" for (stage, error), count in found.errors.most_common())
    yield "errors", f"{found.errors.total():,}: {kinds}" if kinds else "none"
    yield "open", _open(found)
    yield "parts", f"{found.files:,} files, {found.bytes:,} bytes, read in full: they are what was committed"


def _open(found: Account) -> str:
    if not found.open_shards:
        return "nothing"
    shards = ", ".join(map(str, found.open_shards[:_SHOWN])) + (", …" if len(found.open_shards) > _SHOWN else "")
    journaled = f"; {found.journaled:,} of their records are in journals" if found.journaled else ""
    return f"{found.rows - found.resolved:,} rows, in shards {shards}{journaled}"


def _verdict(found: Account) -> str:
    if found.complete:
        quarantined = f", {found.errors.total():,} records in errors/" if found.errors else ""
        return f"complete and sound: {found.rows:,} rows, each once{quarantined}"
    if found.problems:
        return f"not sound: {len(found.problems):,} things are wrong, {found.resolved:,} of {found.rows:,} rows are done"
    if found.open_shards:
        return f"not complete: {found.resolved:,} of {found.rows:,} rows are done; the same command does the rest"
    return f"not closed: all {found.rows:,} rows are done, and the run ended before it said so; the same command closes it"
