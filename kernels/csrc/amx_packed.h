// A weight packed once into tiles, where bfloat16 holds its numbers. Knows nothing of layers.
//
// Most checkpoints are in bfloat16. As float32 their numbers end in 16 zeros, so they have one part (see matmul_amx.h). Three products of
// parts then make a product, where two split numbers take six. The bits are the same: the other three would add 0. A weight is not split in
// each call, and memory gives half as much.

#pragma once

#include "amx_tiles.h"

#if TILES

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "thread_pool.h"

namespace {

constexpr long PAIR = 2 * TILE;  // numbers of a block's two tiles of a step

// Blocks of a weight [n, depth], each [steps, 2 tiles]. The last one is filled up with zeros.
struct PackedTiles {
  // How many float32 numbers its memory could hold.
  static long size(long n, long depth) { return blocks_of(n) * steps_of(depth) * PAIR / 2; }

  // Returns true when bfloat16 holds `count` numbers. Infinities and NaN do not count: their products with parts differ.
  static bool hold(const float* w, long count) {
    constexpr long AT_ONCE = 1 << 16;
    constexpr uint32_t LOW = 0xffff, EXPONENT = 0x7f800000;
    std::atomic<bool> all{true};
    pool::run((count + AT_ONCE - 1) / AT_ONCE, [&](long piece) {
      auto* bits = (const uint32_t*)w;
      uint32_t wrong = 0;
      for (long i = piece * AT_ONCE; i < std::min(count, (piece + 1) * AT_ONCE); i++)
        wrong |= (bits[i] & LOW) | ((bits[i] & EXPONENT) == EXPONENT);
      if (wrong) all.store(false);
    });
    return all.load();
  }

  // Packs a weight that bfloat16 holds. `out` is aligned to a cache line, as must be what `packed` points to: else each row of a tile lies
  // in two lines.
  static void pack(const float* w, long n, long depth, float* out) {
    long steps = steps_of(depth);
    auto* to = (uint16_t*)out;
    pool::run(blocks_of(n), [&](long block) {
      for (long step = 0; step < steps; step++)
        for (long row = 0; row < BLOCK; row++) {
          __m512i of[PARTS] = {};
          long at = block * BLOCK + row;
          if (at < n) split(w + at * depth + step * STEP, depth - step * STEP, of);
          _mm512_store_si512(to + (block * steps + step) * PAIR + row * STEP, of[0]);
        }
    });
  }
};

// Adds one step of a packed weight's block x [M * 16 rows] to tiles 0 ... 3, in the order of `multiply`.
template <int M>
inline __attribute__((always_inline)) void multiply_packed(const uint16_t* w, const uint16_t* x, const uint16_t* y) {
  tile_load<4>(w);
  tile_load<5>(w + TILE);
  auto add = [&](int part) __attribute__((always_inline)) {
    tile_load<6>(x + part * TILE);
    tile_add<0, 4, 6>();
    tile_add<2, 5, 6>();
    if (M == 1) return;
    tile_load<7>(y + part * TILE);
    tile_add<1, 4, 7>();
    tile_add<3, 5, 7>();
  };
  add(HIGH), add(LOW), add(MIDDLE);
}

// `block` of matmul_amx.h for a packed weight.
template <int M>
void packed_block(const uint16_t* w, const uint16_t* x, long ldx, long steps, bool add, float* c, const uint16_t* next, long lines) {
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < steps; step++, w += PAIR, x += PARTS * TILE) {
    for (long line = 0; line < lines; line++, next += STEP) _mm_prefetch(next, _MM_HINT_T1);
    multiply_packed<M>(w, x, x + ldx);
  }
  sums_to<M>(c);
}

}  // namespace

#endif
