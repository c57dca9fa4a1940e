// Functions of one row of numbers: RMS norm, RoPE, activations. Knows nothing of threads or arrays.

#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace {

// x / sqrt(mean(x^2) + eps) * weight; `to` may be x
inline void norm_row(const float* x, const float* weight, long d, float eps, float* to) {
  V squares = {};
  long j = 0;
  for (; j + W <= d; j += W) squares += load(x + j) * load(x + j);
  float total = sum(squares);
  for (; j < d; j++) total += x[j] * x[j];
  float share = 1.0f / std::sqrt(total / d + eps);
  for (j = 0; j + W <= d; j += W) store(to + j, load(x + j) * share * load(weight + j));
  for (; j < d; j++) to[j] = x[j] * share * weight[j];
}

// Rotates the first 2 * half of d numbers, in pairs of neighbours or of number j with number j + half; `to` may be x
inline void rotate_row(const float* x, const float* cosines, const float* sines, long half, long d, bool neighbours, float* to) {
  long j = 0;
  if (!neighbours)
    for (; j + W <= half; j += W) {
      V a = load(x + j), b = load(x + half + j), c = load(cosines + j), s = load(sines + j);
      store(to + j, a * c - b * s), store(to + half + j, a * s + b * c);
    }
  for (; j < half; j++) {
    long first = neighbours ? 2 * j : j, second = neighbours ? 2 * j + 1 : j + half;
    float a = x[first], b = x[second];
    to[first] = a * cosines[j] - b * sines[j], to[second] = a * sines[j] + b * cosines[j];
  }
  for (j = 2 * half; j < d; j++) to[j] = x[j];
}

inline V over_one_and_exp(V x, V z) {  // x / (1 + exp(-z)), or x / 1.7e38 where that is more
  V below = -z;
  return x / (1.0f + exp(below > 88.0f ? all(88.0f) : below));
}

// to = f(x, y), number by number
template <typename F>
inline void each_of(const float* x, const float* y, long n, float* to, F f) {
  long i = 0;
  for (; i + W <= n; i += W) store(to + i, f(load(x + i), load(y + i)));
  if (i == n) return;
  float a[W] = {}, b[W] = {}, c[W];
  std::copy(x + i, x + n, a), std::copy(y + i, y + n, b);
  store(c, f(load(a), load(b)));
  std::copy(c, c + n - i, to + i);
}

inline V swiglu_of(V gate, V x) { return over_one_and_exp(gate * x, gate); }

}  // namespace
