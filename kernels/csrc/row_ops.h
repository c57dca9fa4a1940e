// Functions of one row of numbers: norms, RoPE, activations. Knows nothing of threads or arrays.

#pragma once

#include <algorithm>

#include "simd.h"

namespace {

// x / sqrt(mean(x^2) + eps) * (weight + more); `to` may be x
inline void norm_row(const float* x, const float* weight, long d, float eps, float* to, float more = 0) {
  V squares = {};
  long j = 0;
  for (; j + W <= d; j += W) squares += load(x + j) * load(x + j);
  float total = sum(squares);
  for (; j < d; j++) total += x[j] * x[j];
  float share = 1.0f / __builtin_sqrtf(total / d + eps);
  for (j = 0; j + W <= d; j += W) store(to + j, load(x + j) * share * (load(weight + j) + more));
  for (; j < d; j++) to[j] = x[j] * share * (weight[j] + more);
}

// (x - mean) / sqrt(variance + eps) * weight + bias; weight and bias may be null, `to` may be x. The distances from a rounded mean give
// what the mean lacks (Chan, Golub and LeVeque 1983).
inline void layer_norm_row(const float* x, const float* weight, const float* bias, long d, float eps, float* to) {
  V even = {}, odd = {};
  long j = 0;
  for (; j + 2 * W <= d; j += 2 * W) even += load(x + j), odd += load(x + j + W);
  for (; j + W <= d; j += W) even += load(x + j);
  float total = sum(even + odd);
  for (; j < d; j++) total += x[j];
  float mean = total / d;
  V apart = {}, squares = {};
  for (j = 0; j + W <= d; j += W) {
    V a = load(x + j) - mean;
    apart += a, squares += a * a;
  }
  float lack = sum(apart), square = sum(squares);
  for (; j < d; j++) lack += x[j] - mean, square += (x[j] - mean) * (x[j] - mean);
  lack /= d;
  float share = 1.0f / __builtin_sqrtf(std::max(square / d - lack * lack, 0.0f) + eps);
  for (j = 0; j + W <= d; j += W) {
    V y = load(x + j) - mean - lack;
    if (weight && bias) y = y * share * load(weight + j) + load(bias + j);
    else if (weight) y = y * share * load(weight + j);
    else if (bias) y = y * share + load(bias + j);
    else y = y * share;
    store(to + j, y);
  }
  for (; j < d; j++) {
    float y = x[j] - mean - lack;
    if (weight && bias) y = y * share * weight[j] + bias[j];
    else if (weight) y = y * share * weight[j];
    else if (bias) y = y * share + bias[j];
    else y = y * share;
    to[j] = y;
  }
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

// to = x + by * y; `to` may be y
inline void add_row(const float* x, const float* y, float by, long n, float* to) {
  each_of(x, y, n, to, [=](V a, V b) { return a + by * b; });
}

inline V swiglu_of(V gate, V x) { return over_one_and_exp(gate, gate) * x; }  // gate * x may overflow where the result does not

// min(gate, limit) sigmoid(slope min(gate, limit)) (clip(x, -limit, limit) + 1); NaN stays
inline V clamped_swiglu_of(V gate, V x, float slope, float limit) {
  gate = gate > limit ? all(limit) : gate;
  x = x > limit ? all(limit) : x < -limit ? all(-limit) : x;
  return over_one_and_exp((x + 1.0f) * gate, slope * gate);
}

// GELU, x times the normal distribution's share below x (Hendrycks and Gimpel 2016), as max(x, 0) - t share(-t) with t = |x|.
// log2(share(-t)) is -1 + t times the polynomial of degree 9 that errs least on 0 ... 6. Its factors make it fall beyond, too. Relative
// error: 2.5e-7 where x >= 0; 5e-7 (1 + t) down to -6, as the logarithm is rounded. Below, the result errs by less than 1e-13. NaN stays.
inline V gelu_of(V x) {
  V t = (V)((U)x & 0x7fffffffu);
  t = t > 11.5f ? all(11.5f) : t;
  V slope = -1.5716772e-08f * t + 5.1346308e-07f;
  slope = slope * t + -7.1546719e-06f;
  slope = slope * t + 5.3533087e-05f;
  slope = slope * t + -1.9801415e-04f;
  slope = slope * t + -1.7561122e-04f;
  slope = slope * t + 7.1698450e-03f;
  slope = slope * t + -5.2597474e-02f;
  slope = slope * t + -4.5916849e-01f;
  slope = slope * t + -1.1511101e+00f;
  V power = slope * t + -1.0f;  // of 2; at least -118
  V shifted = power + 12582912.0f, n = shifted - 12582912.0f, f = power - n;  // as in exp
  V share = 1.0f + f * (0.69314698f + f * (0.24022242f + f * (0.05550734f + f * (0.00967151f + f * 0.00132647f))));
  share = (V)((U)share + ((U)shifted << 23));
  return (x > 0.0f ? x : V{}) - t * share;
}

inline V geglu_of(V gate, V x) { return gelu_of(gate) * x; }

// GELU in its tanh form, x (1 + tanh(z)) / 2 = x / (1 + exp(-2 z)) with 2 z = 2 sqrt(2 / pi) (x + 0.044715 x^3)
inline V gelu_tanh_of(V x) { return over_one_and_exp(x, 1.5957691216057308f * (x + 0.044715f * x * x * x)); }

enum Activation { GELU, GELU_TANH, SILU, RELU, QUICK_GELU };  // in the order of ACTIVATIONS in kernels/elementwise.py

inline V active_of(Activation activation, V x) {
  if (activation == GELU) return gelu_of(x);
  if (activation == GELU_TANH) return gelu_tanh_of(x);
  if (activation == QUICK_GELU) return over_one_and_exp(x, 1.702f * x);
  return activation == SILU ? over_one_and_exp(x, x) : x < 0.0f ? V{} : x;
}

// to = f(gate) * x, of n numbers; `to` may be one of them
inline void activate(Activation f, const float* gate, const float* x, long n, float* to) {
  if (f == SILU) each_of(gate, x, n, to, swiglu_of);
  else each_of(gate, x, n, to, [f](V a, V b) { return active_of(f, a) * b; });
}

}  // namespace
