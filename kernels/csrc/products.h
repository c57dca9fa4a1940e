// Products of rows with weights in the processor's vectors, as `products.cpp` computes them: a unit of its own, which is compiled beside the
// rest of the library and links to it. Knows nothing of layers.

#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "thread_pool.h"

namespace [[gnu::visibility("hidden")]] kernels {

// Sums kept in registers at once, rows x columns; they leave room for the operands.
constexpr int ROWS = 6, WIDE = REGISTERS == 32 ? 4 : 2;
constexpr int PANEL_ROWS = REGISTERS == 32 ? 8 : 4, PANEL = 3 * W;

// A weight [n, depth] in `bits` bits: 2, 3, 4, 5, 6 or 8; see matmul_quantized.h. The struct's layout is that of `QuantizedPlace` in
// kernels/quantized.py.
struct Quantized {
  const uint32_t* words;        // [n, depth * bits / 32], a row's bits from the lowest on
  const float *scales, *biases;  // [n, depth / group]
  int64_t depth, bits, group;

  // Rows from `row` on.
  Quantized from(long row) const {
    return {words + row * words_of(depth), scales + row * (depth / group), biases + row * (depth / group), depth, bits, group};
  }
  long words_of(long numbers) const { return numbers / 32 * bits; }

  // c [rows, columns] = x wᵀ + bias for the first `columns` outputs, at most PANEL; x is [rows, depth].
  void panel(long rows, long columns, const float* x, float* c, long ldc, const float* bias) const;
};

// One product: c [rows, ldc] = x wᵀ + bias + plus. w is [n, depth], float32 or `quantized`; bias is [n] or null; plus has c's layout or is
// null.
struct Target {
  const float* w;
  long n;
  float* c;
  long ldc;
  const float *bias = nullptr, *plus = nullptr;
  const Quantized* quantized = nullptr;  // if not null, w is not read
  // The weight and its bias once more, as in `Packed`, or where tiles compute as in `PackedTiles`, without the bias; null where they are
  // not. n is a multiple of W.
  const float* packed = nullptr;

  // Writes sums [count], count <= W, to row `row`, from `column` on.
  void put(long row, long column, const float* sums, long count) const {
    float* to = c + row * ldc + column;
    const float *b = bias ? bias + column : nullptr, *p = plus ? plus + row * ldc + column : nullptr;
    if (count == W) {
      V v = load(sums);
      if (b) v += load(b);
      if (p) v += load(p);
      return store(to, v);
    }
    for (long i = 0; i < count; i++) {
      float v = sums[i];
      if (b) v += b[i];
      to[i] = p ? v + p[i] : v;
    }
  }
};

// A weight [n, depth] and its bias [n], packed once; see matmul_packed.h. `data` holds size(n, depth) numbers: the blocks, then the bias.
struct Packed {
  static constexpr long DEPTH = 384;  // of a block; a multiple of PANEL: a panel stays in the second cache, and so do the rows' numbers

  const float* data;
  long n, depth;

  static long size(long n, long depth) { return whole_vectors(n) * (depth + 1); }
  static void pack(const float* w, const float* bias, long n, long depth, float* to);

  // c [rows, outputs] = numbers k ... k + deep - 1 of x, a [rows, deep], times the weight, for outputs from ... end - 1, added to c if
  // `add`. The bias is added with the last numbers. k and `from` are multiples of DEPTH and PANEL; so is `end`, or it is n. Whole vectors
  // are written: c has room for them.
  void block(long rows, const float* a, long lda, long k, long from, long end, float* c, long ldc, bool add) const;

  // c [rows, end - from] = x wᵀ + bias for outputs from ... end - 1
  void outputs(long rows, const float* x, long ldx, long from, long end, float* c, long ldc) const;
};

// c [rows, columns] = a bᵀ + bias; bias may be null. b is never transposed.
void dots(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, const float* bias);

// c [rows, columns] = a b, added to c if `add`; columns is a multiple of W
void outer(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, bool add = false);

// The same, not added. Columns are shared out so that few sums leave registers empty.
void outer_evenly(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc);

// Transposes `from` [rows, columns] into `to` [columns, wide]; fills with zeros after column `rows`.
void turn(long rows, long columns, const float* from, long ldf, float* to, long wide);

// c [rows, end - from] = columns from ... end - 1 of x wᵀ + bias, for some rows of x and the target's weight. From a packed weight whole
// vectors are written.
void columns_in_vectors(long rows, const float* x, long depth, const Target& target, long from, long end, float* c, long ldc, bool few);

// Calls f(first, rows) for some rows at a time, in all threads: about `most`, rounded up to whole tiles, and as many calls for each thread.
template <typename F>
void each_chunk(long rows, long most, F f) {
  long at_once = pool::threads() * most, chunks = (rows + at_once - 1) / at_once * pool::threads();
  long each = ((rows + chunks - 1) / chunks + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS;
  pool::run((rows + each - 1) / each, [&](long i) { f(i * each, std::min(each, rows - i * each)); });
}

}  // namespace kernels
