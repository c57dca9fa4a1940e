// The processor's vector of W float32 numbers: load, store, sum over lanes, exp, transpose. Knows nothing of threads or arrays.

#pragma once

#include <cstdint>
#include <limits>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int W = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int W = 4, REGISTERS = 32;
#else
constexpr int W = 4, REGISTERS = 16;
#endif

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef float Loose __attribute__((vector_size(4 * W), aligned(4), may_alias));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline V load(const float* p) { return *(const Loose*)p; }
// Loads `count` numbers, count < W, and fills with zeros.
inline V load_part(const float* p, long count) {
  V v = {};
  for (long i = 0; i < count; i++) v[i] = p[i];
  return v;
}
inline void store(float* p, V v) { *(Loose*)p = v; }
inline V all(float x) { return x - V{}; }  // not x + V{}: that turns -0 into 0, so the compiler must compute it

inline long whole_vectors(long n) { return (n + W - 1) / W * W; }

constexpr int log2(int n) { return n > 1 ? 1 + log2(n / 2) : 0; }

// Lane numbers for shuffles of two vectors, for each half block of 1, 2, 4 ... lanes.
struct Lanes {
  I low[6], high[6], across[6];    // the halves of blocks of 2 * half lanes: their sum folds each block in two
  I kept[6], taken[6];             // to transpose: the rows of the first half of a block, and of its second half
  I number, bit;                   // lane i: i, 1 << i

  Lanes() {
    for (int i = 0; i < W; i++) number[i] = i, bit[i] = 1 << i;
    for (int level = 0, half = 1; half < 2 * W; level++, half *= 2)
      for (int i = 0; i < W; i++) {
        low[level][i] = (i / half * 2 * half + i % half) % (2 * W);
        high[level][i] = low[level][i] + half;
        across[level][i] = i ^ half;
        kept[level][i] = i & half ? W + i - half : i;
        taken[level][i] = i & half ? W + i : i + half;
      }
  }
};

const Lanes lanes;

// Writes what f makes of the lanes of each of N vectors to out; N is a power of two, at most W. Folds two vectors into one, again and
// again.
template <int N, typename F>
inline void fold(const V* v, float* out, F f) {
  V part[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) part[i] = v[i];
  int level = log2(W) - 1;
#pragma GCC unroll 8
  for (int left = N; left > 1; left /= 2, level--)
#pragma GCC unroll 16
    for (int i = 0; i < left / 2; i++)
      part[i] = f(__builtin_shuffle(part[2 * i], part[2 * i + 1], lanes.low[level]),
                  __builtin_shuffle(part[2 * i], part[2 * i + 1], lanes.high[level]));
#pragma GCC unroll 8
  for (; level >= 0; level--) part[0] = f(part[0], __builtin_shuffle(part[0], lanes.across[level]));
  float last[W];
  store(last, part[0]);
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) out[i] = last[i * (W / N)];
}

// Writes the sums of N vectors to out.
template <int N>
inline void sums(const V* v, float* out) {
  fold<N>(v, out, [](V x, V y) { return x + y; });
}

inline V larger(V x, V y) { return x > y ? x : y; }

inline float sum(V v) {
  float out;
  sums<1>(&v, &out);
  return out;
}

// Returns the largest number of a vector without NaN.
inline float largest(V v) {
#pragma GCC unroll 8
  for (int level = log2(W) - 1; level >= 0; level--) {
    V other = __builtin_shuffle(v, lanes.across[level]);
    v = v > other ? v : other;
  }
  return v[0];
}

inline int32_t smallest(I v) {
#pragma GCC unroll 8
  for (int level = log2(W) - 1; level >= 0; level--) {
    I other = __builtin_shuffle(v, lanes.across[level]);
    v = v < other ? v : other;
  }
  return v[0];
}

// exp for x <= 88, with a relative error below 4e-7; 0 below -87.3 and for -inf; NaN stays NaN. Computes 2**n * exp(f), where n is the
// integer nearest to x / ln(2). Adding 1.5 * 2**23 rounds to n and leaves n in the low bits. ln(2) is split in two; n times the first half
// is exact (Cody and Waite 1980). exp(f) is the polynomial of degree 5 with the smallest largest relative error, 1.1e-7.
inline V exp(V x) {
  V shifted = x * 1.4426950408889634f + 12582912.0f, n = shifted - 12582912.0f;
  V f = (x - n * 0.693359375f) - n * -2.12194440e-4f, square = f * f;
  V power = (1.0f + f) + square * ((0.49999230308219417f + 0.16667115389023707f * f) +
                                   square * (0.04189033169876025f + 0.008312501317320553f * f));
  V value = (V)((U)power + ((U)shifted << 23));
  return x < -87.3f ? all(0.0f) : x == x ? value : x;
}

// tanh, with an error below 3e-7 of it; NaN stays NaN. Below 0.625 an odd polynomial (Cephes, Moshier 1989), else 1 - 2 / (1 + exp(2x)).
inline V tanh(V x) {
  V t = (V)((U)x & 0x7fffffffu), z = x * x;
  V near = x + x * z * (-3.33332819422e-1f + z * (1.33314422036e-1f + z * (-5.37397155531e-2f + z * (2.06390887954e-2f + z * -5.70498872745e-3f))));
  V far = 1.0f - 2.0f / (1.0f + exp(2.0f * (t > 10.0f ? all(10.0f) : t)));
  return t < 0.625f ? near : x < 0.0f ? -far : far;
}

// Transposes W x W numbers: row i's number j becomes row j's number i.
inline void turn(const float* from, long ldf, float* to, long ldt) {
  V a[W], b[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) a[i] = load(from + i * ldf);
  int level = 0;
#pragma GCC unroll 4
  for (int half = 1; half < W; half *= 2, level++) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      b[i] = i & half ? __builtin_shuffle(a[i - half], a[i], lanes.taken[level]) : __builtin_shuffle(a[i], a[i + half], lanes.kept[level]);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store(to + i * ldt, a[i]);
}

}  // namespace
