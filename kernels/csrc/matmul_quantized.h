// Products of rows with a weight that stays quantized as mlx packs it: a number is scale * q + bias, where q has a few bits, and a group of
// neighbours shares scale and bias. Knows nothing of layers.
//
// A panel of outputs becomes float32 in the first cache just before it is multiplied, so memory gives packed numbers alone. Words of several
// numbers are transposed, not the numbers: then each lane of a vector is an output, and shifts give the inputs one after the other. Sums are
// added in the order of `panel`: they have the bits of the product with the weight as float32.

#pragma once

#include <algorithm>
#include <cstdint>

#include "matmul_simd.h"

namespace {

constexpr long LEAST_GROUP = 32;  // a group's length is a multiple

// Makes 32 inputs of some vectors of outputs float32, to [32, vectors * W]. Compiled once for each number of bits.
using Unpack = void (*)(long vectors, const float* turned, const float* scale, const float* shift, float* to);

template <int BITS>
void unpack(long vectors, const float* turned, const float* scale, const float* shift, float* to) {
  constexpr uint32_t ONES = (1u << BITS) - 1;
  for (long n = 0; n < vectors; n++) {
    V s = load(scale + n * W), b = load(shift + n * W);
    U word[BITS];
#pragma GCC unroll 8
    for (int i = 0; i < BITS; i++) word[i] = (U)load(turned + (i * vectors + n) * W);
#pragma GCC unroll 32
    for (int i = 0; i < 32; i++) {
      int at = i * BITS / 32, low = i * BITS % 32;
      U q = word[at] >> low;
      if (low + BITS > 32) q |= word[std::min(at + 1, BITS - 1)] << (32 - low);
      store(to + (i * vectors + n) * W, s * __builtin_convertvector((I)(q & ONES), V) + b);
    }
  }
}

// What `Quantized::panel` computes, with the `unpack` of its bits.
struct QuantizedPanel : Quantized {
  static constexpr long NEAR = 128;  // depth of a panel as float32; it stays in the first cache

  template <int N>
  void panel_of(long rows, long columns, const float* x, float* c, long ldc, const float* bias, Unpack unpack) const {
    if constexpr (N > 2)  // one vector is computed as two: fewer instances to compile
      if (columns <= (N - 1) * W) return panel_of<N - 1>(rows, columns, x, c, ldc, bias, unpack);
    constexpr long WIDE = N * W;
    bool whole = columns == WIDE && depth <= NEAR;  // else sums are in one piece of memory until they are complete
    float *to = whole ? c : spare(PRODUCT, rows * WIDE), *near = spare(PANELS, NEAR * WIDE);
    long ldt = whole ? ldc : WIDE, row_words = words_of(depth), row_groups = depth / group;
    auto* all_words = (const float*)words;  // moved, never computed with
    float* turned = spare(WEIGHT, (words_of(DEEP) + 2 * DEEP / LEAST_GROUP) * WIDE);
    float *scale = turned + words_of(DEEP) * WIDE, *shift = scale + DEEP / LEAST_GROUP * WIDE;
    for (long k = 0; k < depth; k += DEEP) {
      long deep = std::min(DEEP, depth - k);
      turn(columns, words_of(deep), all_words + words_of(k), row_words, turned, WIDE);
      turn(columns, deep / group, scales + k / group, row_groups, scale, WIDE);
      turn(columns, deep / group, biases + k / group, row_groups, shift, WIDE);
      for (long i = 0; i < deep; i += NEAR) {
        long some = std::min(NEAR, deep - i), next = columns * row_words + (k + i) / 32 * bits * columns;  // its share of the next panel
        for (long j = 0; j < some; j += 32)
          unpack(N, turned + words_of(i + j) * WIDE, scale + (i + j) / group * WIDE, shift + (i + j) / group * WIDE, near + j * WIDE);
        outer_of_rows<PANEL_ROWS, N>(rows, x + k + i, depth, near, WIDE, some, to, ldt, k + i ? Sums{to, ldt} : Sums{}, all_words + next, words_of(some) * columns);
      }
    }
    if (!whole || bias)
      for (long m = 0; m < rows; m++)
        for (long n = 0; n < columns; n++) c[m * ldc + n] = to[m * ldt + n] + (bias ? bias[n] : 0.0f);
  }
};

}  // namespace

void Quantized::panel(long rows, long columns, const float* x, float* c, long ldc, const float* bias) const {
  constexpr Unpack UNPACK[] = {unpack<2>, unpack<3>, unpack<4>, unpack<5>, unpack<6>, nullptr, unpack<8>};
  QuantizedPanel{*this}.panel_of<PANEL / W>(rows, columns, x, c, ldc, bias, UNPACK[bits - 2]);
}
