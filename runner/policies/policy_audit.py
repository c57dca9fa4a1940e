"""Checks that the policies of a run are kept, whole: without them no logprob can be computed again.

Full weights that the trainer has removed are passed over: they never belonged to the run.
"""

from collections.abc import Iterator
from pathlib import Path

from ..core.errors import ModelError, RunDirError
from ..runs.audit import Finding
from ..store.paths import RunPaths
from .policy_store import PolicyStore, WeightsMoved
from .recorded_policies import policies_in_records


def policy_problems(run: Path, weights: str) -> Iterator[Finding]:
    """Yields what is wrong with the policies that the rollout run ``run`` keeps, or names in its committed records.

    weights: the fingerprint of the model's weights.
    """
    store = PolicyStore(RunPaths(run).policies, weights)
    try:
        names = policies_in_records(run)
    except RunDirError:  # a part is damaged, as the audit says
        names = []
    for name in sorted({*names, *store.names()}):
        try:
            store.policy(name)
        except WeightsMoved:
            continue
        except ModelError as error:
            place, _, message = str(error).partition(": ")
            what, _, cure = message.rpartition("; ")
            yield Finding(place, what, f"{cure} from a copy, or from step {name.split('-')[0]} of the trainer")
