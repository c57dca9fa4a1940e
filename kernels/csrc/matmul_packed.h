// Products of rows with a weight that is packed once, in the processor's vectors. Knows nothing of layers.
//
// A BLAS packs a weight in each call. Here it lies in the order in which it is read: blocks of DEPTH numbers of each output, and in a block
// panels of PANEL outputs, in which the outputs of one input number are neighbours.

#pragma once

#include <algorithm>

#include "matmul_simd.h"

namespace {

// At most N vectors of outputs.
template <int N>
void packed_panel(long rows, long columns, const float* a, long lda, const float* b, long deep, const float* bias, float* c, long ldc, bool add) {
  if constexpr (N > 1)
    if (columns < N * W) return packed_panel<N - 1>(rows, columns, a, lda, b, deep, bias, c, ldc, add);
  outer_of_rows<PANEL_ROWS, N>(rows, a, lda, b, N * W, deep, c, ldc, add, b + N * W * deep, N * W * deep, bias);
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
  long wide = whole_vectors(n), deep = std::min(DEPTH, depth - k);
  const float* bias = k + deep == depth ? data + wide * depth : nullptr;
  for (long at = from; at < end; at += PANEL) {
    long columns = std::min<long>(PANEL, whole_vectors(end) - at);
    packed_panel<PANEL / W>(rows, columns, a, lda, data + k * wide + at * deep, deep, bias ? bias + at : nullptr, c + at - from, ldc, add);
  }
}

void Packed::outputs(long rows, const float* x, long ldx, long from, long end, float* c, long ldc) const {
  for (long at = from; at < end; at += PANEL)
    for (long k = 0; k < depth; k += DEPTH) block(rows, x + k, ldx, k, at, std::min<long>(at + PANEL, end), c + at - from, ldc, k > 0);
}
