// Products that mlx computes on one core on a CPU: matmul, also with quantized weights and with one of several, and a softmax's sums of a
// product. The units of this library use all cores and vectors. They take float32 alone. The Python files in kernels/ hold each function's
// specification and choose when it serves.
//
// Arrays come as Python objects with the buffer protocol, already evaluated. The GIL is released while they are computed.

#include <algorithm>
#include <cstdint>

#include "fused_logsumexp.h"
#include "matmul.h"
#include "py_buffers.h"
#include "thread_pool.h"

namespace {

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
      pool::run(rows, [&](long row) { std::copy_n(made + row * n, n, out + places[first + row] * n); });
    }
  }
};

}  // namespace

// Each function returns 0, or -1 where an object has no buffer (Python's error is set), or -2 where memory has run out. Arrays are dense
// unless strides are named. The caller checks shapes and types.
extern "C" {

void start(int threads) { pool::start(threads); }

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

// Returns 1 when each of `count` dicts holds the same object as ever under its key. `none` stands for a key that is not there.
int hold_same(PyObject** dicts, PyObject** keys, PyObject** objects, int count, PyObject* none) {
  for (int i = 0; i < count; i++) {
    PyObject* found = PyDict_GetItemWithError(dicts[i], keys[i]);
    if (!found) PyErr_Clear();
    if ((found ? found : none) != objects[i]) return 0;
  }
  return 1;
}

// Returns 1 when each of `count` objects is of its class.
int are_of(PyObject** objects, PyObject** classes, int count) {
  for (int i = 0; i < count; i++) {
    PyObject* found = PyObject_Type(objects[i]);
    Py_DecRef(found);
    if (found != classes[i]) return 0;
  }
  return 1;
}

// x [..., K], weight [N, K], bias [N] or null -> out [..., N]; packed: see Target
int linear(PyObject* x, PyObject* weight, PyObject* bias, PyObject* out, const float* packed) try {
  Arrays arrays({x, weight, out, bias});
  if (!arrays.held) return -1;
  long n = arrays.size(1, 0), k = arrays.size(1, 1), m = arrays.elements(0) / k;
  Target target{arrays.data(1), n, arrays.data(2), n, arrays.data(3), nullptr, nullptr, packed};
  multiply(m, k, arrays.data(0), {target}, m <= FEW_ROWS);
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
  Target target{nullptr, n, arrays.data(4), n, arrays.data(5), nullptr, &w};
  multiply(m, w.depth, arrays.data(0), {target}, m <= FEW_ROWS);
  return 0;
} catch (...) {
  return -2;
}

// x [R, K], weight [E, N, K], bias [E, N] or null -> out [P, N]. Product i multiplies row sources[i] with one expert's weight and goes to row
// places[i] of out; sources, places [P] and ends [E] are int64. Expert e has the products ends[e - 1] ... ends[e] - 1. packed: each expert's
// weight, see Target, or null.
int grouped(PyObject* x, PyObject* weight, PyObject* bias, PyObject* sources, PyObject* places, PyObject* ends, PyObject* out,
            const float* packed) try {
  Arrays arrays({x, weight, sources, places, ends, out, bias});
  if (!arrays.held) return -1;
  long n = arrays.size(1, 1), k = arrays.size(1, 2);
  Groups{arrays.data(0), arrays.data(5), arrays.data(6), arrays.data<int64_t>(2), arrays.data<int64_t>(3), arrays.data<int64_t>(4),
         arrays.size(1, 0), n, k, arrays.elements(2)}
      .run([&](long e, Target& target) {
        target.w = arrays.data(1) + e * n * k;
        target.packed = packed ? packed + e * size_of_packed(n, k) : nullptr;
      });
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

// softmax_sums of logits x [N, K] weightᵀ + bias, capped where `cap` is not 0, which are never stored as a whole; weight [V, K], bias [V] or null.
// `at` [M] takes the logits of the columns `ids` [M] int32; row i's are at first[i] ... first[i + 1] - 1, `first` [N + 1] int64. packed: see
// Target.
int product_sums(PyObject* x, PyObject* weight, PyObject* bias, PyObject* first, PyObject* ids, PyObject* at, PyObject* best,
                 PyObject* peak, PyObject* total, float cap, const float* packed) try {
  Arrays arrays({x, weight, first, ids, at, best, peak, total, bias});
  if (!arrays.held) return -1;
  Score{arrays.data(1), nullptr, arrays.data(0), arrays.data(8), arrays.size(0, 0), arrays.size(1, 0), arrays.size(1, 1), arrays.data<int64_t>(2),
        arrays.data<int32_t>(3), arrays.data(4), arrays.data<int32_t>(5), arrays.data(6), arrays.data(7), cap, packed}.run();
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

// Returns how many numbers a packed weight [n, depth] takes: for products (see Target), or in vectors' order (see Packed).
int64_t packed_size(int64_t n, int64_t depth, int vectors) { return vectors ? Packed::size(n, depth) : size_of_packed(n, depth); }

// Returns 1 when products take a dense weight of `count` numbers packed. In tiles bfloat16 must hold them.
int fits_packed(const float* weight, int64_t count) {
#if TILES
  if (tiles_allowed()) {
    Free free;
    return PackedTiles::hold(weight, count);
  }
#endif
  return 1;
}

// weight [n, depth], bias [n] or null -> out [packed_size(n, depth, vectors)], aligned to 64 bytes. They are dense.
int pack_weight(const float* weight, const float* bias, int64_t n, int64_t depth, int vectors, float* out) try {
  Free free;
#if TILES
  if (tiles_allowed() && !vectors) return PackedTiles::pack(weight, n, depth, out), 0;
#endif
  Packed::pack(weight, bias, n, depth, out);
  return 0;
} catch (...) {
  return -2;
}
}
