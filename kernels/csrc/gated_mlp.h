// A gated MLP: down (f(gate x) * up x). With tiles, and f SiLU, the hidden layer is never stored in float32. A product's tiles are laid out as
// the next product reads them, so their numbers are split into parts at once. Knows nothing of models.

#pragma once

#include "matmul.h"
#include "row_ops.h"

namespace {

struct Gated {
  const float *gate, *up, *gate_bias, *up_bias;  // [hidden, depth] each, and [hidden] or null
  long depth, hidden;
  bool few;  // see `multiply`
  const Quantized *quantized_gate = nullptr, *quantized_up = nullptr;  // in place of gate and up, where not null
  const float *packed_gate = nullptr, *packed_up = nullptr;  // see `Target`
  Activation activation = SILU;
  bool joined = false;  // up and its bias lie behind gate and its own, and packed_gate holds both

  // Computes down's c for the m rows of x that `of` gives.
  void run(long m, const RowOf& of, const Target& down) const {
#if TILES
    if (tiles_allowed() && activation == SILU && !quantized_gate && !quantized_up && !down.quantized) return in_tiles(m, of, down);
#endif
    long apart = joined ? 2 * hidden : hidden;
    float *gated = spare(GATE, m * apart), *upper = joined ? gated + hidden : spare(UP, m * hidden);
    if (joined)
      multiply(m, depth, of, {{gate, apart, gated, apart, gate_bias, nullptr, nullptr, packed_gate}}, few);
    else
      multiply(m, depth, of, {{gate, hidden, gated, hidden, gate_bias, nullptr, quantized_gate, packed_gate},
                              {up, hidden, upper, hidden, up_bias, nullptr, quantized_up, packed_up}}, few);
    auto active = [&](long row, float* room) {
      activate(activation, gated + row * apart, upper + row * apart, hidden, room);
      return room;
    };
    multiply(m, hidden, active, {down}, few);
  }

#if TILES
 private:
  void in_tiles(long m, const RowOf& of, const Target& down) const {
    constexpr long NARROW_PART = 4, WIDE_PART = 8;  // blocks a part; a narrow part holds two sums, gate and up
    long ldx = steps_of(hidden) * PARTS * TILE;
    auto* inner = (uint16_t*)spare(INNER, blocks_of(std::min(m, MANY)) * ldx);
    Columns narrow(hidden, BLOCK, NARROW_PART), wide(down.n, BLOCK, WIDE_PART);
    each_packed(m, depth, of, [&](const uint16_t* x, long row, long rows) {
      pool::run(narrow.number, [&](long i) { columns(x, rows, narrow.from(i), narrow.from(i + 1), inner, ldx); });
      pool::run(wide.number, [&](long i) { tile_product(inner, row, rows, down, wide.from(i), wide.from(i + 1), hidden); });
    });
  }

  // Computes columns from ... to - 1 of the hidden layer, packed; 16 rows take `ldx` numbers.
  void columns(const uint16_t* x, long rows, long from, long to, uint16_t* packed, long ldx) const {
    const float *of_gate = packed_gate, *of_up = packed_up;  // of a joined one, up can be read where its rows begin with a block
    if (joined) of_gate = hidden % BLOCK ? nullptr : of_gate, of_up = of_gate ? of_gate + PackedTiles::size(hidden, depth) : nullptr;
    const float *gates = tile_sums(x, rows, {gate, of_gate, depth}, from, to, GATE), *ups = tile_sums(x, rows, {up, of_up, depth}, from, to, UP);
    long blocks = blocks_of(rows);
    for (long n = from; n < to; n += BLOCK)
      for (long tile = 0; tile * T < rows; tile++) {
        long at = ((n - from) / BLOCK * blocks + tile / 2) * SUMS + tile % 2 * T * T;
        uint16_t* parts = packed + tile * ldx + n / STEP * PARTS * TILE;
        for (long r = 0; r < T; r++) {
          auto active = [&](long column, long place) {
            V g = load(gates + place), u = load(ups + place);
            if (gate_bias && column < hidden) g += gate_bias[column];
            if (up_bias && column < hidden) u += up_bias[column];
            return (__m512)swiglu_of(g, u);
          };
          __m512i made[PARTS];
          split(active(n + r, at + r * T), active(n + T + r, at + 2 * T * T + r * T), made);
          for (long part = 0; part < PARTS; part++) _mm512_store_si512(parts + part * TILE + r * STEP, made[part]);
        }
      }
  }
#endif
};

}  // namespace
