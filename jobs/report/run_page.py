"""Builds the report of a run from its status, statistics, distributions and samples.

Reads the run directory, which may be at work or stopped, and changes nothing. page.py renders the page.
"""

import logging
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from ...configs.embed import EmbedConfig
from ...configs.errors import BulkError
from ...configs.jobs import ROW_JOBS
from ...runner.core.errors import DROP
from ...runner.core.images import not_compared
from ...runner.core.units import short_count
from ...runner.models.run_tokenizer import tokenizer_of
from ...runner.runs.history import token_counts, unchecked_images
from ...runner.runs.run_files import stored_run
from ...runner.runs.status import Status, run_status
from ...runner.runs.throughput import duration
from ...runner.store.paths import RunPaths
from ...runner.text.tokenizer import Tokenizer
from ..report_data.record_pass import RecordPass, pass_over_records
from ..report_data.samples import samples
from ..report_data.speed_series import Interval, intervals
from ..report_data.thumbnails import thumbnails
from ..report_data.vector_figures import texts_of
from ..statistics.kv_table import kv_words
from ..statistics.score_table import main_columns, notes
from ..terminal.tables import count_text, figure
from .charts import Chart, ChartPoint, lines
from .class_charts import class_cards, classification
from .distributions import distributions, rewards
from .page import Card, Page, PageSection, table
from .vector_charts import embeddings, vector_cards

log = logging.getLogger("mlx_bulk")

_GROUPS, _KINDS, _WORKERS = 30, 12, 8
Json = dict[str, Any]


def run_page(run: Path) -> Page:
    """Returns the report of the run directory ``run``. Raises RunDirError where it is none or a committed part is damaged."""
    stored = stored_run(run)
    found, now = pass_over_records(run), run_status(run)
    config = stored["config"]
    page = Page(
        title=run.absolute().name,
        subtitle=f"{config['job']} with {config['model']['path']} over {_inputs(config)}",
        banner=list(banner_lines(now)),
        footer=footer_line(run),
    )
    page.banner += [not_compared(kind) for kind in unchecked_images(RunPaths(run))]
    statistics = now.statistics
    rows = [] if statistics is None or not statistics.num_rows else statistics.slice(0, 1 + _GROUPS).to_pylist()
    if statistics is not None and (words := kv_words(statistics)):
        page.banner.append(words)
    page.cards = list(_cards(now, found, rows))
    if found is not None:
        dropped = {kind.error: kind.count for kind in now.kinds if kind.stage == DROP}
        classes = classification(found.classes, rows[0] if rows else None)
        vectors = _vectors(run, found, config)
        page.sections += [section for section in (classes, vectors, distributions(found), rewards(found, dropped)) if section is not None]
        _browse(page, run, found, stored)
    page.sections += [section for section in (speed_section(now), _groups(rows), error_section(now)) if section is not None]
    page.sections.append(settings_section(stored, rows))
    return page


def _vectors(run: Path, found: RecordPass, config: Json) -> PageSection | None:
    near = [] if found.vectors is None else found.vectors.neighbours()
    rows = {row for each in near for row in (each.row, *(row for row, _ in each.nearest))}
    return embeddings(found.vectors, near, texts_of(run, EmbedConfig.model_validate(config), rows) if near else {})


def _inputs(config: Json) -> str:
    path = config["data"]["path"]
    return path if isinstance(path, str) else f"{path[0]} and {len(path) - 1:,} more" if len(path) > 1 else str(path[0])


def footer_line(run: Path) -> str:
    """Returns when the page was drawn, and from what."""
    return (
        f"Drawn on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z} from {run.absolute()}. This page is a picture of the run's records, "
        f"not a part of them: mlx-bulk verify does not check it, and mlx-bulk report {run} draws it anew."
    )


def banner_lines(now: Status) -> Iterator[str]:
    """Yields what a reader of a run's page has to know before any figure."""
    if now.state != "complete":
        of = "" if now.of is None else f" of {now.of:,}"
        open_rows = f", {now.rows - now.committed:,} more are in the journal" if now.rows > now.committed else ""
        yield f"This run is not complete ({now.state}): {now.committed:,}{of} rows are committed and drawn here{open_rows}."
    yield from now.notes


# ---------------------------------------------------------------------------------------------------------- head figures


def _cards(now: Status, found: RecordPass | None, rows: list[Json]) -> Iterator[Card]:
    share = "" if not now.of else f"of {now.of:,}" + ("" if now.rows == now.of else f", {100 * now.rows / now.of:.1f} %")
    yield Card("Rows", f"{now.rows:,}", share)
    if found is not None and found.records != now.rows:
        yield Card("Records", f"{found.records:,}", "results; one a sample")
    yield Card("Errors", f"{now.errors - now.dropped:,}", "quarantined" if now.errors > now.dropped else "no row failed")
    yield from _quality(found, rows[0] if rows else None)
    yield from work_cards(now)


def work_cards(now: Status) -> Iterator[Card]:
    """Yields the cards for tokens, speed and time."""
    tokens = {name: count for name, count in now.history.tokens.items() if count}
    if "scored_tokens" in tokens:  # the others are the same ones, as they were fed
        tokens = {"scored_tokens": tokens["scored_tokens"]}
    starts = len(now.history.sessions)
    if tokens:
        note = " + ".join(token_counts(tokens, now.config)) + (", in all starts" if starts > 1 else "")
        yield Card("Tokens", short_count(sum(tokens.values())), note)
    if now.history.tokens_per_second:
        yield Card("Speed", f"{now.history.tokens_per_second:,.0f} tok/s", "mean while it worked")
    if now.history.seconds:
        yield Card("Time", duration(now.history.seconds), f"{starts:,} starts" if starts > 1 else "of work, model loaded")
    if now.workers:
        rows = [f"{part.worker}: {count_text(part.rows, 'row')}" for part in now.workers[:_WORKERS]]
        yield Card("Workers", f"{len(now.workers):,}", ", ".join(rows) + (", …" if len(now.workers) > _WORKERS else ""))


def _quality(found: RecordPass | None, row: Json | None) -> Iterator[Card]:
    """Yields the cards for reward, accuracy or perplexity; from the statistics where the run has them."""
    if found is None:
        return
    if found.rollout is not None and found.rollout.rewards.count:
        yield Card("Mean reward", f"{found.rollout.rewards.mean:.4g}", f"{found.rollout.rewards.count:,} samples")
    errors = {} if found.rollout is None else found.rollout.sums.not_rated
    if failed := sum(error.count for error in errors.values()):
        sources = len({name for name, _ in errors})
        yield Card("Not rated", f"{failed:,}", f"rewards not given, of {count_text(sources, 'kind')}")
    yield from class_cards(found.classes, row)
    yield from vector_cards(found.vectors, found.records)
    if found.accuracy:
        labelled = found.accuracy["right"] + found.accuracy["wrong"]
        if labelled:
            error = None if row is None else row.get("acc_stderr")
            yield Card("Accuracy", figure(found.accuracy["right"] / labelled, error), f"{labelled:,} rows with a label")
    elif row is not None and row.get("token_perplexity") is not None:
        yield Card("Perplexity", figure(row["token_perplexity"], row.get("token_perplexity_stderr")), "a token, over the corpus")
        if row.get("bits_per_byte") is not None:
            yield Card("Bits per byte", figure(row["bits_per_byte"]))
    elif row is not None and math.isfinite(row.get("completion_perplexity") or math.inf):
        yield Card("Perplexity", figure(row["completion_perplexity"]), "of all completions, as the model itself sees them")
    elif found.nll.mean is not None:
        note = "of the tokens with a logprob, as the model itself sees them" + (
            f"; without {found.nll.infinite:,} of no chance" if found.nll.infinite else ""
        )
        yield Card("Perplexity", figure(math.exp(min(700.0, found.nll.mean))), note)
    if held := found.grammar.total():
        note = f"{found.grammar['not whole']:,} of {held:,} held to a grammar are not whole"
        yield Card("Grammar complete", f"{100 * found.grammar['whole'] / held:.1f} %", note)
    if found.finish:
        yield Card("Truncated", f"{100 * found.finish['length'] / found.records:.1f} %", f"{found.finish['length']:,} reached their limit")


# --------------------------------------------------------------------------------------------------------------- samples


def _browse(page: Page, run: Path, found: RecordPass, stored: Json) -> None:
    """Puts the samples on the page. Without the tokenizer, tokens are shown by their ids."""
    tokenizer: Tokenizer | None = None
    note = ""
    try:
        tokenizer = tokenizer_of(ROW_JOBS[stored["config"]["job"]].model_validate(stored["config"]), stored)
    except (BulkError, OSError, ValueError) as error:
        log.warning("report: tokens are shown by their ids, as the tokenizer is not to be had: %s", error)
        note = f" Tokens are shown by their ids where their text is not in the record, as the tokenizer is not to be had: {error}"
    some = samples(run, found, tokenizer)
    left = f" {some.left_out:,} more were picked and left out, as the page would grow too large." if some.left_out else ""
    coloured = any("tokens" in part for record in some.records for part in record["parts"])
    how = " A token's colour is its logprob; point at it, tap it, or go to it with the arrow keys for its rank and what else was likely."
    small = thumbnails(run, stored, some.rows)
    for record, row in zip(some.records, some.rows, strict=True):
        if pictures := small.rows.get(row):
            record["pictures"] = pictures
    page.browser = {
        "words": f"{len(some.records):,} of {found.records:,} records, picked by what they are and at random."
        f"{how if coloured else ''}{left}{note if coloured else ''}{small.note}",
        "records": some.records,
        "sorts": list(some.sorts.items()),
        "pictures": small.urls,
    }


# ----------------------------------------------------------------------------------------------------------------- speed


def speed_section(now: Status) -> PageSection | None:
    """Draws throughput and memory over the time of work; None for a run that was over at once."""
    found = intervals(now.history)
    if len(found) < 2:
        return None
    unit, name = (
        (3600.0, "hours of work")
        if found[-1].end > 7200
        else (60.0, "minutes of work")
        if found[-1].end > 180
        else (1.0, "seconds of work")
    )
    speeds = [_point(each, unit, each.tokens_per_second, f"{each.tokens_per_second:,.0f} tok/s") for each in found]
    starts = sum(each.begins for each in found)
    words = f"Mean {now.history.tokens_per_second or 0:,.0f} tok/s" + (
        f"; {starts:,} starts, the time between them left out." if starts > 1 else "."
    )
    charts = [Chart("speed-chart", "Throughput", words, lines(speeds, name, "tokens a second", zero_x=True))]
    if memory := [each for each in found if each.memory]:
        points = [_point(each, unit, (each.memory or 0) / 1e9, f"{(each.memory or 0) / 1e9:.3g} GB") for each in memory]
        words = f"The process's peak so far; {max(each.memory or 0 for each in memory) / 1e9:.3g} GB at most."
        charts.append(Chart("memory", "Memory", words, lines(points, name, "GB", zero_x=True)))
    return PageSection("speed", "Speed and memory", charts=charts)


def _point(each: Interval, unit: float, value: float, text: str) -> ChartPoint:
    return ChartPoint(each.end / unit, value, f"after {duration(each.end)}: {text}")


# ---------------------------------------------------------------------------------------------------------------- tables


def _groups(rows: list[Json]) -> PageSection | None:
    """Shows the main statistics, over all records and for each group."""
    if not rows or not {"token_perplexity", "acc_norm"} & rows[0].keys():
        return None
    columns = main_columns(rows[0])
    cells = [["all" if row["of"] == "all" else _named(row["group"]), *(of(row) for _, of in columns)] for row in rows]
    words = " ".join(notes(rows[0])) + (" Groups behind the first are in stats.arrow." if len(rows) > _GROUPS else "")
    return PageSection("statistics", "Statistics", words, tables=[table("", ["group", *(heading for heading, _ in columns)], cells)])


def _named(group: str | None) -> str:
    return "(no value)" if group is None else group


def error_section(now: Status) -> PageSection | None:
    """Lists the kinds of errors; None where there are none. Groups that were dropped on purpose are none."""
    kinds = [kind for kind in now.kinds if kind.stage != DROP]
    if not kinds:
        return None
    cells = [[f"{kind.count:,}", kind.stage, kind.error, f"row {kind.row:,}", kind.message[:400]] for kind in kinds[:_KINDS]]
    more = f" {len(kinds) - _KINDS:,} other kinds are not shown." if len(kinds) > _KINDS else ""
    shown = table("", ["rows", "stage", "class", "first", "message of the first"], cells, left=5, prose=(4,))
    return PageSection("errors", "Errors", f"Quarantined rows by stage and class; errors/ holds each with its input.{more}", tables=[shown])


def settings_section(stored: Json, rows: list[Json]) -> PageSection:
    """Shows the config, the fingerprints, and all statistics over all records (the first of ``rows``)."""
    code = [
        ("Config", yaml.safe_dump(stored["config"], sort_keys=False, allow_unicode=True)),
        ("Fingerprints", yaml.safe_dump(stored["identity"], sort_keys=False, allow_unicode=True)),
    ]
    if rows:
        one = {name: value for name, value in rows[0].items() if name not in ("of", "group") and value is not None}
        code.insert(0, ("All statistics, over all records", yaml.safe_dump(one, sort_keys=False)))
    return PageSection("settings", "Settings", code=code)
