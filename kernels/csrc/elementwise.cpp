// Activations and norms, for Python; see library.cpp.

#include <algorithm>

#include "py_buffers.h"
#include "row_ops.h"
#include "thread_pool.h"

namespace {

// out = f(x, y), element by element
template <typename F>
void each(long n, const float* x, const float* y, float* out, F f) {
  constexpr long PART = 8192;
  pool::run((n + PART - 1) / PART, [&](long part) {
    long from = part * PART;
    each_of(x + from, y + from, std::min(PART, n - from), out + from, f);
  });
}

}  // namespace

extern "C" {

// gate, x, out [...]: gate / (1 + exp(-gate)) * x
int swiglu(PyObject* gate, PyObject* x, PyObject* out) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2), swiglu_of);
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: see clamped_swiglu_of
int clamped_swiglu(PyObject* gate, PyObject* x, PyObject* out, float slope, float limit) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2),
       [=](V g, V y) { return clamped_swiglu_of(g, y, slope, limit); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [...]: x / (1 + exp(-x))
int silu(PyObject* x, PyObject* out) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1), [](V y, V) { return over_one_and_exp(y, y); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [...]: see gelu_tanh_of
int gelu_approx(PyObject* x, PyObject* out) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1), [](V y, V) { return gelu_tanh_of(y); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [...]: x times the normal distribution's share below x
int gelu(PyObject* x, PyObject* out) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1), [](V y, V) { return gelu_of(y); });
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: gelu(gate) * x
int geglu(PyObject* gate, PyObject* x, PyObject* out) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2), geglu_of);
  return 0;
} catch (...) {
  return -2;
}

// x, out [..., D], weight, bias [D] or null: (x - mean) / sqrt(variance + eps) * weight + bias
int layer_norm(PyObject* x, PyObject* weight, PyObject* bias, PyObject* out, float eps) try {
  Arrays arrays({x, out, weight, bias});
  if (!arrays.held) return -1;
  long d = arrays.last(0), n = arrays.elements(0) / d, some = std::max(1l, 16384 / d);
  pool::run((n + some - 1) / some, [&](long part) {
    for (long row = part * some; row < std::min(n, (part + 1) * some); row++)
      layer_norm_row(arrays.data(0) + row * d, arrays.data(2), arrays.data(3), d, eps, arrays.data(1) + row * d);
  });
  return 0;
} catch (...) {
  return -2;
}

// x, out [..., D], weight [D]: x / sqrt(mean(x^2) + eps) * (weight + more)
int rms_norm(PyObject* x, PyObject* weight, PyObject* out, float eps, float more) try {
  Arrays arrays({x, weight, out});
  if (!arrays.held) return -1;
  long d = arrays.elements(1), n = arrays.elements(0) / d, some = std::max(1l, 16384 / d);
  pool::run((n + some - 1) / some, [&](long part) {
    for (long row = part * some; row < std::min(n, (part + 1) * some); row++)
      norm_row(arrays.data(0) + row * d, arrays.data(1), d, eps, arrays.data(2) + row * d, more);
  });
  return 0;
} catch (...) {
  return -2;
}
}
