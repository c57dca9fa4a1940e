"""The model of a finished run, loaded again for those who work its logprobs out anew: the same weights, each policy in turn."""

from collections.abc import Generator, Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.jobs import ROW_JOBS
from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig
from ..core.errors import ModelError, RunDirError
from ..models import checkpoint as checkpoints
from ..models.loader import Model
from ..models.model_pool import ModelPool
from ..policies.policy_store import PolicyStore
from ..policies.recorded_policies import policies_of
from ..runs.audit import described_run
from ..store.paths import RunPaths
from .run_spec import memory_for


@dataclass(slots=True, frozen=True)
class RunModel:
    """A run of completions, its config, and its model. stored: its run.json."""

    run: Path
    stored: dict[str, Any]
    config: GenerateConfig
    model: Model

    @property
    def float32(self) -> bool:
        """Whether float32's promises hold for it."""
        return self.model.dtype == "float32"

    def policies(self) -> Iterator[tuple[str | None, str]]:
        """Each policy of the records, put on the network: its name for ``stored_records`` (None: all), and what it is called.

        Raises ModelError where one is not kept, or not what it was.
        """
        if not isinstance(self.config, RolloutConfig):
            yield None, "the model"
            return
        adapters = self.model.adapters
        assert adapters is not None, "a loaded model has them"
        store = PolicyStore(RunPaths(self.run).policies, adapters.weights())
        for name in policies_of(self.run):
            policy = store.policy(name)
            if policy.adapter is None:
                adapters.back()
            else:
                adapters.put_on(policy.adapter)
            yield name, name


@contextmanager
def run_model(run: Path) -> Generator[RunModel]:
    """Loads the model of the run directory ``run``; inside the block, relative paths start where the run was started.

    Raises RunDirError for a run that has no completions, ModelError where the model is not the run's.
    """
    run = run.absolute()
    stored = described_run(run)
    kind = ROW_JOBS.get(str(stored["config"]["job"]))
    if kind is None or not issubclass(kind, GenerateConfig):
        raise RunDirError(f"{run}: is a {stored['config']['job']} job; only completions can be scored anew (generate, rollout)")
    config = kind.model_validate(stored["config"])
    began_in = Path(stored["cwd"])
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        wanted = config.model  # a rollout's adapters are kept with the run, each under its version
        checkpoint = checkpoints.find_checkpoint(wanted)
        _require_the_same(run, stored["identity"], checkpoints.checkpoint_fingerprints(checkpoint), isinstance(config, RolloutConfig))
        model = ModelPool().get([(wanted, checkpoint)], memory_for(config))[0]
        yield RunModel(run, stored, config, model)


def _require_the_same(run: Path, had: dict[str, Any], has: dict[str, str], rollout: bool) -> None:
    for key in ("model.weights", *(() if rollout else ("model.adapter",))):
        if had[key] != has[key]:
            raise ModelError(f"{run}: {key} is not what the run was made with (its fingerprint is another); put the model of the run back")
