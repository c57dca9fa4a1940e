// Products of rows with weights. Uses the processor's tiles (Intel AMX) where it has them, else its vectors. Knows nothing of layers.
//
// A row lies in memory, or is computed when it is read.

#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

#include "thread_pool.h"
#include "matmul_simd.h"
#include "matmul_amx.h"

namespace {

using RowOf = std::function<const float*(long row, float* room)>;  // returns a row's address; may compute the row into `room`

constexpr long FEW_ROWS = 4;  // with at most so many rows the weight is not transposed; its numbers are then added in another order

void multiply_in_vectors(long m, long depth, const RowOf& of, std::initializer_list<Target> targets, bool few) {
  float* x = spare(INPUT, m * depth);
  pool.run(m, [&](long row) {
    float* to = x + row * depth;
    const float* from = of(row, to);
    if (from != to) std::copy(from, from + depth, to);
  });
  for (const Target& target : targets) {
    long panels = (target.n + PANEL - 1) / PANEL, some = PANEL * std::max(1l, std::min(4l, panels / (2 * pool.threads())));
    pool.run((target.n + some - 1) / some, [&](long part) {
      long end = std::min(target.n, (part + 1) * some);
      for (long n = part * some; n < end; n += PANEL) {
        long columns = std::min<long>(PANEL, end - n);
        const float *w = target.w + n * depth, *bias = target.bias ? target.bias + n : nullptr;
        if (few) dots(m, columns, x, depth, w, depth, depth, target.c + n, target.ldc, bias);
        else panel(m, columns, x, w, depth, target.c + n, target.ldc, bias);
        for (long row = 0; target.plus && row < m; row++)
          for (long i = row * target.ldc + n; i < row * target.ldc + n + columns; i++) target.c[i] += target.plus[i];
      }
    });
  }
}

#if TILES
// Packs at most MANY rows at a time and calls f(packed, row, rows) for them; `row` is the first.
template <typename F>
void each_packed(long m, long depth, const RowOf& of, F f) {
  long ldx = steps_of(depth) * PARTS * TILE;
  auto* packed = (uint16_t*)spare(INPUT, (std::min(m, MANY) + 2 * T - 1) / (2 * T) * ldx);
  for (long row = 0; row < m; row += MANY) {
    long rows = std::min(MANY, m - row);
    pool.run((rows + T - 1) / T, [&](long tile) {
      const float* from[T] = {};
      float* room = spare(MADE, T * depth);
      for (long i = 0; i < std::min(T, rows - tile * T); i++) from[i] = of(row + tile * T + i, room + i * depth);
      pack(from, depth, packed + tile * ldx);
    });
    f(packed, row, rows);
  }
}

// Splits n columns into parts, one task each. A part is some blocks of 32 columns, at most `most`. The number of parts is a multiple of
// the number of threads; longer parts come first.
struct Columns {
  long blocks, number, n;

  Columns(long n, long most) : blocks((n + 2 * T - 1) / (2 * T)), n(n) {
    long at_once = pool.threads() * most;
    number = std::min(blocks, (blocks + at_once - 1) / at_once * pool.threads());
  }
  long from(long part) const { return std::min(n, (part * (blocks / number) + std::min(part, blocks % number)) * 2 * T); }
};

void multiply_in_tiles(long m, long depth, const RowOf& of, std::initializer_list<Target> targets) {
  constexpr long WIDE_PART = 8;
  struct Part {
    const Target* target;
    long from, to;
  };
  std::vector<Part> parts;
  for (const Target& target : targets) {
    Columns columns(target.n, WIDE_PART);
    for (long i = 0; i < columns.number; i++) parts.push_back({&target, columns.from(i), columns.from(i + 1)});
  }
  each_packed(m, depth, of, [&](const uint16_t* x, long row, long rows) {
    pool.run(parts.size(), [&](long i) { tile_product(x, row, rows, *parts[i].target, parts[i].from, parts[i].to, depth); });
  });
}
#endif

// Computes each target's c = x wᵀ + bias + plus for m rows of x [m, depth]. A row's bits do not depend on the other rows. Without tiles
// they depend on `few`.
void multiply(long m, long depth, const RowOf& of, std::initializer_list<Target> targets, bool few) {
#if TILES
  if (tiles_allowed()) return multiply_in_tiles(m, depth, of, targets);
#endif
  multiply_in_vectors(m, depth, of, targets, few);
}

}  // namespace
