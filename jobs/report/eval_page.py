"""Builds the report of an evaluation: its tasks' figures with their standard errors, its errors, its settings, and some documents.

Reads the run directory, which may be at work or stopped, and changes nothing. page.py renders the page.
"""

from collections.abc import Iterator
from pathlib import Path

from ...runner.runs.run_files import stored_run
from ...runner.runs.status import Status, run_status
from ..evals.figures import FIGURE_HEADINGS, figure_cells
from ..report_data.eval_samples import EvalSamples, eval_samples
from .page import Card, Page, PageSection, table
from .run_page import banner_lines, error_section, footer_line, settings_section, speed_section, work_cards

_TASKS = 3  # named in the subtitle


def eval_page(run: Path) -> Page:
    """Returns the report of the evaluation in ``run``. Raises RunDirError where it is none or a committed part is damaged."""
    stored, now, some = stored_run(run), run_status(run), eval_samples(run)
    config = stored["config"]
    tasks = [source["path"] for source in stored["inputs"]["sources"]]
    named = ", ".join(tasks[:_TASKS]) + (f" and {len(tasks) - _TASKS:,} more" if len(tasks) > _TASKS else "")
    statistics = now.statistics
    page = Page(
        title=run.absolute().name,
        subtitle=f"lm-evaluation-harness with {config['model']['path']}: {named}",
        banner=list(banner_lines(now)),
        footer=footer_line(run),
    )
    page.cards = list(_cards(now, tasks, some))
    if statistics is None:
        page.sections.append(PageSection("figures", "Figures", "lm-eval computes them when all requests have their answers."))
    else:
        words = (
            "lm-eval's figures, with their standard errors where it gives them; an arrow says whether more is better. "
            "results.json holds them all, and the tasks' own settings."
        )
        cells = figure_cells(statistics.to_pylist())
        page.sections.append(PageSection("figures", "Figures", words, tables=[table("", FIGURE_HEADINGS, cells, left=3)]))
    if some.records:
        page.browser = {
            "words": f"{len(some.records):,} of {sum(some.documents.values()):,} documents, picked at random from each task.",
            "records": some.records,
            "sorts": [[task, sum(task in record["tags"] for record in some.records)] for task in some.documents],
        }
    page.sections += [section for section in (speed_section(now), error_section(now)) if section is not None]
    page.sections.append(settings_section(stored, []))
    return page


def _cards(now: Status, tasks: list[str], some: EvalSamples) -> Iterator[Card]:
    yield Card("Tasks", f"{len(tasks):,}", f"{sum(some.documents.values()):,} documents")
    yield Card("Requests", f"{now.rows:,}", "" if not now.of else f"of {now.of:,}")
    yield Card("Errors", f"{now.errors:,}", "requests without an answer" if now.errors else "each request has its answer")
    yield from work_cards(now)
