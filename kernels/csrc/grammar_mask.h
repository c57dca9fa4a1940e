// Which ids a grammar allows a row to draw. Knows no grammars, and nothing of threads or arrays.

#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "softmax.h"

namespace {

// Bit v % 32 of word v / 32 allows id v. Without words (null) all ids are allowed. Bits behind the last id mean nothing.
struct GrammarMask {
  static constexpr long WORD = 32;
  const uint32_t* words;

  bool allows(long id) const { return !words || words[id / WORD] >> id % WORD & 1; }

  // Returns the logits x of W ids from j on, a multiple of W, with -inf for ids that are not allowed.
  V of(V x, long j) const {
    I bits = (int32_t)(words[j / WORD] >> j % WORD) - I{};
    return (bits & lane_bit) != 0 ? x : all(-INFINITE);
  }

  // The largest of n logits that are allowed, and its id, the first of equals. NaN if one of them is NaN; -inf and id 0 if there is none.
  struct Best {
    long id;
    float value;
  };

  Best best(const float* x, long n) const {
    constexpr int CHAINS = WORD / W < 4 ? WORD / W : 4;  // compared side by side, as each comparison waits for the one before
    V most[CHAINS];
    I place[CHAINS] = {}, nan = {};
    for (V& one : most) one = all(-INFINITE);
    long from = 0;
    for (; from + WORD <= n; from += WORD) {
      if (!words[from / WORD]) continue;
#pragma GCC unroll 8
      for (int i = 0; i < WORD / W; i++) {
        long j = from + i * W;
        V y = of(load(x + j), j), &peak = most[i % CHAINS];
        I more = y > peak, &at = place[i % CHAINS];
        peak = more ? y : peak, at = more ? (int32_t)j - I{} : at, nan |= y != y;
      }
    }
    for (int i = 0; i < W; i++)
      if (nan[i]) return {0, NOT_A_NUMBER};
    Best found{0, -INFINITE};
    for (int i = 0; i < CHAINS; i++) {
      float peak = largest(most[i]);
      if (peak == -INFINITE || peak < found.value) continue;
      long id = smallest(most[i] == peak ? place[i] + lane_number : INT32_MAX - I{});
      found = {peak > found.value ? id : std::min(id, found.id), peak};
    }
    for (; from < n; from++) {
      if (!allows(from)) continue;
      if (__builtin_isnan(x[from])) return {0, NOT_A_NUMBER};
      if (x[from] > found.value) found = {from, x[from]};
    }
    return found;
  }

  // The same for a row whose `count` parts are known: reads only those that may hold it. The id is -1 where there is none.
  Best best(const float* x, long n, const Part* parts, long count) const {
    Best found{-1, -INFINITE};
    auto take = [&](long id, float value) {
      if (value > found.value || (value == found.value && id < found.id)) found = {id, value};
    };
    for (long i = 0; i < count; i++) {
      if (!allows(parts[i].best)) continue;
      if (__builtin_isnan(parts[i].peak)) return {-1, NOT_A_NUMBER};
      take(parts[i].best, parts[i].peak);
    }
    for (long i = 0, from = 0; i < count; i++, from += Part::SIZE) {
      if (allows(parts[i].best) || parts[i].peak < found.value) continue;
      for (long at = from; at < std::min(from + Part::SIZE, n); at += WORD)
        for (uint32_t bits = words[at / WORD]; bits; bits &= bits - 1) {
          long id = at + __builtin_ctz(bits);
          if (id >= n) break;
          if (__builtin_isnan(x[id])) return {-1, NOT_A_NUMBER};
          take(id, x[id]);
        }
    }
    return found;
  }
};

}  // namespace
