"""``mlx-bulk verify RUN``: a run's account as text for a person, as JSON for machines, and as an exit code.

Counts nothing itself; that is ``runner/runs/audit.py``.
"""

import json
from collections.abc import Iterator
from contextlib import chdir, nullcontext
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ...configs.visible import visible
from ...runner.core.errors import DROP, RunDirError
from ...runner.runs.audit import Audit, audit_run
from ...runner.runs.run_files import current_run, is_sweep, notes_on
from ..terminal.closing_line import QUARANTINED
from ..terminal.tables import count_text
from .logprob_diff import LogprobComparison, comparison_as_json, comparison_as_text

_UNSOUND = 5  # exit code: not complete, damaged, or over another input than it began with
_SHOWN = 20


def verify_run(run: Path) -> Audit:
    """The account of the run directory ``run``, whose input is looked for from where the run was started.

    A bar on a terminal shows how far it is. Raises RunDirError where there is no run to give account of.
    """
    if is_sweep(run):
        raise RunDirError(f"{run}: is a sweep. Its cells are runs: verify the folders in it one by one.")
    run = run.absolute()
    run_json = current_run(run)
    began_in = Path(run_json["cwd"])
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        found = audit_run(run, lambda shards: tqdm(shards, unit=" shards", disable=None, leave=False))
    if found.job == "rollout" and (found.resolved or found.journaled):
        from ...runner.policies.policy_audit import policy_problems  # loads mlx

        found.problems += policy_problems(run, run_json["identity"]["model.weights"])
    return found


def recompute_logprobs(run: Path, how: str) -> LogprobComparison:
    """The stored logprobs held against those worked out now, ``how``: rescore or replay. Raises as they do."""
    if how == "rescore":
        from .rescore import rescore_run

        return rescore_run(run)
    from .replay import replay_run

    return replay_run(run)


def verify_exit_code(found: Audit, anew: LogprobComparison | None = None) -> int:
    """0 for a run that is complete and sound, 3 if rows of it are quarantined, 5 for anything else, other logprobs ``anew`` too.

    With ``anew`` the code is about what is there: that a sound run is not complete yet is said, and is no 5.
    """
    if found.problems or not (found.complete if anew is None else anew.passed):
        return _UNSOUND
    return QUARANTINED if _quarantined(found) else 0


def _quarantined(found: Audit) -> dict[tuple[str, str], int]:
    """The failures less what was left out on purpose, the most frequent first."""
    return {kind: count for kind, count in found.errors.most_common() if kind[0] != DROP}


def audit_as_json(found: Audit, anew: LogprobComparison | None = None) -> str:
    """The account as one JSON object, with what came of comparing ``anew``."""
    errors = [{"stage": stage, "error": error, "count": count} for (stage, error), count in found.errors.most_common()]
    values = asdict(found) | {"run": str(found.run), "errors": errors, "notes": notes_on(found.run)}
    values |= {"complete": found.complete, "exit_code": verify_exit_code(found, anew)}
    if anew is not None:
        values["anew"] = comparison_as_json(anew)
    return json.dumps(values, indent=2, ensure_ascii=False)


def audit_as_text(found: Audit, anew: LogprobComparison | None = None) -> str:
    """The account as a line each for input, results, errors, open rows and parts, a line for each thing wrong, and the verdict.

    Behind it what came of comparing ``anew``.
    """
    wrong = [f"wrong: {problem.place}: {problem.what}; {problem.cure}" for problem in found.problems[:_SHOWN]]
    if len(found.problems) > _SHOWN:
        wrong.append(f"wrong: {len(found.problems) - _SHOWN:,} more; --json lists them all")
    lines = [f"{name:<9}{text}" for name, text in [*_counts(found), *(("note", note) for note in notes_on(found.run))]]
    compared = [] if anew is None else comparison_as_text(anew).splitlines()
    return "\n".join(visible(line) for line in [*lines, *wrong, _verdict(found), *compared])


def _counts(found: Audit) -> Iterator[tuple[str, str]]:
    yield "run", f"{found.run} ({found.job})"
    now = "cannot be read" if found.input_rows is None else count_text(found.input_rows, "row")
    now += f", in {found.rounds:,} rounds" if found.rounds > 1 else ""
    yield "input", now if found.input_rows == found.rows else f"{now}; the run covers {count_text(found.rows, 'row')}"
    yield "results", count_text(found.records, "record")
    errors = _quarantined(found)
    kinds = ", ".join(f"{count:,} {stage} ({error})" for (stage, error), count in errors.items())
    yield "errors", f"{sum(errors.values()):,}: {kinds}" if kinds else "none"
    if left_out := {error: count for (stage, error), count in found.errors.most_common() if stage == DROP}:
        kinds = ", ".join(f"{count:,} {error}" for error, count in left_out.items())
        yield "dropped", f"{count_text(sum(left_out.values()), 'group')}: {kinds}; by the config, so they are no errors"
    yield "open", _open(found)
    yield "parts", f"{count_text(found.files, 'file')}, {count_text(found.bytes, 'byte')}, read in full: they are what was committed"


def _open(found: Audit) -> str:
    if not found.open_shards:
        return "nothing"
    shards = ", ".join(map(str, found.open_shards[:_SHOWN])) + (", …" if len(found.open_shards) > _SHOWN else "")
    journaled = f"; {found.journaled:,} of their records {'is' if found.journaled == 1 else 'are'} in journals" if found.journaled else ""
    named = "shard" if len(found.open_shards) == 1 else "shards"
    return f"{count_text(found.total - found.resolved, 'row')}, in {named} {shards}{journaled}"


def _verdict(found: Audit) -> str:
    if found.complete:
        errors = sum(_quarantined(found).values())
        quarantined = f", {count_text(errors, 'record')} in errors/" if errors else ""
        rounds = f" in each of {found.rounds:,} rounds" if found.rounds > 1 else ""
        return f"complete and sound: {count_text(found.rows, 'row')}, each once{rounds}{quarantined}"
    if found.problems:
        wrong = "1 thing is wrong" if len(found.problems) == 1 else f"{len(found.problems):,} things are wrong"
        return f"not sound: {wrong}, {found.resolved:,} of {found.total:,} rows are done"
    if found.open_shards:
        return f"not complete: {found.resolved:,} of {found.total:,} rows are done; the same command does the rest"
    return f"not closed: all {found.total:,} rows are done, and the run ended before it said so; the same command closes it"
