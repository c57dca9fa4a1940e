"""Keeps the policies of a run in its directory: one folder a version, written before the first record of that version.

    policies/12-3f9a0c52d1e7/adapter_config.json  adapters.safetensors  policy.json
    policies/0-77b1e0a94c02/policy.json                                    the base model: no files of weights

Adapters are copied, since a trainer may overwrite its own. Full weights stay where they are; their path and sha256 are noted.
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
from ..models.adapters import CONFIG, TENSORS, AdapterRefused, Adapters, is_full
from .policy_source import Offer

log = logging.getLogger("mlx_bulk")

POLICY = "policy.json"
EVENTS = "events.jsonl"
TAKEN, SENT = "taken", "sent"  # a policy is loaded; it goes to workers, which may refuse it
BEGUN = "begun"  # a shard or a round is, under a policy

_NAME = re.compile(r"(\d+)-[0-9a-f]{12}")
_ADAPTER, _FULL = (CONFIG, TENSORS), ("*.safetensors", "config.json")
_BLOCK = 1 << 20


class WeightsMoved(ModelError):
    """Full weights are gone from where the trainer had them; trainers remove old steps."""


@dataclass(slots=True, frozen=True)
class PolicyStore:
    """The folder ``root`` (``policies`` in a run directory). weights: the fingerprint of the base model's weights."""

    root: Path
    weights: str

    def keep_base(self) -> Policy:
        """Keeps the base model as version 0, and returns it."""
        policy = Policy(0, policy_sha(self.weights, "none"), None)
        with self._making() as folder:
            self._settle(folder, policy, "base", None, "none")
        return policy

    def keep_first(self, adapter: Path | None) -> Policy:
        """Keeps the policy that a run begins with as version 0: the base model with ``adapter``, which stays. Returns it."""
        if adapter is None:
            return self.keep_base()
        with self.keeping(Offer(0, adapter)) as (policy, _):
            pass
        return policy

    def warn_of_first(self) -> None:
        """Warns where other policies have sampled in a run that goes on with its first one."""
        if newest := self.newest_loaded():
            log.warning(
                "policy.watch is null: the model itself samples from here on, though policy %d has sampled in this run; "
                "to go on with policies, put their folder into policy.watch",
                newest,
            )

    @contextmanager
    def keeping(self, offer: Offer) -> Generator[tuple[Policy, Path]]:
        """Yields the offered policy, and the folder to load it from inside the block. It is kept when the block ends well.

        Raises AdapterRefused where the offer cannot be read, OSError where it cannot be kept.
        """
        with self._making() as folder:
            with _reading(offer.folder):
                full = is_full(offer.folder)
                files = [name for name in _ADAPTER if (offer.folder / name).is_file()]  # loading reports a missing one
            if full:
                load_from, kind = offer.folder, "full"
                with _reading(load_from):
                    digest = folder_sha256(load_from, _FULL)
            else:
                load_from, kind = folder, "adapter"
                for name in files:
                    _copy(offer.folder / name, folder / name)
                digest = folder_sha256(load_from, _ADAPTER)
            sha = policy_sha(self.weights, digest)
            policy = Policy(offer.version, sha, offer.folder.absolute())
            if kind == "adapter":
                policy = replace(policy, adapter=self.root / policy.name)
            yield policy, load_from
            self._settle(folder, policy, kind, offer.folder, digest)

    def kept(self) -> list[Offer]:
        """Returns all kept versions except the base, the newest first. Damaged ones are left out with a warning."""
        offers: list[Offer] = []
        for name in self.names():
            try:
                policy = self.policy(name)
            except WeightsMoved:
                continue
            except ModelError as error:
                log.warning("%s", error)
                continue
            if policy.adapter is not None:
                offers.append(Offer(policy.version, policy.adapter))
        return sorted(offers, key=lambda offer: offer.version, reverse=True)

    def names(self) -> list[str]:
        """Returns ``Policy.name`` of all kept policies, damaged ones too."""
        return sorted(folder.name for folder in self.root.glob("*-*") if _NAME.fullmatch(folder.name))

    def newest_loaded(self) -> int:
        """Returns the newest version that was on the network in this run, whether its files are there or not."""
        untried = self.noted(SENT).keys() - self.noted(TAKEN).keys()
        names = {*self.names(), *self.noted(TAKEN)} - untried
        return max([0, *(int(name.split("-")[0]) for name in names)])

    def require_no_step_back(self, version: int) -> None:
        """Raises ModelError where a newer policy than ``version``, the newest that can be loaded, was on the network in this run."""
        if version < (newest := self.newest_loaded()):
            raise ModelError(
                f"{self.root}: policy {newest} has sampled in this run and cannot be loaded any more; the newest that can be is "
                f"{version}, and a run does not go back. Restore the folder {newest}-…, or put a complete step of {newest} or "
                "above into policy.watch; then run the same command again"
            )

    def begun(self) -> dict[int, str]:
        """Returns ``Policy.name`` of the policy of each unit (a shard, or a round) that was begun on workers."""
        return {int(line["unit"]): str(line["policy"]) for line in read_lines(self.root / EVENTS) if line["event"] == BEGUN}

    def noted(self, event: str) -> dict[str, dict[str, Any]]:
        """Returns the lines of an event (``TAKEN``, ``SENT``) by ``Policy.name``, the last one of each."""
        lines = [line for line in read_lines(self.root / EVENTS) if line["event"] == event]
        return {f"{line['version']}-{str(line['sha'])[:12]}": line for line in lines}

    def drop(self, name: str) -> None:
        """Removes a kept policy that has sampled nothing."""
        shutil.rmtree(self.root / name, ignore_errors=True)

    def policy(self, name: str) -> Policy:
        """Returns the policy that is kept as ``name`` (``Policy.name``), and checks its files.

        Raises ModelError where it is not kept, or its files or the base's weights have changed; WeightsMoved where full weights
        are not in their place.
        """
        folder = self.root / name
        try:
            stored = read_document(folder / POLICY)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{folder}: policy {name} is not kept there ({error}), so its records cannot be scored anew; restore it"
            ) from error
        if stored["weights"] != self.weights:
            raise ModelError(f"{folder}: policy {name} stands on other weights than the model's; put the model of the run back")
        adapter = {"base": None, "adapter": folder, "full": Path(stored["source"] or "")}[stored["kind"]]
        if stored["kind"] == "full" and adapter is not None and not is_full(adapter):
            raise WeightsMoved(f"{adapter}: no more holds the full weights of policy {name}; put them back")
        try:
            digest = "none" if adapter is None else folder_sha256(adapter, _FULL if stored["kind"] == "full" else _ADAPTER)
        except OSError as error:
            raise ModelError(f"{adapter}: policy {name} cannot be read ({error}); restore it") from error
        if digest != stored["adapter"]:
            raise ModelError(f"{adapter}: is not what policy {name} was loaded from (sha256 {digest[:12]}); restore it")
        return Policy(int(stored["version"]), str(stored["sha"]), adapter)

    def note(self, event: str, values: dict[str, Any]) -> None:
        """Appends a line on what happened to a policy: taken, or refused."""
        append_line(self.root / EVENTS, {"event": event, "time": now(), **values})

    @contextmanager
    def _making(self) -> Generator[Path]:
        """Yields a new folder, which is removed after the block unless it was moved to its place."""
        folder = self.root / ".new"
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, folder: Path, policy: Policy, kind: str, source: Path | None, digest: str) -> None:
        """Moves a new folder to its place, whole and durable, unless an earlier session has put it there."""
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


def put_policy_on(adapters: Adapters, policy: Policy) -> None:
    """Puts a kept policy on the network of ``adapters``; for the base what the model was loaded with.

    Raises AdapterRefused where that fails, and then nothing has changed.
    """
    if policy.adapter is None:
        adapters.back()
    else:
        adapters.put_on(policy.adapter)


@contextmanager
def _reading(offered: Path) -> Generator[None]:
    """Raises AdapterRefused for a read error inside the block: that is the offer's fault, unlike an error in writing its copy."""
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
