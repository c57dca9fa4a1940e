"""exp in float32 for the CPU, where mx computes one element at a time with the C library, 5 to 8 times slower.

``reference`` is mx's own; ``polynomial`` is an expression of simple ops, which ``mx.compile`` makes a few vectorised loops of and
other functions embed. Sums, softmax and activations are other files' matter.
"""

from collections.abc import Callable

import mlx.core as mx

from .backend import device_name

LOWEST = -87.3  # below it float32 results are denormal: 0 here
HIGHEST = 88.0  # above it the integer part no longer fits the exponent
LOG2_E = 1.4426950408889634
ROUND = 12582912.0  # 1.5 * 2**23: a float32 this large has no fraction, so adding it rounds, and leaves the integer in the low bits
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln(2); n times the first is exact (Cody and Waite 1980)
# exp(f) = 1 + f + … for |f| <= ln(2) / 2, from the second power on: of degree 5 the largest relative error, 1.1e-7, is smallest so
POWERS = (0.49999230308219417, 0.16667115389023707, 0.04189033169876025, 0.008312501317320553)
SHAPES = 256


class Compiled:
    """``mx.compile`` of a function of equally shaped arrays, made anew after ``SHAPES`` shapes.

    mx keeps one trace a shape and looks through all of them at each call (``shapeless`` cannot be: it has no rule for views).
    """

    def __init__(self, function: Callable[..., mx.array]):
        self._function = function
        self._compiled = mx.compile(function)
        self._shapes: set[tuple[int, ...]] = set()

    def __call__(self, *arrays: mx.array) -> mx.array:
        """The function's result."""
        if arrays[0].shape not in self._shapes:
            if len(self._shapes) == SHAPES:
                self._compiled, self._shapes = mx.compile(self._function), set()
            self._shapes.add(arrays[0].shape)
        return self._compiled(*arrays)


def suits(x: mx.array) -> bool:
    """The chooser: true for float32 on the CPU, where the CPU versions beat mx's own."""
    return x.dtype == mx.float32 and device_name() == "cpu"


def reference(x: mx.array) -> mx.array:
    """The specification."""
    return mx.exp(x)


def polynomial(x: mx.array) -> mx.array:
    """exp of ``x`` float32 of at most 88, within 4e-7 of the value; 0 below -87.3 and for -inf; NaN stays.

    exp(x) = 2**n · exp(f) with n the integer next to x / ln(2): the polynomial gives exp(f), and n goes into its exponent's bits.
    """
    shifted = x * LOG2_E + ROUND
    n = shifted - ROUND
    f = (x - n * LN2_HIGH) - n * LN2_LOW
    c2, c3, c4, c5 = POWERS
    square = f * f  # Estrin's scheme: mx fuses chains of at most 11 operations, and Horner's would be three loops
    power = (1.0 + f) + square * ((c2 + c3 * f) + square * (c4 + c5 * f))
    value = (power.view(mx.int32) + mx.left_shift(shifted.view(mx.int32), 23)).view(mx.float32)
    return mx.where(x < LOWEST, 0.0, value)


on_cpu = Compiled(polynomial)
