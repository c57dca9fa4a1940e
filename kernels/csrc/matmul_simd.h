// Products of rows with a weight, in the processor's vectors: what a tile of sums in registers computes. Knows nothing of layers.

#pragma once

#include <algorithm>

#include "products.h"
#include "simd.h"
#include "thread_pool.h"

namespace {

// Sums kept in registers at once, rows x columns; they leave room for the operands. In `dots_in_registers` a column is one number, else a vector.
constexpr int DOT_ROWS = REGISTERS == 32 ? 4 : 3, DOT_COLUMNS = REGISTERS == 32 ? 6 : 4;
// The same for one or two rows. With a small depth, adding up lanes is much of the work; it is cheapest for W sums at once (two rows of eight).
constexpr int PAIR_COLUMNS = W == 16 ? 8 : DOT_COLUMNS;
constexpr long DEEP = 2048;  // depth of a transposed panel: it stays in the L2 cache

// c[m][n] = sum over k of a[m][k] b[n][k] + bias[n]. b is read as it lies, once, and never transposed.
template <int M, int N>
inline void dots_in_registers(const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, const float* bias) {
  V acc[M][N] = {};
  auto add = [&](auto at) {  // `at` loads W numbers
    V left[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) left[m] = at(a + m * lda), keep(left[m]);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      V right = at(b + n * ldb);
      if (M > 1) keep(right);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) acc[m][n] += left[m] * right;
    }
  };
  long k = 0;
  for (; k + W <= depth; k += W) add([&](const float* row) { return load(row + k); });
  // The rest is a vector too. In a loop over single numbers the compiler may round differently in each instance of this template.
  if (k < depth) add([&](const float* row) { return load_part(row + k, depth - k); });
  constexpr int COUNT = M * N, WHOLE = COUNT / W * W;
  float found[COUNT];
  const V* flat = &acc[0][0];
#pragma GCC unroll 8
  for (int i = 0; i < WHOLE; i += W) sums<W>(flat + i, found + i);
  if constexpr (2 * (COUNT - WHOLE) == W)
    sums<W / 2>(flat + WHOLE, found + WHOLE);
  else
#pragma GCC unroll 16
    for (int i = WHOLE; i < COUNT; i++) found[i] = sum(flat[i]);
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) c[m * ldc + n] = bias ? found[m * N + n] + bias[n] : found[m * N + n];
}

template <int M, int N>
void dots_of_rows(long rows, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, const float* bias) {
  long m = 0;
  for (; m + M <= rows; m += M) dots_in_registers<M, N>(a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, bias);
  if constexpr (M > 1)
    if (m < rows) dots_of_rows<M - 1, N>(rows - m, a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, bias);
}

// Sums that are there already: rows that stand `ld` numbers apart. Null: they are 0.
struct Sums {
  const float* at = nullptr;
  long ld = 0;

  Sums from(long row) const { return {at ? at + row * ld : nullptr, ld}; }
};

// What is read next: a tile of sums prefetches a cache line of it, from `at` on, every `every` steps. Null: nothing.
struct Ahead {
  const float* at = nullptr;
  long every = 1;
};

constexpr long LINE = 16;  // floats of a cache line

// c[m] = sums[m] + sum over k of a[m][k] b[k][0 ... N * W) + bias [N * W], which may be null
template <int M, int N>
inline void outer_in_registers(const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, Sums sums, Ahead ahead,
                               const float* bias = nullptr) {
  V acc[M][N] = {};
  if (sums.at)
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] = load(sums.at + m * sums.ld + n * W);
  for (long k = 0, due = ahead.at ? 0 : depth; k < depth; k++) {
    V right[N];
    if (k == due) __builtin_prefetch(ahead.at, 0, 2), ahead.at += LINE, due += ahead.every;
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) right[n] = load(b + k * ldb + n * W), keep(right[n]);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      V left = all(a[m * lda + k]);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] += left * right[n];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(c + m * ldc + n * W, bias ? acc[m][n] + load(bias + n * W) : acc[m][n]);
}

// `outer_in_registers` for at most M rows.
template <int M, int N>
inline void outer_tile(long rows, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, Sums sums, Ahead ahead,
                       const float* bias) {
  if constexpr (M > 1)
    if (rows < M) return outer_tile<M - 1, N>(rows, a, lda, b, ldb, depth, c, ldc, sums, ahead, bias);
  outer_in_registers<M, N>(a, lda, b, ldb, depth, c, ldc, sums, ahead, bias);
}

// Calls it for more rows. The last ones are two tiles of like size: a tile of few rows waits for its sums. Prefetches `left` numbers
// from `next` on, evenly: memory gives them more slowly than a tile could ask for them, and a core waits that has asked for too many.
template <int M, int N>
void outer_of_rows(long rows, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, Sums sums = {},
                   const float* next = nullptr, long left = 0, const float* bias = nullptr) {
  long steps = (rows + M - 1) / M * depth, every = std::max(1l, steps * LINE / std::max(LINE, left)), lines = (depth + every - 1) / every;
  for (long m = 0, some; m < rows; m += some, next += LINE * lines, left -= LINE * lines) {
    some = rows - m >= 2 * M || rows - m == M ? M : rows - m > M ? (rows - m + 1) / 2 : rows - m;
    outer_tile<M, N>(some, a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, sums.from(m), left > 0 ? Ahead{next, every} : Ahead{}, bias);
  }
}

// c [rows, columns] = a wᵀ + bias for one panel: at most N vectors of columns, rows of w [columns, depth], which are transposed first.
// Prefetches the next panel.
template <int N>
void panel_of(long rows, long columns, const float* a, const float* w, long depth, float* c, long ldc, const float* bias) {
  if constexpr (N > 1)
    if (columns <= (N - 1) * W) return panel_of<N - 1>(rows, columns, a, w, depth, c, ldc, bias);
  constexpr long WIDTH = N * W;
  bool whole = columns == WIDTH;
  float* to = whole ? c : spare(PRODUCT, rows * WIDTH);
  long ldt = whole ? ldc : WIDTH;
  for (long k = 0; k < depth; k += DEEP) {
    long deep = std::min(DEEP, depth - k);
    float* turned = spare(WEIGHT, deep * WIDTH);
    turn(columns, deep, w + k, depth, turned, WIDTH);
    bool last = k + DEEP >= depth;
    outer_of_rows<PANEL_ROWS, N>(rows, a + k, depth, turned, WIDTH, deep, to, ldt, k ? Sums{to, ldt} : Sums{}, last ? w + columns * depth : nullptr,
                                 last ? columns * depth : 0);
  }
  if (!whole || bias)
    for (long m = 0; m < rows; m++)
      for (long n = 0; n < columns; n++) c[m * ldc + n] = to[m * ldt + n] + (bias ? bias[n] : 0.0f);
}

}  // namespace
