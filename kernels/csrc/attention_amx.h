// Attention in a processor's tiles (Intel AMX): definitions for attention.h.

#pragma once

#include "attention.h"
#include "packed_head.h"

#if TILES

namespace {

// Calls f(first, count) for 32 rows at a time.
template <typename F>
void each_block(long rows, F f) {
  for (long row = 0; row < rows; row += BLOCK) f(row, std::min(BLOCK, rows - row));
}

// The positions of the prefix that fill whole steps.
inline long Attention::whole_steps() const { return front / STEP * STEP; }

// Packs a head's positions from ... end - 1, the prefix's included.
inline PackedHead Attention::packed(long head, long from, long end, float* to) const {
  const float *ahead = front_keys + head * front_room * d, *own = k + head * ks[1];
  const float *ahead_values = front_values + head * front_room * e, *own_values = v + head * vs[1];
  auto key = [&](long i) { return from + i < front ? ahead + (from + i) * d : own + (from + i - front) * ks[2]; };
  auto value = [&](long i) { return from + i < front ? ahead_values + (from + i) * e : own_values + (from + i - front) * vs[2]; };
  return PackedHead::pack(end - from, d, e, key, value, to);
}

// `some` in a processor's tiles.
inline void Attention::some_in_tiles(long head, long part, long parts, long each) const {
  long tiles = (t + each - 1) / each, behind = length - whole_steps();
  PackedHead ahead = PackedHead::at(whole_steps(), d, made_of_front);
  PackedHead own = packed(head, whole_steps(), length, spare(KEYS, PackedHead::size(behind, d, e)));
  for (long i = tiles - 1 - part; i >= 0; i -= parts) tile_in_tiles(head, i * each, std::min(t, (i + 1) * each), ahead, own);
}

// `tile` in a processor's tiles.
inline void Attention::tile_in_tiles(long head, long start, long stop, const PackedHead& ahead, const PackedHead& own) const {
  long n = stop - start, rows = groups() * n, keys = seen(stop), ld = wide();
  float *scores = spare(SCORES, (rows + T - 1) / T * T * ld), *sums = spare(PRODUCT, blocks_of(e) * SUMS);
  float *numbers = spare(QUERIES, PackedHead::queries_size(d) + rows), *shares = numbers + PackedHead::queries_size(d);
  auto* queries = (uint16_t*)numbers;
  Tiles tiles;
  each_block(rows, [&](long row, long some) {
    each_query(head, start, n, row, row + some, [&](long r, long of, long at) {
      PackedHead::split_query(q + of * qs[1] + at * qs[2], scale, d, r - row, queries);
    });
    ahead.score(some, queries, d, ahead.count, scores + row * ld, ld);
    own.score(some, queries, d, keys - ahead.count, scores + row * ld + ahead.count, ld);
  });
  weigh(scores, head, start, n, keys, shares);
  each_block(rows, [&](long row, long some) {
    float* weights = scores + row * ld;
    for (long r = 0; r < some; r++) std::fill(weights + r * ld + keys, weights + r * ld + steps_of(keys) * STEP, 0.0f);
    if (ahead.count) ahead.add_values(some, weights, ld, ahead.count, e, false, sums);
    own.add_values(some, weights + ahead.count, ld, keys - ahead.count, e, ahead.count, sums);
    each_query(head, start, n, row, row + some, [&](long r, long of, long at) {
      for (long i = 0; i < e; i += T)
        _mm512_mask_storeu_ps(out + (at * h + of) * e + i, first_numbers(e - i), shares[r] * load(PackedHead::sums_at(sums, r - row, i)));
    });
  });
}

}  // namespace

#endif
