// Decoder blocks one after the other on a batch without pads, each with caches of its own, and the norm behind them. Knows nothing of models.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "decoder_block.h"
#include "rope_angles.h"
#include "row_ops.h"
#include "thread_pool.h"

namespace {

// The caller holds the angles' lock.
const Angles& angles_of(const Block& block) {
  return kernels::angles_of(block.frequencies, block.half, block.starts, block.count, block.t, block.position_scale, block.magnitude);
}

// The caller holds the angles' lock.
void run_turned(const Block& block) { block.run(block.cosines ? nullptr : &angles_of(block)); }

// A norm's weights [d], null where there is none; `more` is added to them.
struct Norm {
  const float* weight;
  float eps, more;

  void run(float* rows, long count, long d) const {
    for (long row = 0; weight && row < count; row++) norm_row(rows + row * d, weight, d, eps, rows + row * d, more);
  }
};

// What a block makes is written over what the one before it made, and counted.
struct Stack {
  Block* first;
  Block* end;
  Norm norm;  // behind the last block

  // x [b, t, d] -> out, the same shape. Each token sees its row up to itself. Returns false, with nothing written, where a cache has no room.
  bool run(long b, long t, const float* x, float* out) const {
    int64_t longest = *std::max_element(first->lengths, first->lengths + b) + t;
    for (Block* each = first; each < end; each++) {
      each->b = each->count = b, each->t = t, each->longest = longest, each->kind = t == 1 ? NONE : CAUSAL;
      each->x = each == first ? x : out, each->out = out;
      if (!each->has_room()) return false;
    }
    if (serves_rows_apart()) {
      run_rows_apart();
      for (const Block* each = first; each < end; each++) each->count_written();
    } else {
      for (const Block* each = first; each < end; each++) run_turned(*each), each->count_written();
      pool::run(norm.weight ? b * t : 0, [&](long row) { norm.run(out + row * first->d, 1, first->d); });
    }
    return true;
  }

  // Whether each thread takes rows of a decode step through all blocks: no thread then waits for another one. Each reads all weights, so
  // memory has to give as many times more of them as there are threads, and a thread needs the more rows: with vectors of 512 bits twice as
  // many, unless the weights lie in a cache.
  bool serves_rows_apart() const {
    constexpr long FEWEST = 8, CACHED = 8 << 20;  // rows; weights
    long threads = pool::threads(), fewest = FEWEST * threads * threads, weights = 0;
    for (const Block* each = first; each < end; each++) weights += each->weights();
    if (W == 16 && weights > CACHED) fewest *= 2;
    if (first->b < fewest) return false;
    return std::all_of(first, end, [&](const Block& each) { return each.serves_alone() && same_angles(each); });
  }

 private:
  bool same_angles(const Block& other) const {
    return other.half == first->half && other.position_scale == first->position_scale && other.magnitude == first->magnitude &&
           std::equal(other.frequencies, other.frequencies + other.half, first->frequencies) &&
           std::equal(other.starts, other.starts + other.count, first->starts);
  }

  void run_rows_apart() const {
    long rows = first->b, widest = 0, threads = pool::threads();
    std::vector<int64_t> from(rows + 1), costs(rows + 1);
    for (const Block* each = first; each < end; each++) {
      widest = std::max<long>(widest, each->heads * each->width);
      for (long row = 0; row < rows; row++) costs[row + 1] += each->cost(row);
    }
    for (long row = 0; row < rows; row++) from[row + 1] = row + 1, costs[row + 1] += costs[row];
    auto begin = [&](long part) {  // the row at which a thread's part of all costs begins
      return std::lower_bound(costs.begin(), costs.end(), costs.back() / threads * part) - costs.begin();
    };
    float *queries = spare(PROJECTED, rows * widest), *attended = spare(ATTENDED, rows * widest);
    const Angles& angles = angles_of(*first);
    pool::run(threads, [&](long part) {
      long row = begin(part), end_row = part + 1 < threads ? begin(part + 1) : rows;
      for (const Block* each = first; each < end; each++) each->run_alone(row, end_row, queries, attended, from, &angles);
      norm.run(first->out + row * first->d, end_row - row, first->d);
    });
  }
};

}  // namespace
