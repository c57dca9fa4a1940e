// Draws a token from a row of logits. Applies the grammar's mask, the temperature, then top-k, top-p and min-p together, then typical-p, then
// XTC, then inverts the cumulative distribution over ascending ids. Knows nothing of threads or arrays.

#pragma once

#include <algorithm>
#include <cstdint>

#include "grammar_mask.h"
#include "simd.h"
#include "thread_pool.h"

namespace {

// A row's filters. A token with z below `least` (log min_p) is left out. top_k is at most the row's length. typical_p 1 is off. xtc is the
// probability from which on a token is a top choice in this step; infinite is off.
struct Filter {
  float temperature, top_p, least;
  long top_k;
  float typical_p, xtc;

  bool cuts(long n) const { return top_k < n || top_p < 1 || least > -INFINITE; }
};

// A row of n logits as z = (x - peak) / temperature, where `peak` is the largest that is allowed, and e = exp(z). For ids that the grammar
// or a filter leaves out, z is -inf and e is 0.
class Draw {
 public:
  Draw(const float* x, long n, const GrammarMask& mask, float peak, const Filter& filter) : n(n), filter(filter) {
    long whole = (n + BLOCK - 1) / BLOCK * BLOCK, j = 0;
    z = spare(SCORES, 3 * whole), e = z + whole;
    auto weigh = [&](long at, V y) {
      V scaled = (y - peak) / filter.temperature;
      store(z + at, scaled), store(e + at, exp(scaled));
    };
    if (mask.words) {
      for (; j + mask.WORD <= n; j += mask.WORD)
        if (mask.words[j / mask.WORD])
          for (long i = j; i < j + mask.WORD; i += W) weigh(i, mask.of(load(x + i), i));
        else
          std::fill_n(z + j, mask.WORD, -INFINITE), std::fill_n(e + j, mask.WORD, 0.0f);
    }
    for (; j + W <= n; j += W) weigh(j, mask.words ? mask.of(load(x + j), j) : load(x + j));
    float last[W];
    std::fill_n(last, W, -INFINITE);
    for (long i = j; i < n; i++)
      if (mask.allows(i)) last[i - j] = x[i];
    for (; j < whole; j += W, std::fill_n(last, W, -INFINITE)) weigh(j, load(last));
    if (filter.cuts(n)) cut();
    if (filter.typical_p < 1) keep_typical(e + whole);
    if (filter.xtc <= 1) exclude_top_choices();
  }

  // Returns the first id at which the cumulative sum of e exceeds `uniform` times its total, and sets its logprob.
  long at(float uniform, float& logprob) const {
    long blocks = (n + BLOCK - 1) / BLOCK, block = 0;
    auto* ends = (double*)spare(MADE, 2 * blocks);
    double total = 0;
    for (long i = 0; i < blocks; i++) ends[i] = total += sum_of(e + i * BLOCK);
    double threshold = uniform * total;
    while (ends[block] <= threshold && block < blocks - 1) block++;
    double found = block ? ends[block - 1] : 0;
    long id = block * BLOCK;
    for (long j = id, end = id + BLOCK; j < end && found <= threshold; j++)
      if (e[j] > 0) id = j, found += e[j];  // the last possible id, where no sum exceeds it because of rounding
    logprob = total == e[id] ? 0.0f : (float)(z[id] - __builtin_log(total));  // no rounding where it is the only one
    return id;
  }

  // Writes 1 for each id that can be drawn, else 0.
  void kept(uint8_t* to) const {
    for (long j = 0; j < n; j++) to[j] = z[j] > -INFINITE;
  }

 private:
  static constexpr long BLOCK = 256, BINS = 4096;
  static constexpr long OUT = 16;  // bins for ids with key -inf, which no walk comes to; several, as adding to one waits for itself
  static constexpr float FINE = 128;  // bins for a difference of 1 in the key; with 50,000 ids a bin holds some dozens

  struct Weight {
    float key, e;
  };
  struct Bin {
    double mass;
    long count;
  };

  long n;
  Filter filter;
  float *z, *e;

  static double sum_of(const float* from) {
    double eight[8] = {}, found = 0;  // eight sums side by side, so that the compiler uses vectors
    for (long j = 0; j < BLOCK; j += 8)
      for (long i = 0; i < 8; i++) eight[i] += from[j + i];
    for (double part : eight) found += part;
    return found;
  }

  // The ids by falling key (z, or another number of at most 0), less those with -inf. They are put into bins; a bin's members are sorted only
  // when the bin is opened.
  class Sorted {
   public:
    Sorted(const float* key, const float* e, long n) : key(key), e(e), n(n) {
      place = (int32_t*)spare(QUERIES, n), bins = (Bin*)spare(MADE, (BINS + OUT) * sizeof(Bin) / sizeof(float));
      members = (Weight*)spare(VALUES, 2 * n);
      std::fill_n(bins, BINS + OUT, Bin{});
      for (long j = 0; j < n; j++) place[j] = key[j] > -INFINITE ? (int32_t)std::min(-key[j] * FINE, (float)(BINS - 1)) : BINS + j % OUT;
      for (long j = 0; j < n; j++) bins[place[j]].mass += e[j], bins[place[j]].count++;
    }

    // Calls step(weight) for one member after the other until it returns true. Passes over each bin for which skip(bin) is true.
    template <typename Skip, typename Step>
    void walk(Skip skip, Step step) {
      for (long bin = 0; bin < BINS; bin++) {
        if (!bins[bin].count || skip(bins[bin])) continue;
        open(bin);
        for (long i = 0; i < bins[bin].count; i++)
          if (step(members[i])) return;
      }
    }

   private:
    const float *key, *e;
    long n, opened = -1;
    int32_t* place;
    Bin* bins;
    Weight* members;

    void open(long bin) {
      if (bin == opened) return;
      opened = bin;
      Weight* to = members;
      for (long from = 0; from < n; from += BLOCK) {
        long end = std::min(n, from + BLOCK);
        int32_t any = 0;
        for (long j = from; j < end; j++) any |= place[j] == bin;
        for (long j = from; any && j < end; j++)
          if (place[j] == bin) *to++ = {key[j], e[j]};
      }
      std::sort(members, to, [](const Weight& a, const Weight& b) { return a.key > b.key; });
    }
  };

  // Keeps the first ids by falling z, ties by ascending id.
  void cut() {
    Sorted sorted(z, e, n);
    long count = filter.top_k;
    if (filter.top_p < 1) {
      long reached = 0;
      double mass = 0;
      sorted.walk(
          [&](const Bin& bin) {
            bool all = reached + bin.count <= count;
            if (all) reached += bin.count, mass += bin.mass;
            return all;
          },
          [&](const Weight& weight) {
            if (reached < count) reached++, mass += weight.e;
            return reached == count;
          });
      count = std::min(count, first_with(filter.top_p * mass, sorted));
    }
    int32_t likely = 0;
    for (long j = 0; j < n; j++) likely += z[j] >= filter.least && z[j] > -INFINITE;
    keep(std::max(1l, std::min(count, (long)likely)), sorted, z);
  }

  // Keeps the ids whose z is nearest to the mean of z, ties by ascending id. `nearness` takes n numbers.
  void keep_typical(float* nearness) {
    double total = 0, weighted = 0;
    for (long j = 0; j < n; j++)
      if (e[j] > 0) total += e[j], weighted += e[j] * z[j];
    float mean = (float)(weighted / total);
    for (long j = 0; j < n; j++) nearness[j] = -__builtin_fabsf(z[j] - mean);
    Sorted sorted(nearness, e, n);
    keep(first_with(filter.typical_p * total, sorted), sorted, nearness);
  }

  // Of the ids whose probability is at least filter.xtc, keeps the least likely, and its equals.
  void exclude_top_choices() {
    double total = 0;
    for (long j = 0; j < n; j++) total += e[j];
    double level = filter.xtc * total;
    float lowest = INFINITE;
    for (long j = 0; j < n; j++)
      if (e[j] >= level) lowest = std::min(lowest, z[j]);
    for (long j = 0; j < n; j++)
      if (z[j] > lowest) z[j] = -INFINITE, e[j] = 0;
  }

  // Returns how many of the first ids it takes to come to a sum of e; all, if that does not come to it.
  static long first_with(double needed, Sorted& sorted) {
    long reached = 0;
    double mass = 0;
    sorted.walk(
        [&](const Bin& bin) {
          bool all = mass + bin.mass < needed;
          if (all) reached += bin.count, mass += bin.mass;
          return all;
        },
        [&](const Weight& weight) {
          reached++, mass += weight.e;
          return mass >= needed;
        });
    return reached;
  }

  // Keeps the first `count` ids by falling key, ties by ascending id. All others get z = -inf and e = 0.
  void keep(long count, Sorted& sorted, float* key) {
    long seen = 0;
    float lowest = 0;
    int32_t above = 0, level = 0;
    sorted.walk(
        [&](const Bin& bin) {
          if (seen + bin.count >= count) return false;
          seen += bin.count;
          return true;
        },
        [&](const Weight& weight) {
          lowest = weight.key;
          return ++seen == count;
        });
    for (long j = 0; j < n; j++) above += key[j] > lowest, level += key[j] == lowest;
    long left = count - above;  // how many of the ties at the cut are kept
    for (long j = 0; left < level && j < n; j++)
      if (key[j] == lowest && left-- <= 0) key[j] = -INFINITE;
#pragma GCC ivdep  // key may be z
    for (long j = 0; j < n; j++) {
      bool stays = key[j] >= lowest;
      z[j] = stays ? z[j] : -INFINITE, e[j] = stays ? e[j] : 0;
    }
  }
};

}  // namespace
