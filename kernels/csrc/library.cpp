// Functions that mlx computes on one core or one number at a time on a CPU: matmul, attention, norms, RoPE, activations, whole blocks
// of decoders and encoders, recurrences, a softmax's sums, sampling. This library uses all cores and vectors. It takes float32 alone. The Python files in kernels/ hold
// each function's specification and choose when it serves.
//
// Arrays come as Python objects with the buffer protocol, already evaluated. The GIL is released while they are computed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "rope_angles.h"
#include "py_buffers.h"
#include "attention.h"
#include "decoder_block.h"
#include "encoder_block.h"
#include "grammar_mask.h"
#include "sampling.h"
#include "matmul.h"
#include "recurrent.h"
#include "thread_pool.h"
#include "row_ops.h"
#include "fused_logsumexp.h"
#include "softmax.h"
#include "simd.h"

namespace {

// out = f(x, y), element by element
template <typename F>
void each(long n, const float* x, const float* y, float* out, F f) {
  constexpr long PART = 8192;
  pool.run((n + PART - 1) / PART, [&](long part) {
    long from = part * PART;
    each_of(x + from, y + from, std::min(PART, n - from), out + from, f);
  });
}

// A step's angles, shared by all its layers. Hold the lock while you use them.
std::mutex angles_lock;
Angles angles;

const Angles& angles_of(const float* frequencies, long half, const int64_t* starts, long rows, long t, float scale) {
  if (!angles.of(frequencies, half, starts, rows, t, scale)) angles.make(frequencies, half, starts, rows, t, scale);
  return angles;
}

// A row's mask: words [K, W] (array i + 1) at the row's place (array i [N] int32); none where that is -1 or there are no arrays.
GrammarMask mask_of(const Arrays& arrays, int i, long row) {
  long place = arrays.data(i) ? arrays.data<int32_t>(i)[row] : -1;
  return {place < 0 ? nullptr : arrays.data<uint32_t>(i + 1) + place * arrays.size(i + 1, 1)};
}

// A weight whose words, scales and biases are arrays 1, 2 and 3.
Quantized quantized_of(const Arrays& arrays, int bits) {
  long depth = arrays.last(1) * 32 / bits;
  return {arrays.data<uint32_t>(1), arrays.data(2), arrays.data(3), depth, bits, depth / arrays.last(2)};
}

// Products of rows of x [.., k] with one of several weights [n, k] each; see `grouped`. bias [experts, n] may be null.
struct Groups {
  const float* x;
  float* out;
  const float* bias;
  const int64_t *sources, *places, *ends;
  long experts, n, k, products;

  // weigh(e, target) puts expert e's weight into a target.
  template <typename F>
  void run(F weigh) const {
    long most = 0;
    for (long e = 0; e < experts; e++) most = std::max<long>(most, ends[e] - (e ? ends[e - 1] : 0));
    float* made = spare(PRODUCTS, most * n);
    for (long e = 0; e < experts; e++) {
      long first = e ? ends[e - 1] : 0, rows = ends[e] - first;
      if (!rows) continue;
      Target target{nullptr, n, made, n, bias ? bias + e * n : nullptr};
      weigh(e, target);
      multiply(rows, k, [&](long row, float*) { return x + sources[first + row] * k; }, {target}, products <= FEW_ROWS);
      pool.run(rows, [&](long row) { std::copy_n(made + row * n, n, out + places[first + row] * n); });
    }
  }
};

}  // namespace

// Each function returns 0, or -1 where an object has no buffer (Python's error is set), or -2 where memory has run out. Arrays are dense
// unless strides are named. The caller checks shapes and types.
extern "C" {

void start(int threads) { pool.start(threads); }

// Returns 1 when products are computed in tiles.
int tiles() {
#if TILES
  return tiles_allowed();
#else
  return 0;
#endif
}

// Returns 1 when each of `count` arrays begins at its address in `places`.
int lie(PyObject** arrays, void** places, int count) {
  for (int i = 0; i < count; i++) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(arrays[i], &buffer, STRIDED)) return PyErr_Clear(), 0;
    bool here = buffer.buf == places[i];
    PyBuffer_Release(&buffer);
    if (!here) return 0;
  }
  return 1;
}

// x [..., K], weight [N, K], bias [N] or null -> out [..., N]; packed: see Target
int linear(PyObject* x, PyObject* weight, PyObject* bias, PyObject* out, const float* packed) try {
  Arrays arrays({x, weight, out, bias});
  if (!arrays.held) return -1;
  long n = arrays.size(1, 0), k = arrays.size(1, 1), m = arrays.elements(0) / k;
  const float* a = arrays.data(0);
  Target target{arrays.data(1), n, arrays.data(2), n, arrays.data(3), nullptr, nullptr, packed};
  multiply(m, k, [&](long row, float*) { return a + row * k; }, {target}, m <= FEW_ROWS);
  return 0;
} catch (...) {
  return -2;
}

// x [..., K], words [N, K * bits / 32] uint32, scales and biases [N, K / group], see Quantized; bias [N] or null -> out [..., N]
int quantized_linear(PyObject* x, PyObject* words, PyObject* scales, PyObject* biases, PyObject* bias, PyObject* out, int bits) try {
  Arrays arrays({x, words, scales, biases, out, bias});
  if (!arrays.held) return -1;
  Quantized w = quantized_of(arrays, bits);
  long n = arrays.size(1, 0), m = arrays.elements(0) / w.depth;
  const float* a = arrays.data(0);
  Target target{nullptr, n, arrays.data(4), n, arrays.data(5), nullptr, &w};
  multiply(m, w.depth, [&](long row, float*) { return a + row * w.depth; }, {target}, m <= FEW_ROWS);
  return 0;
} catch (...) {
  return -2;
}

// x [R, K], weight [E, N, K], bias [E, N] or null -> out [P, N]. Product i multiplies row sources[i] with one expert's weight and goes to row
// places[i] of out; sources, places [P] and ends [E] are int64. Expert e has the products ends[e - 1] ... ends[e] - 1.
int grouped(PyObject* x, PyObject* weight, PyObject* bias, PyObject* sources, PyObject* places, PyObject* ends, PyObject* out) try {
  Arrays arrays({x, weight, sources, places, ends, out, bias});
  if (!arrays.held) return -1;
  long n = arrays.size(1, 1), k = arrays.size(1, 2);
  Groups{arrays.data(0), arrays.data(5), arrays.data(6), arrays.data<int64_t>(2), arrays.data<int64_t>(3), arrays.data<int64_t>(4),
         arrays.size(1, 0), n, k, arrays.elements(2)}
      .run([&](long e, Target& target) { target.w = arrays.data(1) + e * n * k; });
  return 0;
} catch (...) {
  return -2;
}

// grouped with words [E, N, K * bits / 32], scales and biases [E, N, K / group] in place of the weight, see Quantized.
int quantized_grouped(PyObject* x, PyObject* words, PyObject* scales, PyObject* biases, PyObject* bias, PyObject* sources, PyObject* places,
                      PyObject* ends, PyObject* out, int bits) try {
  Arrays arrays({x, words, scales, biases, sources, places, ends, out, bias});
  if (!arrays.held) return -1;
  Quantized all = quantized_of(arrays, bits), one;
  long n = arrays.size(1, 1);
  Groups{arrays.data(0), arrays.data(7), arrays.data(8), arrays.data<int64_t>(4), arrays.data<int64_t>(5), arrays.data<int64_t>(6),
         arrays.size(1, 0), n, all.depth, arrays.elements(4)}
      .run([&](long e, Target& target) { one = all.from(e * n), target.quantized = &one; });
  return 0;
} catch (...) {
  return -2;
}

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
// are rotated, in pairs of neighbours or of number j with number j + R / 2.
int rotate(PyObject* x, PyObject* frequencies, PyObject* starts, PyObject* out, float scale, int neighbours) try {
  Arrays arrays({x, frequencies, starts, out});
  if (!arrays.held) return -1;
  std::lock_guard<std::mutex> guard(angles_lock);
  long b = arrays.size(0, 0), h = arrays.size(0, 1), t = arrays.size(0, 2), d = arrays.size(0, 3);
  long half = arrays.elements(1), rows = arrays.elements(2), strides[3];
  for (int i = 0; i < 3; i++) strides[i] = arrays.stride(0, i);
  const Angles& made = angles_of(arrays.data(1), half, arrays.data<int64_t>(2), rows, t, scale);
  pool.run(b * t, [&](long i) {
    long angle = (rows > 1 ? i : i % t) * half;
    for (long head = 0; head < h; head++)
      rotate_row(arrays.data(0) + i / t * strides[0] + head * strides[1] + i % t * strides[2], made.cosines.data() + angle,
                 made.sines.data() + angle, half, d, neighbours, arrays.data(3) + (i * h + head) * d);
  });
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: gate / (1 + exp(-gate)) * x
int swiglu(PyObject* gate, PyObject* x, PyObject* out) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2), swiglu_of);
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: see clamped_swiglu_of
int clamped_swiglu(PyObject* gate, PyObject* x, PyObject* out, float slope, float limit) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2),
       [=](V g, V y) { return clamped_swiglu_of(g, y, slope, limit); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [...]: x / (1 + exp(-x))
int silu(PyObject* x, PyObject* out) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1), [](V y, V) { return over_one_and_exp(y, y); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [...]: x / (1 + exp(-slope * (x + cube * x^3)))
int gelu_approx(PyObject* x, PyObject* out, float slope, float cube) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1),
       [=](V y, V) { return over_one_and_exp(y, slope * (y + cube * y * y * y)); });
  return 0;
} catch (...) {
  return -2;
}

// x, out [...]: x times the normal distribution's share below x
int gelu(PyObject* x, PyObject* out) try {
  Arrays arrays({x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(0), arrays.data(1), [](V y, V) { return gelu_of(y); });
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: gelu(gate) * x
int geglu(PyObject* gate, PyObject* x, PyObject* out) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2), geglu_of);
  return 0;
} catch (...) {
  return -2;
}

// x, out [..., D], weight, bias [D] or null: (x - mean) / sqrt(variance + eps) * weight + bias
int layer_norm(PyObject* x, PyObject* weight, PyObject* bias, PyObject* out, float eps) try {
  Arrays arrays({x, out, weight, bias});
  if (!arrays.held) return -1;
  long d = arrays.last(0), n = arrays.elements(0) / d, some = std::max(1l, 16384 / d);
  pool.run((n + some - 1) / some, [&](long part) {
    for (long row = part * some; row < std::min(n, (part + 1) * some); row++)
      layer_norm_row(arrays.data(0) + row * d, arrays.data(2), arrays.data(3), d, eps, arrays.data(1) + row * d);
  });
  return 0;
} catch (...) {
  return -2;
}

// x, out [..., D], weight [D]: x / sqrt(mean(x^2) + eps) * (weight + more)
int rms_norm(PyObject* x, PyObject* weight, PyObject* out, float eps, float more) try {
  Arrays arrays({x, weight, out});
  if (!arrays.held) return -1;
  long d = arrays.elements(1), n = arrays.elements(0) / d, some = std::max(1l, 16384 / d);
  pool.run((n + some - 1) / some, [&](long part) {
    for (long row = part * some; row < std::min(n, (part + 1) * some); row++)
      norm_row(arrays.data(0) + row * d, arrays.data(1), d, eps, arrays.data(2) + row * d, more);
  });
  return 0;
} catch (...) {
  return -2;
}

// See StateSpace in recurrent.h. x [B, T, H, D], step [B, T, H], in and out [B, T, G, N], state [B, H, D, N] or null, seen [B, T] bool or null,
// lengths [B] int64 or null -> y [B, T, H, D], after [B, H, D, N]
int state_space(PyObject* x, PyObject* step, PyObject* decay_rates, PyObject* in, PyObject* out, PyObject* skip, PyObject* y, PyObject* after,
                PyObject* state, PyObject* seen, PyObject* lengths) try {
  Arrays arrays({x, step, decay_rates, in, out, skip, y, after, state, seen, lengths});
  if (!arrays.held) return -1;
  StateSpace{arrays.data(0), arrays.data(1), arrays.data(2), arrays.data(3), arrays.data(4), arrays.data(5), arrays.data(8),
             arrays.data<uint8_t>(9), arrays.data<int64_t>(10), arrays.data(6), arrays.data(7), arrays.size(0, 0), arrays.size(0, 1),
             arrays.size(0, 2), arrays.size(0, 3), arrays.size(3, 2), arrays.size(3, 3)}.run();
  return 0;
} catch (...) {
  return -2;
}

// See GatedDelta in recurrent.h. q, k [B, T, K, D], v [B, T, H, E], kept [B, T, H] or [B, T, H, D], beta [B, T, H], state [B, H, E, D] or
// null, seen [B, T] bool or null -> y [B, T, H, E], after [B, H, E, D]
int gated_delta(PyObject* q, PyObject* k, PyObject* v, PyObject* kept, PyObject* beta, PyObject* y, PyObject* after, PyObject* state,
                PyObject* seen) try {
  Arrays arrays({q, k, v, kept, beta, y, after, state, seen});
  if (!arrays.held) return -1;
  GatedDelta{arrays.data(0), arrays.data(1), arrays.data(2), arrays.data(3), arrays.data(4), arrays.data(7), arrays.data<uint8_t>(8),
             arrays.data(5), arrays.data(6), arrays.size(0, 0), arrays.size(0, 1), arrays.size(0, 2), arrays.size(0, 3), arrays.size(2, 2),
             arrays.size(2, 3), arrays.elements(3) > arrays.elements(4)}.run();
  return 0;
} catch (...) {
  return -2;
}

// See ShortConvolution in recurrent.h. x [B, T + S - 1, C], weight [C, S, 1], bias [C] or null -> y [B, T, C]
int short_convolution(PyObject* x, PyObject* weight, PyObject* bias, PyObject* y) try {
  Arrays arrays({x, weight, y, bias});
  if (!arrays.held) return -1;
  ShortConvolution{arrays.data(0), arrays.data(1), arrays.data(3), arrays.data(2), arrays.size(2, 0), arrays.size(2, 1), arrays.size(2, 2),
                   arrays.size(1, 1)}.run();
  return 0;
} catch (...) {
  return -2;
}

// A decoder block, see decoder_block.h. It points to dense, evaluated arrays.
int block(const Block* block) try {
  Free free;
  std::lock_guard<std::mutex> guard(angles_lock);
  if (block->cosines) return block->run(nullptr), 0;
  block->run(&angles_of(block->frequencies, block->half, block->starts, block->count, block->t, block->position_scale));
  return 0;
} catch (...) {
  return -2;
}

// Returns how many numbers a packed weight [n, depth] takes.
int64_t packed_size(int64_t n, int64_t depth) { return Packed::size(n, depth); }

// weight [n, depth], bias [n] or null -> out [packed_size(n, depth)], see Packed. They are dense.
int pack_weight(const float* weight, const float* bias, int64_t n, int64_t depth, float* out) try {
  Free free;
  Packed::pack(weight, bias, n, depth, out);
  return 0;
} catch (...) {
  return -2;
}

// An encoder's block, see encoder_block.h. It points to dense, evaluated arrays.
int encoder_block(const EncoderBlock* block) try {
  Free free;
  if (!block->half) return block->run(nullptr), 0;
  std::lock_guard<std::mutex> guard(angles_lock);
  const int64_t start = 0;
  block->run(&angles_of(block->frequencies, block->half, &start, 1, block->t, 1.0f));
  return 0;
} catch (...) {
  return -2;
}

// x [N, V] -> best [N] int32, the first id of the largest value; peak [N], that value; total [N], sum of exp(x - peak). In a row with a
// NaN, best is the first NaN's id, and peak and total are NaN. With places and words (see draw; null without a grammar) best is the first id
// of the largest value that is allowed, or -1 if there is none or one is NaN.
int softmax_sums(PyObject* x, PyObject* best, PyObject* peak, PyObject* total, PyObject* places, PyObject* words) try {
  Arrays arrays({x, best, peak, total, places, words});
  if (!arrays.held) return -1;
  long n = arrays.size(0, 0), v = arrays.size(0, 1), count = (v + Part::SIZE - 1) / Part::SIZE;
  pool.run(n, [&](long row) {
    const float* a = arrays.data(0) + row * v;
    auto* parts = (Part*)spare(MADE, count * sizeof(Part) / sizeof(float));
    for (long part = 0, from = 0; part < count; part++, from += Part::SIZE) {
      float last[Part::SIZE];
      if (v - from < Part::SIZE) std::fill_n(std::copy(a + from, a + v, last), from + Part::SIZE - v, -INFINITE);
      parts[part] = part_of(v - from < Part::SIZE ? last : a + from, from);
    }
    Part found = whole_of(parts, count, 1);
    GrammarMask mask = mask_of(arrays, 4, row);
    if (!mask.allows(found.best)) found.best = (int32_t)mask.best(a, v, parts, count).id;
    arrays.data<int32_t>(1)[row] = found.best, arrays.data(2)[row] = found.peak, arrays.data(3)[row] = found.sum;
  });
  return 0;
} catch (...) {
  return -2;
}

// Draws an id in each row of logits x [N, V]. ids [N] int32 holds each row's best id and takes the drawn one; sampled [N] takes its logprob
// after the filters; kept [N, V] bytes, if not null, takes 1 for each id that passes the filters. temperature, top_k (int32, 0: all), top_p,
// least (log min_p), typical_p (1: all), xtc (this step's threshold; inf: none) and uniforms are [N]. Row i draws from ids that words [K, ceil(V / 32)] int32 allow in line places[i] (int32) [N], or
// from all where that is -1; words and places may be null. A row with a mask may have -1 for its best id. If it has a temperature of 0, its
// best id that is allowed is found. Other rows at temperature 0 stay as they are. Where the largest logit is not finite, no id is drawn, and
// a row with a mask takes NaN.
int draw(PyObject* x, PyObject* ids, PyObject* temperature, PyObject* top_k, PyObject* top_p, PyObject* least, PyObject* typical_p,
         PyObject* xtc, PyObject* uniforms, PyObject* sampled, PyObject* kept, PyObject* places, PyObject* words) try {
  Arrays arrays({x, ids, temperature, top_k, top_p, least, typical_p, xtc, uniforms, sampled, kept, places, words});
  if (!arrays.held) return -1;
  long n = arrays.size(0, 0), v = arrays.size(0, 1);
  pool.run(n, [&](long row) {
    const float* a = arrays.data(0) + row * v;
    int32_t& id = arrays.data<int32_t>(1)[row];
    float peak, temperature = arrays.data(2)[row], &logprob = arrays.data(9)[row];
    GrammarMask mask = mask_of(arrays, 11, row);
    if (mask.words && (id < 0 || !mask.allows(id))) {
      auto best = mask.best(a, v);
      id = (int32_t)best.id, peak = best.value;
    } else {
      peak = a[id];
    }
    if (mask.words) logprob = std::isfinite(peak) ? 0 : NAN;
    if (temperature == 0 || !std::isfinite(peak)) return;
    long most = arrays.data<int32_t>(3)[row];
    Filter filter{temperature,        arrays.data(4)[row], arrays.data(5)[row], most > 0 ? std::min(most, v) : v, arrays.data(6)[row],
                  arrays.data(7)[row]};
    Draw draw(a, v, mask, peak, filter);
    id = draw.at(arrays.data(8)[row], logprob);
    if (kept) draw.kept(arrays.data<uint8_t>(10) + row * v);
  });
  return 0;
} catch (...) {
  return -2;
}

// softmax_sums of logits x [N, K] weightᵀ + bias, capped where `cap` is not 0, which are never stored as a whole; weight [V, K], bias [V] or null.
// `at` [M] takes the logits of the columns `ids` [M] int32; row i's are at first[i] ... first[i + 1] - 1, `first` [N + 1] int64.
int product_sums(PyObject* x, PyObject* weight, PyObject* bias, PyObject* first, PyObject* ids, PyObject* at, PyObject* best,
                 PyObject* peak, PyObject* total, float cap) try {
  Arrays arrays({x, weight, first, ids, at, best, peak, total, bias});
  if (!arrays.held) return -1;
  Score{arrays.data(1), nullptr, arrays.data(0), arrays.data(8), arrays.size(0, 0), arrays.size(1, 0), arrays.size(1, 1), arrays.data<int64_t>(2),
        arrays.data<int32_t>(3), arrays.data(4), arrays.data<int32_t>(5), arrays.data(6), arrays.data(7), cap}.run();
  return 0;
} catch (...) {
  return -2;
}

// product_sums with a weight as quantized_linear takes it.
int quantized_product_sums(PyObject* x, PyObject* words, PyObject* scales, PyObject* biases, PyObject* bias, PyObject* first, PyObject* ids,
                           PyObject* at, PyObject* best, PyObject* peak, PyObject* total, float cap, int bits) try {
  Arrays arrays({x, words, scales, biases, first, ids, at, best, peak, total, bias});
  if (!arrays.held) return -1;
  Quantized w = quantized_of(arrays, bits);
  Score{nullptr, &w, arrays.data(0), arrays.data(10), arrays.size(0, 0), arrays.size(1, 0), w.depth, arrays.data<int64_t>(4),
        arrays.data<int32_t>(5), arrays.data(6), arrays.data<int32_t>(7), arrays.data(8), arrays.data(9), cap}.run();
  return 0;
} catch (...) {
  return -2;
}
}
