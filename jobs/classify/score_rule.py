"""Makes labels and scores of logits: the activation, and which label wins. Knows no model and no rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...configs.errors import ConfigError
from ...runner.core.arrays import Floats

Activation = Literal["none", "sigmoid", "softmax"]
SAID: dict[str, Activation] = {"identity": "none", "sigmoid": "sigmoid", "softmax": "softmax"}  # PyTorch's names, in small letters


@dataclass(slots=True, frozen=True)
class ScoreRule:
    """What becomes of a row's logits [D].

    labels: a name for each class. With one logit and two labels the logit speaks for the second; with one logit and no label it is
    a score alone.
    """

    labels: tuple[str, ...]
    activation: Activation

    def winner(self, logits: Floats) -> int:
        """Returns the place of the most likely label, of equals the first."""
        return int(logits[0] > 0) if len(logits) == 1 else int(np.argmax(logits))

    def score(self, logits: Floats) -> np.float32:
        """Returns the score of logits [D]: of the winner where there are several, else of the one logit."""
        values = logits.astype(np.float64)
        if self.activation == "softmax":
            powers = np.exp(values - values.max())
            return np.float32(powers.max() / powers.sum())
        return self.scores(values.max(keepdims=True).astype(np.float32))[0]

    def scores(self, logits: Floats) -> Floats:
        """Returns the score of each of n logits [n], each of a text of its own."""
        if self.activation == "none":
            return logits.astype(np.float32)
        values = logits.astype(np.float64)
        powers = np.exp(-np.abs(values))  # of numbers that are not positive: nothing overflows
        return (np.where(values >= 0, 1.0, powers) / (1.0 + powers)).astype(np.float32)


def chosen_activation(setting: str, said: str | None, logits: int, *, relevance: bool) -> Activation:
    """Returns the activation: that of the setting; with auto that which the model's files say, else sigmoid for one logit of relevance.

    said: PyTorch's name in small letters, None where the files are silent. relevance: the one logit says whether texts fit, or yes or
    no; else it is a reward. Raises ConfigError for softmax over one logit, and for an activation of another name.
    """
    if setting == "auto" and said is not None and said not in SAID:
        known = ", ".join(SAID)
        raise ConfigError(f"classify.activation: the model's files name {said}; expected {known}; set none, sigmoid or softmax")
    found = SAID[said] if setting == "auto" and said is not None else setting
    if found == "auto":
        return "sigmoid" if logits == 1 and relevance else "none"
    if found == "softmax" and logits == 1:
        raise ConfigError("classify.activation: found softmax, which is always 1 for a model with one label; set none or sigmoid")
    return "none" if found == "none" else "softmax" if found == "softmax" else "sigmoid"


def ranking(logits: Sequence[float] | Floats) -> np.ndarray:
    """Returns the places of logits [n], the largest first; equals stay in their order."""
    return np.argsort(-np.asarray(logits, np.float64), kind="stable").astype(np.int32)
