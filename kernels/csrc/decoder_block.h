// A decoder block as in Llama: norm, attention with RoPE over a KV cache, norm, gated MLP. Appends to the caches and changes nothing that
// they hold. Knows nothing of models.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rope_angles.h"
#include "attention.h"
#include "gated_mlp.h"
#include "matmul.h"
#include "thread_pool.h"
#include "row_ops.h"

namespace {

// The struct's layout is that of `_Call` in kernels/blocks/decoder_block.py.
struct Block {
  const float *x, *norm, *q, *k, *v, *o, *second_norm, *gate, *up, *down;  // x [B, T, d], dense
  const float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias, *q_norm, *k_norm;  // null where there is none
  const float* frequencies;  // [half], radians a position
  const int64_t* starts;     // [1] or [B]
  const float *cosines, *sines;  // [B, T, half] in place of those of the starts; null where those serve
  const char* mask;
  float *const *keys, *const *values;               // each row's [kv, its room, width]
  // Each row's shared prefix, [kv, its room, width]; null where there is none.
  const float *const *front_keys, *const *front_values;
  const Quantized* quantized;                       // [7]: q, k, v, o, gate, up, down in place of those above; without words where float32
  const float *const *packed;                       // [7]: those once more, with their biases, as in `Packed`; null where they are not
  float* out;                                       // [B, T, d]
  const int64_t* rooms;                             // [B], a cache's capacity in positions
  int64_t* used;                                    // [B], positions that it holds
  const int64_t* real;                              // [B], how many of T are tokens, with pads after them; null where there are no pads
  const int64_t *fronts, *front_rooms;              // [B] each: positions in a row's prefix, and its capacity
  int64_t* lengths;                                 // [B], positions that a row holds, its prefix too; `count_written` alone uses it
  int64_t b, t, d, heads, kv, width, hidden, half;  // rows, positions, model width, heads, key heads, head width, MLP width, RoPE pairs
  int64_t count, longest;                           // number of starts; the most positions that a row holds after this call
  int64_t ms[4];                                    // the mask's strides in elements, 0 where it is broadcast
  float eps, second_eps, q_eps, k_eps, scale, position_scale;
  int32_t kind, neighbours;

  // angles: of the starts; null where cosines and sines are given.
  void run(const Angles* angles) const {
    constexpr long AT_ONCE = 192;  // rows at a time: they stay in the cache from one product to the next
    std::vector<int64_t> from(b + 1);
    for (long row = 0; row < b; row++) from[row + 1] = from[row] + (real ? real[row] : t);
    long rows = from[b], inner = heads * width;
    bool whole = rows == b * t;
    float *in = whole ? nullptr : spare(TOKENS, 2 * rows * d), *made = whole ? out : in + rows * d;
    if (!whole)
      for (long row = 0; row < b; row++) std::copy_n(x + row * t * d, (from[row + 1] - from[row]) * d, in + from[row] * d);
    const float* tokens = whole ? x : in;
    float *queries = spare(PROJECTED, rows * inner), *attended = spare(ATTENDED, rows * inner);
    for (long at = 0; at < rows; at += AT_ONCE) project(tokens, at, std::min(AT_ONCE, rows - at), queries, from, angles);
    Attention a{};
    a.q = queries, a.out = attended, a.mask = mask;
    a.b = b, a.h = heads, a.t = t, a.d = width, a.kv = kv, a.length = longest, a.e = width;
    a.qs[1] = width, a.qs[2] = inner;
    a.key_rows = keys, a.value_rows = values, a.rooms = rooms, a.used = used, a.from = from.data();
    a.front_key_rows = front_keys, a.front_value_rows = front_values, a.fronts = fronts, a.front_rooms = front_rooms;
    std::copy(ms, ms + 4, a.ms);
    a.scale = scale, a.kind = (Mask)kind;
    a.run();
    for (long at = 0; at < rows; at += AT_ONCE) feed_forward(tokens, at, std::min(AT_ONCE, rows - at), attended, made);
    if (!whole) spread(from, made);
  }

  // Returns true when each row's cache holds t positions more.
  bool has_room() const {
    for (long row = 0; row < b; row++)
      if (used[row] + t > rooms[row]) return false;
    return true;
  }

  // Counts the positions that a call without pads has written.
  void count_written() const {
    for (long row = 0; row < b; row++) used[row] += t, lengths[row] += t;
  }

 private:
  enum Projection { Q, K, V, O, GATED, UPPER, DOWN };

  const Quantized* of(Projection one) const { return quantized[one].words ? quantized + one : nullptr; }

  // Pads count too, so that no bit depends on how many there are.
  bool few() const { return b * t <= FEW_ROWS; }

  // Copies the tokens' results to `out`. Pads get zeros, in the caches too.
  void spread(const std::vector<int64_t>& from, const float* made) const {
    pool::run(b, [&](long row) {
      long n = from[row + 1] - from[row];
      std::copy_n(made + from[row] * d, n * d, out + row * t * d);
      std::fill_n(out + (row * t + n) * d, (t - n) * d, 0.0f);
      for (long head = 0; head < kv; head++)
        for (float* to : {keys[row], values[row]}) std::fill_n(to + (head * rooms[row] + used[row] + n) * width, (t - n) * width, 0.0f);
    });
  }

  // Computes some tokens' queries, keys and values; keys and values go to the caches.
  void project(const float* tokens, long first, long rows, float* queries, const std::vector<int64_t>& from, const Angles* angles) const {
    long inner = heads * width, inner_kv = kv * width;
    float *new_keys = spare(NEW_KEYS, rows * inner_kv), *new_values = spare(NEW_VALUES, rows * inner_kv);
    auto normed = [&](long row, float* room) {
      norm_row(tokens + (first + row) * d, norm, d, eps, room);
      return room;
    };
    multiply(rows, d, normed, {{q, inner, queries + first * inner, inner, q_bias, nullptr, of(Q), packed[Q]},
                               {k, inner_kv, new_keys, inner_kv, k_bias, nullptr, of(K), packed[K]},
                               {v, inner_kv, new_values, inner_kv, v_bias, nullptr, of(V), packed[V]}}, few());
    pool::run(rows, [&](long i) {
      long row = std::upper_bound(from.begin(), from.end(), first + i) - from.begin() - 1, at = first + i - from[row];
      long angle = ((angles && count == 1 ? 0 : row * t) + at) * half;
      const float *c = (angles ? angles->cosines.data() : cosines) + angle, *s = (angles ? angles->sines.data() : sines) + angle;
      for (long head = 0; head < heads; head++) {
        float* of = queries + (first + i) * inner + head * width;
        if (q_norm) norm_row(of, q_norm, width, q_eps, of);
        rotate_row(of, c, s, half, width, neighbours, of);
      }
      for (long head = 0; head < kv; head++) {
        float *key = new_keys + i * inner_kv + head * width, *value = new_values + i * inner_kv + head * width;
        if (k_norm) norm_row(key, k_norm, width, k_eps, key);
        long place = (head * rooms[row] + used[row] + at) * width;
        rotate_row(key, c, s, half, width, neighbours, keys[row] + place);
        std::copy(value, value + width, values[row] + place);
      }
    });
  }

  // Computes the rest of the block after attention, for some tokens.
  void feed_forward(const float* tokens, long first, long rows, const float* attended, float* made) const {
    long inner = heads * width;
    float* middle = spare(HIDDEN, rows * d);
    multiply(rows, inner, [&](long row, float*) { return attended + (first + row) * inner; },
             {{o, d, middle, d, o_bias, tokens + first * d, of(O), packed[O]}}, few());
    auto normed = [&](long row, float* room) {
      norm_row(middle + row * d, second_norm, d, second_eps, room);
      return room;
    };
    Gated mlp{gate, up, gate_bias, up_bias, d, hidden, few(), of(GATED), of(UPPER), packed[GATED], packed[UPPER]};
    mlp.run(rows, normed, {down, d, made + first * d, d, down_bias, middle, of(DOWN), packed[DOWN]});
  }
};

}  // namespace
