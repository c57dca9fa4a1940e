// A decoder block: attention with RoPE over a KV cache, then a gated MLP, each between norms of which some may be missing; or its first half
// alone. Appends to the caches and changes nothing that they hold. Knows nothing of models.

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

// The struct's layout is that of `BlockCall` in kernels/blocks/decoder_block.py.
struct Block {
  const float *x, *q, *k, *v, *o, *gate, *up, *down;  // x [B, T, d], dense
  const float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias;  // null where there is none, as are norms
  const float *norm, *post_norm, *second_norm, *second_post_norm;  // before and behind attention, before and behind the MLP
  const float *q_norm, *k_norm;  // of a head; of all heads' numbers at once where `wide_norms`
  const float* frequencies;  // [half], radians a position
  const int64_t* starts;     // [1] or [B]
  const float *cosines, *sines;  // [B, T, half] in place of those of the starts; null where those serve
  const char* mask;
  float *const *keys, *const *values;               // each row's [kv, its room, width]
  // Each row's shared prefix, [kv, its room, width]; null where there is none.
  const float *const *front_keys, *const *front_values;
  const Quantized* quantized;                       // [7]: q, k, v, o, gate, up, down in place of those above; without words where float32
  // [7]: those once more, see `Target`; null where they are not. That of q holds k and v too where `joined_qkv`, that of
  // gate holds up where `joined_mlp`: the weights, and the biases, then lie one behind the other.
  const float *const *packed;
  float* out;                                       // [B, T, d]
  const int64_t* rooms;                             // [B], a cache's capacity in positions
  int64_t* used;                                    // [B], positions that it holds
  const int64_t* real;                              // [B], how many of T are tokens, with pads after them; null where there are no pads
  const int64_t *fronts, *front_rooms;              // [B] each: positions in a row's prefix, and its capacity
  int64_t* lengths;                                 // [B], positions that a row holds, its prefix too; `count_written` alone uses it
  // Rows, positions, model width, heads, key heads, head width, MLP width (0: there is no MLP), RoPE pairs.
  int64_t b, t, d, heads, kv, width, hidden, half;
  int64_t count, longest;                           // number of starts; the most positions that a row holds after this call
  int64_t ms[4];                                    // the mask's strides in elements, 0 where it is broadcast
  float eps, post_eps, second_eps, second_post_eps, q_eps, k_eps;
  float norm_more;  // is added to the weights of all norms
  float residual;   // by which attention's and the MLP's results are multiplied before they are added
  float scale, cap, position_scale, magnitude;  // cap: see `Attention`; magnitude: see `Angles`
  int32_t kind, neighbours, wide_norms, joined_qkv, joined_mlp, activation;

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
    bool apart = in_chunks(rows);
    if (apart)
      each_chunk(rows, chunk(), [&](long first, long some) { project_chunk(tokens, first, some, queries, from, angles); });
    else
      for (long at = 0; at < rows; at += AT_ONCE) project(tokens, at, std::min(AT_ONCE, rows - at), queries, from, angles);
    attention(queries, attended, from).run();
    if (apart)
      each_chunk(rows, chunk(), [&](long first, long some) { feed_chunk(tokens + first * d, some, attended + first * inner, made + first * d); });
    else
      for (long at = 0; at < rows; at += AT_ONCE) feed_forward(tokens, at, std::min(AT_ONCE, rows - at), attended, made);
    if (!whole) spread(from, made);
  }

  // Computes the block for rows first ... end - 1 of a decode step, in this thread alone, where `serves_alone`.
  void run_alone(long first, long end, float* queries, float* attended, const std::vector<int64_t>& from, const Angles* angles) const {
    long some = end - first;
    project_chunk(x, first, some, queries, from, angles);
    attention(queries, attended, from).run_alone(first, some);
    feed_chunk(x + first * d, some, attended + first * heads * width, out + first * d);
  }

  // Whether `run_alone` serves, and gives the same bits as `run`.
  bool serves_alone() const {
#if TILES
    if (tiles_allowed()) return false;
#endif
    bool fits = b <= pool::threads() * chunk();  // by the mean: else what a thread holds of its rows leaves its second cache
    return t == 1 && !real && !cosines && all_packed() && !few() && fits && (!fronts || heads / kv <= Attention::FEW);
  }

  int64_t weights() const { return 2 * d * (heads + kv) * width + 3 * d * hidden; }

  // What a row costs in a decode step, in products of a number with a weight. A number of its cache was measured to cost 16 of them.
  int64_t cost(long row) const { return weights() + 16 * 2 * kv * width * (used[row] + (fronts ? fronts[row] : 0)); }

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

  Attention attention(const float* queries, float* attended, const std::vector<int64_t>& from) const {
    Attention a{};
    a.q = queries, a.out = attended, a.mask = mask;
    a.b = b, a.h = heads, a.t = t, a.d = width, a.kv = kv, a.length = longest, a.e = width;
    a.qs[1] = width, a.qs[2] = heads * width;
    a.key_rows = keys, a.value_rows = values, a.rooms = rooms, a.used = used, a.from = from.data();
    a.front_key_rows = front_keys, a.front_value_rows = front_values, a.fronts = fronts, a.front_rooms = front_rooms;
    std::copy(ms, ms + 4, a.ms), a.scale = scale, a.cap = cap, a.kind = (Mask)kind;
    return a;
  }

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
    long inner = heads * width, inner_kv = kv * width, all = inner + 2 * inner_kv;
    auto normed = [&](long row, float* room) { return before(tokens + (first + row) * d, norm, eps, room); };
    bool joined = joined_qkv && packed[Q];
    float *new_queries = queries + first * inner, *new_keys, *new_values;
    if (joined) {
      new_queries = spare(NEW_KEYS, rows * all), new_keys = new_queries + inner, new_values = new_keys + inner_kv;
      multiply(rows, d, normed, {{q, all, new_queries, all, q_bias, nullptr, nullptr, packed[Q]}}, few());
    } else {
      new_keys = spare(NEW_KEYS, rows * inner_kv), new_values = spare(NEW_VALUES, rows * inner_kv);
      multiply(rows, d, normed, {{q, inner, new_queries, inner, q_bias, nullptr, of(Q), packed[Q]},
                                 {k, inner_kv, new_keys, inner_kv, k_bias, nullptr, of(K), packed[K]},
                                 {v, inner_kv, new_values, inner_kv, v_bias, nullptr, of(V), packed[V]}}, few());
    }
    long apart = joined ? all : inner, apart_kv = joined ? all : inner_kv;  // from one token to the next
    pool::run(rows, [&](long i) {
      put(first + i, new_queries + i * apart, new_keys + i * apart_kv, new_values + i * apart_kv, queries, from, angles);
    });
  }

  // Norms and turns a token's query and key, and copies them to `queries` and to its row's cache, as it does its value.
  void put(long token, float* query, float* key, const float* value, float* queries, const std::vector<int64_t>& from,
           const Angles* angles) const {
    long row = std::upper_bound(from.begin(), from.end(), token) - from.begin() - 1, at = token - from[row];
    long angle = ((angles && count == 1 ? 0 : row * t) + at) * half;
    const float *c = (angles ? angles->cosines.data() : cosines) + angle, *s = (angles ? angles->sines.data() : sines) + angle;
    norm_heads(query, heads, q_norm, q_eps), norm_heads(key, kv, k_norm, k_eps);
    for (long head = 0; head < heads; head++)
      rotate_row(query + head * width, c, s, half, width, neighbours, queries + (token * heads + head) * width);
    for (long head = 0; head < kv; head++) {
      long place = (head * rooms[row] + used[row] + at) * width;
      rotate_row(key + head * width, c, s, half, width, neighbours, keys[row] + place);
      std::copy_n(value + head * width, width, values[row] + place);
    }
  }

  bool all_packed() const {
    for (Projection one : {Q, K, V, O, GATED, UPPER, DOWN}) {
      bool joined = one == K || one == V ? joined_qkv : one == UPPER && joined_mlp, missing = one >= GATED && !hidden;
      if (!joined && !missing && !packed[one]) return false;
    }
    return true;
  }

  // Tokens of a chunk, so that what is computed of them stays in the second cache.
  long chunk() const {
    constexpr long NUMBERS = 192 * 1024, MOST = 96;
    return std::min(MOST, NUMBERS / (2 * d + 2 * Packed::DEPTH));
  }

  // Whether each thread takes chunks of the tokens and computes all of the block for them but attention. Nothing then waits for another
  // thread between two products, and the hidden layer stays in the thread's second cache. The weights are read once for each chunk, so
  // this is for many tokens, and for networks that are not too wide. It takes packed weights, and gives the same bits.
  bool in_chunks(long rows) const {
    constexpr long FEWEST = 64;
#if TILES
    if (tiles_allowed()) return false;
#endif
    return all_packed() && rows >= pool::threads() * FEWEST && chunk() >= FEWEST;
  }

  // Returns `rows` tokens as attention or the MLP gets them, dense.
  const float* chunk_before(const float* tokens, long rows, const float* weight, float by) const {
    if (!weight) return tokens;
    float* in = spare(INPUT, rows * d);
    for (long i = 0; i < rows; i++) norm_row(tokens + i * d, weight, d, by, in + i * d, norm_more);
    return in;
  }

  // `project` for a chunk.
  void project_chunk(const float* tokens, long first, long rows, float* queries, const std::vector<int64_t>& from, const Angles* angles) const {
    long inner = heads * width, inner_kv = kv * width, all = inner + 2 * inner_kv;
    const float* in = chunk_before(tokens + first * d, rows, norm, eps);
    float *query = spare(NEW_KEYS, rows * all), *key = query + inner, *value = key + inner_kv;  // a token's lie one behind the other
    if (joined_qkv) {
      Packed{packed[Q], all, d}.outputs(rows, in, d, 0, all, query, all);
    } else {
      Packed{packed[Q], inner, d}.outputs(rows, in, d, 0, inner, query, all);
      Packed{packed[K], inner_kv, d}.outputs(rows, in, d, 0, inner_kv, key, all);
      Packed{packed[V], inner_kv, d}.outputs(rows, in, d, 0, inner_kv, value, all);
    }
    for (long i = 0; i < rows; i++) put(first + i, query + i * all, key + i * all, value + i * all, queries, from, angles);
  }

  // `feed_forward` for a chunk of tokens.
  void feed_chunk(const float* tokens, long rows, const float* attended, float* made) const {
    long inner = heads * width;
    float* middle = hidden ? spare(HIDDEN, rows * d) : made;
    Packed{packed[O], d, inner}.outputs(rows, attended, inner, 0, d, middle, d);
    for (long i = 0; i < rows; i++) add_behind(tokens + i * d, post_norm, post_eps, middle + i * d);
    if (!hidden) return;
    const float* in = chunk_before(middle, rows, second_norm, second_eps);
    constexpr long DEPTH = Packed::DEPTH, LD = DEPTH + PANEL;
    long outputs = joined_mlp ? 2 * hidden : hidden, behind = joined_mlp ? hidden : 0;
    const float* uppers = packed[joined_mlp ? GATED : UPPER];
    float *gated = spare(GATE, rows * LD), *upper = spare(UP, rows * LD);
    for (long k = 0; k < hidden; k += DEPTH) {  // the hidden layer is never stored as a whole
      long end = std::min(k + DEPTH, hidden), before_up = (behind + k) % PANEL;  // a product begins and ends with a panel
      auto panels = [&](long n) { return std::min((n + PANEL - 1) / PANEL * PANEL, outputs); };
      Packed{packed[GATED], outputs, d}.outputs(rows, in, d, k, panels(end), gated, LD);
      Packed{uppers, outputs, d}.outputs(rows, in, d, behind + k - before_up, panels(behind + end), upper, LD);
      for (long i = 0; i < rows; i++)
        activate((Activation)activation, gated + i * LD, upper + i * LD + before_up, end - k, gated + i * LD);
      Packed{packed[DOWN], d, hidden}.block(rows, gated, LD, k, 0, d, made, d, k > 0);
    }
    for (long i = 0; i < rows; i++) add_behind(middle + i * d, second_post_norm, second_post_eps, made + i * d);
  }

  // Computes the rest of the block after attention, for some tokens.
  void feed_forward(const float* tokens, long first, long rows, const float* attended, float* made) const {
    long inner = heads * width;
    float *last = made + first * d, *middle = hidden ? spare(HIDDEN, rows * d) : last;
    const float* in = tokens + first * d;
    multiply(rows, inner, attended + first * inner,
             {{o, d, middle, d, o_bias, adds_alone(post_norm) ? in : nullptr, of(O), packed[O]}}, few());
    behind(rows, in, post_norm, post_eps, middle);
    if (!hidden) return;
    auto normed = [&](long row, float* room) { return before(middle + row * d, second_norm, second_eps, room); };
    Gated mlp{gate, up, gate_bias, up_bias, d, hidden, few(), of(GATED), of(UPPER), packed[GATED], packed[UPPER], (Activation)activation,
              joined_mlp && packed[GATED]};
    mlp.run(rows, normed, {down, d, last, d, down_bias, adds_alone(second_post_norm) ? middle : nullptr, of(DOWN), packed[DOWN]});
    behind(rows, middle, second_post_norm, second_post_eps, last);
  }

  // Returns a row as attention or the MLP gets it, in `room` if it is changed.
  const float* before(const float* row, const float* weight, float by, float* room) const {
    if (!weight) return row;
    norm_row(row, weight, d, by, room, norm_more);
    return room;
  }

  // Whether attention's or the MLP's results are added as they are, so that their last product adds what came in.
  bool adds_alone(const float* weight) const { return !weight && residual == 1; }

  // made = in + what was made, after its norm and times `residual`, where the last product has not added `in`
  void behind(long rows, const float* in, const float* weight, float by, float* made) const {
    if (adds_alone(weight)) return;
    pool::run(rows, [&](long row) { add_behind(in + row * d, weight, by, made + row * d); });
  }

  // The same for one row.
  void add_behind(const float* in, const float* weight, float by, float* made) const {
    if (adds_alone(weight)) {
      for (long i = 0; i < d; i++) made[i] += in[i];
      return;
    }
    if (weight) norm_row(made, weight, d, by, made, norm_more);
    add_row(in, made, residual, d, made);
  }

  void norm_heads(float* row, long count, const float* weight, float by) const {
    if (!weight) return;
    if (wide_norms) return norm_row(row, weight, count * width, by, row, norm_more);
    for (long head = 0; head < count; head++) norm_row(row + head * width, weight, width, by, row + head * width, norm_more);
  }
};

}  // namespace
