"""Finds the tokenizer of a finished run again, without the weights, to turn its token ids into text."""

from pathlib import Path
from typing import Any

from ...configs.schema import JobConfig
from ..core.errors import ModelError
from ..text import tokenizer as tokenizers
from ..text.tokenizer import Tokenizer
from . import checkpoint as checkpoints


def tokenizer_of(config: JobConfig, run: dict[str, Any]) -> Tokenizer:
    """Loads the tokenizer of the run that ``run`` (run.json) and its ``config`` describe. Relative paths start where the run did.

    Raises ModelError where it is not there, or is not the run's any more.
    """
    began_in = Path(run["cwd"]) / config.model.path
    model = config.model.model_copy(update={"path": str(began_in)}) if began_in.is_dir() else config.model
    folder, fingerprint = checkpoints.find_tokenizer(model)
    if fingerprint != run["identity"]["model.tokenizer"]:
        raise ModelError(
            f"model.path: the tokenizer in {folder} is not the one that the run was made with (its fingerprint is another); "
            "put the model of the run back"
        )
    return tokenizers.load_tokenizer(folder, None, {}, config.model.trust_remote_code)
