// Products of rows with a weight that is packed once, in the processor's vectors. Knows nothing of layers.
//
// A BLAS packs a weight in each call. Here it lies in the order in which it is read: blocks of DEPTH numbers of each output, and in a block
// panels of PANEL outputs, in which the outputs of one input number are neighbours.

#pragma once

#include <algorithm>

#include "matmul_simd.h"

namespace {

constexpr long DEPTH = 384;  // a multiple of PANEL; a panel of a block stays in the second cache, and so do the rows' numbers

// A weight [n, depth] and its bias [n]. `data` holds size(n, depth) numbers: the blocks, then the bias.
struct Packed {
  const float* data;
  long n, depth;

  static long size(long n, long depth) { return whole_vectors(n) * (depth + 1); }

  static void pack(const float* w, const float* bias, long n, long depth, float* to) {
    long wide = whole_vectors(n), panels = (n + PANEL - 1) / PANEL;
    pool.run(panels, [&](long panel) {
      long at = panel * PANEL, outputs = std::min<long>(PANEL, n - at);
      for (long k = 0; k < depth; k += DEPTH) {
        long deep = std::min(DEPTH, depth - k);
        turn(outputs, deep, w + at * depth + k, depth, to + k * wide + at * deep, std::min<long>(PANEL, wide - at));
      }
    });
    for (long i = 0; i < wide; i++) to[wide * depth + i] = bias && i < n ? bias[i] : 0.0f;
  }

  // c [rows, outputs] = numbers k ... k + deep - 1 of x, a [rows, deep], times the weight, for outputs from ... end - 1, added to c if
  // `add`. The bias is added with the last numbers. k and `from` are multiples of DEPTH and PANEL; so is `end`, or it is n. Whole vectors
  // are written: c has room for them.
  void block(long rows, const float* a, long lda, long k, long from, long end, float* c, long ldc, bool add) const {
    long wide = whole_vectors(n), deep = std::min(DEPTH, depth - k);
    const float* bias = k + deep == depth ? data + wide * depth : nullptr;
    for (long at = from; at < end; at += PANEL) {
      long columns = std::min<long>(PANEL, whole_vectors(end) - at);
      panel<PANEL / W>(rows, columns, a, lda, data + k * wide + at * deep, deep, bias ? bias + at : nullptr, c + at - from, ldc, add);
    }
  }

  // c [rows, end - from] = x wᵀ + bias for outputs from ... end - 1
  void outputs(long rows, const float* x, long ldx, long from, long end, float* c, long ldc) const {
    for (long at = from; at < end; at += PANEL)
      for (long k = 0; k < depth; k += DEPTH) block(rows, x + k, ldx, k, at, std::min<long>(at + PANEL, end), c + at - from, ldc, k > 0);
  }

 private:
  // At most N vectors of outputs.
  template <int N>
  static void panel(long rows, long columns, const float* a, long lda, const float* b, long deep, const float* bias, float* c, long ldc,
                    bool add) {
    if constexpr (N > 1)
      if (columns < N * W) return panel<N - 1>(rows, columns, a, lda, b, deep, bias, c, ldc, add);
    outer_of_rows<PANEL_ROWS, N>(rows, a, lda, b, N * W, deep, c, ldc, add, b + N * W * deep, N * W * deep, bias);
  }
};

}  // namespace
