// The processor's vector of W float32 numbers: load, store, sum over lanes, exp, transpose. Knows nothing of threads or arrays.
//
// Functions of one number are g++'s own, as __builtin_sqrtf: <cmath> would take the compiler a fifth of a second in each unit.

#pragma once

#include <cstdint>
#include <limits>
#include <utility>

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

constexpr float INFINITE = std::numeric_limits<float>::infinity(), NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

inline V load(const float* p) { return *(const Loose*)p; }
// Loads `count` numbers, count < W, and fills with zeros.
inline V load_part(const float* p, long count) {
  V v = {};
  for (long i = 0; i < count; i++) v[i] = p[i];
  return v;
}
inline void store(float* p, V v) { *(Loose*)p = v; }
inline V all(float x) { return x - V{}; }  // not x + V{}: that turns -0 into 0, so the compiler must compute it

// Keeps a loaded vector in its register. Else GCC may read it from memory again in each product of a small tile, and loads become the limit.
inline void keep(V& v) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#endif
}

inline long whole_vectors(long n) { return (n + W - 1) / W * W; }

// Lane numbers for shuffles of two vectors. They are constants of the compiler: it then takes the processor's cheapest shuffles.
template <typename F, int... LANES>
constexpr I lane_numbers(F of, std::integer_sequence<int, LANES...>) {
  return I{of(LANES)...};
}
template <typename F>
constexpr I lane_numbers(F of) {
  return lane_numbers(of, std::make_integer_sequence<int, W>{});
}

// The halves of blocks of 2 * HALF lanes: their sum folds each block in two.
template <int HALF>
constexpr I low_lanes = lane_numbers([](int i) { return (i / HALF * 2 * HALF + i % HALF) % (2 * W); });
template <int HALF>
constexpr I high_lanes = low_lanes<HALF> + HALF;
template <int HALF>
constexpr I across_lanes = lane_numbers([](int i) { return i ^ HALF; });
// To transpose: the rows of the first half of a block, and of its second half.
template <int HALF>
constexpr I kept_lanes = lane_numbers([](int i) { return i & HALF ? W + i - HALF : i; });
template <int HALF>
constexpr I taken_lanes = lane_numbers([](int i) { return i & HALF ? W + i : i + HALF; });
constexpr I lane_number = lane_numbers([](int i) { return i; }), lane_bit = lane_numbers([](int i) { return 1 << i; });

// Folds N vectors into one: blocks of 2 * HALF lanes into their halves, two vectors at a time while there are two. N is a power of two.
template <int N, int HALF, typename F>
inline V folded(V* part, F f) {
  if constexpr (HALF == 0) {
    return part[0];
  } else {
    if constexpr (N == 1) part[0] = f(part[0], __builtin_shuffle(part[0], across_lanes<HALF>));
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; i++)
      part[i] = f(__builtin_shuffle(part[2 * i], part[2 * i + 1], low_lanes<HALF>),
                  __builtin_shuffle(part[2 * i], part[2 * i + 1], high_lanes<HALF>));
    return folded<(N > 1 ? N / 2 : 1), HALF / 2>(part, f);
  }
}

// Writes what f makes of the lanes of each of N vectors to out; N is a power of two, at most W.
template <int N, typename F>
inline void fold(const V* v, float* out, F f) {
  V part[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) part[i] = v[i];
  float last[W];
  store(last, folded<N, W / 2>(part, f));
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
inline float largest(V v) { return folded<1, W / 2>(&v, larger)[0]; }

template <int HALF = W / 2>
inline int32_t smallest(I v) {
  if constexpr (HALF == 0) {
    return v[0];
  } else {
    I other = __builtin_shuffle(v, across_lanes<HALF>);
    return smallest<HALF / 2>(v < other ? v : other);
  }
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

// Swaps the second half of row i with the first half of row i + HALF, in blocks of 2 * HALF rows and lanes; then blocks twice as large.
template <int HALF = 1>
inline void turn_blocks(V* a) {
  if constexpr (HALF < W) {
    V b[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      b[i] = i & HALF ? __builtin_shuffle(a[i - HALF], a[i], taken_lanes<HALF>) : __builtin_shuffle(a[i], a[i + HALF], kept_lanes<HALF>);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) a[i] = b[i];
    turn_blocks<2 * HALF>(a);
  }
}

// Transposes W x W numbers: row i's number j becomes row j's number i.
inline void turn_square(const float* from, long ldf, float* to, long ldt) {
  V a[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) a[i] = load(from + i * ldf);
  turn_blocks(a);
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store(to + i * ldt, a[i]);
}

}  // namespace
