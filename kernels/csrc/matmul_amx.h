// Products in a processor's tiles (Intel AMX), which multiply numbers of 8 significant bits and add in float32. A float32 is the sum of
// three such parts, exactly; of the nine products of two numbers' parts the six largest are taken. The second part is at most 2^-8 of a
// number and the third below 2^-16, so what is dropped is below 2^-23 of the product; in the root mean square it is 2^-26, a fourth of what
// rounding the product to float32 takes. Numbers are added one after the other, which errs by about half of what a plain loop in float32
// does, and by more than a sum in lanes where rows are long. Knows nothing of layers.
//
// An infinity has no parts, and neither has a number from 3.3962e38 on, whose first part is rounded to one: where one enters, NaN leaves,
// and where a sum overflows, NaN may. Parts and sums below 2^-126 count as 0, so products below 2^-100 are less precise.

#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define TILES 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "thread_pool.h"
#include "matmul_simd.h"
#include "simd.h"

namespace {

constexpr long T = 16, STEP = 32, PARTS = 3;      // rows of a tile, numbers of a row, parts of a number
constexpr long TILE = T * STEP;                   // a tile's numbers, of 16 bits
constexpr long CHUNK = 24 * STEP, MANY = 6 * 2 * T;  // depth and rows of x whose parts stay in the second cache

bool tiles_allowed() {
  constexpr int REQUEST = 0x1023, DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: the system keeps 8 KB a thread for them
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST, DATA) == 0;
  return allowed;
}

// The compiler's own names for these do not say that memory is read.
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

// While one lives, its thread's eight tiles have 16 rows of 64 bytes.
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

// The parts of 32 numbers, largest first: those of a and b in the low and the high halves of 32 bits. The first is rounded, the others
// are cut.
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

// 16 rows to tiles [steps, PARTS] whose columns they are; zeros for rows that are null.
void pack(const float* const* rows, long depth, uint16_t* to) {
  for (long k = 0; k < depth; k += STEP, to += PARTS * TILE) {
    alignas(64) float parts[PARTS][TILE / 2];
    for (long row = 0; row < T; row++) {
      __m512i of[PARTS] = {};
      if (rows[row]) split(rows[row] + k, depth - k, of);
      for (int part = 0; part < PARTS; part++) _mm512_store_si512(parts[part] + row * T, of[part]);
    }
    for (int part = 0; part < PARTS; part++) turn(parts[part], T, (float*)(to + part * TILE), T);
  }
}

// A step of 32 rows of w, `left` numbers deep, to [PARTS, 2 tiles]: row `row`, or all `rows` of a block that is not whole.
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

// Tiles 0 ... 3 += w [32 rows] x [M * 16 rows], one step: parts of w in tiles 4 and 5, of x in 6 and 7. `between(n)` is called after each
// of the six products: the vector units can work meanwhile.
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

// Tiles 0 ... 3, each 16 x 16: those of even number belong to the first 16 rows of x.
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

// Sums [2, 2, 16 of w, 16 of x] of 32 rows of w with M * 16 of x over some steps, on top of what c holds if they are to be added. Of what
// comes `next`, `lines` of the cache are fetched a step.
template <int M>
void block(const uint16_t* parts, const uint16_t* x, long ldx, long steps, bool add, float* c, const float* next, long lines) {
  sums_from<M>(add ? c : nullptr);
  for (long step = 0; step < steps; step++, parts += PARTS * 2 * TILE, x += PARTS * TILE) {
    for (long line = 0; line < lines; line++, next += T) _mm_prefetch(next, _MM_HINT_T1);
    multiply<M>(parts, x, x + ldx, [](int) {});
  }
  sums_to<M>(c);
}

// Rows of w of a block, and where their parts go: those of a step to place `step % places`.
struct Rows {
  const float* w;
  long ld, count, depth, steps;  // count and depth may end before a block does
  uint16_t* parts;
  long places;

  uint16_t* at(long step) const { return parts + step % places * PARTS * 2 * TILE; }
};

// The same, where w's parts are made meanwhile: a step's while the one before is multiplied. What comes next is fetched if there is no
// other block that does it.
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

// Sums of 32 rows of w and 32 of x to c [rows of x, ldc] at its column `column`.
void give(const float* sums, long row, long rows, long column, long columns, const Target& target) {
  for (long i = 0; i < 2 && i * T < columns; i++)
    for (long j = 0; j < 2 && j * T < rows; j++) {
      alignas(64) float turned[T * T];
      turn(sums + (2 * i + j) * T * T, T, turned, T);
      for (long r = 0; r < std::min(T, rows - j * T); r++)
        target.put(row + j * T + r, column + i * T, turned + r * T, std::min(T, columns - i * T));
    }
}

constexpr long SUMS = 4 * T * T;  // of 32 rows of w and 32 of x

// Sums of rows from ... to - 1 of w [.., depth] with x, which is packed, MANY rows of it at most:
// [blocks of 32 of w, blocks of 32 of x, SUMS]. They stand until the thread's next product of this use.
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
      const long lines = 2 * STEP / std::max(1l, blocks - 1);  // of 32 rows, a step: each other block fetches its share
      const float* next = of.w + 2 * T * depth;
      for (long b = 1; b < blocks; b++, next += some * lines * T) {
        if (rows - b * 2 * T > T) block<2>(parts, numbers + b * 2 * ldx, ldx, some, first, c + b * SUMS, next, lines);
        else block<1>(parts, numbers + b * 2 * ldx, ldx, some, first, c + b * SUMS, next, lines);
      }
    }
  return sums;
}

// Columns from ... to - 1 of a product, from its row `row` on, with x packed: MANY rows of it at most.
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
