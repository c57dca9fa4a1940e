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
          auto of = [&](const float* row) { return row ? load_some(row + column, e - column) : _mm512_setzero_ps(); };
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

  // Splits scale * query [d] into parts: row `row` of 32 that `score` takes.
  static void split_query(const float* query, float scale, long d, long row, uint16_t* to) {
    to += row * STEP;
    for (long at = 0; at < d; at += STEP, to += PARTS * 2 * TILE) {
      auto scaled = [&](long i) { return scale * load_some(query + i, d - i); };
      __m512i of[PARTS];
      split(scaled(at), scaled(at + T), of);
      for (int part = 0; part < PARTS; part++) _mm512_store_si512(to + part * 2 * TILE, of[part]);
    }
  }
  static long queries_size(long d) { return steps_of(d) * PARTS * TILE; }  // of 32 queries, in float32 numbers

  // scores [rows, stop] = queries [rows, d] keysᵀ of the first keys, for at most 32 rows. Scores are written in whole tiles, 16 rows and 16
  // keys at a time; those of rows that `queries` lacks may be anything. The calling thread holds `Tiles`.
  void score(long rows, const uint16_t* queries, long d, long stop, float* scores, long ld) const {
    long steps = steps_of(d), tile = key_tile(d);
    for (long i = 0; i < stop; i += BLOCK) {
      const uint16_t* of = keys + i / T * tile;
      if (stop - i > T) score_block<2>(rows, queries, of, tile, steps, scores + i, ld);
      else score_block<1>(rows, queries, of, tile, steps, scores + i, ld);
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

  // Where the sum of a row and a column is, and of the next columns to the end of 16.
  static const float* sums_at(const float* sums, long row, long column) {
    return sums + column / BLOCK * SUMS + (row / T * 2 + column / T % 2) * T * T + row % T * T + column % T;
  }

 private:
  // Writes scores of at most 32 queries with M * 16 keys straight from the tiles, without a copy of sums.
  template <int M>
  static void score_block(long rows, const uint16_t* queries, const uint16_t* keys, long ldk, long steps, float* to, long ld) {
    long stride = ld * sizeof(float);
    sums_from<M>(nullptr);
    for (long step = 0; step < steps; step++, queries += PARTS * 2 * TILE, keys += PARTS * TILE)
      multiply<M>(queries, keys, keys + ldk, [](int) {});
    tile_store<0>(to, stride);
    if (M > 1) tile_store<1>(to + T, stride);
    if (rows <= T) return;
    tile_store<2>(to + T * ld, stride);
    if (M > 1) tile_store<3>(to + T * ld + T, stride);
  }
};

}  // namespace

#endif
