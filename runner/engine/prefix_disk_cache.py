"""KV of prefixes in a folder, one safetensors file each, so that a later run with the same model need not compute them again.

A file's name is a sha256 of all that its contents depend on; what it says of itself, and a checksum, are looked at before any of it
is used. What does not fit, or cannot be written, costs time only, and is said once. Runs may share a folder: files appear whole.
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
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache

from ...kernels.logprobs import Scores
from ..core.arrays import Ids
from ..core.errors import ModelError, first_line
from ..files.atomic import make_folder, replacing
from ..files.disk_space import RESERVE_BYTES
from ..layers.kv_cache import Caches, kept_inside

log = logging.getLogger("mlx_bulk")

MOST_BYTES = 8 << 30  # in one folder: what was used longest ago goes first
LEAST = 64  # tokens: fewer are computed as fast as they are read
KNOWN = 256  # files, the newest, whose prefixes are looked for among a window's prompts
SUFFIX = ".safetensors"


@dataclass(slots=True, frozen=True, eq=False)
class Base:
    """What rows can be prefilled on top of: the plain ``caches`` of one row of ``tokens`` tokens.

    With an echo also the scores [tokens - 1] of those behind the first, and the state [1, H] of the last, which predicts what follows.
    """

    caches: Caches
    tokens: int
    echo: Scores | None
    last: mx.array | None


@dataclass(slots=True)
class PrefixCache:
    """The prefixes in ``folder`` of one model: ``identity`` says all that their numbers depend on besides their tokens.

    ``longest`` has the tokens of the longest that was asked for; ``read`` and ``kept`` count those of this session.
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
        """Makes the folder where it is missing. Raises ModelError where it cannot be one."""
        try:
            make_folder(folder)
        except OSError as error:
            raise ModelError(
                f"batch.prefix_cache: {folder} cannot be used ({error.strerror}); expected a folder, or null for none"
            ) from error
        return cls(folder, json.dumps(identity, sort_keys=True))

    def load(self, ids: Ids, figures: str, empty: Callable[[], Caches]) -> Base | None:
        """What is kept of ``ids`` [T], if there is anything. figures: what an echo holds; empty: makes the caches that it goes into."""
        self.longest = max(self.longest, len(ids))
        path = self._path(ids, figures)
        if len(ids) < LEAST or not path.is_file():
            return None
        try:
            arrays, said = _read(path)
            if said["identity"] != self.identity or said["figures"] != figures or not np.array_equal(np.array(arrays.pop("ids")), ids):
                raise ValueError("it is of other tokens or another model")
            if said["check"] != _checksum(arrays, said["plain"]):
                raise ValueError("its checksum does not fit")
            caches = empty()
            _fill(caches, arrays, json.loads(said["plain"]))
            os.utime(path)  # used last
        except Exception as error:  # whatever a damaged file makes of itself
            if path.is_file():  # else another run has made room
                self._say("damaged", f"{path}: is not used, and computed anew: {first_line(error)}")
            return None
        self.read += 1
        echo = {name: np.array(arrays[f"echo.{name}"]) for name in Scores.__slots__ if f"echo.{name}" in arrays}
        return Base(caches, len(ids), Scores(**echo) if echo else None, arrays.get("last"))

    def save(self, ids: Ids, figures: str, base: Base) -> None:
        """Keeps ``base``, the caches of ``ids`` [T]; others go where the folder becomes too large."""
        if len(ids) < LEAST or "full" in self._said:
            return
        try:
            arrays, plain = _leaves(base)
            need = sum(array.nbytes for array in arrays.values())
            if need > self.most_bytes or shutil.disk_usage(self.folder).free < need + RESERVE_BYTES:
                self._say("full", f"{self.folder}: has no room for {need / 1e6:,.1f} MB of a prefix's KV; no more is kept in this session")
                return
            self._make_room(need)
            said = {"identity": self.identity, "figures": figures, "plain": plain, "check": _checksum(arrays, plain)}
            with replacing(self._path(ids, figures), f".{os.getpid()}") as file:
                mx.save_safetensors(file, {**arrays, "ids": mx.array(ids)}, said)
            self.kept += 1
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            self._say("full", f"{self.folder}: a prefix's KV could not be kept ({first_line(error)}); no more is kept in this session")

    def known(self, figures: str) -> list[Ids]:
        """The prefixes [T] that the folder holds for this model, of the files used last."""
        found: list[Ids] = []
        for path in [path for _, _, path in sorted(self._files(), reverse=True) if path.suffix == SUFFIX][:KNOWN]:
            try:
                arrays, said = _read(path)
                if said["identity"] == self.identity and said["figures"] == figures:
                    found.append(np.array(arrays["ids"]))
            except Exception:  # damaged, or gone by now: who wants it says so
                log.debug("%s: cannot be read", path)
        return found

    @property
    def account(self) -> str:
        """What the folder was good for in this session, or why for nothing."""
        found = "prompts share none that is worth it"
        if self.longest:
            found = f"the longest that prompts share: {self.longest} tokens"
            found += f", and those of fewer than {LEAST} are not kept" if self.longest < LEAST else ""
        return f"{self.folder}: prefixes read {self.read}, kept {self.kept} ({found})"

    def _path(self, ids: Ids, figures: str) -> Path:
        whole = sha256(f"{self.identity}\n{figures}\n".encode() + ids.astype("<i4").tobytes())
        return self.folder / f"{whole.hexdigest()}{SUFFIX}"

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, bytes and path of each file of ours; what a killed process left is one too."""
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
    found: Any = mx.load(str(path), return_metadata=True)
    return found


def _leaves(base: Base) -> tuple[dict[str, mx.array], str]:
    """A base's arrays by name, and the plain values of its caches as JSON."""
    arrays: dict[str, mx.array] = {}
    plain: dict[str, Any] = {}
    for number, cache in enumerate(kept_inside(base.caches)):
        for name, value in vars(cache).items():
            whole = value[..., : cache.offset, :] if type(cache) is KVCache and isinstance(value, mx.array) else value  # less its buffer
            leaves: list[tuple[str, Any]] = tree_flatten({name: whole})  # pyright: ignore[reportAssignmentType]
            for path, leaf in leaves:
                (arrays if isinstance(leaf, mx.array) else plain)[f"{number}.{path}"] = leaf
    if base.echo is not None:
        arrays |= {f"echo.{name}": mx.array(part) for name in Scores.__slots__ if (part := getattr(base.echo, name)) is not None}
    if base.last is not None:
        arrays["last"] = base.last
    return arrays, json.dumps(plain)


def _fill(caches: Caches, arrays: dict[str, mx.array], plain: dict[str, Any]) -> None:
    """Puts what ``_leaves`` found into empty caches."""
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
    """Shows damage of the arrays' names, types, shapes and bytes; their order does not enter."""
    whole = blake2b(plain.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype} {array.shape}".encode())
        whole.update(memoryview(array.reshape(-1).view(mx.uint8)))  # pyright: ignore[reportArgumentType]
    return whole.hexdigest()
