// LM head and softmax in one pass: the sums of each row's softmax, and the logits of some ids. The whole row of logits is never stored.
// Knows nothing of layers.

#pragma once

#include "matmul.h"
#include "softmax.h"

namespace {

// The logits are x [m, depth] wᵀ + bias, with w [n, depth], which may be quantized instead, and bias [n] or null; cap tanh(logit / cap) of
// that where cap is not 0. best, peak and total [m] take each row's softmax sums.
// at_ids takes the logits of `ids`; row i's ids stand at first[i] ... first[i + 1] - 1.
struct Score {
  const float* w;
  const Quantized* quantized;  // null where w is float32
  const float *x, *bias;
  long m, n, depth;
  const int64_t* first;
  const int32_t* ids;
  float* at_ids;
  int32_t* best;
  float *peak, *total;
  float cap = 0;
  const float* packed = nullptr;  // see `Target`

  void run() const {
    auto of = [&](long row, float*) { return x + row * depth; };
#if TILES
    if (tiles_allowed() && !quantized)
      return each_packed(m, depth, of, [&](const uint16_t* tiles, long row, long rows) {
        gather(row, rows, 1, [&](long part, Part* to) { columns_in_tiles(tiles, row, rows, part, to); });
      });
#endif
    // Tasks that begin with a panel can read the packed weight. Where they would be too few for all threads, they are smaller.
    long span = n >= 3 * SPAN * Part::SIZE * pool::threads() ? SPAN : 1;
    each_gathered(m, depth, of, [&](const float* gathered, long row, long rows) {
      gather(row, rows, span, [&](long i, Part* to) { columns(gathered, row, rows, i * span * Part::SIZE, span * Part::SIZE, to); });
    });
  }

 private:
  static constexpr long SPAN = 3;  // so many parts of the columns begin and end with a panel
  static_assert(SPAN * Part::SIZE % PANEL == 0);
#if TILES
  static_assert(Part::SIZE % BLOCK == 0);
#endif

  // Writes the results of some rows. f(i, to) computes task i's parts of the columns, `span` or at the end fewer, to [parts, rows].
  template <typename F>
  void gather(long row, long rows, long span, F f) const {
    long count = (n + Part::SIZE - 1) / Part::SIZE;
    std::vector<Part> parts(rows * count);
    pool::run((count + span - 1) / span, [&](long i) { f(i, parts.data() + i * span * rows); });
    pool::run(rows, [&](long i) {
      Part found = whole_of(parts.data() + i, count, rows);
      best[row + i] = found.best, peak[row + i] = found.peak, total[row + i] = found.sum;
    });
  }

  // Takes from a row's logits, those from column `from` on in `made` [Part::SIZE], the figures and the logits of its ids. It caps them first.
  Part taken(float* made, long row, long from, long end) const {
    if (cap) {
      for (long j = 0; j < Part::SIZE; j += W) store(made + j, cap * tanh(load(made + j) / cap));
      std::fill(made + (end - from), made + Part::SIZE, -INFINITE);
    }
    for (long id = first[row]; id < first[row + 1]; id++)
      if (ids[id] >= from && ids[id] < end) at_ids[id] = made[ids[id] - from];
    return part_of(made, from);
  }

  // Computes `width` columns from `begin` on, for some rows, in vectors: some parts.
  void columns(const float* gathered, long row, long rows, long begin, long width, Part* to) const {
    long end = std::min(n, begin + width);
    float* made = spare(MADE, rows * width);
    for (long i = 0; end < begin + width && i < rows; i++) std::fill_n(made + i * width, width, -INFINITE);
    const float* panels = width % PANEL ? nullptr : packed;
    columns_in_vectors(rows, gathered, depth, {w, n, made, width, bias, nullptr, quantized, panels}, begin, end, made, width, m <= FEW_ROWS);
    for (long from = begin; from < end; from += Part::SIZE, to += rows)
      for (long i = 0; i < rows; i++) to[i] = taken(made + i * width + from - begin, row + i, from, std::min(end, from + Part::SIZE));
  }

#if TILES
  // Computes one part of the columns, for some rows, in tiles.
  void columns_in_tiles(const uint16_t* tiles, long row, long rows, long part, Part* to) const {
    long from = part * Part::SIZE, end = std::min(n, from + Part::SIZE), blocks = blocks_of(rows);
    const float* sums = tile_sums(tiles, rows, {w, packed, depth}, from, end);
    float* made = spare(MADE, BLOCK * Part::SIZE);
    for (long i = 0; end < from + Part::SIZE && i < BLOCK; i++) std::fill_n(made + i * Part::SIZE, Part::SIZE, -INFINITE);
    Target target{w, n, made, Part::SIZE, bias ? bias + from : nullptr};
    for (long b = 0; b < blocks; b++) {
      long some = std::min(BLOCK, rows - b * BLOCK);
      for (long column = 0; from + column < end; column += BLOCK)
        give(sums + (column / BLOCK * blocks + b) * SUMS, 0, some, column, std::min(BLOCK, end - from - column), target);
      for (long i = 0; i < some; i++) to[b * BLOCK + i] = taken(made + i * Part::SIZE, row + b * BLOCK + i, from, end);
    }
  }
#endif
};

}  // namespace
