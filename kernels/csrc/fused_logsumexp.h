// LM head and softmax in one pass, in tiles: the sums of each row's softmax, and the logits of some ids. The whole row of logits is never
// stored. Knows nothing of layers.

#pragma once

#include "matmul.h"
#include "softmax.h"

#if TILES
namespace {

// The logits are x [m, depth] wᵀ + bias, with w [n, depth] and bias [n] or null. best, peak and total [m] take each row's softmax sums.
// at_ids takes the logits of `ids`; row i's ids stand at first[i] ... first[i + 1] - 1.
struct Score {
  const float *x, *w, *bias;
  long m, n, depth;
  const int64_t* first;
  const int32_t* ids;
  float* at_ids;
  int32_t* best;
  float *peak, *total;

  void run() const {
    long count = (n + Part::SIZE - 1) / Part::SIZE;
    std::vector<Part> parts(MANY * count);
    each_packed(m, depth, [&](long row, float*) { return x + row * depth; }, [&](const uint16_t* packed, long row, long rows) {
      pool.run(count, [&](long part) { columns(packed, row, rows, part, parts.data() + part * MANY); });
      pool.run(rows, [&](long i) {
        Part found = whole_of(parts.data() + i, count, MANY);
        best[row + i] = found.best, peak[row + i] = found.peak, total[row + i] = found.sum;
      });
    });
  }

 private:
  // Computes one part of the columns, for some rows.
  void columns(const uint16_t* packed, long row, long rows, long part, Part* to) const {
    long from = part * Part::SIZE, end = std::min(n, from + Part::SIZE), blocks = (rows + 2 * T - 1) / (2 * T);
    const float* sums = tile_sums(packed, rows, w, from, end, depth);
    float* made = spare(MADE, 2 * T * Part::SIZE);
    for (long i = 0; end < from + Part::SIZE && i < 2 * T; i++) std::fill_n(made + i * Part::SIZE, Part::SIZE, -INFINITE);
    Target target{w, n, made, Part::SIZE, bias ? bias + from : nullptr};
    for (long b = 0; b < blocks; b++) {
      long some = std::min(2 * T, rows - b * 2 * T);
      for (long column = 0; from + column < end; column += 2 * T)
        give(sums + (column / (2 * T) * blocks + b) * SUMS, 0, some, column, std::min(2 * T, end - from - column), target);
      for (long i = 0; i < some; i++) {
        long at = row + b * 2 * T + i;
        for (long id = first[at]; id < first[at + 1]; id++)
          if (ids[id] >= from && ids[id] < end) at_ids[id] = made[i * Part::SIZE + ids[id] - from];
        to[b * 2 * T + i] = part_of(made + i * Part::SIZE, from);
      }
    }
  }
};

}  // namespace
#endif
