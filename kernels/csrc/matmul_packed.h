// Products of rows with a weight that is packed once, in the processor's vectors. Knows nothing of layers.
//
// A BLAS packs a weight in each call. Here it lies in the order in which it is read: blocks of DEPTH numbers of each output, and in a block
// panels of PANEL outputs, in which the outputs of one input number are neighbours.

#pragma once

#include <algorithm>

#include "matmul_simd.h"

namespace {

constexpr long AT_ONCE = 4 * PANEL;  // outputs for which a block of the rows' numbers is read from the second cache

// At most N vectors of outputs.
template <int N>
void packed_panel(long rows, long columns, const float* a, long lda, const float* b, long deep, const float* bias, float* c, long ldc, Sums sums) {
  if constexpr (N > 1)
    if (columns < N * W) return packed_panel<N - 1>(rows, columns, a, lda, b, deep, bias, c, ldc, sums);
  outer_of_rows<PANEL_ROWS, N>(rows, a, lda, b, N * W, deep, c, ldc, sums, b + N * W * deep, N * W * deep, bias);
}

// Computes a block as `Packed::block` says. Its sums lie apart.
void packed_block(const Packed& w, long rows, const float* a, long lda, long k, long from, long end, float* c, long ldc, Sums sums) {
  long wide = whole_vectors(w.n), deep = std::min(Packed::DEPTH, w.depth - k);
  const float* bias = k + deep == w.depth ? w.data + wide * w.depth : nullptr;
  for (long at = from; at < end; at += PANEL) {
    long columns = std::min<long>(PANEL, whole_vectors(end) - at), place = at - from;
    packed_panel<PANEL / W>(rows, columns, a, lda, w.data + k * wide + at * deep, deep, bias ? bias + at : nullptr, c + place, ldc,
                            {sums.at ? sums.at + place : nullptr, sums.ld});
  }
}

}  // namespace

void Packed::pack(const float* w, const float* bias, long n, long depth, float* to) {
  long wide = whole_vectors(n), panels = (n + PANEL - 1) / PANEL;
  pool::run(panels, [&](long panel) {
    long at = panel * PANEL, outputs = std::min<long>(PANEL, n - at);
    for (long k = 0; k < depth; k += DEPTH) {
      long deep = std::min(DEPTH, depth - k);
      turn(outputs, deep, w + at * depth + k, depth, to + k * wide + at * deep, std::min<long>(PANEL, wide - at));
    }
  });
  for (long i = 0; i < wide; i++) to[wide * depth + i] = bias && i < n ? bias[i] : 0.0f;
}

void Packed::block(long rows, const float* a, long lda, long k, long from, long end, float* c, long ldc, bool add) const {
  packed_block(*this, rows, a, lda, k, from, end, c, ldc, add ? Sums{c, ldc} : Sums{});
}

void Packed::outputs(long rows, const float* x, long ldx, long from, long end, float* c, long ldc) const {
  // The blocks before the last are summed up in one piece of memory: rows of c may lie so far apart that a cache holds few of them.
  Sums sums{depth > DEPTH ? spare(SUMMED, rows * AT_ONCE) : nullptr, AT_ONCE};
  for (long at = from; at < end; at += AT_ONCE)
    for (long k = 0; k < depth; k += DEPTH) {
      bool last = k + DEPTH >= depth;
      packed_block(*this, rows, x + k, ldx, k, at, std::min(at + AT_ONCE, end), last ? c + at - from : (float*)sums.at, last ? ldc : AT_ONCE,
                   k ? sums : Sums{});
    }
}
