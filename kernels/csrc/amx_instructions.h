// The instructions of a processor's tiles (Intel AMX). A tile has 16 rows of 64 bytes.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

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
inline void tile_store(void* to, long stride = 64) {  // bytes from a row to the next one
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE_OF) : "memory");
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
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~Tiles() { asm volatile("tilerelease"); }
};

}  // namespace
