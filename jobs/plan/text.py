"""Formats a plan as text for a terminal."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from ...configs.visible import visible
from ...runner.core.images import not_compared
from ...runner.core.units import size_as_text
from ...runner.estimate.plan import Plan
from ...runner.pipeline.systematic_failure import systematic_failure
from ...runner.runs.throughput import duration
from ..terminal.tables import count_text, fold
from .histogram import text_histogram
from .values import length_figures

_LABEL = 10


def plan_as_text(plan: Plan, width: int) -> str:
    """Returns the plan as lines of at most ``width`` columns."""
    lines: list[str] = []
    for label, text in _lines(plan):
        if label == "chart":
            lines += [f"{'':{_LABEL}}{line}" for line in text_histogram(plan.survey.lengths, width - _LABEL)]
            continue
        pieces = fold(visible(" ".join(text.split())), max(30, width - _LABEL))
        lines += [f"{head:<{_LABEL}}{piece}" for head, piece in zip([label, *[""] * len(pieces)], pieces, strict=False)]
    return "\n".join(lines)


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "job", f"{plan.config.job} with {plan.config.model.path}"
    yield from _output(plan)
    yield from _rows(plan)
    if plan.survey.lengths:
        yield from _tokens(plan)
        yield "chart", ""
        yield from _pictures(plan)
        yield from _batches(plan)
        yield from _memory(plan)
        yield from _disk(plan)
        yield from _time(plan)


def _output(plan: Plan) -> Iterator[tuple[str, str]]:
    output, path = plan.output, plan.config.output.path
    if output.state == "new":
        yield "output", f"{path}: nothing is done there yet"
    elif output.state == "refused":
        yield "output", f"{path}: a run of this config would be refused:"
        yield from (("", line) for line in output.differences)
    elif output.state == "complete":
        yield "output", f"{path}: complete already, nothing is left to do; what follows is the whole run"
    else:
        done = f"{output.rows:,} of {plan.survey.rows:,} rows are done"
        yield "output", f"{path}: {done}, a run continues with the {plan.rows_left:,} left; what follows is the whole run"


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    survey = plan.survey
    size = "" if plan.input_bytes is None else f" ({size_as_text(plan.input_bytes)})"
    where = plan.config.data.path if isinstance(plan.config.data.path, str) else ", ".join(plan.config.data.path)
    yield "rows", f"{survey.rows:,} from {where}{size}"
    if (rounds := survey.rows // max(1, survey.input_rows)) > 1:
        yield "", f"{survey.input_rows:,} of the input in {rounds:,} rounds"
    if survey.rows_read < survey.input_rows:
        yield "", f"{survey.rows_read:,} of them were read, in windows spread evenly over the input; sums below are scaled up from these"
    if not survey.rows:
        yield "", "the input has no rows; a run has nothing to do"
    of = " of those read" if survey.rows_read < survey.rows else ""
    if survey.bad_rows:
        yield "bad", f"{survey.bad_rows:,}{of} cannot be done{_consequence(plan)}:"
    for problem in sorted(survey.problems.values(), key=lambda each: -each.count):
        yield "", f"{problem.count:,} {problem.stage} ({problem.error}), for example"
        yield from (("", f"  {example}") for example in problem.examples)
    if survey.guided_rows:
        distinct = count_text(len(survey.grammars), "distinct grammar")
        yield "grammars", f"{distinct} for {survey.guided_rows:,}{of} rows; each is compiled once"
    if survey.full_rows:
        cured = "their completions have fewer tokens than max_tokens, or their prompts are cut (prompt.too_long)"
        yield "", f"{survey.full_rows:,}{of} fill the model's context of {plan.context:,} tokens: {cured}"
    if survey.cut_rows:
        most, setting = ("allowed", "max_length") if survey.texts else ("the context", "prompt.too_long")
        yield "", f"{survey.cut_rows:,}{of} are longer than {most} and lose tokens to it ({setting})"


def _consequence(plan: Plan) -> str:
    """Returns what a run does about the rows that cannot be done."""
    if plan.config.on_error == "fail":
        return "; on_error: fail ends the run at the first"
    if plan.config.on_error == "quarantine" and systematic_failure(plan.survey.failures, plan.survey.rows_read) is not None:
        return "; a run stops before the model has work, as the first rows all fail alike (on_error: quarantine_all goes on)"
    return f" and {'goes' if plan.survey.bad_rows == 1 else 'go'} to errors/"


def _tokens(plan: Plan) -> Iterator[tuple[str, str]]:
    survey = plan.survey
    shown = length_figures(survey.lengths)
    what = "prompts" if survey.generates else "texts"
    spread = f"{shown['min']:,} to {shown['max']:,} a row, median {shown['median']:,}, mean {shown['mean']:,}, 95 % up to {shown['p95']:,}"
    yield what, f"{plan.prompt_tokens:,} tokens; {spread}"


def _pictures(plan: Plan) -> Iterator[tuple[str, str]]:
    survey = plan.survey
    if survey.picture_tokens:
        tokens, distinct = length_figures(survey.picture_tokens), count_text(len(survey.pictures), "distinct picture")
        share = f"{round(survey.factor * sum(survey.picture_tokens)):,} of the tokens above"
        least, most = tokens["min"], tokens["max"]
        each = f"{most:,} each" if least == most else f"{least:,} to {most:,} each, mean {tokens['mean']:,}"
        yield "pictures", f"{round(survey.factor * len(survey.picture_tokens)):,} in prompts, {share}: {each}; {distinct} in the rows read"
    for kind in plan.uncompared:
        yield "", not_compared(kind)


def _batches(plan: Plan) -> Iterator[tuple[str, str]]:
    survey, work = plan.survey, plan.expected or plan.work
    if survey.texts:
        texts = count_text(round(survey.factor * survey.texts), "text")
        yield (
            "computed",
            f"{texts}: {work.prefilled:,} tokens in {count_text(work.calls, 'batch', 'batches')} of {plan.way}, {_waste(plan)} padding",
        )
        if plan.config.batch.deterministic:
            again = "nothing: batch.deterministic computes each text for itself"
        elif plan.shared_tokens > 0:
            again = f"{plan.shared_tokens:,} tokens are not computed again: equal texts near each other are computed once"
        else:
            again = "nothing: no text stands there twice"
        yield "shared", again
        return
    if not survey.generates:
        fed = f"{work.prefilled:,} fed in {count_text(work.calls, 'batch', 'batches')} of {plan.way}"
        yield "scored", f"{work.scored:,} tokens, {fed}, {_waste(plan)} padding"
        if plan.shared_tokens > 0:
            total = plan.shared_tokens + work.prefilled
            yield (
                "shared",
                f"{plan.shared_tokens:,} of {total:,} tokens ({plan.shared_tokens / total:.0%}) are not fed again: rows begin alike",
            )
        else:
            yield "shared", "nothing: no rows begin alike for long enough"
        return
    yield from _completions(plan)
    calls, steps = count_text(work.calls, "prefill"), count_text(work.steps, "step")
    yield "batches", f"{calls} of {plan.way}, up to {plan.limits.rows:,} at once, {_waste(plan)} padding; {steps}"
    yield from _shared_prompts(plan)


def _completions(plan: Plan) -> Iterator[tuple[str, str]]:
    measured, most = plan.calibration, f"at most {plan.work.generated:,} tokens in {count_text(plan.completions, 'completion')}"
    if measured is None or plan.expected is None:
        yield "generated", f"{most}; how many it will be shows only a trial (--calibrate)"
        return
    mean = plan.expected.generated / max(1, plan.completions)
    yield "generated", f"about {plan.expected.generated:,} tokens, {mean:,.0f} a completion as in the trial; {most}"
    if measured.unfinished:
        yield (
            "",
            f"{measured.unfinished:,} of the trial's {len(measured.lengths):,} completions were cut off, and count with their max_tokens",
        )


def _shared_prompts(plan: Plan) -> Iterator[tuple[str, str]]:
    notes: list[str] = []
    if plan.shared_tokens:
        notes.append(f"{plan.shared_tokens:,} prompt tokens are not fed again: a row's samples share one prefill")
    if plan.prefix_tokens_saved > 0:
        notes.append(f"{plan.prefix_tokens_saved:,} prompt tokens are not fed again: rows begin alike")
    elif plan.repeated_prefix:
        notes.append(f"all prompts begin with the same {plan.repeated_prefix:,} tokens; each row's prefill computes them anew")
    yield from zip(["shared", *[""] * len(notes)], notes, strict=False)


def _waste(plan: Plan) -> str:
    return f"{(plan.expected or plan.work).padding_waste:.1%}"


def _memory(plan: Plan) -> Iterator[tuple[str, str]]:
    room, work = plan.limits.kv_bytes, plan.work
    held, rows = ("arrays of a batch", "texts") if plan.survey.texts else ("KV cache", "rows")
    need = f"{size_as_text(plan.weight_bytes)} weights + up to {size_as_text(work.kv_bytes)} {held} ({work.rows:,} {rows} at the peak)"
    yield "memory", f"{need}; batch.memory leaves {size_as_text(room)} of {size_as_text(plan.memory_bytes)} for it"
    if plan.tower_bytes:
        kept = size_as_text(plan.config.batch.image_memory * 1e9)
        yield (
            "",
            f"{size_as_text(plan.tower_bytes)} of the weights read pictures; their features take up to {kept} more (batch.image_memory)",
        )
    if plan.copy_bytes:
        yield "", f"up to {size_as_text(plan.copy_bytes)} more hold experts' weights in float32: this CPU multiplies no half precision"
    bits = plan.config.batch.kv_bits
    if bits is not None:
        after = f", after the first {start:,} of each row" if (start := plan.config.batch.kv_start) else ""
        yield "", f"{plan.limits.token_bytes:,.0f} bytes a cached token{after}, with keys and values in {bits} bits (batch.kv_bits)"
    if plan.reserved_bytes:
        yield (
            "",
            f"{size_as_text(plan.reserved_bytes)} more are kept for newer policies' full weights, or for a reference and reward models",
        )


def _disk(plan: Plan) -> Iterator[tuple[str, str]]:
    word = "about" if plan.calibration is not None or not plan.survey.generates else "at most"
    yield "disk", f"{word} {size_as_text(plan.disk_bytes)} of results; {size_as_text(plan.free_bytes)} are free there"
    if plan.disk_bytes > plan.free_bytes:
        yield "", "that does not fit: choose another --output, or ask for less (logprobs.top, data.keep)"


def _time(plan: Plan) -> Iterator[tuple[str, str]]:
    measured, seconds, left = plan.calibration, plan.seconds, plan.seconds_left
    if measured is None or seconds is None or left is None:
        yield "time", "not known without a trial: --calibrate loads the model and times some of these rows"
        return
    at = datetime.now().astimezone() + timedelta(seconds=left)
    rest = f", {duration(left)} for what is left" if plan.output.rows else ""
    yield "time", f"about {duration(seconds)} at {plan.tokens_per_second:,.0f} tok/s{rest}; begun now it ends at {at:%Y-%m-%d %H:%M %Z}"
    if plan.config.job == "rollout":
        yield "", "less what rewards and reference logprobs take: the trial has neither"
    yield (
        "",
        f"by {measured.rows:,} rows that took {duration(measured.seconds)}, with the model loaded in {duration(measured.load_seconds)}",
    )
