"""How far a model's next-token distribution is from a reference's: KL divergence, the true token's probability, agreement.

From two sets of logits over one vocabulary, a position a row; float32, natural log. ``reference`` in plain mx ops is the
specification and what Metal and CUDA run, ``on_cpu`` the same by NumPy. Nothing here knows of models or text.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, frozen=True)
class Divergence:
    """Figures of N positions. kls: [N] float32, KL(reference ‖ model) in nats. delta_ps: [N] float32, p(target) of the model
    less the reference's. agreements: [N] bool, both have the same most likely token (ties to the lower id).
    reference_logprobs: [N] float32, the reference's log_softmax at the target.
    """

    kls: NDArray[np.float32]
    delta_ps: NDArray[np.float32]
    agreements: NDArray[np.bool_]
    reference_logprobs: NDArray[np.float32]
