// Attention, softmax(scale q kᵀ + mask) v, computed a tile of queries at a time; its scores may be capped, and heads may have sinks. Knows
// nothing of caches or models.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "packed_head.h"
#include "products.h"
#include "simd.h"
#include "thread_pool.h"

namespace {

enum Mask { NONE, CAUSAL, SEEN, ADDED };

// One key head's keys and values that lie in one piece of memory. The keys are transposed to [D, wide]; null where they are read as they
// lie.
struct Piece {
  const float* turned;
  long wide;
  const float* values;
  long ld;
};

struct Attention {
  const float *q, *k, *v;
  float* out;  // [B, T, H, E]
  const char* mask;
  long b, h, t, d, kv, length, e;
  long qs[3], ks[3], vs[3], ms[4];  // strides of row, head and position; the mask's, in its elements
  float scale;
  Mask kind;
  const float* sinks = nullptr;  // [H]: a score a head that takes its share of the softmax and has no value; null where there is none
  float cap = 0;                 // scores become cap tanh(score / cap); 0: they stay
  // For rows in memory of their own, else null. Each row's keys [kv, room, D] and values; its capacity (`rooms`) and the positions that it
  // holds before this call (`used`); the first of its queries and outputs (`from` [B + 1]), as all rows' stand one after the other.
  float *const *key_rows, *const *value_rows;
  const int64_t *rooms, *used, *from;
  // Shared prefixes, null where there are none: each row's keys [kv, front_rooms, D] and values, `fronts` positions before the row's own.
  const float *const *front_key_rows, *const *front_value_rows;
  const int64_t *fronts, *front_rooms;
  // The prefix of one row.
  const float *front_keys, *front_values;
  long front, front_room;
  const float* made_of_front = nullptr;  // for one head; see `make_of_front`. Null in a decode step of few queries, and without a prefix.

  long groups() const { return h / kv; }
  static constexpr long FEW = 8;  // see `few`
  static long widened(long n) { return (n + WIDE * W - 1) / (WIDE * W) * (WIDE * W); }
  long wide() const { return widened(front ? length + W : length); }  // a whole vector may be written after a row's scores
  long front_wide() const { return widened(front); }
  long value_width() const { return (e + W - 1) / W * W; }

  // Turns scores [groups * n, keys] of n queries, from `start` on, into exp(score - peak), in place. `shares` takes 1 / their sums.
  void weigh(float* scores, long head, long start, long n, long keys, float* shares) const {
    long ld = wide();
    each_query(head, start, n, 0, groups() * n, [&](long r, long of, long at) { shares[r] = weigh_row(scores + r * ld, of, at, keys); });
  }

  // The same for the scores of one query of head `of`. Returns 1 / their sum.
  float weigh_row(float* s, long of, long at, long keys) const {
    if (cap)
      for (long i = 0; i < keys; i += W) store(s + i, cap * tanh(load(s + i) / cap));
    long seen = kind == CAUSAL ? length - t + at + 1 : keys, masked = of * ms[1] + at * ms[2];
    if (kind == SEEN)
      for (long i = 0; i < seen; i++) s[i] = mask[masked + i * ms[3]] ? s[i] : -std::numeric_limits<float>::max();
    if (kind == ADDED)
      for (long i = 0; i < seen; i++) s[i] += ((const float*)mask)[masked + i * ms[3]];
    long rest = seen % W, last = seen - rest, i = 0;
    if (rest) store(s + last, lane_number < (int32_t)rest ? load(s + last) : all(-INFINITE));
    V most = all(-INFINITE), total = {};
    for (; i < seen; i += W) most = larger(most, load(s + i));  // a NaN may be lost here; exp makes NaN of it below
    float sink = sinks ? sinks[of] : -INFINITE, peak = std::max(largest(most), sink);
    for (i = 0; i < seen; i += W) {
      V weight = exp(load(s + i) - peak);
      store(s + i, weight);
      total += weight;
    }
    for (; i < keys; i += W) store(s + i, V{});
    return 1.0f / (sinks ? sum(total) + exp(all(sink - peak))[0] : sum(total));
  }

  // Computes queries start ... stop - 1 over one key head: over the prefix (`ahead`) and the row's own keys.
  void tile(long head, long start, long stop, const Piece& ahead, const Piece& own) const {
    long n = stop - start, rows = groups() * n, width = value_width(), keys = seen(stop), behind = keys - front;
    float* queries = spare(QUERIES, rows * (d + 1 + width));
    float *shares = queries + rows * d, *made = shares + rows, *scores = spare(SCORES, rows * wide());
    scale_queries(head, start, n, queries);
    if (own.turned) {
      outer(rows, (front + W - 1) / W * W, queries, d, ahead.turned, ahead.wide, d, scores, wide());
      outer(rows, (behind + W - 1) / W * W, queries, d, own.turned, own.wide, d, scores + front, wide());
    } else {
      dots(rows, front, queries, d, front_keys + head * front_room * d, d, d, scores, wide(), nullptr);
      score_few(head, behind, queries, rows, own, scores + front);
    }
    weigh(scores, head, start, n, keys, shares);
    if (front) outer(rows, width, scores, wide(), ahead.values, ahead.ld, front, made, width);
    outer(rows, width, scores + front, wide(), own.values, own.ld, behind, made, width, front > 0);
    each_query(head, start, n, 0, rows, [&](long r, long of, long at) {
      const float *from = made + r * width, share = shares[r];
      float* to = out + (at * h + of) * e;
      for (long i = 0; i < e; i++) to[i] = from[i] * share;
    });
  }

  // The positions that query stop - 1 sees.
  long seen(long stop) const { return kind == CAUSAL ? length - t + stop : length; }

  // Calls f(row, head, position) for rows from ... end - 1 of [groups, n]: n queries of a key head's heads, from position `start` on.
  template <typename F>
  void each_query(long head, long start, long n, long from, long end, F f) const {
    long of = head * groups() + from / n, at = from % n;
    for (long row = from; row < end; row++) {
      f(row, of, start + at);
      if (++at == n) at = 0, of++;
    }
  }

  // Writes n queries of a key head, from `start` on, times the scale, as [groups * n, d].
  void scale_queries(long head, long start, long n, float* to) const {
    each_query(head, start, n, 0, groups() * n, [&, scale = scale](long r, long of, long at) {  // a copy, which no write to `to` changes
      const float* from = q + of * qs[1] + at * qs[2];
      for (long i = 0; i < d; i++) to[r * d + i] = scale * from[i];
    });
  }

  // Scores of few queries with the row's own keys. Memory bounds a decode step here, so what comes next is fetched meanwhile: the values of
  // these keys, if the second cache holds them until they are multiplied, then the next head's first keys.
  void score_few(long head, long keys, const float* queries, long rows, const Piece& own, float* scores) const {
    constexpr long AT_ONCE = 24, NEXT = 2048;  // keys, a multiple of the columns that `dots` takes at once; numbers
    const float *first = k + head * ks[1], *next = first + ks[1];
    bool fetches = keys * e <= 1 << 16;
    for (long j = 0, some; j < keys; j += some) {
      some = fetches ? std::min(AT_ONCE, keys - j) : keys;
      for (long i = j; fetches && i < j + some; i++) fetch(own.values + i * own.ld, e);
      dots(rows, some, queries, d, first + j * ks[2], ks[2], d, scores + j, wide(), nullptr);
    }
    for (long j = 0; head + 1 < kv && j < std::min(keys, NEXT / d); j++) fetch(next + j * ks[2], d);
  }

  // Fetches `count` numbers into the second cache.
  static void fetch(const float* from, long count) {
    for (long i = 0; i < count; i += 16) __builtin_prefetch(from + i, 0, 2);
  }

  // Returns a copy whose pointers and lengths are those of one row.
  Attention of(long row) const {
    Attention one = *this;
    one.q += key_rows ? from[row] * h * d : row * qs[0], one.out += (key_rows ? from[row] : row * t) * h * e;
    one.mask += row * ms[0] * (kind == ADDED ? sizeof(float) : 1);
    if (!key_rows) {
      one.k += row * ks[0], one.v += row * vs[0];
      return one;
    }
    if (fronts) {
      one.front = fronts[row], one.front_room = front_rooms[row];
      one.front_keys = front_key_rows[row], one.front_values = front_value_rows[row];
    }
    one.k = key_rows[row], one.v = value_rows[row], one.t = from[row + 1] - from[row], one.length = one.front + used[row] + one.t;
    one.ks[1] = rooms[row] * d, one.vs[1] = rooms[row] * e, one.ks[2] = d, one.vs[2] = e;
    return one;
  }

  // Computes rows first ... first + count - 1 of a decode step, in this thread alone.
  void run_alone(long first, long count) const {
    long outer = fronts ? kv : count, inner = fronts ? count : kv;  // head by head where rows may share a prefix, as in `run`
    for (long i = 0; i < outer; i++)
      for (long j = 0; j < inner; j++) of(first + (fronts ? j : i)).some(fronts ? i : j, 0, 1, 1);
  }

  void run() {
    constexpr long BYTES = 1 << 20;  // at most, for a tile's scores
    const long queries_at_once = in_tiles() && 16 * groups() % 32 ? 32 : 16;  // a processor's tiles take 32 rows at once
    const float* shared = fronts && !few() && shares(0, b) ? of_heads() : nullptr;
    long each = std::max(1l, std::min({queries_at_once, t, BYTES / (4 * groups() * wide())}));
    long tiles = (t + each - 1) / each, parts = std::min(tiles, std::max(1l, 4 * pool::threads() / (b * kv)));
    if (few() && !fronts && b >= 8 * pool::threads()) return pool::run(b, [&](long row) {  // its next head is known, and fetched ahead
      Attention one = of(row);
      for (long head = 0; head < kv; head++) one.some(head, 0, 1, 1);
    });
    if (!fronts)
      return pool::run(b * kv * parts, [&](long task) {
        long one = task / parts;
        of(one / kv).some(one % kv, task % parts, parts, each);
      });
    std::vector<long> runs = runs_of_rows(shared);
    long count = runs.size() - 1;
    pool::run(count * kv * parts, [&](long task) {  // head by head: a prefix that rows share stays in the L2 cache
      long head = task / parts / count, run = task / parts % count;
      some_rows(head, runs[run], runs[run + 1], shared, task % parts, parts, each);
    });
  }

 private:
  // Returns true when a key head has so few queries that transposing its keys does not pay. Only in decode steps (T = 1), so that a
  // longer call's bits do not depend on its T.
  bool few() const { return t == 1 && groups() <= FEW; }

  // Returns true when a processor's tiles compute a call's products. Only on rows in memory of their own: there position 0 is a row's
  // first, in any batch, and a tile's sums depend on where a step of positions begins. Not for one token: packing its keys and values
  // would take longer than its products.
  bool in_tiles() const {
#if TILES
    return key_rows && t > 1 && tiles_allowed();
#else
    return false;
#endif
  }

  // See attention_prefixes.h.
  bool shares(long first, long end) const;
  std::vector<long> runs_of_rows(const float* shared) const;
  void some_rows(long head, long first, long end, const float* shared, long part, long parts, long each) const;
  const float* of_heads() const;
  void make_of_front(long head, float* to) const;
  long front_numbers(bool of_tiles) const;

#if TILES
  // See attention_amx.h.
  long whole_steps() const;
  PackedHead packed(long head, long from, long end, float* to) const;
  void some_in_tiles(long head, long part, long parts, long each) const;
  void tile_in_tiles(long head, long start, long stop, const PackedHead& ahead, const PackedHead& own) const;
#endif

  // Computes every `parts`-th tile of `each` queries over one key head. Long tiles come first; `part` says which is the first.
  void some(long head, long part, long parts, long each) const {
    if (!t) return;  // all columns of the row are pads
#if TILES
    if (in_tiles()) return some_in_tiles(head, part, parts, each);
#endif
    long width = value_width(), tiles = (t + each - 1) / each;
    const float* keys = k + head * ks[1];
    Piece ahead{made_of_front, front_wide(), front_values + head * front_room * e, e};
    Piece own{nullptr, wide(), v + head * vs[1], vs[2]};
    if (!few()) {
      float* to = spare(KEYS, d * own.wide);
      turn(length - front, d, keys, ks[2], to, own.wide);
      own.turned = to;
    }
    if (width != e) {
      float* to = spare(VALUES, length * width);
      for (long j = 0; j < length; j++) {
        const float* from = j < front ? ahead.values + j * ahead.ld : own.values + (j - front) * own.ld;
        for (long i = 0; i < width; i++) to[j * width + i] = i < e ? from[i] : 0.0f;
      }
      ahead.values = to, own.values = to + front * width, ahead.ld = own.ld = width;
    }
    for (long i = tiles - 1 - part; i >= 0; i -= parts) tile(head, i * each, std::min(t, (i + 1) * each), ahead, own);
  }
};

}  // namespace

#include "attention_amx.h"
#include "attention_prefixes.h"
