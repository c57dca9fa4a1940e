// What mlx does one element or one core at a time on a CPU, in all of its vector units and cores: products of few rows with a
// weight, attention, norms, rotations, activations, the sums of a softmax. Float32 alone. The Python files beside this one hold
// each one's specification and chooser.
//
// Arrays come as Python objects with the buffer protocol, evaluated before; the interpreter is let go while they are computed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "angles.h"
#include "arrays.h"
#include "attend.h"
#include "pool.h"
#include "products.h"
#include "vectors.h"

namespace {

// out = f(x, y) of each element
template <typename F>
void each(long n, const float* x, const float* y, float* out, F f) {
  constexpr long PART = 8192;
  pool.run((n + PART - 1) / PART, [&](long part) {
    long i = part * PART, end = std::min(n, i + PART);
    for (; i + W <= end; i += W) store(out + i, f(load(x + i), load(y + i)));
    if (i == end) return;
    float a[W] = {}, b[W] = {}, c[W];
    std::copy(x + i, x + end, a), std::copy(y + i, y + end, b);
    store(c, f(load(a), load(b)));
    std::copy(c, c + end - i, out + i);
  });
}

inline V over_one_and_exp(V x, V z) {  // x / (1 + exp(-z)), or x / 1.7e38 where that is more
  V below = -z;
  return x / (1.0f + exp(below > 88.0f ? all(88.0f) : below));
}

}  // namespace

// Each returns 0, or -1 with Python's error set where an object has no buffer, or -2 where memory has run out. Arrays are dense where no
// strides are named. That shapes and types fit is for the callers to see to.
extern "C" {

void start(int threads) { pool.start(threads); }

// x [..., K], weight [N, K], bias [N] or null -> out [..., N]
int linear(PyObject* x, PyObject* weight, PyObject* bias, PyObject* out) try {
  Arrays arrays({x, weight, out, bias ? bias : x});
  if (!arrays.held) return -1;
  constexpr long FEW = 4;  // rows for which the weight is not turned
  long n = arrays.size(1, 0), k = arrays.size(1, 1), m = arrays.elements(0) / k;
  const float *a = arrays.data(0), *w = arrays.data(1), *b = bias ? arrays.data(3) : nullptr;
  float* c = arrays.data(2);
  long panels = (n + PANEL - 1) / PANEL, some = PANEL * std::max(1l, std::min(4l, panels / (2 * pool.threads())));
  pool.run((n + some - 1) / some, [&](long part) {
    long from = part * some, to = std::min(n, from + some);
    if (m <= FEW) return dots(m, to - from, a, k, w + from * k, k, k, c + from, n, b ? b + from : nullptr);
    for (long at = from; at < to; at += PANEL) panel(m, std::min<long>(PANEL, to - at), a, w + at * k, k, c + at, n, b ? b + at : nullptr);
  });
  return 0;
} catch (...) {
  return -2;
}

// q [B, H, T, D], k [B, K, L, D], v [B, K, L, E], any strides but for the last axis; mask null or 4 axes that broadcast to [B, H, T, L],
// of any strides -> out [B, T, H, E]
int attention(PyObject* q, PyObject* k, PyObject* v, PyObject* mask, PyObject* out, float scale, int kind) try {
  Arrays arrays({q, k, v, out, mask ? mask : q});
  if (!arrays.held) return -1;
  Attention a{};
  a.q = arrays.data(0), a.k = arrays.data(1), a.v = arrays.data(2), a.out = arrays.data(3), a.mask = arrays.data<char>(4);
  a.b = arrays.size(0, 0), a.h = arrays.size(0, 1), a.t = arrays.size(0, 2), a.d = arrays.size(0, 3);
  a.kv = arrays.size(1, 1), a.length = arrays.size(1, 2), a.e = arrays.size(2, 3);
  for (int i = 0; i < 3; i++) a.qs[i] = arrays.stride(0, i), a.ks[i] = arrays.stride(1, i), a.vs[i] = arrays.stride(2, i);
  for (int i = 0; i < 4; i++) a.ms[i] = mask && arrays.size(4, i) > 1 ? arrays.stride(4, i) : 0;
  a.scale = scale, a.kind = (Mask)kind;
  a.run();
  return 0;
} catch (...) {
  return -2;
}

// x [B, H, T, D] of any strides but for the last axis, frequencies [R / 2], starts [1] or [B] int64 -> out [B, T, H, D]; the first R of
// D are rotated, pairs of neighbours or of halves
int rotate(PyObject* x, PyObject* frequencies, PyObject* starts, PyObject* out, float scale, int neighbours) try {
  Arrays arrays({x, frequencies, starts, out});
  if (!arrays.held) return -1;
  static std::mutex mutex;
  static Angles angles;
  std::lock_guard<std::mutex> guard(mutex);
  long b = arrays.size(0, 0), h = arrays.size(0, 1), t = arrays.size(0, 2), d = arrays.size(0, 3);
  long half = arrays.elements(1), rows = arrays.elements(2), strides[3];
  for (int i = 0; i < 3; i++) strides[i] = arrays.stride(0, i);
  const int64_t* from = arrays.data<int64_t>(2);
  if (!angles.of(arrays.data(1), half, from, rows, t, scale)) angles.make(arrays.data(1), half, from, rows, t, scale);
  float* to = arrays.data(3);
  pool.run(b * t, [&](long i) {
    const float* c = angles.cosines.data() + (rows > 1 ? i : i % t) * half;
    const float* s = angles.sines.data() + (rows > 1 ? i : i % t) * half;
    for (long head = 0; head < h; head++) {
      const float* in = arrays.data(0) + i / t * strides[0] + head * strides[1] + i % t * strides[2];
      float* made = to + (i * h + head) * d;
      if (neighbours)
        for (long j = 0; j < half; j++) {
          made[2 * j] = in[2 * j] * c[j] - in[2 * j + 1] * s[j];
          made[2 * j + 1] = in[2 * j] * s[j] + in[2 * j + 1] * c[j];
        }
      else
        for (long j = 0; j < half; j++) {
          made[j] = in[j] * c[j] - in[j + half] * s[j];
          made[j + half] = in[j] * s[j] + in[j + half] * c[j];
        }
      for (long j = 2 * half; j < d; j++) made[j] = in[j];
    }
  });
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: gate / (1 + exp(-gate)) * x
int swiglu(PyObject* gate, PyObject* x, PyObject* out) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2), [](V g, V y) { return over_one_and_exp(g * y, g); });
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

// x, out [...]: x / (1 + exp(-slope * (x + cube * x^3)))
int gelu_approx(PyObject* x, PyObject* out, float slope, float cube) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1),
       [=](V y, V) { return over_one_and_exp(y, slope * (y + cube * y * y * y)); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [..., D], weight [D]: x / sqrt(mean(x^2) + eps) * weight
int rms_norm(PyObject* x, PyObject* weight, PyObject* out, float eps) try {
  Arrays arrays({x, weight, out});
  if (!arrays.held) return -1;
  long d = arrays.elements(1), n = arrays.elements(0) / d, some = std::max(1l, 16384 / d);
  pool.run((n + some - 1) / some, [&](long part) {
    for (long row = part * some; row < std::min(n, (part + 1) * some); row++) {
      const float *a = arrays.data(0) + row * d, *w = arrays.data(1);
      float* to = arrays.data(2) + row * d;
      V squares = {};
      long j = 0;
      for (; j + W <= d; j += W) squares += load(a + j) * load(a + j);
      float total = sum(squares);
      for (; j < d; j++) total += a[j] * a[j];
      float share = 1.0f / std::sqrt(total / d + eps);
      for (j = 0; j + W <= d; j += W) store(to + j, load(a + j) * share * load(w + j));
      for (; j < d; j++) to[j] = a[j] * share * w[j];
    }
  });
  return 0;
} catch (...) {
  return -2;
}

// x [N, V] -> best [N] int32, the first of the largest; peak [N], its value; total [N], sum of exp(x - peak). A row that holds a NaN has
// the first of them as its best, and NaN for the rest.
int softmax_sums(PyObject* x, PyObject* best, PyObject* peak, PyObject* total) try {
  Arrays arrays({x, best, peak, total});
  if (!arrays.held) return -1;
  constexpr long BLOCK = 64 * W;  // summed in float32, the blocks in float64
  long n = arrays.size(0, 0), v = arrays.size(0, 1);
  pool.run(n, [&](long row) {
    const float* a = arrays.data(0) + row * v;
    V most = all(-INFINITE), odd = {};
    long j = 0;
    for (; j + W <= v; j += W) {
      V y = load(a + j);
      most = most > y ? most : y;
      odd += y == y ? V{} : all(1.0f);
    }
    float top = most[0], other = sum(odd);
    for (int i = 1; i < W; i++) top = std::max(top, most[i]);
    for (; j < v; j++) {
      top = std::max(top, a[j]);
      other += a[j] == a[j] ? 0.0f : 1.0f;
    }
    long first = 0;
    if (other > 0) {
      while (a[first] == a[first]) first++;
      arrays.data<int32_t>(1)[row] = first, arrays.data(2)[row] = arrays.data(3)[row] = a[first];
      return;
    }
    while (a[first] != top) first++;
    double sums = 0;
    for (j = 0; j + W <= v;) {
      V part = {};
      for (long end = std::min(v / W * W, j + BLOCK); j < end; j += W) part += exp(load(a + j) - top);
      sums += sum(part);
    }
    for (; j < v; j++) sums += std::exp(a[j] - top);
    arrays.data<int32_t>(1)[row] = first, arrays.data(2)[row] = top, arrays.data(3)[row] = (float)sums;
  });
  return 0;
} catch (...) {
  return -2;
}
}
