"""The policy that a completion was sampled from: a trainer's step, and the contents of weights and adapter.

Knows no network, and nothing of what lies in an adapter's folder.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Policy:
    """A policy. version: the trainer's step, 0 for the policy that a run begins with. sha: see ``policy_sha``.

    adapter: the folder it was loaded from (a LoRA or DoRA adapter, or full weights); None for the base model as it is.
    """

    version: int
    sha: str
    adapter: Path | None

    @property
    def name(self) -> str:
        """The name of its folder in a run directory."""
        return f"{self.version}-{self.sha[:12]}"


def policy_sha(weights: str, adapter: str) -> str:
    """Returns the hex sha256 over the fingerprints of the base model's ``weights`` and of the adapter's contents ("none" without one)."""
    return sha256(f"weights {weights}\nadapter {adapter}\n".encode()).hexdigest()
