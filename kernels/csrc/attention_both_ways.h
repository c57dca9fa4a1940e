// Attention in which a token sees all tokens of its row, or those of a window around it: softmax(q kᵀ + bias) v. Rows stand one after the other,
// without pads. Knows nothing of models.

#pragma once

#include <algorithm>
#include <cstdint>

#include "products.h"
#include "simd.h"
#include "thread_pool.h"

namespace {

constexpr long TILE_QUERIES = 24;

struct BothWays {
  const float* qkv;     // [tokens, ld]: queries, which are scaled already, keys and values of all heads
  float* out;           // [tokens, ldo]
  const int64_t* from;  // [B + 1]: the first token of each row
  const float* bias;    // [H, T, T], added to the scores; null where there is none
  long b, t, heads, width, window, ld, ldo;  // t: the bias's T; window: how far away a token sees; negative: the whole row

  void run() const {
    long longest = 0;
    for (long row = 0; row < b; row++) longest = std::max<long>(longest, from[row + 1] - from[row]);
    long tiles = (longest + TILE_QUERIES - 1) / TILE_QUERIES, enough = 8 * pool::threads();
    if (b >= enough) return pool::run(b, [&](long row) {
      for (long head = 0; head < heads; head++) some(row, head, 0, 1);
    });
    long parts = std::min(tiles, (enough + b * heads - 1) / (b * heads));
    pool::run(b * heads * parts, [&](long task) { some(task / parts / heads, task / parts % heads, task % parts, parts); });
  }

 private:
  // Computes every `parts`-th tile of a row's queries in one head.
  void some(long row, long head, long part, long parts) const {
    long tokens = from[row + 1] - from[row], d = heads * width, wide = whole_vectors(tokens), padded = whole_vectors(width);
    if (part * TILE_QUERIES >= tokens) return;
    const float *q = qkv + from[row] * ld + head * width, *k = q + d, *v = k + d;
    long ldv = ld;
    float* keys = spare(KEYS, width * wide);
    turn_padded(tokens, width, k, ld, keys, wide);
    if (padded != width) {
      float* values = spare(VALUES, tokens * padded);
      for (long j = 0; j < tokens; j++) std::fill(std::copy_n(v + j * ld, width, values + j * padded), values + (j + 1) * padded, 0.0f);
      v = values, ldv = padded;
    }
    float *scores = spare(SCORES, TILE_QUERIES * wide), *made = spare(QUERIES, TILE_QUERIES * padded), shares[TILE_QUERIES];
    for (long start = part * TILE_QUERIES; start < tokens; start += parts * TILE_QUERIES) {
      long n = std::min(TILE_QUERIES, tokens - start), first = 0, end = tokens;
      if (window >= 0) first = std::max(0l, start - window) / W * W, end = std::min(tokens, start + n + window);
      outer_evenly(n, whole_vectors(end) - first, q + start * ld, ld, keys + first, wide, width, scores, wide);
      for (long r = 0; r < n; r++) {
        float* row = scores + r * wide;
        const float* more = bias + (head * t + start + r) * t + first;
        for (long j = 0; bias && j < end - first; j++) row[j] += more[j];
        if (window >= 0) std::fill(row, row + std::max(0l, start + r - window) - first, -INFINITE);
        long seen = window >= 0 ? std::min(tokens, start + r + window + 1) : tokens;
        std::fill(row + seen - first, row + whole_vectors(end) - first, -INFINITE);
      }
      weigh(scores, wide, n, whole_vectors(end) - first, shares);
      outer_evenly(n, padded, scores, wide, v + first * ldv, ldv, end - first, made, padded);
      for (long r = 0; r < n; r++) {
        float* to = out + (from[row] + start + r) * ldo + head * width;
        long i = 0;
        for (; i + W <= width; i += W) store(to + i, load(made + r * padded + i) * shares[r]);
        for (; i < width; i++) to[i] = made[r * padded + i] * shares[r];
      }
    }
  }

  // Turns scores [n, keys] into exp(score - peak), in place; shares [n] take 1 / their sums. `keys` is a multiple of W.
  static void weigh(float* scores, long ld, long n, long keys, float* shares) {
    constexpr long FOLDED = W;
    for (long at = 0; at < n; at += FOLDED) {
      long rows = std::min(FOLDED, n - at);
      V all_of[FOLDED] = {};
      float peaks[FOLDED], totals[FOLDED];
      for (long r = 0; r < rows; r++) {
        const float* row = scores + (at + r) * ld;
        V most = load(row);
        for (long j = W; j < keys; j += W) most = larger(most, load(row + j));  // a NaN may be lost here; exp makes NaN of it below
        all_of[r] = most;
      }
      fold<FOLDED>(all_of, peaks, larger);
      for (long r = 0; r < rows; r++) {
        float* row = scores + (at + r) * ld;
        V total = {};
        for (long j = 0; j < keys; j += W) {
          V weight = exp(load(row + j) - peaks[r]);
          store(row + j, weight);
          total += weight;
        }
        all_of[r] = total;
      }
      sums<FOLDED>(all_of, totals);
      for (long r = 0; r < rows; r++) shares[at + r] = 1.0f / totals[r];
    }
  }

  // Transposes `from` [rows, columns] into `to` [columns, wide], wide the next multiple of W, filled with zeros.
  static void turn_padded(long rows, long columns, const float* from, long ldf, float* to, long wide) {
    float* last = spare(MADE, W * columns);
    for (long row = 0; row < rows; row += W) {
      const float* block = from + row * ldf;
      long ld = ldf, i = 0;
      if (rows - row < W) {
        for (long j = 0; j < rows - row; j++) std::copy_n(block + j * ldf, columns, last + j * columns);
        std::fill(last + (rows - row) * columns, last + W * columns, 0.0f);
        block = last, ld = columns;
      }
      for (; i + W <= columns; i += W) turn_square(block + i, ld, to + i * wide + row, wide);
      for (; i < columns; i++)
        for (long j = 0; j < W; j++) to[i * wide + row + j] = block[j * ld + i];
    }
  }
};

}  // namespace
