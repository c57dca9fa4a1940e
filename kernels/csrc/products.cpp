// Products in the processor's vectors, see products.h. Their loops are written out for each number of rows and columns that registers hold,
// which takes the compiler long. So they are a unit of their own, and as fast with fewer of the compiler's changes.

#include "products.h"

#include "matmul_packed.h"
#include "matmul_quantized.h"
#include "matmul_simd.h"

namespace kernels {

void dots(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc,
          const float* bias) {
  long n = 0;
  if (rows <= 2)
    for (; n + PAIR_COLUMNS <= columns; n += PAIR_COLUMNS)
      dots_of_rows<2, PAIR_COLUMNS>(rows, a, lda, b + n * ldb, ldb, depth, c + n, ldc, bias ? bias + n : nullptr);
  for (; n + DOT_COLUMNS <= columns; n += DOT_COLUMNS)
    dots_of_rows<DOT_ROWS, DOT_COLUMNS>(rows, a, lda, b + n * ldb, ldb, depth, c + n, ldc, bias ? bias + n : nullptr);
  for (; n < columns; n++) dots_of_rows<DOT_ROWS, 1>(rows, a, lda, b + n * ldb, ldb, depth, c + n, ldc, bias ? bias + n : nullptr);
}

void outer(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, bool add) {
  auto sums = [&](long n) { return add ? Sums{c + n, ldc} : Sums{}; };
  long n = 0;
  for (; n + WIDE * W <= columns; n += WIDE * W) outer_of_rows<ROWS, WIDE>(rows, a, lda, b + n, ldb, depth, c + n, ldc, sums(n));
  for (; n + 2 * W <= columns; n += 2 * W) outer_of_rows<ROWS, 2>(rows, a, lda, b + n, ldb, depth, c + n, ldc, sums(n));
  for (; n < columns; n += W) outer_of_rows<ROWS, 1>(rows, a, lda, b + n, ldb, depth, c + n, ldc, sums(n));
}

constexpr int HELD = REGISTERS == 32 ? 24 : 12;  // sums kept in registers

void outer_evenly(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc) {
  for (long left = columns / W, take; left; left -= take, b += take * W, c += take * W) {
    take = left == WIDE + 1 ? left / 2 : std::min<long>(left, WIDE);
    if (take == 4) outer_of_rows<HELD / 4, 4>(rows, a, lda, b, ldb, depth, c, ldc);
    else if (take == 3) outer_of_rows<HELD / 3, 3>(rows, a, lda, b, ldb, depth, c, ldc);
    else if (take == 2) outer_of_rows<HELD / 2, 2>(rows, a, lda, b, ldb, depth, c, ldc);
    else outer_of_rows<HELD / 2, 1>(rows, a, lda, b, ldb, depth, c, ldc);
  }
}

void turn(long rows, long columns, const float* from, long ldf, float* to, long wide) {
  long row = 0;
  for (; row + W <= rows; row += W) {
    long i = 0;
    for (; i + W <= columns; i += W) turn_square(from + row * ldf + i, ldf, to + i * wide + row, wide);
    for (; i < columns; i++)
      for (long j = row; j < row + W; j++) to[i * wide + j] = from[j * ldf + i];
  }
  for (long i = 0; row < wide && i < columns; i++)
    for (long j = row; j < wide; j++) to[i * wide + j] = j < rows ? from[j * ldf + i] : 0.0f;
}

void columns_in_vectors(long rows, const float* x, long depth, const Target& target, long from, long end, float* c, long ldc, bool few) {
  if (target.packed && !few) return Packed{target.packed, target.n, depth}.outputs(rows, x, depth, from, end, c, ldc);
  for (long n = from; n < end; n += PANEL) {
    long columns = std::min<long>(PANEL, end - n);
    if (target.quantized) {
      target.quantized->from(n).panel(rows, columns, x, c + n - from, ldc, target.bias ? target.bias + n : nullptr);
      continue;
    }
    const float *w = target.w + n * depth, *bias = target.bias ? target.bias + n : nullptr;
    if (few) dots(rows, columns, x, depth, w, depth, depth, c + n - from, ldc, bias);
    else panel_of<PANEL / W>(rows, columns, x, w, depth, c + n - from, ldc, bias);
  }
}

}  // namespace kernels
