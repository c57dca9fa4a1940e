"""The policies that a run used, kept in its directory: a folder a version, there before the first record of that version.

    policies/12-3f9a0c52d1e7/adapter_config.json  adapters.safetensors  policy.json
    policies/0-77b1e0a94c02/policy.json                                    the base model: nothing beside it

Adapters are copied, since a trainer may write over its own. Full weights stay where they are; their path and sha256 are noted.
"""

import logging
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..core.policy import Policy, policy_sha
from ..files.atomic import fsync_folder, make_folder, sync_file
from ..files.checked_json import read_document, write_document
from ..files.checked_lines import append_line, read_lines
from ..files.folder_lock import now
from ..files.hash_cache import folder_sha256
from ..models.adapters import CONFIG, TENSORS, AdapterRefused, is_full
from .policy_source import Offer

log = logging.getLogger("mlx_bulk")

POLICY = "policy.json"
EVENTS = "events.jsonl"
TAKEN = "taken"

_NAME = re.compile(r"(\d+)-[0-9a-f]{12}")
_ADAPTER, _FULL = (CONFIG, TENSORS), ("*.safetensors", "config.json")
_BLOCK = 1 << 20


class Moved(ModelError):
    """Full weights are no more where the trainer had them, as when it removes old steps."""


@dataclass(slots=True, frozen=True)
class PolicyStore:
    """The folder ``root`` (``policies`` in a run directory). weights: the fingerprint of the base model's."""

    root: Path
    weights: str

    def keep_base(self) -> Policy:
        """Notes that the base model is used, as version 0."""
        policy = Policy(0, policy_sha(self.weights, "none"), None)
        with self._making() as folder:
            self._settle(folder, policy, "base", None, "none")
        return policy

    @contextmanager
    def keeping(self, offer: Offer) -> Generator[tuple[Policy, Path]]:
        """The offered policy, and the folder to load it from inside the block; it is kept when the block ends well.

        Raises Refused where what is offered cannot be read, OSError where it cannot be kept.
        """
        with self._making() as folder:
            with _reading(offer.folder):
                full = is_full(offer.folder)
                there = [name for name in _ADAPTER if (offer.folder / name).is_file()]  # what is missing is said by who loads it
            if full:
                load_from, kind = offer.folder, "full"
                with _reading(load_from):
                    digest = folder_sha256(load_from, _FULL)
            else:
                load_from, kind = folder, "adapter"
                for name in there:
                    _copy(offer.folder / name, folder / name)
                digest = folder_sha256(load_from, _ADAPTER)
            sha = policy_sha(self.weights, digest)
            policy = Policy(offer.version, sha, offer.folder.absolute())
            if kind == "adapter":
                policy = replace(policy, adapter=self.root / policy.name)
            yield policy, load_from
            self._settle(folder, policy, kind, offer.folder, digest)

    def kept(self) -> list[Offer]:
        """All versions but the base that are kept, the newest first; damaged ones are left out with a warning."""
        found: list[Offer] = []
        for name in self.names():
            try:
                policy = self.policy(name)
            except Moved:
                continue
            except ModelError as error:
                log.warning("%s", error)
                continue
            if policy.adapter is not None:
                found.append(Offer(policy.version, policy.adapter))
        return sorted(found, key=lambda offer: offer.version, reverse=True)

    def names(self) -> list[str]:
        """``Policy.name`` of all that are kept, damaged ones too."""
        return sorted(folder.name for folder in self.root.glob("*-*") if _NAME.fullmatch(folder.name))

    def newest_taken(self) -> int:
        """The newest version that was on the network in this run, whether its files are there or not."""
        noted = [int(line["version"]) for line in read_lines(self.root / EVENTS) if line["event"] == TAKEN]
        return max([0, *noted, *(int(name.split("-")[0]) for name in self.names())])

    def policy(self, name: str) -> Policy:
        """The policy that is kept as ``name`` (``Policy.name``), its files checked.

        Raises ModelError where it is not kept, its files are others than those that were kept, or the base's weights are; Moved where
        full weights are not in their place.
        """
        folder = self.root / name
        try:
            said = read_document(folder / POLICY)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{folder}: policy {name} is not kept there ({error}), so its records cannot be scored anew; restore it"
            ) from error
        if said["weights"] != self.weights:
            raise ModelError(f"{folder}: policy {name} stands on other weights than the model's; put the model of the run back")
        adapter = {"base": None, "adapter": folder, "full": Path(said["source"] or "")}[said["kind"]]
        if said["kind"] == "full" and adapter is not None and not is_full(adapter):
            raise Moved(f"{adapter}: no more holds the full weights of policy {name}; put them back")
        try:
            digest = "none" if adapter is None else folder_sha256(adapter, _FULL if said["kind"] == "full" else _ADAPTER)
        except OSError as error:
            raise ModelError(f"{adapter}: policy {name} cannot be read ({error}); restore it") from error
        if digest != said["adapter"]:
            raise ModelError(f"{adapter}: is not what policy {name} was loaded from (sha256 {digest[:12]}); restore it")
        return Policy(int(said["version"]), str(said["sha"]), adapter)

    def note(self, event: str, values: dict[str, Any]) -> None:
        """A line on what happened with policies: taken, or refused."""
        append_line(self.root / EVENTS, {"event": event, "time": now(), **values})

    @contextmanager
    def _making(self) -> Generator[Path]:
        """A new folder, gone behind the block if it has not been settled."""
        folder = self.root / ".new"
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, folder: Path, policy: Policy, kind: str, source: Path | None, digest: str) -> None:
        """Puts a new folder in its place, whole and durable, if it is not there from an earlier session."""
        try:
            self.policy(policy.name)
            return
        except ModelError:
            shutil.rmtree(self.root / policy.name, ignore_errors=True)
        about: dict[str, Any] = {"version": policy.version, "sha": policy.sha, "kind": kind, "weights": self.weights, "adapter": digest}
        write_document(folder / POLICY, about | {"source": None if source is None else str(source.absolute())})
        fsync_folder(folder)
        folder.rename(self.root / policy.name)
        fsync_folder(self.root)


@contextmanager
def _reading(offered: Path) -> Generator[None]:
    """What cannot be read of an offer is the offer's fault, unlike what cannot be written of its copy."""
    try:
        yield
    except OSError as error:
        raise AdapterRefused(f"{offered}: cannot be read ({error})") from error


def _copy(offered: Path, kept: Path) -> None:
    with kept.open("wb") as copy:
        for block in _blocks(offered):
            copy.write(block)
    sync_file(kept)


def _blocks(file: Path) -> Iterator[bytes]:
    with _reading(file.parent), file.open("rb") as source:
        while block := source.read(_BLOCK):
            yield block
