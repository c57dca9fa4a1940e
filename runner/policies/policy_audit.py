"""Whether the policies that a run's records name are still kept, whole: without them no logprob can be worked out anew.

Full weights that the trainer has removed are passed over: they were never the run's.
"""

from collections.abc import Iterator
from pathlib import Path

from ..core.errors import ModelError, RunDirError
from ..runs.audit import Finding
from ..store.paths import RunPaths
from .policy_store import Moved, PolicyStore
from .recorded_policies import policies_of


def policy_problems(run: Path, weights: str) -> Iterator[Finding]:
    """What is wrong with the policies of the rollout run ``run``, kept or named by its committed records.

    weights: the fingerprint of the model's.
    """
    store = PolicyStore(RunPaths(run).policies, weights)
    try:
        named = policies_of(run)
    except RunDirError:  # a part is damaged, as the account says
        named = []
    for name in sorted({*named, *store.names()}):
        try:
            store.policy(name)
        except Moved:
            continue
        except ModelError as error:
            place, _, said = str(error).partition(": ")
            what, _, cure = said.rpartition("; ")
            yield Finding(place, what, f"{cure} from a copy, or from step {name.split('-')[0]} of the trainer")
