// A softmax's sums of logits, and drawing from them, for Python; see library.cpp.

#include <algorithm>
#include <cstdint>

#include "grammar_mask.h"
#include "py_buffers.h"
#include "sampling.h"
#include "softmax.h"
#include "thread_pool.h"

namespace {

// A row's mask: words [K, W] (array i + 1) at the row's place (array i [N] int32); none where that is -1 or there are no arrays.
GrammarMask mask_of(const Arrays& arrays, int i, long row) {
  long place = arrays.data(i) ? arrays.data<int32_t>(i)[row] : -1;
  return {place < 0 ? nullptr : arrays.data<uint32_t>(i + 1) + place * arrays.size(i + 1, 1)};
}

}  // namespace

extern "C" {

// x [N, V] -> best [N] int32, the first id of the largest value; peak [N], that value; total [N], sum of exp(x - peak). In a row with a
// NaN, best is the first NaN's id, and peak and total are NaN. With places and words (see draw; null without a grammar) best is the first id
// of the largest value that is allowed, or -1 if there is none or one is NaN.
int softmax_sums(PyObject* x, PyObject* best, PyObject* peak, PyObject* total, PyObject* places, PyObject* words) try {
  Arrays arrays({x, best, peak, total, places, words});
  if (!arrays.held) return -1;
  long n = arrays.size(0, 0), v = arrays.size(0, 1), count = (v + Part::SIZE - 1) / Part::SIZE;
  pool::run(n, [&](long row) {
    const float* a = arrays.data(0) + row * v;
    auto* parts = (Part*)spare(MADE, count * sizeof(Part) / sizeof(float));
    for (long part = 0, from = 0; part < count; part++, from += Part::SIZE) {
      float last[Part::SIZE];
      if (v - from < Part::SIZE) std::fill_n(std::copy(a + from, a + v, last), from + Part::SIZE - v, -INFINITE);
      parts[part] = part_of(v - from < Part::SIZE ? last : a + from, from);
    }
    Part found = whole_of(parts, count, 1);
    GrammarMask mask = mask_of(arrays, 4, row);
    if (!mask.allows(found.best)) found.best = (int32_t)mask.best(a, v, parts, count).id;
    arrays.data<int32_t>(1)[row] = found.best, arrays.data(2)[row] = found.peak, arrays.data(3)[row] = found.sum;
  });
  return 0;
} catch (...) {
  return -2;
}

// Draws an id in each row of logits x [N, V]. ids [N] int32 holds each row's best id and takes the drawn one; sampled [N] takes its logprob
// after the filters; kept [N, V] bytes, if not null, takes 1 for each id that passes the filters. temperature, top_k (int32, 0: all), top_p,
// least (log min_p), typical_p (1: all), xtc (this step's threshold; inf: none) and uniforms are [N]. Row i draws from ids that words
// [K, ceil(V / 32)] int32 allow in line places[i] (int32) [N], or from all where that is -1; words and places may be null. A row with a mask
// may have -1 for its best id. If it has a temperature of 0, its best id that is allowed is found. Other rows at temperature 0 stay as they
// are. Where the largest logit is not finite, no id is drawn, and a row with a mask takes NaN.
int draw(PyObject* x, PyObject* ids, PyObject* temperature, PyObject* top_k, PyObject* top_p, PyObject* least, PyObject* typical_p,
         PyObject* xtc, PyObject* uniforms, PyObject* sampled, PyObject* kept, PyObject* places, PyObject* words) try {
  enum { X, IDS, TEMPERATURE, TOP_K, TOP_P, LEAST, TYPICAL_P, XTC, UNIFORMS, SAMPLED, KEPT, PLACES };
  Arrays arrays({x, ids, temperature, top_k, top_p, least, typical_p, xtc, uniforms, sampled, kept, places, words});
  if (!arrays.held) return -1;
  long n = arrays.size(X, 0), v = arrays.size(X, 1);
  pool::run(n, [&](long row) {
    const float* a = arrays.data(X) + row * v;
    int32_t& id = arrays.data<int32_t>(IDS)[row];
    float peak, temperature = arrays.data(TEMPERATURE)[row], &logprob = arrays.data(SAMPLED)[row];
    GrammarMask mask = mask_of(arrays, PLACES, row);
    if (mask.words && (id < 0 || !mask.allows(id))) {
      auto best = mask.best(a, v);
      id = (int32_t)best.id, peak = best.value;
    } else {
      peak = a[id];
    }
    if (mask.words) logprob = __builtin_isfinite(peak) ? 0 : NOT_A_NUMBER;
    if (temperature == 0 || !__builtin_isfinite(peak)) return;
    long most = arrays.data<int32_t>(TOP_K)[row];
    auto of = [&](int which) { return arrays.data(which)[row]; };
    Filter filter{temperature, of(TOP_P), of(LEAST), most > 0 ? std::min(most, v) : v, of(TYPICAL_P), of(XTC)};
    Draw draw(a, v, mask, peak, filter);
    id = draw.at(arrays.data(UNIFORMS)[row], logprob);
    if (kept) draw.kept(arrays.data<uint8_t>(KEPT) + row * v);
  });
  return 0;
} catch (...) {
  return -2;
}
}
