"""Reads the picked records again for the page's sample browser and cuts them to a readable size.

record_pass.py has picked them. Knows no HTML; all text in records is data.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...runner.store.results import read_results
from ...runner.text.tokenizer import Tokenizer
from ..terminal.tables import shorten
from .lowest import Lowest
from .record_pass import SPAN, RecordPass, identities
from .token_view import MOST, Spell, decoded, numbered, shown_tokens, token_spelling

Identity = tuple[int, int, int]  # round, row, sample
Json = dict[str, Any]

_BYTES = 1_600_000  # of all samples as JSON: the page stays under 3 MB
_WRITTEN = ("completion_ids", "token_ids", "choice_token_ids")  # columns of records with a text of their own
_TEXT = 4_000  # characters of a prompt or of an input
_KEY = 40  # of a key in the list
_FACTS = (
    ("finish_reason", "finish"),
    ("stop_reason", "stopped by"),
    ("completion_tokens", "completion tokens"),
    ("reasoning_tokens", "reasoning tokens"),
    ("reasoning_forced", "reasoning was ended"),
    ("tool_error", "error of its calls"),
    ("scored_tokens", "scored tokens"),
    ("reward", "reward"),
    ("advantage", "advantage"),
    ("policy_version", "policy version"),
    ("group_id", "group"),
    ("score", "score"),
    ("true_label", "right label"),
    ("chosen_score", "chosen"),
    ("rejected_score", "rejected"),
    ("margin", "margin"),
    ("correct", "right"),
    ("is_greedy", "greedy"),
    ("truncated", "truncated"),
)


@dataclass(slots=True, frozen=True)
class Samples:
    """The samples as JSON, in input order. rows: of each, its row. sorts: name -> count. left_out: how many were picked but had no room."""

    records: list[Json]
    rows: list[int]
    sorts: dict[str, int]
    left_out: int


def samples(run: Path, found: RecordPass, tokenizer: Tokenizer | None) -> Samples:
    """Returns the records that ``found`` picked. Raises RunDirError where a committed part is missing or damaged."""
    tags = _tags(found)
    spans = {who: int(at) for who, at in zip(found.spans.found, found.spans.notes, strict=True)}
    shown = _Shown(tokenizer, spans)
    records, room = dict[Identity, Json](), _BYTES
    for who, values in sorted(_read(run, tags), key=lambda each: _rank(tags[each[0]])):
        record = shown.record(who, values, tags[who])
        if (room := room - len(json.dumps(record))) < 0:
            break
        records[who] = record
    kept = [records[who] for who in sorted(records)]
    sorts = dict.fromkeys(sort for names in tags.values() for sort in names)
    counts = {sort: sum(sort in record["tags"] for record in kept) for sort in sorts}
    shares = {sort: count for sort, count in sorted(counts.items(), key=lambda each: _order(each[0])) if count}
    return Samples(kept, [row for _, row, _ in sorted(records)], shares, len(tags) - len(kept))


_SORTS = ("random", "least likely", "least likely spans", "best of a group", "worst of a group", "wrong and sure", "right and unsure")


def _order(sort: str) -> int:
    return _SORTS.index(sort) if sort in _SORTS else len(_SORTS)


def _rank(sorts: list[str]) -> int:
    """Ranks records picked for a reason before random ones; the last are dropped first."""
    return min(1 if sort == "random" else 0 for sort in sorts)


def _tags(found: RecordPass) -> dict[Identity, list[str]]:
    """Returns the sorts of each picked record."""
    sorts: dict[str, Lowest] = {**found.sorts, "least likely spans": found.spans}
    if found.rollout is not None:
        sorts |= {"best of a group": found.rollout.best, "worst of a group": found.rollout.worst}
    tags: dict[Identity, list[str]] = {}
    for sort in sorted(sorts, key=_order):
        for who in sorts[sort].found:
            tags.setdefault(who, []).append(sort)
    return tags


def _read(run: Path, wanted: dict[Identity, list[str]]) -> Iterator[tuple[Identity, Json]]:
    """Yields the wanted records with all their columns."""
    for batch in read_results(run):
        for index, who in enumerate(map(tuple, identities(batch).tolist())) if _has(batch, wanted) else ():
            if who in wanted:
                yield who, batch.slice(index, 1).to_pylist()[0]


def _has(batch: pa.RecordBatch, wanted: dict[Identity, list[str]]) -> bool:
    rows = batch.column("row").to_numpy()
    return len(rows) > 0 and any(rows.min() <= who[1] <= rows.max() for who in wanted)


@dataclass(slots=True, frozen=True)
class _Shown:
    """Shows records as JSON; tokens by their text where there is a tokenizer, else by their ids."""

    tokenizer: Tokenizer | None
    spans: dict[Identity, int]

    @property
    def spell(self) -> Spell:
        return numbered if self.tokenizer is None else token_spelling(self.tokenizer.token_bytes)

    def record(self, who: Identity, values: Json, sorts: list[str]) -> Json:
        """Returns the record as the page's script reads it."""
        name = [f"row {values['row']:,}"]
        name += [f"sample {values['sample']}"] if values.get("sample") is not None and "sample" in values else []
        name += [f"round {values['round']}"] if values.get("round") is not None else []
        record: Json = {"name": " · ".join(name), "tags": sorts, "parts": list(self._parts(values, self.spans.get(who)))}
        if values["key"] != str(values["row"]):
            record |= {"key": values["key"], "who": " · ".join([shorten(values["key"], _KEY), *name[1:]])}
        record["facts"] = [[heading, _fact(values[column])] for column, heading in _FACTS if values.get(column) is not None]
        if isinstance(values.get("label"), str):  # of choices it is an index, which is shown with them
            record["facts"].insert(0, ["label", values["label"]])
        if (row := values.get("input")) is not None:
            if any(name in values for name in _WRITTEN):
                record["input"] = _cut(json.dumps(row, ensure_ascii=False, indent=1, default=str))
            else:  # nothing else says what the record is about
                record["parts"].append({"name": "input", "text": _outline(row)})
        if not record["parts"]:
            record["parts"] = [{"name": "input", "text": "(not kept: data.keep)"}]
        if (rewards := values.get("rewards")) is not None:
            reasons = values.get("reward_errors") or {}
            record["facts"] += [[name, _reward(value, reasons.get(name))] for name, value in rewards.items()]
        return record

    def _parts(self, values: Json, span: int | None) -> Iterator[Json]:
        if "completion_ids" in values:
            if values.get("prompt_logprobs") is not None:
                yield self._tokens("prompt", values, "prompt_", values["prompt"], None)
            else:
                yield {"name": "prompt", "text": _cut(values["prompt"])}
            decode = None if self.tokenizer is None else self.tokenizer.decode
            text = decoded(decode, values["completion_ids"]) if decode is not None else values["completion"]
            part = self._tokens("completion", values, "", text, span)
            # Without stored logprobs its tokens have nothing to show.
            whole = part if values.get("logprobs") is not None else {"name": "completion", "text": _cut(values["completion"])}
            said = list(_said(values))
            if values.get("reasoning") is not None:
                yield {"name": "reasoning", "text": _cut(values["reasoning"]), "folded": True}
            yield whole | {"folded": True} if said else whole
            yield from said
        elif "token_ids" in values:
            decode = None if self.tokenizer is None else self.tokenizer.decode
            yield self._tokens("text", values, "token", decoded(decode, values["token_ids"]), span)
        elif "choice_token_ids" in values:
            yield from self._choices(values)
        elif "ranking" in values:
            lines = [f"{place}. document {at}: {values['scores'][at]:.4g}" for place, at in enumerate(values["ranking"], start=1)]
            yield {"name": "ranking", "text": _cut("\n".join(lines))}
        elif len(values.get("logits") or ()) > 1 and "margin" not in values:
            yield {"name": "logits", "text": _cut("  ".join(f"{logit:.4g}" for logit in values["logits"]))}

    def _tokens(self, name: str, values: Json, prefix: str, text: str | None, span: int | None) -> Json:
        tokens, start = shown_tokens(values, prefix, text, self.spell, span)
        part: Json = {"name": name, "tokens": tokens}
        total = len(values[{"token": "token_ids", "prompt_": "prompt_ids", "": "completion_ids"}[prefix]])
        if total > len(tokens):
            part["note"] = f"tokens {start + 1:,} to {start + len(tokens):,} of {total:,} are shown"
        if span is not None:
            part["span"] = [span - start, span - start + SPAN]
        return part

    def _choices(self, values: Json) -> Iterator[Json]:
        for index, (ids, logprobs) in enumerate(zip(values["choice_token_ids"], values["choice_token_logprobs"], strict=True)):
            marks = [mark for mark, column in (("predicted", "prediction"), ("label", "label")) if values.get(column) == index]
            note = f"logprob {values['choice_logprobs'][index]:.3f}" + (f" · {', '.join(marks)}" if marks else "")
            columns = {"token_ids": ids[:MOST], "token_logprobs": logprobs[:MOST]}
            yield {"name": f"choice {index}", "note": note, "tokens": shown_tokens(columns, "token", None, self.spell)[0]}


def _outline(row: Json) -> str:
    """Returns a row as lines: a column a line, below it the turns of a chat or the numbered items of a list."""
    lines: list[str] = []
    for name, value in row.items():
        if not isinstance(value, list):
            lines += [] if value is None else [f"{name}: {_line(value)}"]
            continue
        turns = [(each["role"], each.get("content")) if isinstance(each, dict) and "role" in each else None for each in value]
        lines.append(f"{name}:")
        lines += [f"  {turn[0] if turn else at}: {_line(turn[1] if turn else value[at])}" for at, turn in enumerate(turns)]
    return _cut("\n".join(lines))


def _line(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _said(values: Json) -> Iterator[Json]:
    """Yields the calls and the answer of a completion, where they are not the whole of it."""
    calls = values.get("tool_calls") or []
    if calls:
        yield {"name": "calls", "text": _cut("\n".join(f"{call['name']} {call['arguments']}" for call in calls))}
    answer = values.get("content")
    if answer is not None and (calls or values.get("reasoning") is not None):
        yield {"name": "answer", "text": _cut(answer)}


def _reward(value: float | None, error: str | None) -> str:
    """Returns the reward of a function, or a dash and why there is none."""
    if value is not None:
        return _fact(value)
    return "–" if error is None else f"– ({_cut(error)})"


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} … ({len(text):,} characters)"
