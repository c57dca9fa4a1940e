"""Keeps the KV caches of prefixes in a folder, so that a later run with the same model need not compute them again.

Each prefix is one safetensors file, named by a sha256 of all that its contents depend on. Its metadata and a checksum are tested before
any of it is used. A file that is damaged or cannot be written costs time only, and one warning. Runs may share a folder: files appear
whole.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import KVCache

from ...kernels.logprobs import Scores
from ..core.arrays import Ids
from ..core.errors import ModelError, first_line
from ..core.units import size_as_text
from ..files.atomic import make_folder, replacing
from ..files.disk_space import RESERVE_BYTES
from ..layers.kv_cache import Caches, kept_inside
from ..quantized_kv.quantized_caches import PlainQuantizedKVCache

log = logging.getLogger("mlx_bulk")

MOST_BYTES = 8 << 30  # in one folder: the file used longest ago goes first
LEAST = 64  # tokens: a shorter prefix is computed as fast as it is read
KNOWN = 256  # files: of so many, the newest, a window's prompts may use the prefix
SUFFIX = ".safetensors"


@dataclass(slots=True, frozen=True, eq=False)
class ComputedPrefix:
    """A prefix on top of which rows are prefilled: the plain ``caches`` of one row of ``tokens`` tokens.

    With an echo also the scores [tokens - 1] of its tokens after the first, and the hidden state [1, H] of the last token, which
    predicts the next.
    """

    caches: Caches
    tokens: int
    echo: Scores | None
    last: mx.array | None


@dataclass(slots=True)
class PrefixCache:
    """The prefixes of one model in ``folder``. ``identity``: all that their numbers depend on besides the tokens.

    ``longest``: tokens of the longest prefix that a run asked for; ``read`` and ``kept`` count the files of this session.
    """

    folder: Path
    identity: str
    most_bytes: int = MOST_BYTES
    longest: int = 0
    read: int = 0
    kept: int = 0
    _said: set[str] = field(default_factory=set[str])

    @classmethod
    def opened(cls, folder: Path, identity: dict[str, Any]) -> "PrefixCache":
        """Opens a folder and makes it if it is missing. Raises ModelError where it cannot be one."""
        try:
            make_folder(folder)
        except OSError as error:
            raise ModelError(
                f"batch.prefix_cache: {folder} cannot be used ({error.strerror}); expected a folder, or null for none"
            ) from error
        return cls(folder, json.dumps(identity, sort_keys=True))

    def load(self, ids: Ids, figures: str, empty: Callable[[], Caches]) -> ComputedPrefix | None:
        """Reads the prefix ``ids`` [T]; None if the folder lacks it. figures: what an echo holds; empty: makes caches to fill."""
        self.longest = max(self.longest, len(ids))
        path = self._path(ids, figures)
        if len(ids) < LEAST or not path.is_file():
            return None
        try:
            arrays, metadata = _read(path)
            if (
                metadata["identity"] != self.identity
                or metadata["figures"] != figures
                or not np.array_equal(np.array(arrays.pop("ids")), ids)
            ):
                raise ValueError("it is of other tokens or another model")
            if metadata["check"] != _checksum(arrays, metadata["plain"]):
                raise ValueError("its checksum does not fit")
            caches = empty()
            _fill(caches, arrays, json.loads(metadata["plain"]))
            os.utime(path)  # used last
        except Exception as error:  # whatever a damaged file makes of itself
            if path.is_file():  # else another run has made room
                self._say("damaged", f"{path}: is not used, and computed anew: {first_line(error)}")
            return None
        self.read += 1
        echo = {name: np.array(arrays[f"echo.{name}"]) for name in Scores.__slots__ if f"echo.{name}" in arrays}
        return ComputedPrefix(caches, len(ids), Scores(**echo) if echo else None, arrays.get("last"))

    def save(self, ids: Ids, figures: str, prefix: ComputedPrefix) -> None:
        """Writes ``prefix``, computed of ``ids`` [T]; deletes older files where the folder becomes too large."""
        if len(ids) < LEAST or "full" in self._said:
            return
        try:
            arrays, plain = _leaves(prefix)
            need = sum(array.nbytes for array in arrays.values())
            if need > self.most_bytes or shutil.disk_usage(self.folder).free < need + RESERVE_BYTES:
                self._say("full", f"{self.folder}: has no room for {size_as_text(need)} of a prefix's KV; no more is kept in this session")
                return
            self._make_room(need)
            metadata = {"identity": self.identity, "figures": figures, "plain": plain, "check": _checksum(arrays, plain)}
            with replacing(self._path(ids, figures), f".{os.getpid()}") as file:
                mx.save_safetensors(file, {**arrays, "ids": mx.array(ids)}, metadata)
            self.kept += 1
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            self._say("full", f"{self.folder}: a prefix's KV could not be kept ({first_line(error)}); no more is kept in this session")

    def known(self, figures: str) -> list[Ids]:
        """Returns the prefixes [T] of this model that the folder holds, those in the files used last."""
        prefixes: list[Ids] = []
        for path in [path for _, _, path in sorted(self._files(), reverse=True) if path.suffix == SUFFIX][:KNOWN]:
            try:
                arrays, metadata = _read(path)
                if metadata["identity"] == self.identity and metadata["figures"] == figures:
                    prefixes.append(np.array(arrays["ids"]))
            except Exception:  # damaged, or gone by now: ``load`` warns
                log.debug("%s: cannot be read", path)
        return prefixes

    @property
    def account(self) -> str:
        """Says what the folder was good for in this session, or why for nothing."""
        reason = "prompts share none that is worth it"
        if self.longest:
            reason = f"the longest that prompts share: {self.longest} tokens"
            reason += f", and those of fewer than {LEAST} are not kept" if self.longest < LEAST else ""
        return f"{self.folder}: prefixes read {self.read}, kept {self.kept} ({reason})"

    def _path(self, ids: Ids, figures: str) -> Path:
        whole = sha256(f"{self.identity}\n{figures}\n".encode() + ids.astype("<i4").tobytes())
        return self.folder / f"{whole.hexdigest()}{SUFFIX}"

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yields time of last use, bytes and path of each file of ours, those too that a killed process left."""
        for path in self.folder.iterdir():
            if path.suffix == SUFFIX or (path.name.startswith(".") and f"{SUFFIX}." in path.name):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                yield stat.st_mtime, stat.st_size, path

    def _make_room(self, need: int) -> None:
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total + need <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("batch.prefix_cache: %s", message)


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    loaded: Any = mx.load(str(path), return_metadata=True)
    return loaded


def _leaves(prefix: ComputedPrefix) -> tuple[dict[str, mx.array], str]:
    """Returns a prefix's arrays by name, and the plain values of its caches as JSON."""
    arrays: dict[str, mx.array] = {}
    plain: dict[str, Any] = {}
    for number, cache in enumerate(kept_inside(prefix.caches)):
        for name, value in vars(cache).items():
            whole = value
            if type(cache) in (KVCache, PlainQuantizedKVCache) and name in ("keys", "values") and value is not None:  # no unused room
                whole = tree_map(lambda x, end=cache.offset: x[..., :end, :], value)
            leaves: list[tuple[str, Any]] = tree_flatten({name: whole})  # pyright: ignore[reportAssignmentType]
            for path, leaf in leaves:
                (arrays if isinstance(leaf, mx.array) else plain)[f"{number}.{path}"] = leaf
    if prefix.echo is not None:
        arrays |= {f"echo.{name}": mx.array(part) for name in Scores.__slots__ if (part := getattr(prefix.echo, name)) is not None}
    if prefix.last is not None:
        arrays["last"] = prefix.last
    return arrays, json.dumps(plain)


def _fill(caches: Caches, arrays: dict[str, mx.array], plain: dict[str, Any]) -> None:
    """Fills empty caches with what ``_leaves`` returned. Raises ValueError where there are more layers than caches."""
    by_cache: dict[int, list[tuple[str, Any]]] = {}
    for name, leaf in [*arrays.items(), *plain.items()]:
        number, _, path = name.partition(".")
        if number.isdecimal():
            by_cache.setdefault(int(number), []).append((path, leaf))
    for number, cache in enumerate(kept_inside(caches)):
        values: dict[str, Any] = tree_unflatten(by_cache.pop(number))  # pyright: ignore[reportAssignmentType]
        for name in vars(cache).keys() & values.keys():
            setattr(cache, name, values[name])
    if by_cache:
        raise ValueError("it has more layers than the model")


def _checksum(arrays: dict[str, mx.array], plain: str) -> str:
    """Returns a checksum of the arrays' names, types, shapes and bytes, whatever their order."""
    whole = blake2b(plain.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype} {array.shape}".encode())
        whole.update(memoryview(array.reshape(-1).view(mx.uint8)))  # pyright: ignore[reportArgumentType]
    return whole.hexdigest()
