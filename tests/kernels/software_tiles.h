// The instructions of Intel AMX in software, so that the products in tiles can be tested on any processor with AVX-512. They are slow.
//
// As the processor does, they take inputs and leave sums below 2^-126 as 0. Even and odd products are added apart, then both to the sum
// (Intel's manual, TDPBF16PS).

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct alignas(64) SoftwareTile {
  uint32_t rows[16][16];
};

thread_local SoftwareTile software_tiles[8];

inline bool tiles_allowed() { return true; }

template <int TILE_OF>
inline void tile_load(const void* from) {
  std::memcpy(&software_tiles[TILE_OF], from, sizeof(SoftwareTile));
}

template <int TILE_OF>
inline void tile_store(void* to, long stride = 64) {
  for (int row = 0; row < 16; row++) std::memcpy((char*)to + row * stride, software_tiles[TILE_OF].rows[row], 64);
}

template <int TILE_OF>
inline void tile_clear() {
  std::memset(&software_tiles[TILE_OF], 0, sizeof(SoftwareTile));
}

inline __m512 without_small(__m512 x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-126f), _CMP_NLT_UQ), x);
}

inline __m512 even_numbers(__m512i pairs) { return without_small(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))); }
inline __m512 odd_numbers(__m512i pairs) {
  return without_small(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xffff))));
}

template <int SUM, int LEFT, int RIGHT>
inline void tile_add() {
  auto &sum = software_tiles[SUM], &left = software_tiles[LEFT], &right = software_tiles[RIGHT];
  __m512 even[16], odd[16];
  for (int k = 0; k < 16; k++) {
    __m512i pairs = _mm512_load_si512(right.rows[k]);
    even[k] = even_numbers(pairs), odd[k] = odd_numbers(pairs);
  }
  for (int row = 0; row < 16; row++) {
    __m512 evens = _mm512_setzero_ps(), odds = _mm512_setzero_ps();
    for (int k = 0; k < 16; k++) {
      __m512i pair = _mm512_set1_epi32(left.rows[row][k]);
      evens = without_small(_mm512_fmadd_ps(even_numbers(pair), even[k], evens));
      odds = without_small(_mm512_fmadd_ps(odd_numbers(pair), odd[k], odds));
    }
    __m512 before = without_small(_mm512_load_ps(sum.rows[row]));
    _mm512_store_ps(sum.rows[row], without_small(_mm512_add_ps(before, without_small(_mm512_add_ps(evens, odds)))));
  }
}

// While an object lives, its thread's eight tiles have 16 rows of 64 bytes. Before, and after, they hold what nobody may read.
struct Tiles {
  Tiles() { spoil(); }
  ~Tiles() { spoil(); }

 private:
  static void spoil() { std::memset(software_tiles, 0xff, sizeof software_tiles); }
};

}  // namespace
