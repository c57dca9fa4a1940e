// What a softmax takes of a row of numbers, by parts of it. Knows neither threads nor arrays.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "simd.h"

namespace {

// Of SIZE numbers: the largest, the first that is as large, and the sum of exp(x - peak). Where one is NaN, so are peak and sum, and it is
// the first such one.
struct Part {
  static constexpr long SIZE = 256;  // read twice while it is in the first cache; summed in float32, the parts in float64
  float peak, sum;
  int32_t best;
};

// Of Part::SIZE numbers, the first of which is the row's number `at`.
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
  if (total == total) return {peak, total, at + smallest(most == peak ? place + lanes.number : Part::SIZE - I{})};
  int32_t best = 0;
  while (best < Part::SIZE && x[best] == x[best]) best++;
  if (best < Part::SIZE) return {NAN, NAN, at + best};
  const float* first = std::max_element(x, x + Part::SIZE);  // an infinity
  return {*first, *first > 0 ? NAN : 0, at + int32_t(first - x)};
}

// The same of all parts of a row, each `stride` behind the one before; NaN for the sum if no number is finite.
inline Part whole_of(const Part* parts, long count, long stride) {
  Part found{-INFINITE, NAN, parts[0].best};
  for (long i = 0; i < count; i++) {
    const Part& part = parts[i * stride];
    if (part.peak != part.peak) return part;
    if (part.peak > found.peak) found = part;
  }
  if (found.peak == -INFINITE) return {found.peak, NAN, found.best};
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
