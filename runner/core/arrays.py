"""Short names for the types of NumPy arrays."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]  # token ids, and places in a text
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]
