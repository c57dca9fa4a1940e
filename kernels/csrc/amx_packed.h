// A weight packed once into tiles, where bfloat16 holds its numbers. Knows nothing of layers.
//
// Most checkpoints are in bfloat16. As float32 their numbers end in 16 zeros, so they have one part (see matmul_amx.h). Three products of
// parts then make a product, where two split numbers take six. The other three would add 0, so the bits are the same, but for the sign of
// a sum that is 0. No call splits the weight, and half as many bytes are read.

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
  // Its size, in float32 numbers.
  static long size(long n, long depth) { return blocks_of(n) * steps_of(depth) * PAIR / 2; }

  // Returns true when bfloat16 holds `count` numbers. False also for an infinity or NaN: its products would not be those of its parts.
  static bool hold(const float* w, long count) {
    constexpr long AT_ONCE = 1 << 16;
    constexpr uint32_t BEHIND = 0xffff, EXPONENT = 0x7f800000;
    std::atomic<bool> all{true};
    pool::run((count + AT_ONCE - 1) / AT_ONCE, [&](long piece) {
      if (!all.load()) return;
      auto* bits = (const uint32_t*)w;
      uint32_t wrong = 0;
      for (long i = piece * AT_ONCE; i < std::min(count, (piece + 1) * AT_ONCE); i++)
        wrong |= (bits[i] & BEHIND) | ((bits[i] & EXPONENT) == EXPONENT);
      if (wrong) all.store(false);
    });
    return all.load();
  }

  // Packs a weight that bfloat16 holds. `out` is aligned to a cache line. Else each row of a tile would lie in two lines, and the stores
  // here would fail.
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
inline __attribute__((always_inline)) void multiply_packed(const uint16_t* w, const uint16_t* x, const uint16_t* y, Prefetches ahead) {
  tile_load<4>(w);
  tile_load<5>(w + TILE);
  auto add = [&](int part, int place) __attribute__((always_inline)) {
    tile_load<6>(x + part * TILE);
    tile_add<0, 4, 6>();
    tile_add<2, 5, 6>();
    ahead.at_place(place);
    if (M > 1) {
      tile_load<7>(y + part * TILE);
      tile_add<1, 4, 7>();
      tile_add<3, 5, 7>();
    }
    ahead.at_place(place + 1);
  };
  add(HIGH, 0), add(LOW, 2), add(MIDDLE, 4);
}

// `block` of matmul_amx.h for a packed weight.
template <int M>
void packed_tiles_block(const uint16_t* w, const uint16_t* x, long ldx, long steps, bool add, float* c, Prefetches ahead) {
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < steps; step++, w += PAIR, x += PARTS * TILE, ahead.next_step()) multiply_packed<M>(w, x, x + ldx, ahead);
  sums_to<M>(c);
}

}  // namespace

#endif
