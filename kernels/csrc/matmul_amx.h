// Float32 products in a processor's tiles (Intel AMX), which multiply bfloat16 and add in float32. Knows nothing of layers.
//
// A float32 is exactly the sum of three bfloat16 numbers, its parts. Two float32 numbers have nine products of parts; the six largest are
// computed. The second part is at most 2^-8 of a number and the third is below 2^-16. So what is left out of a product is below 2^-23 of it;
// its root mean square is 2^-26, a fourth of the error of rounding to float32. Products are added one after the other, in float32. Over 64
// numbers and more that errs about half as much as a plain loop in float32, over fewer than 8 up to twice as much, and for long rows more
// than a sum in lanes.
//
// An infinity cannot be split. Nor can a number of 3.3962e38 or more: its first part rounds to infinity. Such an input gives NaN, and a
// sum that overflows may give NaN. Parts and sums below 2^-126 count as 0. So a number below 2^-103 keeps fewer bits: 16 at 2^-112, 8 at
// 2^-120, none below 2^-126.

#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define TILES 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "thread_pool.h"
#include "products.h"
#include "simd.h"

namespace {

constexpr long T = 16, STEP = 32, PARTS = 3;      // rows of a tile, numbers in a tile's row, parts of a number
constexpr long TILE = T * STEP;                   // numbers in a tile, 16 bits each
constexpr long CHUNK = 24 * STEP, MANY = 6 * 2 * T;  // depth and rows of x at a time: their parts stay in the L2 cache

bool tiles_allowed() {
  constexpr int REQUEST = 0x1023, DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: Linux must save 8 KB more for each thread
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST, DATA) == 0;
  return allowed;
}

// The compiler's own intrinsics do not state that they read memory.
template <int TILE_OF>
inline void tile_load(const void* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(64l), "i"(TILE_OF) : "memory");
}
template <int TILE_OF>
inline void tile_store(void* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(64l), "i"(TILE_OF) : "memory");
}
template <int TILE_OF>
inline void tile_clear() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE_OF));
}
template <int SUM, int LEFT, int RIGHT>
inline void tile_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(LEFT), "i"(RIGHT));
}

// While an object lives, its thread's eight tiles have 16 rows of 64 bytes.
struct Tiles {
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, none[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = T;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~Tiles() { asm volatile("tilerelease"); }
};

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

inline void split(const float* from, long left, __m512i* parts) {
  if (left >= STEP) return split(_mm512_loadu_ps(from), _mm512_loadu_ps(from + T), parts);
  auto some = [&](long at) { return _mm512_maskz_loadu_ps(left - at >= T ? 0xffff : left > at ? (1u << (left - at)) - 1 : 0, from + at); };
  split(some(0), some(T), parts);
}

long steps_of(long depth) { return (depth + STEP - 1) / STEP; }

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

// Splits one step of a block (32 rows of w) into [PARTS, 2 tiles]. `split_row` does one row of a whole block. `split_some` does all of a
// block of `rows` rows, `left` numbers deep, and fills with zeros.
inline void split_row(const float* w, long ldw, long row, uint16_t* to) {
  __m512i of[PARTS];
  split(_mm512_loadu_ps(w + row * ldw), _mm512_loadu_ps(w + row * ldw + T), of);
#pragma GCC unroll 3
  for (int part = 0; part < PARTS; part++) _mm512_store_si512(to + part * 2 * TILE + row * STEP, of[part]);
}

void split_some(const float* w, long ldw, long rows, long left, uint16_t* to) {
  for (long row = 0; row < 2 * T; row++) {
    __m512i of[PARTS] = {};
    if (row < rows) split(w + row * ldw, left, of);
    for (int part = 0; part < PARTS; part++) _mm512_store_si512(to + part * 2 * TILE + row * STEP, of[part]);
  }
}

// Adds one step of w [32 rows] x [M * 16 rows] to tiles 0 ... 3. Parts of w go through tiles 4 and 5, parts of x through 6 and 7. Calls
// `between(n)` after each of the six products, as the vector units are free meanwhile.
template <int M, typename Between>
inline __attribute__((always_inline)) void multiply(const uint16_t* w, const uint16_t* x, const uint16_t* y, Between between) {
  constexpr int HIGH = 0, MIDDLE = 1, LOW = 2;
  auto left = [&](int part) __attribute__((always_inline)) {
    tile_load<4>(w + part * 2 * TILE);
    tile_load<5>(w + part * 2 * TILE + TILE);
  };
  auto right = [&](int part) __attribute__((always_inline)) {
    tile_load<6>(x + part * TILE);
    if (M > 1) tile_load<7>(y + part * TILE);
  };
  auto add = [&](int n) __attribute__((always_inline)) {
    tile_add<0, 4, 6>();
    tile_add<2, 5, 6>();
    if (M > 1) {
      tile_add<1, 4, 7>();
      tile_add<3, 5, 7>();
    }
    between(n);
  };
  right(HIGH), left(LOW), add(0);
  left(MIDDLE), add(1);
  left(HIGH), add(2);
  right(LOW), add(3);
  right(MIDDLE), add(4);
  left(MIDDLE), add(5);
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

// Computes sums c [2, 2, 16 of w, 16 of x] of 32 rows of w with M * 16 rows of x over some steps, added to c if `add`. Prefetches `lines`
// cache lines from `next` on in each step.
template <int M>
void block(const uint16_t* parts, const uint16_t* x, long ldx, long steps, bool add, float* c, const float* next, long lines) {
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < steps; step++, parts += PARTS * 2 * TILE, x += PARTS * TILE) {
    for (long line = 0; line < lines; line++, next += T) _mm_prefetch(next, _MM_HINT_T1);
    multiply<M>(parts, x, x + ldx, [](int) {});
  }
  sums_to<M>(c);
}

// A block's rows of w, and memory for their parts: a step's parts go to place `step % places`.
struct Rows {
  const float* w;
  long ld, count, depth, steps;  // count may be less than 32, depth less than steps * STEP
  uint16_t* parts;
  long places;

  uint16_t* at(long step) const { return parts + step % places * PARTS * 2 * TILE; }
};

// Does what `block` does, and splits w meanwhile: a step is split while the step before it is multiplied. Prefetches the next rows of w if
// this is the `only` block, as no other block does it then.
template <int M>
void first_block(const Rows& rows, const uint16_t* x, long ldx, bool add, float* c, bool only) {
  bool whole = rows.count == 2 * T && rows.depth >= rows.steps * STEP;
  split_some(rows.w, rows.ld, rows.count, rows.depth, rows.at(0));
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < rows.steps; step++, x += PARTS * TILE) {
    if (step + 1 == rows.steps || !whole) {
      multiply<M>(rows.at(step), x, x + ldx, [](int) {});
      long next = step + 1;
      if (next < rows.steps) split_some(rows.w + next * STEP, rows.ld, rows.count, rows.depth - next * STEP, rows.at(next));
      continue;
    }
    const float *from = rows.w + (step + 1) * STEP, *next = rows.w + 2 * T * rows.ld + step * 2 * T * STEP;
    uint16_t* to = rows.at(step + 1);
    multiply<M>(rows.at(step), x, x + ldx, [&](int n) __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int row = n * 16 / 3; row < (n + 1) * 16 / 3; row++) {
        if (only) {
          _mm_prefetch(next + row * STEP, _MM_HINT_T1);
          _mm_prefetch(next + row * STEP + T, _MM_HINT_T1);
        }
        split_row(from, rows.ld, row, to);
      }
    });
  }
  sums_to<M>(c);
}

// Writes the sums of 32 rows of w and 32 of x to the target's rows from `row` and columns from `column` on.
void give(const float* sums, long row, long rows, long column, long columns, const Target& target) {
  for (long i = 0; i < 2 && i * T < columns; i++)
    for (long j = 0; j < 2 && j * T < rows; j++) {
      alignas(64) float turned[T * T];
      turn_square(sums + (2 * i + j) * T * T, T, turned, T);
      for (long r = 0; r < std::min(T, rows - j * T); r++)
        target.put(row + j * T + r, column + i * T, turned + r * T, std::min(T, columns - i * T));
    }
}

constexpr long SUMS = 4 * T * T;  // sums of 32 rows of w with 32 of x

// Returns sums [blocks of 32 of w, blocks of 32 of x, SUMS] of rows from ... to - 1 of w [.., depth] with packed x, at most MANY rows. The
// thread's next call with this `use` overwrites them.
float* tile_sums(const uint16_t* x, long rows, const float* w, long from, long to, long depth, Use use = PRODUCT) {
  Tiles tiles;
  long steps = steps_of(depth), ldx = steps * PARTS * TILE, blocks = (rows + 2 * T - 1) / (2 * T), wide = (to - from + 2 * T - 1) / (2 * T);
  long deep = blocks == 1 ? steps : std::min(steps, CHUNK / STEP), places = blocks == 1 ? 2 : deep;
  float* sums = spare(use, wide * blocks * SUMS);
  auto* parts = (uint16_t*)spare(WEIGHT, places * PARTS * TILE);
  for (long first = 0; first < steps; first += deep)
    for (long n = 0; n < wide; n++) {
      long some = std::min(deep, steps - first), at = from + n * 2 * T;
      Rows of{w + at * depth + first * STEP, depth, std::min(2 * T, to - at), depth - first * STEP, some, parts, places};
      const uint16_t* numbers = x + first * PARTS * TILE;
      float* c = sums + n * blocks * SUMS;
      bool only = blocks == 1;
      if (rows > T) first_block<2>(of, numbers, ldx, first, c, only);
      else first_block<1>(of, numbers, ldx, first, c, only);
      const long lines = 2 * STEP / std::max(1l, blocks - 1);  // a step has 64 cache lines: each later block prefetches its share
      const float* next = of.w + 2 * T * depth;
      for (long b = 1; b < blocks; b++, next += some * lines * T) {
        if (rows - b * 2 * T > T) block<2>(parts, numbers + b * 2 * ldx, ldx, some, first, c + b * SUMS, next, lines);
        else block<1>(parts, numbers + b * 2 * ldx, ldx, some, first, c + b * SUMS, next, lines);
      }
    }
  return sums;
}

// Computes a product's columns from ... to - 1, from its row `row` on. x is packed and has at most MANY rows.
void tile_product(const uint16_t* x, long row, long rows, const Target& target, long from, long to, long depth) {
  const float* sums = tile_sums(x, rows, target.w, from, to, depth);
  long blocks = (rows + 2 * T - 1) / (2 * T);
  for (long b = 0; b < blocks; b++)
    for (long n = from; n < to; n += 2 * T) {
      const float* of = sums + ((n - from) / (2 * T) * blocks + b) * SUMS;
      give(of, row + b * 2 * T, std::min(2 * T, rows - b * 2 * T), n, std::min(2 * T, to - n), target);
    }
}

}  // namespace

#endif
