"""``mlx-bulk verify RUN``: formats a run's audit as text, as JSON, and as an exit code.

``runner/runs/audit.py`` does the counting.
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
from ...runner.runs.run_files import current_run, is_sweep, notes_on, stored_run
from ..terminal.closing_line import QUARANTINED
from ..terminal.tables import count_text
from .logprob_diff import LogprobComparison, comparison_as_json, comparison_as_text
from .vector_diff import VectorComparison, vectors_as_json, vectors_as_text

_UNSOUND = 5  # exit code: not complete, damaged, or over another input than it began with
_SHOWN = 20
_POOLING = ("embed", "classify")

Recomputed = LogprobComparison | VectorComparison


def verify_run(run: Path) -> Audit:
    """Audits the run directory ``run``; relative paths of its input start where the run was started.

    Shows a progress bar on a terminal. Raises RunDirError where there is no run.
    """
    if is_sweep(run):
        raise RunDirError(f"{run}: is a sweep. Its cells are runs: verify the folders in it one by one.")
    run = run.absolute()
    run_json = current_run(run)
    began_in = Path(run_json["cwd"])
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        audit = audit_run(run, lambda shards: tqdm(shards, unit=" shards", disable=None, leave=False))
    if audit.job == "rollout" and (audit.resolved or audit.journaled):
        from ...runner.policies.policy_audit import policy_problems  # loads mlx

        audit.problems += policy_problems(run, run_json["identity"]["model.weights"])
    if audit.job == "eval":
        from ..evals.request_audit import audit_requests

        audit_requests(audit, run_json)
    return audit


def recompute(run: Path, how: str) -> Recomputed:
    """Compares the stored logprobs, or vectors, with recomputed ones; ``how`` is rescore or replay. Raises as those do."""
    if str(stored_run(run)["config"]["job"]) in _POOLING:
        from .repool import repool_run

        return repool_run(run)
    if how == "rescore":
        from .rescore import rescore_run

        return rescore_run(run)
    from .replay import replay_run

    return replay_run(run)


def require_recomputable(run: Path, how: str) -> None:
    """Raises RunDirError where the run directory ``run`` has nothing to ``how``: rescore or replay."""
    job = str(stored_run(run)["config"]["job"])
    if job in _POOLING:
        if how == "replay":
            raise RunDirError(f"{run}: is a run of job: {job}, which decodes nothing; --rescore computes some of its vectors again")
        return
    if job not in ("generate", "rollout"):
        completions = "only completions can be decoded again (generate, rollout)"
        can = completions if how == "replay" else "only records of generate, rollout, embed and classify can be computed again"
        kind = "an evaluation" if job == "eval" else f"a run of job: {job}"
        anew = "; mlx-bulk eval CONFIG --overwrite asks the model anew" if job == "eval" else ""
        raise RunDirError(f"{run}: is {kind}; {can}. Verify it without --{how}{anew}.")


def verify_exit_code(audit: Audit, recomputed: Recomputed | None = None) -> int:
    """Returns 0 for a complete and sound run, 3 if some rows are quarantined, 5 otherwise, also where what was ``recomputed`` failed.

    With ``recomputed`` ones, a sound run that is not complete yet gets no 5.
    """
    if audit.problems or not (audit.complete if recomputed is None else recomputed.passed):
        return _UNSOUND
    return QUARANTINED if _quarantined(audit) else 0


def _quarantined(audit: Audit) -> dict[tuple[str, str], int]:
    """Returns the failures without dropped groups, the most frequent first."""
    return {kind: count for kind, count in audit.errors.most_common() if kind[0] != DROP}


def audit_as_json(audit: Audit, recomputed: Recomputed | None = None) -> str:
    """Returns the audit as one JSON object, with the comparison of ``recomputed`` logprobs or vectors."""
    errors = [{"stage": stage, "error": error, "count": count} for (stage, error), count in audit.errors.most_common()]
    values = asdict(audit) | {"run": str(audit.run), "errors": errors, "notes": notes_on(audit.run)}
    values |= {"complete": audit.complete, "exit_code": verify_exit_code(audit, recomputed)}
    if recomputed is not None:
        values["anew"] = vectors_as_json(recomputed) if isinstance(recomputed, VectorComparison) else comparison_as_json(recomputed)
    return json.dumps(values, indent=2, ensure_ascii=False)


def audit_as_text(audit: Audit, recomputed: Recomputed | None = None) -> str:
    """Returns the audit as lines: input, results, errors, open rows and parts, then each problem, and the verdict.

    The comparison of ``recomputed`` logprobs or vectors follows, if there is one.
    """
    wrong = [f"wrong: {problem.place}: {problem.what}; {problem.cure}" for problem in audit.problems[:_SHOWN]]
    if len(audit.problems) > _SHOWN:
        wrong.append(f"wrong: {len(audit.problems) - _SHOWN:,} more; --json lists them all")
    lines = [f"{name:<9}{text}" for name, text in [*_counts(audit), *(("note", note) for note in notes_on(audit.run))]]
    return "\n".join(visible(line) for line in [*lines, *wrong, _verdict(audit), *_recomputed_lines(recomputed)])


def _recomputed_lines(recomputed: Recomputed | None) -> list[str]:
    if recomputed is None:
        return []
    text = vectors_as_text(recomputed) if isinstance(recomputed, VectorComparison) else comparison_as_text(recomputed)
    return text.splitlines()


def _counts(audit: Audit) -> Iterator[tuple[str, str]]:
    yield "run", f"{audit.run} ({audit.job})"
    input_text = "cannot be read" if audit.input_rows is None else count_text(audit.input_rows, "row")
    input_text += f", in {audit.rounds:,} rounds" if audit.rounds > 1 else ""
    yield "input", input_text if audit.input_rows == audit.rows else f"{input_text}; the run covers {count_text(audit.rows, 'row')}"
    yield "results", count_text(audit.records, "record")
    errors = _quarantined(audit)
    kinds = ", ".join(f"{count:,} {stage} ({error})" for (stage, error), count in errors.items())
    yield "errors", f"{sum(errors.values()):,}: {kinds}" if kinds else "none"
    if left_out := {error: count for (stage, error), count in audit.errors.most_common() if stage == DROP}:
        kinds = ", ".join(f"{count:,} {error}" for error, count in left_out.items())
        yield "dropped", f"{count_text(sum(left_out.values()), 'group')}: {kinds}; by the config, so they are no errors"
    yield "open", _open(audit)
    parts = f"{count_text(audit.files, 'file')}, {count_text(audit.bytes, 'byte')}"
    whole = f"{parts}, read in full: they are what was committed"
    yield "parts", f"sound are {parts}; what is wrong follows" if audit.problems else whole


def _open(audit: Audit) -> str:
    if not audit.open_shards:
        return "nothing"
    shards = ", ".join(map(str, audit.open_shards[:_SHOWN])) + (", …" if len(audit.open_shards) > _SHOWN else "")
    journaled = f"; {audit.journaled:,} of their records {'is' if audit.journaled == 1 else 'are'} in journals" if audit.journaled else ""
    named = "shard" if len(audit.open_shards) == 1 else "shards"
    return f"{count_text(audit.total - audit.resolved, 'row')}, in {named} {shards}{journaled}"


def _verdict(audit: Audit) -> str:
    if audit.complete:
        errors = sum(_quarantined(audit).values())
        quarantined = f", {count_text(errors, 'record')} in errors/" if errors else ""
        rounds = f" in each of {audit.rounds:,} rounds" if audit.rounds > 1 else ""
        return f"complete and sound: {count_text(audit.rows, 'row')}, each once{rounds}{quarantined}"
    if audit.problems:
        wrong = "1 thing is wrong" if len(audit.problems) == 1 else f"{len(audit.problems):,} things are wrong"
        return f"not sound: {wrong}, {audit.resolved:,} of {audit.total:,} rows are done"
    if audit.open_shards:
        goes_on = f"{audit.working} is working here" if audit.working else "the same command does the rest"
        return f"not complete: {audit.resolved:,} of {audit.total:,} rows are done; {goes_on}"
    return f"not closed: all {audit.total:,} rows are done, and the run ended before it said so; the same command closes it"
