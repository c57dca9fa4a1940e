// A key head's keys and values packed for a processor's tiles (Intel AMX), and attention's products with them: scores of queries, and sums
// of values by weights. Both operands are split into parts; see matmul_amx.h. Knows nothing of softmax.

#pragma once

#include "matmul_amx.h"

#if TILES

#include <algorithm>
#include <cstdint>

#include "thread_pool.h"

namespace {

// One key head's keys [count, d] and values [count, e], packed. Values are added up a step of 32 positions at a time. So `count` is a
// multiple of 32 where other positions follow: then a position lies in the same step, and a row has the same bits, wherever its prefix ends.
struct PackedHead {
  const uint16_t *keys, *values;
  long count;

  // Numbers of 16 keys, and of 16 columns of all values.
  static long key_tile(long d) { return steps_of(d) * PARTS * TILE; }
  static long value_tile(long count) { return steps_of(count) * PARTS * TILE; }
  // The size of both, in float32 numbers.
  static long size(long count, long d, long e) {
    return ((count + T - 1) / T * key_tile(d) + (e + T - 1) / T * value_tile(count)) / 2;
  }

  // key(i) and value(i) return the addresses of position i's numbers.
  template <typename Key, typename Value>
  static PackedHead pack(long count, long d, long e, Key key, Value value, float* to) {
    auto *keys = (uint16_t*)to, *values = keys + (count + T - 1) / T * key_tile(d);
    for (long i = 0; i < count; i += T) {
      const float* rows[T] = {};
      for (long j = 0; j < std::min(T, count - i); j++) rows[j] = key(i + j);
      ::pack(rows, d, keys + i / T * key_tile(d));
    }
    for (long i = 0; i < count; i += STEP)
      for (long pair = 0; pair < T; pair++) {  // positions i + pair and i + T + pair, as `split` pairs a row's numbers
        const float *one = i + pair < count ? value(i + pair) : nullptr, *other = i + T + pair < count ? value(i + T + pair) : nullptr;
        for (long column = 0; column < e; column += T) {
          __mmask16 some = e - column >= T ? 0xffff : (1u << (e - column)) - 1;
          auto of = [&](const float* row) { return row ? _mm512_maskz_loadu_ps(some, row + column) : _mm512_setzero_ps(); };
          __m512i made[PARTS];
          split(of(one), of(other), made);
          uint16_t* at = values + column / T * value_tile(count) + i * PARTS * T + pair * STEP;
          for (long part = 0; part < PARTS; part++) _mm512_store_si512(at + part * TILE, made[part]);
        }
      }
    return at(count, d, to);
  }

  // What `pack` has written there.
  static PackedHead at(long count, long d, const float* data) {
    auto* keys = (const uint16_t*)data;
    return {keys, keys + (count + T - 1) / T * key_tile(d), count};
  }

  // scores [rows, stop] = queries [rows, d] keysᵀ of the first keys, for at most 32 rows. Scores are written 16 at a time, also the last
  // ones of a row. The calling thread holds `Tiles`.
  void score(long rows, const float* queries, long d, long stop, float* scores, long ld) const {
    long steps = steps_of(d), tile = key_tile(d);
    auto* parts = (uint16_t*)spare(WEIGHT, steps * PARTS * TILE);
    for (long step = 0; step < steps; step++)
      split_some(queries + step * STEP, d, rows, d - step * STEP, parts + step * PARTS * 2 * TILE);
    for (long i = 0; i < stop; i += BLOCK) {
      alignas(64) float sums[SUMS];
      const uint16_t* of = keys + i / T * tile;
      if (stop - i > T) block<2>(parts, of, tile, steps, false, sums, {});
      else block<1>(parts, of, tile, steps, false, sums, {});
      for (long row = 0; row < rows; row++) sums_row(sums, row, std::min(stop - i, BLOCK), scores + row * ld + i);
    }
  }

  // Adds weights [rows, stop] times the first values to sums [blocks of e, SUMS], or sets them where not `add`, for at most 32 rows.
  // Weights are zeros behind the last position, to the end of a step. The calling thread holds `Tiles`.
  void add_values(long rows, const float* weights, long ld, long stop, long e, bool add, float* sums) const {
    constexpr long DEEP = CHUNK / STEP;
    long steps = steps_of(stop);
    auto* parts = (uint16_t*)spare(WEIGHT, std::min(steps, DEEP) * PARTS * TILE);
    for (long first = 0; first < steps; first += DEEP) {
      long some = std::min(DEEP, steps - first);
      Rows of{weights + first * STEP, ld, rows, some * STEP, some, parts, some};
      block_sums(of, values + first * PARTS * TILE, value_tile(count), e, add || first, sums);
    }
  }

  // Copies one row of a block's sums [2, 2, 16, 16], its first `columns`. Whole tiles are written.
  static void sums_row(const float* sums, long row, long columns, float* to) {
    const float* from = sums + row / T * 2 * T * T + row % T * T;
    store(to, load(from));
    if (columns > T) store(to + T, load(from + T * T));
  }
};

}  // namespace

#endif
