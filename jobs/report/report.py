"""Writes the HTML page of a run or sweep, on command or at the end of a run (``mlx-bulk report``).

Takes no lock and changes nothing but the page. run_page.py, eval_page.py, sweep_page.py and compare_page.py fill it.
"""

import logging
import os
from pathlib import Path

from ...configs.errors import BulkError, ConfigError
from ...runner.files.atomic import atomic_write, make_folder
from ...runner.files.disk_space import room_on
from ...runner.runs.file_place import require_outside_runs, require_regular_files
from ...runner.runs.run_files import is_evaluation, is_sweep
from ...runner.store.paths import RunPaths
from .page import Page, is_page_file, render_page

log = logging.getLogger("mlx_bulk")


def write_report(run: Path, to: Path | None = None) -> Path:
    """Writes the report of the run directory or sweep folder ``run``, whole, and says where: ``to``, or report.html in ``run``.

    Raises RunDirError where it is neither, where a committed part is missing or damaged, ConfigError where ``to`` is there and no
    page of ours, or lies in a run directory and is not the default place, and OutOfRoom.
    """
    own = RunPaths(run).report
    place = own if to is None else _file_of(to)
    if _is_same_name(place, own):
        require_regular_files(f"report {run}", [place])
    else:
        _require_place(f"--to {to}", place)
    return _written(_page_of(run), place, "--to")


def report_of_pair(a: Path, b: Path, to: Path) -> Path:
    """Writes the comparison of two runs to ``to``, and says where. Raises as ``write_report``; no place in a run directory is free."""
    from .compare_page import pair_page

    place = _file_of(to)
    _require_place(f"--html {to}", place)
    return _written(pair_page(a, b), place, "--html")


def report_at_end(folder: Path) -> None:
    """Writes the report of a finished run or sweep and logs its path.

    An error costs only the page and is logged in one line: the run is complete without it.
    """
    try:
        log.info("report: %s", write_report(folder))
    except (Exception, KeyboardInterrupt) as error:
        log.debug("the error below came from here:", exc_info=error)
        if isinstance(error, KeyboardInterrupt):
            why = "interrupted"
        else:
            why = str(error) if isinstance(error, BulkError) else f"{type(error).__name__}: {error}".removesuffix(": ")
        say_left_out(folder, why)


def say_left_out(folder: Path, why: str) -> None:
    """Logs that the report of a run or sweep was not written, and the command that writes it."""
    log.warning("report.html was not written: %s. The run is complete; mlx-bulk report %s writes it.", why.rstrip("."), folder)


def _page_of(run: Path) -> Page:
    """Fills the page of a sweep, an evaluation or a run. Imports that one alone: most runs draw one page at their end."""
    if is_sweep(run):
        from .sweep_page import sweep_page

        return sweep_page(run)
    if is_evaluation(run):
        from .eval_page import eval_page

        return eval_page(run)
    from .run_page import run_page

    return run_page(run)


def _file_of(to: Path) -> Path:
    return to / "report.html" if to.is_dir() else to


def _is_same_name(one: Path, other: Path) -> bool:
    """Returns True for two ways to one name in a folder. Where that name is a link does not matter: writing replaces it."""
    return one.name == other.name and one.parent.resolve() == other.parent.resolve()


def _require_place(option: str, place: Path) -> None:
    """Refuses a place that holds other things than a page. ``place`` may be a link, which the page replaces."""
    require_outside_runs(option, [place, place.parent])
    require_regular_files(option, [place])
    if place.exists() and not is_page_file(place):
        raise ConfigError(f"{option}: {place} is there already and is no page of mlx-bulk's; name another file, or remove this one")


def _written(page: Page, target: Path, option: str) -> Path:
    content = render_page(page)
    with room_on(target.parent, f"name another place with {option}"):
        make_folder(target.parent)
        atomic_write(target, content, f".{os.getpid()}")
    return target
