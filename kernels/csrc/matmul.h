// Products of rows with weights. Uses the processor's tiles (Intel AMX) where it has them, else its vectors. Knows nothing of layers.
//
// A row lies in memory, or is computed when it is read.

#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "matmul_amx.h"
#include "products.h"
#include "thread_pool.h"

namespace {

using RowOf = FunctionRef<const float*(long row, float* room)>;  // returns a row's address; may compute the row into `room`

constexpr long PANELS_A_PART = 4;
constexpr long FEW_ROWS = 4;  // with at most so many rows the weight is not transposed; its numbers are then added in another order

// Splits n columns into parts, one task each. A part is some blocks of `width` columns, at most `most`. The number of parts is a multiple of
// the number of threads; longer parts come first.
struct Columns {
  long blocks, number, n, width;

  Columns(long n, long width, long most) : blocks((n + width - 1) / width), n(n), width(width) {
    long at_once = pool::threads() * most;
    number = std::min(blocks, (blocks + at_once - 1) / at_once * pool::threads());
  }
  long from(long part) const { return std::min(n, (part * (blocks / number) + std::min(part, blocks % number)) * width); }
};

constexpr long MANY_ROWS = 192;  // at a time: with depths of some thousands they lie in the second cache

// Calls f(x, row, rows) for MANY_ROWS rows at a time at most, from `row` on; x [rows, depth] lies in the second cache.
template <typename F>
void each_gathered(long m, long depth, const RowOf& of, F f) {
  float* x = spare(INPUT, std::min(m, MANY_ROWS) * depth);
  for (long row = 0; row < m; row += MANY_ROWS) {
    long rows = std::min(MANY_ROWS, m - row);
    pool::run(rows, [&](long i) {
      float* to = x + i * depth;
      const float* from = of(row + i, to);
      if (from != to) std::copy(from, from + depth, to);
    });
    f(x, row, rows);
  }
}

// Computes the targets' rows from `first` on, of x [rows, depth].
void multiply_gathered(const float* x, long first, long rows, long depth, std::initializer_list<Target> targets, bool few) {
  for (Target target : targets) {
#if TILES
    if (tiles_allowed()) target.packed = nullptr;  // it is in the order of tiles; here another target is quantized
#endif
    target.c += first * target.ldc;
    if (target.plus) target.plus += first * target.ldc;
    Columns columns(target.n, PANEL, PANELS_A_PART);
    pool::run(columns.number, [&](long part) {
      long from = columns.from(part), end = columns.from(part + 1);
      columns_in_vectors(rows, x, depth, target, from, end, target.c + from, target.ldc, few);
      for (long row = 0; target.plus && row < rows; row++)
        for (long i = row * target.ldc + from; i < row * target.ldc + end; i++) target.c[i] += target.plus[i];
    });
  }
}

#if TILES
// Packs at most MANY rows at a time and calls f(packed, row, rows) for them; `row` is the first.
template <typename F>
void each_packed(long m, long depth, const RowOf& of, F f) {
  long ldx = steps_of(depth) * PARTS * TILE;
  auto* packed = (uint16_t*)spare(INPUT, blocks_of(std::min(m, MANY)) * ldx);
  for (long row = 0; row < m; row += MANY) {
    long rows = std::min(MANY, m - row);
    pool::run((rows + T - 1) / T, [&](long tile) {
      const float* from[T] = {};
      float* room = spare(MADE, T * depth);
      for (long i = 0; i < std::min(T, rows - tile * T); i++) from[i] = of(row + tile * T + i, room + i * depth);
      pack(from, depth, packed + tile * ldx);
    });
    f(packed, row, rows);
  }
}

void multiply_in_tiles(long m, long depth, const RowOf& of, std::initializer_list<Target> targets) {
  constexpr long WIDE_PART = 8;
  struct Part {
    const Target* target;
    long from, to;
  };
  std::vector<Part> parts;
  for (const Target& target : targets) {
    Columns columns(target.n, BLOCK, WIDE_PART);
    for (long i = 0; i < columns.number; i++) parts.push_back({&target, columns.from(i), columns.from(i + 1)});
  }
  each_packed(m, depth, of, [&](const uint16_t* x, long row, long rows) {
    pool::run(parts.size(), [&](long i) { tile_product(x, row, rows, *parts[i].target, parts[i].from, parts[i].to, depth); });
  });
}
#endif

// Returns how many numbers `Target::packed` takes for a weight [n, depth].
long size_of_packed(long n, long depth) {
#if TILES
  if (tiles_allowed()) return PackedTiles::size(n, depth);
#endif
  return Packed::size(n, depth);
}

// Whether tiles compute these products. Quantized weights are multiplied in vectors.
bool in_tiles(std::initializer_list<Target> targets) {
#if TILES
  return tiles_allowed() && std::none_of(targets.begin(), targets.end(), [](const Target& target) { return target.quantized; });
#else
  return false;
#endif
}

// Computes each target's c = x wᵀ + bias + plus for m rows of x [m, depth]. A row's bits do not depend on the other rows. Without tiles
// they depend on `few`, and those of quantized weights do not.
void multiply(long m, long depth, const RowOf& of, std::initializer_list<Target> targets, bool few) {
#if TILES
  if (in_tiles(targets)) return multiply_in_tiles(m, depth, of, targets);
#endif
  each_gathered(m, depth, of, [&](const float* x, long first, long rows) { multiply_gathered(x, first, rows, depth, targets, few); });
}

// The same for rows that lie one behind the other: they are read where they are.
void multiply(long m, long depth, const float* x, std::initializer_list<Target> targets, bool few) {
#if TILES
  if (in_tiles(targets)) return multiply_in_tiles(m, depth, [&](long row, float*) { return x + row * depth; }, targets);
#endif
  for (long row = 0; row < m; row += MANY_ROWS) multiply_gathered(x + row * depth, row, std::min(MANY_ROWS, m - row), depth, targets, few);
}

}  // namespace
