// An encoder's block: attention both ways and an MLP, with layer norms behind the residuals (BERT) or before the parts (ModernBERT). Pads
// are not computed. Knows nothing of models.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention_both_ways.h"
#include "rope_angles.h"
#include "row_ops.h"
#include "thread_pool.h"

namespace {

constexpr long DEPTH = Packed::DEPTH;

// The struct's layout is that of `_Call` in kernels/blocks/encoder_block.py.
struct EncoderBlock {
  const float* x;          // [B, T, d], dense
  float* out;              // [B, T, d]; pads get zeros
  const int64_t* lengths;  // [B]: tokens of each row; pads follow
  const float* score_bias;  // [H, T, T]; null where there is none
  const float *qkv, *o, *in, *gate, *down;  // packed; the gate is null where the MLP has none
  const float *norm, *norm_bias, *second_norm, *second_norm_bias;  // null where there is none
  const float* frequencies;  // [half], radians a position
  int64_t b, t, d, heads, hidden, half, window;  // rows, positions, model width, heads, MLP width, RoPE pairs, see BothWays
  float eps, second_eps, scale;
  int32_t first_norms, normed, activation;  // norms before the parts; is there one before attention; see `Activation`

  void run(const Angles* angles) const {
    std::vector<int64_t> from(b + 1), places;
    for (long row = 0; row < b; row++) {
      from[row + 1] = from[row] + lengths[row];
      for (long i = 0; i < lengths[row]; i++) places.push_back(row * t + i);
      std::fill_n(out + (row * t + lengths[row]) * d, (t - lengths[row]) * d, 0.0f);
    }
    long tokens = from[b], wide = whole_vectors(d), ld = whole_vectors(3 * d);
    if (!tokens) return;
    float *projected = spare(PROJECTED, tokens * ld), *attended = spare(ATTENDED, tokens * wide);
    each_chunk(tokens, AT_ONCE, [&](long first, long rows) { project(places.data() + first, rows, projected + first * ld, angles); });
    BothWays{projected, attended, from.data(), score_bias, b, t, heads, d / heads, window, ld, wide}.run();
    each_chunk(tokens, AT_ONCE, [&](long first, long rows) { feed_forward(places.data() + first, rows, attended + first * wide); });
  }

 private:
  static constexpr long AT_ONCE = 128;  // tokens: what is made of them stays in the second cache

  void project(const int64_t* places, long rows, float* to, const Angles* angles) const {
    long wide = whole_vectors(d), ld = whole_vectors(3 * d), width = d / heads;
    float* in = spare(INPUT, rows * wide);
    for (long i = 0; i < rows; i++) {
      if (first_norms && normed) layer_norm_row(x + places[i] * d, norm, norm_bias, d, eps, in + i * wide);
      else std::copy_n(x + places[i] * d, d, in + i * wide);
    }
    Packed{qkv, 3 * d, d}.outputs(rows, in, wide, 0, 3 * d, to, ld);
    for (long i = 0; i < rows; i++) {
      float* row = to + i * ld;
      for (long j = 0; j < d; j++) row[j] *= scale;
      if (!angles) continue;
      const float *cosines = angles->cosines.data() + places[i] % t * half, *sines = angles->sines.data() + places[i] % t * half;
      for (long head = 0; head < 2 * heads; head++) rotate_row(row + head * width, cosines, sines, half, width, false, row + head * width);
    }
  }

  // Computes the rest of the block after attention.
  void feed_forward(const int64_t* places, long rows, const float* attended) const {
    long wide = whole_vectors(d);
    float *middle = spare(HIDDEN, rows * wide), *made = spare(PRODUCT, rows * wide), *inner = spare(INNER, rows * DEPTH);
    Packed{o, d, d}.outputs(rows, attended, wide, 0, d, middle, wide);
    float* normed_rows = first_norms ? spare(INPUT, rows * wide) : middle;
    for (long i = 0; i < rows; i++) {
      float *row = middle + i * wide, *to = normed_rows + i * wide;
      add_row(row, x + places[i] * d);
      if (first_norms) layer_norm_row(row, second_norm, second_norm_bias, d, second_eps, to);
      else layer_norm_row(row, norm, norm_bias, d, eps, to);
    }
    for (long k = 0; k < hidden; k += DEPTH) {  // the hidden layer is never stored as a whole
      hidden_columns(rows, normed_rows, k, std::min(DEPTH, hidden - k), inner);
      Packed{down, d, hidden}.block(rows, inner, DEPTH, k, 0, d, made, wide, k > 0);
    }
    for (long i = 0; i < rows; i++) {
      float *row = made + i * wide, *to = out + places[i] * d;
      add_row(row, middle + i * wide);
      if (first_norms) std::copy_n(row, d, to);
      else layer_norm_row(row, second_norm, second_norm_bias, d, second_eps, to);
    }
  }

  void add_row(float* row, const float* other) const {
    for (long j = 0; j < d; j++) row[j] += other[j];
  }

  // Computes columns first ... first + count - 1 of the hidden layer; a row takes DEPTH numbers.
  void hidden_columns(long rows, const float* from, long first, long count, float* to) const {
    long wide = whole_vectors(d);
    float* upper = gate ? spare(UP, rows * PANEL) : nullptr;
    for (long at = 0; at < count; at += PANEL) {
      long end = std::min<long>(at + PANEL, count);
      Packed{gate ? gate : in, hidden, d}.outputs(rows, from, wide, first + at, first + end, to + at, DEPTH);
      if (gate) Packed{in, hidden, d}.outputs(rows, from, wide, first + at, first + end, upper, PANEL);
      for (long i = 0; i < rows; i++)
        for (long j = 0; j < end - at; j += W) {
          float* number = to + i * DEPTH + at + j;
          V value = active_of((Activation)activation, load(number));
          store(number, gate ? value * load(upper + i * PANEL + j) : value);
        }
    }
  }
};

}  // namespace
