// Products of some rows with weights, in the processor's tiles where it has them, else in its vectors. Knows nothing of layers.
//
// The rows lie in memory or are made when they are wanted.

#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

#include "thread_pool.h"
#include "matmul_simd.h"
#include "matmul_amx.h"

namespace {

using RowOf = std::function<const float*(long row, float* room)>;  // where a row is, which may be the room

constexpr long FEW_ROWS = 4;  // for which the weight is not turned: another sum

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
// Calls f(x, row, rows) for MANY rows at a time at most, from `row` on, packed.
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

// Parts of n columns that threads take: of blocks of 32, as many parts as there are threads or a multiple, `most` blocks each at most; the
// longer ones first.
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

// Each target's c = x wᵀ + bias + plus for m rows of x [m, depth]. A row's bits do not depend on the other rows; without tiles they do on
// whether they are `few`.
void multiply(long m, long depth, const RowOf& of, std::initializer_list<Target> targets, bool few) {
#if TILES
  if (tiles_allowed()) return multiply_in_tiles(m, depth, of, targets);
#endif
  multiply_in_vectors(m, depth, of, targets, few);
}

}  // namespace
