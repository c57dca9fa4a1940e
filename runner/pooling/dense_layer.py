"""A dense layer behind pooling, as sentence-transformers' ``Dense`` computes it: a product, an activation, perhaps a residual."""

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

from .spec import Activation, DenseLayer

# As torch.nn's modules of these names compute them without arguments.
ACTIVATIONS: dict[Activation, Callable[[mx.array], mx.array]] = {
    "ELU": nn.elu,
    "GELU": nn.gelu,
    "Identity": lambda x: x,
    "LeakyReLU": nn.leaky_relu,
    "Mish": nn.mish,
    "ReLU": nn.relu,
    "SELU": lambda x: 1.0507009873554805 * nn.elu(x, 1.6732632423543772),  # mlx's own has five digits of these
    "SiLU": nn.silu,
    "Sigmoid": mx.sigmoid,
    "Softplus": nn.softplus,
    "Tanh": mx.tanh,
}


class Dense(nn.Module):
    """A dense layer. Its weights have sentence-transformers' names: ``linear.weight``, ``linear.bias`` and ``residual.weight``."""

    def __init__(self, layer: DenseLayer):
        super().__init__()
        self.layer = layer
        self.linear = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
        if layer.residual and layer.inputs != layer.outputs:
            self.residual = nn.Linear(layer.inputs, layer.outputs, bias=False)

    def __call__(self, vectors: mx.array) -> mx.array:
        """Maps vectors [B, inputs] to [B, outputs]."""
        made = ACTIVATIONS[self.layer.activation](self.linear(vectors))
        if not self.layer.residual:
            return made
        return made + (self.residual(vectors) if "residual" in self else vectors)
