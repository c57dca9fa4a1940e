"""Compares a run's settings and inputs at its start and now, key by key, and lists the changes that a user can adopt.

Inputs may grow at their end; nothing else may change. Works on plain JSON values, and reads which environment
variables chose the kernels and the BLAS of now; knows no config schema and no file format.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.errors import ConfigError
from ...configs.visible import visible
from ..core.shard_layout import covered_rows, rounds_of
from ..images.named_files import changed_blocks

COLUMN = "column "
_INPUT = f"{COLUMN}input."
INPUTS = "data.path"
KEY = "data.key"

_REFERENCE = "score.reference"  # null where there is none, else keys below it
_MACHINE = ("device", "BLAS", "kernels", "threads", "mlx", "mlx-lm", "llguidance", "mlx-vlm", "transformers", "Pillow")
_VARIABLES = {"BLAS": "MLX_BULK_BLAS", "kernels": "MLX_BULK_CPU"}  # of the environment, which choose them
_DEQUANTIZED = ".dequantized"  # ends the key of a model
_DIGEST = re.compile("(?:sha256 )?([0-9a-f]{12})[0-9a-f]{52}")
_SHOWN = 120
_FIXED = {
    "batch.rows_per_shard": "the parts that are there are cut by it; go back to what the run has",
    "data.limit": "a run that covers more rows cannot be made shorter; go back to what the run has",
    "rounds": "the rounds that are begun lie where the run's rows and rounds put them; go back to what the run has",
}
_SAMPLES, _FORMAT = "sampling.n", "data.format"
_FIXED_COLUMN = "the parts that are there have the columns they have; go back to the settings or the input that gave them"


@dataclass(slots=True, frozen=True)
class KeyDrift:
    """One key in which a run has changed, with both values in words.

    why_fixed: why nobody can adopt this change, where others of the key can be adopted.
    """

    key: str
    text: str
    why_fixed: str | None = None

    def __str__(self) -> str:
        why = "" if self.why_fixed is None else f"; {self.why_fixed}"
        return visible(f"{self.key}: {self.text}{why}")  # names of columns and files may hold anything


def identity_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[KeyDrift]:
    """Returns a difference for each key whose value differs. Both are flat: key path or name of a fingerprint -> JSON value."""
    now = json.loads(json.dumps(now))  # tuples are lists once stored
    missing = object()
    changed = [key for key in sorted(stored.keys() | now.keys()) if stored.get(key, missing) != now.get(key, missing)]
    if _REFERENCE in changed and (stored.get(_REFERENCE, missing) is None or now.get(_REFERENCE, missing) is None):
        # The reference's settings and fingerprints come and go with it.
        others = [_difference(stored, now, key) for key in changed if not key.startswith(_REFERENCE)]
        had, has = ("none", "one") if _REFERENCE in stored else ("one", "none")
        return [*others, KeyDrift(_REFERENCE, f"the run has {had}, the config now says {has}")]
    return [_difference(stored, now, key) for key in changed]


def _difference(stored: dict[str, Any], now: dict[str, Any], key: str) -> KeyDrift:
    source = "the config now says"
    if key.startswith(COLUMN):
        source = "the input now gives"
    elif key in _MACHINE:
        source = "this machine now has"
    elif key.endswith(_DEQUANTIZED):
        source = "batch.memory on this machine now gives"
    elif _DIGEST.fullmatch(str(stored.get(key))) or _DIGEST.fullmatch(str(now.get(key))):
        source = "now it is"
    chosen = f" by {variable}={os.environ[variable]}" if (variable := _VARIABLES.get(key, "")) in os.environ else ""
    return KeyDrift(key, f"the run has {_shown(stored, key)}, {source} {_shown(now, key)}{chosen}", _why_kept(key, stored, now))


def _why_kept(key: str, stored: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Says why nobody can vouch for finished rows: they would keep fewer samples, or keys of another kind."""
    had, wanted = stored.get(key), now.get(key)
    if key == KEY and (had is None or wanted is None):
        return f"finished rows have {'no keys of their own' if had is None else 'values of a column as keys'}, and would stay so"
    if key == _SAMPLES and now.get(_FORMAT) == "openai":
        return "a request may have several prompts, and the number of a sample says which of them it answers"
    if key != _SAMPLES or not isinstance(had, int) or not isinstance(wanted, int) or wanted <= had:
        return None
    return f"some finished rows have only {had} of {wanted} samples, and would keep them"


def _shown(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "nothing"
    if digest := _DIGEST.fullmatch(str(values[key])):
        return f"sha256 {digest[1]}"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """Returns the records' columns as part of a run's identity: name -> type, with the input's columns one by one.

    The ``ranges`` of a column of int8 vectors, in its metadata, are a part of their own, by their sha256.
    """
    columns: dict[str, str] = {}
    for field in schema:
        inner = list(field.type) if field.name == "input" and pa.types.is_struct(field.type) else []
        columns |= {f"{_INPUT}{child.name}": _type(child) for child in inner} or {f"{COLUMN}{field.name}": _type(field)}
        if ranges := (field.metadata or {}).get(b"ranges"):
            columns[f"ranges of {COLUMN}{field.name}"] = f"sha256 {hashlib.sha256(ranges).hexdigest()}"
    return columns


def _type(field: pa.Field) -> str:
    return f"{field.type} (JSON)" if b"json" in (field.metadata or {}) else str(field.type)


def refusal(drift: Sequence[KeyDrift], adopted: Collection[str]) -> str:
    """Returns the message for a run that may not go on: a line for each difference that is not adopted, and the ways out.

    Columns are left out where another difference has changed them.
    """
    left = [difference for difference in drift if difference.key not in adopted or difference.why_fixed is not None]
    causes = [difference for difference in left if not difference.key.startswith(COLUMN)]
    lines = [str(difference) for difference in causes or left]
    if all(difference.key.startswith(COLUMN) for difference in drift):
        lines.append("(rows that were added may not change the columns: a new run takes any, or names in data.keep those that it wants)")
    elif not causes:
        lines.append(f"(columns cannot be adopted: {_FIXED_COLUMN})")
    ways = "Go back to what the run has, choose another --output, or start over with --overwrite (this removes the run's results)"
    if all(difference.why_fixed is None and _why_fixed(difference.key) is None for difference in left):
        keys = " ".join(f"--adopt {key}" for key in dict.fromkeys(difference.key for difference in causes))
        ways += f"; where you vouch that the finished rows hold all the same, {keys} goes on"
    return "this run was started with something else:\n" + "".join(f"  {line}\n" for line in lines) + ways + "."


def require_adoptable(keys: Collection[str], identity_keys: Collection[str]) -> None:
    """Raises ConfigError where no run can adopt one of ``keys``, or where this run's identity does not have it."""
    valid = sorted({key for key in identity_keys if _why_fixed(key) is None} | {INPUTS})
    for key in keys:
        if reason := _why_fixed(key):
            raise ConfigError(f"--adopt {key}: cannot be adopted: {reason}")
        if key not in valid:
            near = get_close_matches(key, valid, n=3)
            fix = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(valid)}"
            raise ConfigError(f"--adopt {key}: is no key of this run's identity; {fix}")


def differences(stored: dict[str, Any], run: dict[str, Any]) -> list[KeyDrift]:
    """Returns all differences between two descriptions of a run."""
    found = identity_drift(stored["identity"], run["identity"]) + inputs_drift(stored["inputs"], run["inputs"])
    return found + rounds_drift(stored, run)


def values_at(key: str, run: dict[str, Any]) -> dict[str, Any]:
    """Returns what ``run`` (``{"identity", "inputs"}``) has at a difference's key, and below it."""
    if key == inputs_key(run["inputs"]):
        return {key: run["inputs"]}
    return {name: value for name, value in run["identity"].items() if f"{name}.".startswith(f"{key}.")}


def _why_fixed(key: str) -> str | None:
    return _FIXED_COLUMN if key.startswith(COLUMN) else _FIXED.get(key)


def inputs_key(inputs: dict[str, Any]) -> str:
    """Returns the setting that names the inputs: ``data.path``, or what a run without a ``data`` section says of itself."""
    return str(inputs.get("key", INPUTS))


def inputs_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[KeyDrift]:
    """Returns each way in which the inputs changed, except by growing at their end.

    Both are ``{"limit": int | None, "sources": [{"path", "format", "codec", "bytes", "sha256", "rows", "appendable"}]}``: the
    sources that have rows before the limit, in reading order. ``sha256`` is over their ``bytes`` as they lie on disk. ``appendable``
    marks uncompressed formats with one row per line. Content and format count, the path does not. The last old source may have grown
    if its old content is still its beginning, new sources may follow it, and the limit may be larger. Reads a grown file again.
    Raises OSError where it cannot be read.
    """
    had, has = covered_rows(stored), covered_rows(now)
    if has < had and has == now["limit"]:  # sources after the limit are not listed: they would look changed
        return [KeyDrift("data.limit", f"the run covers {had} rows, the config now says {has}")]
    return [*_changed_sources(stored["sources"], now["sources"], inputs_key(now)), *_changed_pictures(stored, now)]


def rounds_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[KeyDrift]:
    """Returns each way in which a run's rounds changed, except by growing in number.

    Both are the contents of run.json. Only a run of one round can take more rows, as the next round's rows follow directly.
    """
    had, has = rounds_of(stored), rounds_of(now)
    if has < had:
        return [KeyDrift("rounds", f"the run covers {had} rounds, the config now says {has}")]
    old, new = covered_rows(stored["inputs"]), covered_rows(now["inputs"])
    if had > 1 and old != new:
        cure = f"; a run of several rounds cannot grow: set data.limit to {old}, or start a new run" if new > old else ""
        return [KeyDrift("rounds", f"the run has {had} rounds of {old} rows, the input now gives {new}{cure}")]
    return []


def inputs_content(inputs: dict[str, Any]) -> list[Any]:
    """Returns what of the inputs counts, as JSON values. They are equal for equal content at other paths."""
    return [inputs["limit"], *(_content(source) for source in inputs["sources"])]


def _content(source: dict[str, Any]) -> list[Any]:
    return [source["sha256"], source["bytes"], source["format"], source["codec"]]


def _changed_sources(stored: list[dict[str, Any]], now: list[dict[str, Any]], key: str) -> Iterator[KeyDrift]:
    for number, old in enumerate(stored, start=1):
        if number > len(now):
            yield KeyDrift(key, f"source {number}, {old['path']}, is gone")
            continue
        new = now[number - 1]
        if _content(old) == _content(new):
            continue
        if number < len(stored):
            yield KeyDrift(key, f"source {number} was {_source(old)}, is now {_source(new)}")
        elif not _grown(old, new):
            yield KeyDrift(key, f"source {number} was {_source(old)}, is now {_source(new)}, which does not continue it")


def _changed_pictures(stored: dict[str, Any], now: dict[str, Any]) -> Iterator[KeyDrift]:
    """Yields a difference where files of pictures that rows name are no longer what they were; none where either side does not say."""
    if "pictures" not in stored or "pictures" not in now:
        return
    if changed := changed_blocks(stored["pictures"], now["pictures"]):
        rows = ", ".join(f"{block.start} to {block.stop - 1}" for block in changed[:3])
        more = f" and {len(changed) - 3} blocks more" if len(changed) > 3 else ""
        yield KeyDrift(inputs_key(now), f"a picture that one of rows {rows}{more} names is new, changed or gone")


def _source(source: dict[str, Any]) -> str:
    kind = source["format"] if source["codec"] is None else f"{source['format']} in {source['codec']}"
    return f"{source['path']} ({kind}, {source['rows']} rows, {source['bytes']} bytes, sha256 {source['sha256'][:12]})"


def _grown(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Returns True when ``new`` is ``old`` with whole lines appended, by the bytes themselves."""
    if old["format"] != new["format"] or not (
        old["appendable"] and new["appendable"] and new["bytes"] > old["bytes"] and new["rows"] >= old["rows"]
    ):
        return False
    digest, left, last = hashlib.sha256(), old["bytes"], b"\n"
    with Path(new["path"]).open("rb") as file:
        while left and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left, last = left - len(piece), piece[-1:]
        following = file.read(1)
    if left or digest.hexdigest() != old["sha256"]:
        return False
    # Text appended to an unfinished last line would change a row that may be done.
    return last == b"\n" or following in (b"\n", b"\r")
