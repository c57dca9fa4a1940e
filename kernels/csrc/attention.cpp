// Attention, RoPE, and whole blocks of decoders, for Python; see library.cpp.

#include <algorithm>
#include <cstdint>

#include "attention.h"
#include "decoder_block.h"
#include "decoder_stack.h"
#include "py_buffers.h"
#include "rope_angles.h"
#include "row_ops.h"
#include "thread_pool.h"

namespace kernels {

pthread_mutex_t angles_lock = PTHREAD_MUTEX_INITIALIZER;

const Angles& angles_of(const float* frequencies, long half, const int64_t* starts, long rows, long t, float scale, float magnitude) {
  static Angles angles;
  if (!angles.of(frequencies, half, starts, rows, t, scale, magnitude)) angles.make(frequencies, half, starts, rows, t, scale, magnitude);
  return angles;
}

}  // namespace kernels

extern "C" {

// q [B, H, T, D], k [B, K, L, D], v [B, K, L, E], mask null or 4 axes that broadcast to [B, H, T, L], sinks [H] or null -> out [B, T, H, E].
// The last axis of q, k and v is dense; all other strides are free. cap: 0 where scores are not capped.
int attention(PyObject* q, PyObject* k, PyObject* v, PyObject* mask, PyObject* sinks, PyObject* out, float scale, float cap, int kind) try {
  Arrays arrays({q, k, v, out, mask, sinks});
  if (!arrays.held) return -1;
  Attention a{};
  a.q = arrays.data(0), a.k = arrays.data(1), a.v = arrays.data(2), a.out = arrays.data(3), a.mask = arrays.data<char>(4);
  a.b = arrays.size(0, 0), a.h = arrays.size(0, 1), a.t = arrays.size(0, 2), a.d = arrays.size(0, 3);
  a.kv = arrays.size(1, 1), a.length = arrays.size(1, 2), a.e = arrays.size(2, 3);
  for (int i = 0; i < 3; i++) a.qs[i] = arrays.stride(0, i), a.ks[i] = arrays.stride(1, i), a.vs[i] = arrays.stride(2, i);
  for (int i = 0; i < 4; i++) a.ms[i] = mask && arrays.size(4, i) > 1 ? arrays.stride(4, i) : 0;
  a.scale = scale, a.kind = (Mask)kind, a.sinks = arrays.data(5), a.cap = cap;
  a.run();
  return 0;
} catch (...) {
  return -2;
}

// RoPE: x [B, H, T, D], frequencies [R / 2], starts [1] or [B] int64 -> out [B, T, H, D]. x's last axis is dense. The first R of D numbers
// are rotated, in pairs of neighbours or of number j with number j + R / 2, and multiplied by `magnitude`.
int rotate(PyObject* x, PyObject* frequencies, PyObject* starts, PyObject* out, float scale, float magnitude, int neighbours) try {
  Arrays arrays({x, frequencies, starts, out});
  if (!arrays.held) return -1;
  Guard guard(angles_lock);
  long b = arrays.size(0, 0), h = arrays.size(0, 1), t = arrays.size(0, 2), d = arrays.size(0, 3);
  long half = arrays.elements(1), rows = arrays.elements(2), strides[3];
  for (int i = 0; i < 3; i++) strides[i] = arrays.stride(0, i);
  const Angles& made = angles_of(arrays.data(1), half, arrays.data<int64_t>(2), rows, t, scale, magnitude);
  pool::run(b * t, [&](long i) {
    long angle = (rows > 1 ? i : i % t) * half;
    for (long head = 0; head < h; head++)
      rotate_row(arrays.data(0) + i / t * strides[0] + head * strides[1] + i % t * strides[2], made.cosines.data() + angle,
                 made.sines.data() + angle, half, d, neighbours, arrays.data(3) + (i * h + head) * d);
  });
  return 0;
} catch (...) {
  return -2;
}

// A decoder block, see decoder_block.h. It points to dense, evaluated arrays.
int block(const Block* block) try {
  Free free;
  Guard guard(angles_lock);
  run_turned(*block);
  return 0;
} catch (...) {
  return -2;
}

// Decoder blocks one after the other and the norm behind them, see decoder_stack.h: x [B, T, d] -> out, the same shape. Returns 1, with
// nothing written, where a cache has no room.
int blocks(Block* all, int64_t count, PyObject* x, PyObject* out, const float* norm, float eps, float more) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  Guard guard(angles_lock);
  return Stack{all, all + count, {norm, eps, more}}.run(arrays.size(0, 0), arrays.size(0, 1), arrays.data(0), arrays.data(1)) ? 0 : 1;
} catch (...) {
  return -2;
}

// Returns 1 when each thread takes rows of its own through all blocks, in a call like the last one of `blocks`.
int rows_apart(Block* all, int64_t count) { return Stack{all, all + count, {}}.serves_rows_apart(); }
}
