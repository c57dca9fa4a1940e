// A processor's tiles (Intel AMX): what they load, multiply and store, and float32 rows split into the parts that they multiply. Knows
// nothing of weights.

#pragma once

#if (defined(__AMX_BF16__) || defined(SOFTWARE_TILES)) && defined(__AVX512F__) && defined(__linux__)
#define TILES 1

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#ifdef SOFTWARE_TILES
#include SOFTWARE_TILES  // the tests' own instructions in place of the processor's
#else
#include "amx_instructions.h"
#endif
#include "thread_pool.h"
#include "products.h"
#include "simd.h"

namespace {

constexpr long T = 16, STEP = 32, PARTS = 3;      // rows of a tile, numbers in a tile's row, parts of a number
enum { HIGH, MIDDLE, LOW };                       // parts, from the largest on
constexpr long TILE = T * STEP;                   // numbers in a tile, 16 bits each
constexpr long BLOCK = 2 * T;                     // rows that are multiplied at once
constexpr long SUMS = 4 * T * T;                  // sums of a block of a weight with one of x

// Splits 32 numbers into parts, largest first: a's parts go to the low halves of 32 bits, b's to the high halves. The first part is
// rounded, the others are cut.
inline void split(__m512 a, __m512 b, __m512i* parts) {
  const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(~0xffff);
#pragma GCC unroll 3
  for (int part = 0; part < PARTS; part++) {
    __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    if (part == 0) x = _mm512_add_epi32(x, half), y = _mm512_add_epi32(y, half);
    __m512i top = _mm512_and_si512(y, high);
    parts[part] = _mm512_or_si512(_mm512_srli_epi32(x, 16), top);
    if (part == PARTS - 1) break;
    a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(x, high))), b = _mm512_sub_ps(b, _mm512_castsi512_ps(top));
  }
}

// The first `count` of 16 numbers; `count` may be more, or less than 1.
inline __mmask16 first_numbers(long count) { return count >= T ? 0xffff : count > 0 ? (1u << count) - 1 : 0; }
inline __m512 load_some(const float* from, long count) { return _mm512_maskz_loadu_ps(first_numbers(count), from); }

inline void split(const float* from, long left, __m512i* parts) { split(load_some(from, left), load_some(from + T, left - T), parts); }

long steps_of(long depth) { return (depth + STEP - 1) / STEP; }
long blocks_of(long rows) { return (rows + BLOCK - 1) / BLOCK; }

// Packs 16 rows into tiles [steps, PARTS], a row in each column. A null row is packed as zeros.
void pack(const float* const* rows, long depth, uint16_t* to) {
  for (long k = 0; k < depth; k += STEP, to += PARTS * TILE) {
    alignas(64) float parts[PARTS][TILE / 2];
    for (long row = 0; row < T; row++) {
      __m512i of[PARTS] = {};
      if (rows[row]) split(rows[row] + k, depth - k, of);
      for (int part = 0; part < PARTS; part++) _mm512_store_si512(parts[part] + row * T, of[part]);
    }
    for (int part = 0; part < PARTS; part++) turn_square(parts[part], T, (float*)(to + part * TILE), T);
  }
}

// Loads c into tiles 0 ... 3, 16 x 16 each, or clears them. Tiles 0 and 2 belong to the first 16 rows of x.
template <int M>
inline void sums_from(const float* c) {
  if (!c) {
    tile_clear<0>();
    tile_clear<1>();
    tile_clear<2>();
    tile_clear<3>();
    return;
  }
  tile_load<0>(c);
  tile_load<2>(c + 2 * T * T);
  if (M == 1) return;
  tile_load<1>(c + T * T);
  tile_load<3>(c + 3 * T * T);
}

template <int M>
inline void sums_to(float* c) {
  tile_store<0>(c);
  tile_store<2>(c + 2 * T * T);
  if (M == 1) return;
  tile_store<1>(c + T * T);
  tile_store<3>(c + 3 * T * T);
}

// What is prefetched while blocks are multiplied: some cache lines at each of six places of a step, between its products. All at once they
// would hold up the loads of tiles, as a core asks memory for few lines at a time.
struct Prefetches {
  static constexpr long LINE = 64, PLACES = 6;  // bytes of a line

  const char* at;
  long each, stride;  // lines at a place; bytes from a step's first line to that of the next step

  // At least `lines` a step, one behind the other.
  static Prefetches of(const void* at, long lines) {
    long each = (lines + PLACES - 1) / PLACES;
    return {(const char*)at, each, each * PLACES * LINE};
  }

  inline __attribute__((always_inline)) void at_place(long place) const {  // a call would cost a tenth of all products
    // T2 measured best: 545 GFLOP/s with weights in memory and 6 steps ahead, 450 to 525 with T1, 386 with T0.
    for (long line = 0; line < each; line++) _mm_prefetch(at + (place * each + line) * LINE, _MM_HINT_T2);
  }
  void next_step() { at += stride; }
};

// Writes the sums of 32 rows of a weight and 32 of x to the target's rows from `row` and columns from `column` on.
void give(const float* sums, long row, long rows, long column, long columns, const Target& target) {
  for (long i = 0; i < 2 && i * T < columns; i++)
    for (long j = 0; j < 2 && j * T < rows; j++) {
      alignas(64) float turned[T * T];
      turn_square(sums + (2 * i + j) * T * T, T, turned, T);
      for (long r = 0; r < std::min(T, rows - j * T); r++)
        target.put(row + j * T + r, column + i * T, turned + r * T, std::min(T, columns - i * T));
    }
}

}  // namespace

#endif
