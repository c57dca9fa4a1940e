// Float32 products in a processor's tiles (Intel AMX), which multiply bfloat16 and add in float32. Knows nothing of layers.
//
// A float32 is exactly the sum of three bfloat16 numbers, its parts. Two float32 numbers have nine products of parts; the six largest are
// computed. The second part is at most 2^-8 of a number and the third is below 2^-16. So what is left out of a product is below 2^-23 of it;
// its root mean square is 2^-26, a fourth of the error of rounding to float32. Products are added one after the other, in float32. Over 64
// numbers and more that errs about half as much as a plain loop in float32, over fewer than 8 up to twice as much, and for long rows more
// than a sum in lanes.
//
// A weight that bfloat16 holds has one part, and three products with x. See amx_packed.h.
//
// An infinity cannot be split. Nor can a number of 3.3962e38 or more: its first part rounds to infinity. Such an input gives NaN, and a
// sum that overflows may give NaN. Parts and sums below 2^-126 count as 0. So a number below 2^-103 keeps fewer bits: 16 at 2^-112, 8 at
// 2^-120, none below 2^-126.

#pragma once

#include "amx_packed.h"
#include "amx_tiles.h"

#if TILES

#include <algorithm>
#include <cstdint>

#include "products.h"
#include "thread_pool.h"

namespace {

constexpr long CHUNK = 24 * STEP, MANY = 6 * BLOCK;  // depth and rows of x at a time: their parts stay in the L2 cache

// Splits one step of a block (32 rows of w) into [PARTS, 2 tiles]. `split_row` does one row of a whole block. `split_some` does all of a
// block of `rows` rows, `left` numbers deep, and fills with zeros.
inline void split_row(const float* w, long ldw, long row, uint16_t* to) {
  __m512i of[PARTS];
  split(_mm512_loadu_ps(w + row * ldw), _mm512_loadu_ps(w + row * ldw + T), of);
#pragma GCC unroll 3
  for (int part = 0; part < PARTS; part++) _mm512_store_si512(to + part * 2 * TILE + row * STEP, of[part]);
}

void split_some(const float* w, long ldw, long rows, long left, uint16_t* to) {
  for (long row = 0; row < BLOCK; row++) {
    __m512i of[PARTS] = {};
    if (row < rows) split(w + row * ldw, left, of);
    for (int part = 0; part < PARTS; part++) _mm512_store_si512(to + part * 2 * TILE + row * STEP, of[part]);
  }
}

// Adds one step of w [32 rows] x [M * 16 rows] to tiles 0 ... 3. Parts of w go through tiles 4 and 5, parts of x through 6 and 7. Calls
// `between(n)` after each of the six products, as the vector units are free meanwhile.
template <int M, typename Between>
inline __attribute__((always_inline)) void multiply(const uint16_t* w, const uint16_t* x, const uint16_t* y, Between between) {
  auto left = [&](int part) __attribute__((always_inline)) {
    tile_load<4>(w + part * 2 * TILE);
    tile_load<5>(w + part * 2 * TILE + TILE);
  };
  auto right = [&](int part) __attribute__((always_inline)) {
    tile_load<6>(x + part * TILE);
    if (M > 1) tile_load<7>(y + part * TILE);
  };
  auto add = [&](int n) __attribute__((always_inline)) {
    tile_add<0, 4, 6>();
    tile_add<2, 5, 6>();
    if (M > 1) {
      tile_add<1, 4, 7>();
      tile_add<3, 5, 7>();
    }
    between(n);
  };
  right(HIGH), left(LOW), add(0);
  left(MIDDLE), add(1);
  left(HIGH), add(2);
  right(LOW), add(3);
  right(MIDDLE), add(4);
  left(MIDDLE), add(5);
}

// Computes sums c [2, 2, 16 of w, 16 of x] of 32 rows of w with M * 16 rows of x over some steps, added to c if `add`.
template <int M>
void block(const uint16_t* parts, const uint16_t* x, long ldx, long steps, bool add, float* c, Prefetches ahead) {
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < steps; step++, parts += PARTS * 2 * TILE, x += PARTS * TILE, ahead.next_step())
    multiply<M>(parts, x, x + ldx, [&](int n) __attribute__((always_inline)) { ahead.at_place(n); });
  sums_to<M>(c);
}

// A block's rows of w, and memory for their parts: a step's parts go to place `step % places`.
struct Rows {
  const float* w;
  long ld, count, depth, steps;  // count may be less than 32, depth less than steps * STEP
  uint16_t* parts;
  long places;

  uint16_t* at(long step) const { return parts + step % places * PARTS * 2 * TILE; }
};

// Does what `block` does, and splits w meanwhile: a step is split while the step before it is multiplied. Prefetches the next rows of w if
// this is the `only` block, as no other block does it then.
template <int M>
void first_block(const Rows& rows, const uint16_t* x, long ldx, bool add, float* c, bool only) {
  bool whole = rows.count == BLOCK && rows.depth >= rows.steps * STEP;
  split_some(rows.w, rows.ld, rows.count, rows.depth, rows.at(0));
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < rows.steps; step++, x += PARTS * TILE) {
    if (step + 1 == rows.steps || !whole) {
      multiply<M>(rows.at(step), x, x + ldx, [](int) {});
      long next = step + 1;
      if (next < rows.steps) split_some(rows.w + next * STEP, rows.ld, rows.count, rows.depth - next * STEP, rows.at(next));
      continue;
    }
    const float *from = rows.w + (step + 1) * STEP, *next = rows.w + BLOCK * rows.ld + step * BLOCK * STEP;
    uint16_t* to = rows.at(step + 1);
    multiply<M>(rows.at(step), x, x + ldx, [&](int n) __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int row = n * 16 / 3; row < (n + 1) * 16 / 3; row++) {
        if (only) {
          _mm_prefetch(next + row * STEP, _MM_HINT_T1);
          _mm_prefetch(next + row * STEP + T, _MM_HINT_T1);
        }
        split_row(from, rows.ld, row, to);
      }
    });
  }
  sums_to<M>(c);
}

// A weight that tiles multiply: its rows of `depth` numbers, and those once more as in `PackedTiles`; null where they are not.
struct Weight {
  const float* w;
  const uint16_t* packed;
  long depth;

  Weight(const float* w, const float* packed, long depth) : w(w), packed((const uint16_t*)packed), depth(depth) {}
};

// Computes sums of one block of w, its steps first ... first + steps - 1, with all rows of packed x: [blocks of 32 of x, SUMS]. x has `ldx`
// numbers a tile of rows.
void block_sums(const Rows& of, const uint16_t* x, long ldx, long rows, long first, float* sums) {
  long blocks = blocks_of(rows);
  Prefetches ahead = Prefetches::of(of.w + BLOCK * of.ld, 2 * STEP / std::max(1l, blocks - 1));  // each later block's share of a step's 64
  for (long b = 0; b < blocks; b++, x += 2 * ldx, sums += SUMS) {
    bool whole = rows - b * BLOCK > T;
    if (b == 0) {
      if (whole) first_block<2>(of, x, ldx, first, sums, blocks == 1);
      else first_block<1>(of, x, ldx, first, sums, blocks == 1);
      continue;
    }
    if (whole) block<2>(of.parts, x, ldx, of.steps, first, sums, ahead);
    else block<1>(of.parts, x, ldx, of.steps, first, sums, ahead);
    ahead.at += of.steps * ahead.stride;
  }
}

// The same for a packed weight's block at `w`; the next one's numbers lie at `next`. A weight that is read once, as x has one block, is
// prefetched a few steps ahead.
void packed_block_sums(const uint16_t* w, const uint16_t* next, const uint16_t* x, long ldx, long rows, long steps, bool add, float* sums) {
  constexpr long STEPS_AHEAD = 6, BYTES = PAIR * sizeof(uint16_t), LINES = BYTES / Prefetches::LINE;
  long blocks = blocks_of(rows);
  Prefetches ahead = Prefetches::of(blocks == 1 ? w + STEPS_AHEAD * PAIR : next, (LINES + blocks - 1) / blocks);
  if (blocks == 1) ahead.stride = BYTES;
  for (long b = 0; b < blocks; b++, x += 2 * ldx, sums += SUMS, ahead.at += steps * ahead.stride) {
    if (rows - b * BLOCK > T) packed_tiles_block<2>(w, x, ldx, steps, add, sums, ahead);
    else packed_tiles_block<1>(w, x, ldx, steps, add, sums, ahead);
  }
}

// Returns sums [blocks of 32 of w, blocks of 32 of x, SUMS] of rows from ... to - 1 of w with packed x, at most MANY rows; `from` is a
// multiple of 32, and so is `to`, or w ends there. The thread's next call with this `use` overwrites them.
float* tile_sums(const uint16_t* x, long rows, const Weight& w, long from, long to, Use use = PRODUCT) {
  Tiles tiles;
  long steps = steps_of(w.depth), ldx = steps * PARTS * TILE, blocks = blocks_of(rows), wide = blocks_of(to - from);
  long deep = blocks == 1 ? steps : std::min(steps, CHUNK / STEP), places = blocks == 1 ? 2 : deep;
  float* sums = spare(use, wide * blocks * SUMS);
  auto* parts = w.packed ? nullptr : (uint16_t*)spare(WEIGHT, places * PARTS * TILE);
  for (long first = 0; first < steps; first += deep)
    for (long n = 0; n < wide; n++) {
      long some = std::min(deep, steps - first), at = from + n * BLOCK;
      const uint16_t* numbers = x + first * PARTS * TILE;
      float* c = sums + n * blocks * SUMS;
      if (w.packed) {
        const uint16_t* packed = w.packed + (at / BLOCK * steps + first) * PAIR;
        packed_block_sums(packed, packed + steps * PAIR, numbers, ldx, rows, some, first, c);
      } else {
        Rows of{w.w + at * w.depth + first * STEP, w.depth, std::min(BLOCK, to - at), w.depth - first * STEP, some, parts, places};
        block_sums(of, numbers, ldx, rows, first, c);
      }
    }
  return sums;
}

// Computes a product's columns from ... to - 1, from its row `row` on. x is packed and has at most MANY rows.
void tile_product(const uint16_t* x, long row, long rows, const Target& target, long from, long to, long depth) {
  const float* sums = tile_sums(x, rows, {target.w, target.packed, depth}, from, to);
  long blocks = blocks_of(rows);
  for (long b = 0; b < blocks; b++)
    for (long n = from; n < to; n += BLOCK) {
      const float* of = sums + ((n - from) / BLOCK * blocks + b) * SUMS;
      give(of, row + b * BLOCK, std::min(BLOCK, rows - b * BLOCK), n, std::min(BLOCK, to - n), target);
    }
}

}  // namespace

#endif
