// Recurrences, for Python; see library.cpp.

#include <cstdint>

#include "py_buffers.h"
#include "recurrent.h"

extern "C" {

// See StateSpace in recurrent.h. x [B, T, H, D], step [B, T, H], in and out [B, T, G, N], state [B, H, D, N] or null, seen [B, T] bool or null,
// lengths [B] int64 or null -> y [B, T, H, D], after [B, H, D, N]
int state_space(PyObject* x, PyObject* step, PyObject* decay_rates, PyObject* in, PyObject* out, PyObject* skip, PyObject* y, PyObject* after,
                PyObject* state, PyObject* seen, PyObject* lengths) try {
  Arrays arrays({x, step, decay_rates, in, out, skip, y, after, state, seen, lengths});
  if (!arrays.held) return -1;
  StateSpace{arrays.data(0), arrays.data(1), arrays.data(2), arrays.data(3), arrays.data(4), arrays.data(5), arrays.data(8),
             arrays.data<uint8_t>(9), arrays.data<int64_t>(10), arrays.data(6), arrays.data(7), arrays.size(0, 0), arrays.size(0, 1),
             arrays.size(0, 2), arrays.size(0, 3), arrays.size(3, 2), arrays.size(3, 3)}.run();
  return 0;
} catch (...) {
  return -2;
}

// See GatedDelta in recurrent.h. q, k [B, T, K, D], v [B, T, H, E], kept [B, T, H] or [B, T, H, D], beta [B, T, H], state [B, H, E, D] or
// null, seen [B, T] bool or null -> y [B, T, H, E], after [B, H, E, D]
int gated_delta(PyObject* q, PyObject* k, PyObject* v, PyObject* kept, PyObject* beta, PyObject* y, PyObject* after, PyObject* state,
                PyObject* seen) try {
  Arrays arrays({q, k, v, kept, beta, y, after, state, seen});
  if (!arrays.held) return -1;
  GatedDelta{arrays.data(0), arrays.data(1), arrays.data(2), arrays.data(3), arrays.data(4), arrays.data(7), arrays.data<uint8_t>(8),
             arrays.data(5), arrays.data(6), arrays.size(0, 0), arrays.size(0, 1), arrays.size(0, 2), arrays.size(0, 3), arrays.size(2, 2),
             arrays.size(2, 3), arrays.elements(3) > arrays.elements(4)}.run();
  return 0;
} catch (...) {
  return -2;
}

// See ShortConvolution in recurrent.h. x [B, T + S - 1, C], weight [C, S, 1], bias [C] or null -> y [B, T, C]
int short_convolution(PyObject* x, PyObject* weight, PyObject* bias, PyObject* y) try {
  Arrays arrays({x, weight, y, bias});
  if (!arrays.held) return -1;
  ShortConvolution{arrays.data(0), arrays.data(1), arrays.data(3), arrays.data(2), arrays.size(2, 0), arrays.size(2, 1), arrays.size(2, 2),
                   arrays.size(1, 1)}.run();
  return 0;
} catch (...) {
  return -2;
}
}
