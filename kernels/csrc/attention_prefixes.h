// Attention behind prefixes that rows share: what tiles of queries read of a prefix is made once for several rows. Definitions for
// attention.h.

#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "thread_pool.h"

namespace {

// Whether rows first ... end - 1 have the same prefix.
inline bool Attention::shares(long first, long end) const {
  for (long row = first + 1; row < end; row++)
    if (front_key_rows[row] != front_key_rows[first] || fronts[row] != fronts[first]) return false;
  return true;
}

// Begins and ends of runs of rows [runs + 1]: what is made of a prefix serves those that follow each other and have the same one. Each
// thread gets two runs and more. Where all rows share it, or nothing is made of it, each row is a run.
inline std::vector<long> Attention::runs_of_rows(const float* shared) const {
  long most = shared || few() ? 1 : std::max(1l, b * kv / (2 * pool::threads()));
  std::vector<long> begins{0};
  for (long row = 1; row < b; row++)
    if (row - begins.back() == most || !shares(row - 1, row + 1)) begins.push_back(row);
  begins.push_back(b);
  return begins;
}

// Computes some rows over one key head; see `some`. shared: what all rows' tiles read of their prefix, if they have the same.
inline void Attention::some_rows(long head, long first, long end, const float* shared, long part, long parts, long each) const {
  const float* made = shared ? shared + head * of(first).front_numbers(in_tiles()) : nullptr;
  bool of_tiles = in_tiles();  // what was made is for a processor's tiles
  for (long row = first; row < end; row++) {
    Attention one = of(row);
    if (one.front && one.t && !one.few()) {
      if (!made || of_tiles != one.in_tiles()) {  // a row of one token is not in tiles
        float* to = spare(FRONT, one.front_numbers(one.in_tiles()));
        one.make_of_front(head, to);
        made = to, of_tiles = one.in_tiles();
      }
      one.made_of_front = made;
    }
    one.some(head, part, parts, each);
  }
}

// Makes what all rows' tiles read of the prefix that they share, for each head.
inline const float* Attention::of_heads() const {
  Attention first = of(0);
  first.t = t;  // others may have more tokens
  long size = first.front_numbers(in_tiles());
  float* made = spare(SHARED_FRONT, kv * size);
  pool::run(kv, [&](long head) { first.make_of_front(head, made + head * size); });
  return made;
}

// What tiles of queries read of a prefix: its keys as [D, front_wide], or its positions packed for a processor's tiles.
inline void Attention::make_of_front(long head, float* to) const {
#if TILES
  if (in_tiles()) return (void)packed(head, 0, whole_steps(), to);
#endif
  turn(front, d, front_keys + head * front_room * d, d, to, front_wide());
}

// Returns how many numbers that is.
inline long Attention::front_numbers(bool of_tiles) const {
#if TILES
  if (of_tiles) return PackedHead::size(whole_steps(), d, e);
#endif
  return d * front_wide();
}

}  // namespace
