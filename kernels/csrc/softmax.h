// A softmax's largest value and sum of a row of logits, computed part by part. Knows nothing of threads or arrays.

#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"

namespace {

// The figures of SIZE numbers: the largest (peak), the id of the first that equals it (best), and the sum of exp(x - peak). If there is a
// NaN, peak and sum are NaN, and best is the first NaN's id.
struct Part {
  static constexpr long SIZE = 256;  // a part stays in the L1 cache for two reads; it is summed in float32, parts in float64
  float peak, sum;
  int32_t best;
};

// Returns the figures of Part::SIZE numbers; the first one's id is `at`.
inline Part part_of(const float* x, int32_t at) {
  V most = load(x), even = {}, odd = {};
  I place = {};
  for (int32_t j = W; j < Part::SIZE; j += W) {
    V y = load(x + j);
    I more = y > most;
    most = more ? y : most, place = more ? j - I{} : place;
  }
  float peak = largest(most);
  for (long j = 0; j < Part::SIZE; j += 2 * W) even += exp(load(x + j) - peak), odd += exp(load(x + j + W) - peak);
  float total = sum(even + odd);
  if (total == total) return {peak, total, at + smallest(most == peak ? place + lane_number : Part::SIZE - I{})};
  int32_t best = 0;
  while (best < Part::SIZE && x[best] == x[best]) best++;
  if (best < Part::SIZE) return {NOT_A_NUMBER, NOT_A_NUMBER, at + best};
  const float* first = std::max_element(x, x + Part::SIZE);  // an infinity
  return {*first, *first > 0 ? NOT_A_NUMBER : 0, at + int32_t(first - x)};
}

// Returns the figures of a whole row from its parts, which stand `stride` apart. The sum is NaN if no number is finite.
inline Part whole_of(const Part* parts, long count, long stride) {
  Part found{-INFINITE, NOT_A_NUMBER, parts[0].best};
  for (long i = 0; i < count; i++) {
    const Part& part = parts[i * stride];
    if (part.peak != part.peak) return part;
    if (part.peak > found.peak) found = part;
  }
  if (found.peak == -INFINITE) return {found.peak, NOT_A_NUMBER, found.best};
  double total = 0;
  for (long i = 0; i < count; i += W) {
    float below[W], sums[W];
    for (long j = 0; j < W; j++) {
      bool there = i + j < count;
      const Part& part = parts[there ? (i + j) * stride : 0];
      below[j] = part.peak - found.peak, sums[j] = there ? part.sum : 0;
    }
    store(sums, load(sums) * exp(load(below)));
    for (float part : sums) total += part;
  }
  found.sum = (float)total;
  return found;
}

}  // namespace
