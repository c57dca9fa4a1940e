// Recurrences over a row's tokens whose state is a matrix a head: the scan of state space models, and the gated delta rule. A head's state
// stays in one core's cache from the first token to the last. Knows nothing of caches or models.

#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "thread_pool.h"

namespace {

// Copies `rows` rows of n numbers to rows of whole vectors, filled up with zeros. Null stands for zeros.
inline void widen(const float* from, long rows, long n, float* to) {
  long wide = whole_vectors(n);
  for (long i = 0; i < rows; i++, to += wide) {
    if (from) std::copy_n(from + i * n, n, to);
    std::fill(from ? to + n : to, to + wide, 0.0f);
  }
}

// A head's state of `rows` rows of n numbers. It is computed where it is to be kept at the end, or in scratch memory where a row is not
// whole vectors. The first token reads it where the call before has left it.
class State {
 public:
  const float* held;  // rows of whole vectors: the state before the next token
  float* made;        // and behind it

  State(const float* before, float* after, long rows, long n, float* scratch) : after(after), rows(rows), n(n) {
    bool whole = n % W == 0;
    held = made = whole ? after : scratch;
    if (before && whole) held = before;
    else widen(before, rows, n, made);
  }
  void advance() { held = made; }
  void keep() const {
    if (held != made) std::copy_n(held, rows * n, made);
    if (made == after) return;
    for (long i = 0; i < rows; i++) std::copy_n(made + i * whole_vectors(n), n, after + i * n);
  }

 private:
  float* after;
  long rows, n;
};

// x, y [B, T, H, D]; step [B, T, H]; decay_rates, skip [H]; in, out [B, T, G, N]; before, after [B, H, D, N]; seen [B, T] bytes or null;
// lengths [B] or null. For each token: state = exp(step * rate) state + step x inᵀ, y = state out + skip x. A token that is not seen, or
// stands at its row's length or behind, leaves the state as it is.
struct StateSpace {
  const float *x, *step, *decay_rates, *in, *out, *skip, *before;
  const uint8_t* seen;
  const int64_t* lengths;
  float *y, *after;
  long b, t, h, d, g, n;

  void run() const {
    pool::run(b * h, [&](long task) { scan(task / h, task % h); });
  }

 private:
  void scan(long row, long head) const {
    long wide = whole_vectors(n), group = head / (h / g), end = lengths ? std::min<long>(t, lengths[row]) : t;
    float *scratch = spare(STATE, (d + 2) * wide), *from = scratch + d * wide, *to = from + wide;
    long place = (row * h + head) * d * n;
    State state(before ? before + place : nullptr, after + place, d, n, scratch);
    for (long i = 0; i < t; i++) {
      long token = row * t + i, at = token * h + head;
      const float* given = x + at * d;
      float* made = y + at * d;
      if (i < end && (!seen || seen[token])) {
        widen(in + (token * g + group) * n, 1, n, from), widen(out + (token * g + group) * n, 1, n, to);
        V kept = all(__builtin_expf(step[at] * decay_rates[head]));
        for (long p = 0; p < d; p++)
          made[p] = next(state.held + p * wide, state.made + p * wide, kept, step[at] * given[p], from, to, wide);
        state.advance();
      } else {
        std::fill_n(made, d, 0.0f);
      }
      for (long p = 0; p < d; p++) made[p] += skip[head] * given[p];
    }
    state.keep();
  }

  static float next(const float* held, float* made, V kept, float added, const float* from, const float* to, long wide) {
    V total = {};
    for (long j = 0; j < wide; j += W) {
      V now = kept * load(held + j) + added * load(from + j);
      store(made + j, now);
      total += now * load(to + j);
    }
    return sum(total);
  }
};

// q, k [B, T, K, D]; v, y [B, T, H, E]; kept [B, T, H] or, with `each`, [B, T, H, D]; beta [B, T, H]; before, after [B, H, E, D]; seen
// [B, T] bytes or null. For each token: state = kept * state, then state += beta (v - state k) kᵀ, y = state q. A token that is not seen
// leaves the state as it is.
struct GatedDelta {
  const float *q, *k, *v, *kept, *beta, *before;
  const uint8_t* seen;
  float *y, *after;
  long b, t, heads, d, h, e;  // heads: those of q and k
  bool each;

  void run() const {
    pool::run(b * h, [&](long task) { scan(task / h, task % h); });
  }

 private:
  void scan(long row, long head) const {
    long wide = whole_vectors(d), group = head / (h / heads);
    float *scratch = spare(STATE, (e + 3) * wide), *query = scratch + e * wide, *key = query + wide, *decay = key + wide;
    long place = (row * h + head) * e * d;
    State state(before ? before + place : nullptr, after + place, e, d, scratch);
    for (long i = 0; i < t; i++) {
      long token = row * t + i, at = token * h + head;
      if (seen && !seen[token]) {
        std::fill_n(y + at * e, e, 0.0f);
        continue;
      }
      widen(q + (token * heads + group) * d, 1, d, query), widen(k + (token * heads + group) * d, 1, d, key);
      if (each) widen(kept + at * d, 1, d, decay);
      else std::fill_n(decay, wide, kept[at]);
      for (long p = 0; p < e; p++)
        y[at * e + p] = next(state.held + p * wide, state.made + p * wide, decay, key, query, v[at * e + p], beta[at], wide);
      state.advance();
    }
    state.keep();
  }

  static float next(const float* held, float* made, const float* decay, const float* key, const float* query, float value, float share,
                    long wide) {
    V known = {}, total = {};
    for (long j = 0; j < wide; j += W) {
      V now = load(decay + j) * load(held + j);
      store(made + j, now);
      known += now * load(key + j);
    }
    V delta = all((value - sum(known)) * share);
    for (long j = 0; j < wide; j += W) {
      V now = load(made + j) + delta * load(key + j);
      store(made + j, now);
      total += now * load(query + j);
    }
    return sum(total);
  }
};

// A convolution of each channel over the tokens: x [B, T + S - 1, C], weight [C, S], bias [C] or null -> y [B, T, C].
struct ShortConvolution {
  const float *x, *weight, *bias;
  float* y;
  long b, t, c, taps;

  void run() const {
    constexpr long TOKENS_AT_ONCE = 32;
    float* turned = spare(WEIGHT, taps * c);
    for (long i = 0; i < c; i++)
      for (long tap = 0; tap < taps; tap++) turned[tap * c + i] = weight[i * taps + tap];
    long parts = (t + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE;
    pool::run(b * parts, [&](long task) {
      long row = task / parts, from = task % parts * TOKENS_AT_ONCE;
      for (long i = from; i < std::min(t, from + TOKENS_AT_ONCE); i++)
        token(x + (row * (t + taps - 1) + i) * c, turned, y + (row * t + i) * c);
    });
  }

 private:
  void token(const float* first, const float* turned, float* to) const {
    long i = 0;
    for (; i + W <= c; i += W) {
      V total = bias ? load(bias + i) : V{};
      for (long tap = 0; tap < taps; tap++) total += load(first + tap * c + i) * load(turned + tap * c + i);
      store(to + i, total);
    }
    for (; i < c; i++) {
      to[i] = bias ? bias[i] : 0.0f;
      for (long tap = 0; tap < taps; tap++) to[i] += first[tap * c + i] * turned[tap * c + i];
    }
  }
};

}  // namespace
