// What mlx does one element or one core at a time on a CPU, in all of its vector units and cores: products of few rows with a
// weight, attention, norms, rotations, activations, the sums of a softmax. Float32 alone. The Python files beside this one hold
// each one's specification and chooser.
//
// Arrays come as Python objects with the buffer protocol, evaluated before; the interpreter is let go while they are computed.
// The few names of Python's stable ABI that this takes are declared here, so that its headers need not be there.

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

extern "C" {
struct PyObject;
struct Py_buffer {
  void* buf;
  PyObject* obj;
  ssize_t len, itemsize;
  int readonly, ndim;
  char* format;
  ssize_t *shape, *strides, *suboffsets;
  void* internal;
};
int PyObject_GetBuffer(PyObject*, Py_buffer*, int);
void PyBuffer_Release(Py_buffer*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
}

namespace {

// ---------------------------------------------------------------------------------------------------------- vectors

#if defined(__AVX512F__)
constexpr int W = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int W = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int W = 4, REGISTERS = 32;
#else
constexpr int W = 4, REGISTERS = 16;
#endif

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef float Loose __attribute__((vector_size(4 * W), aligned(4), may_alias));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline V load(const float* p) { return *(const Loose*)p; }
inline void store(float* p, V v) { *(Loose*)p = v; }
inline V all(float x) { return x - V{}; }  // and not +, which would be computed: it makes 0 of -0

constexpr int log2(int n) { return n > 1 ? 1 + log2(n / 2) : 0; }

// Which lanes of two vectors behind each other go where, for each half block of 1, 2, 4 ... lanes.
struct Lanes {
  I low[6], high[6], across[6];    // added to one another, blocks of 2 * half lanes are folded in two
  I kept[6], taken[6];             // what stays of 2 * half rows that are turned about, and what changes places

  Lanes() {
    for (int level = 0, half = 1; half < 2 * W; level++, half *= 2)
      for (int i = 0; i < W; i++) {
        low[level][i] = (i / half * 2 * half + i % half) % (2 * W);
        high[level][i] = low[level][i] + half;
        across[level][i] = i ^ half;
        kept[level][i] = i & half ? W + i - half : i;
        taken[level][i] = i & half ? W + i : i + half;
      }
  }
};

const Lanes lanes;

// The sums of N vectors, N a power of two of at most W, to out: by halves, those of two vectors at a time.
template <int N>
inline void sums(const V* v, float* out) {
  V part[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) part[i] = v[i];
  int level = log2(W) - 1;
#pragma GCC unroll 8
  for (int left = N; left > 1; left /= 2, level--)
#pragma GCC unroll 16
    for (int i = 0; i < left / 2; i++)
      part[i] = __builtin_shuffle(part[2 * i], part[2 * i + 1], lanes.low[level]) +
                __builtin_shuffle(part[2 * i], part[2 * i + 1], lanes.high[level]);
#pragma GCC unroll 8
  for (; level >= 0; level--) part[0] += __builtin_shuffle(part[0], lanes.across[level]);
  float last[W];
  store(last, part[0]);
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) out[i] = last[i * (W / N)];
}

inline float sum(V v) {
  float out;
  sums<1>(&v, &out);
  return out;
}

// exp for x <= 88, within 4e-7 of the value; 0 below -87.3 and for -inf; NaN stays. 2**n * exp(f) with n the integer next to
// x / ln(2): adding 1.5 * 2**23 rounds to it and leaves it in the low bits. ln(2) in two parts, n times the first of which is exact
// (Cody and Waite 1980); the powers of degree 5 whose largest relative error, 1.1e-7, is smallest.
inline V exp(V x) {
  V shifted = x * 1.4426950408889634f + 12582912.0f, n = shifted - 12582912.0f;
  V f = (x - n * 0.693359375f) - n * -2.12194440e-4f, square = f * f;
  V power = (1.0f + f) + square * ((0.49999230308219417f + 0.16667115389023707f * f) +
                                   square * (0.04189033169876025f + 0.008312501317320553f * f));
  V value = (V)((I)power + ((I)shifted << 23));
  return x < -87.3f ? all(0.0f) : x == x ? value : x;
}

// ---------------------------------------------------------------------------------------------------------- threads

class Pool {
 public:
  void start(int threads) {
    if (owner == getpid()) return;
    owner = getpid(), others = 0, busy = 0, asleep = 0, next = 0;
    unsigned seen = turn.load();
    try {
      for (; others < threads - 1; others++) std::thread([this, seen] { work(seen); }).detach();
    } catch (const std::system_error&) {  // no more threads are allowed: those that came up do it
    }
  }

  int threads() const { return owner == getpid() ? others + 1 : 1; }  // a forked process has none of its parent's

  // Calls f(0) ... f(count - 1), each once, in all threads; returns when all are done. Raises bad_alloc if one of them has.
  template <typename F>
  void run(long count, F f) {
    if (count <= 1 || threads() == 1) {
      for (long i = 0; i < count; i++) f(i);
      return;
    }
    std::function<void(long)> each = f;
    std::lock_guard<std::mutex> one(entry);
    job = &each, total = count;
    next.store(0), busy.store(others), failed.store(false);
    {
      std::lock_guard<std::mutex> guard(mutex);
      turn++;
    }
    if (asleep.load()) wake.notify_all();
    take();
    for (long i = 0; busy.load(); i++) rest(i);
    if (failed.load()) throw std::bad_alloc();
  }

 private:
  // Microseconds for which a thread looks out for the next call before it sleeps: a step of decoding is a thousand calls, and to be
  // woken takes longer than most of them.
  static constexpr int LOOK_OUT = 1000;
  static constexpr long SOON = 1000;

  std::mutex entry, mutex;
  std::condition_variable wake;
  std::atomic<unsigned> turn{0};
  std::atomic<int> busy{0}, asleep{0};
  std::atomic<long> next{0};
  std::atomic<bool> failed{false};
  std::function<void(long)>* job = nullptr;
  long total = 0;
  int others = 0;
  pid_t owner = 0;

  // Between two looks; after some, other threads are let run too: those of a BLAS may want this core.
  static void rest(long looks) {
#if defined(__x86_64__)
    if (looks < SOON) return __builtin_ia32_pause();
#endif
    std::this_thread::yield();
  }

  void take() {
    try {
      for (long i; (i = next.fetch_add(1)) < total;) (*job)(i);
    } catch (...) {
      failed.store(true), next.store(total);
    }
  }

  void work(unsigned seen) {
    for (;; seen++) {
      auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(LOOK_OUT);
      for (long i = 0; turn.load() == seen && std::chrono::steady_clock::now() < until; i++) rest(i);
      if (turn.load() == seen) {
        std::unique_lock<std::mutex> guard(mutex);
        asleep++;
        wake.wait(guard, [&] { return turn.load() != seen; });
        asleep--;
      }
      take();
      busy--;
    }
  }
};

Pool& pool = *new Pool;  // never taken down: its threads may outlive what a process does at its end

// Memory of a thread, for one use each; it begins with a line of the cache.
enum Use { KEYS, VALUES, QUERIES, SCORES, WEIGHT, PRODUCT, USES };

float* spare(Use use, size_t size) {
  thread_local std::vector<float> kept[USES];
  if (kept[use].size() < size + 16) kept[use].resize(size + 16);
  return (float*)(((uintptr_t)kept[use].data() + 63) & ~(uintptr_t)63);
}

// --------------------------------------------------------------------------------------------------------- products

// Sums that stand in registers at once, rows x columns, beside what enters them. Dots: their columns are single numbers.
constexpr int DOT_ROWS = REGISTERS == 32 ? 4 : 3, DOT_COLUMNS = REGISTERS == 32 ? 6 : 4;
constexpr int ROWS = 6, WIDE = REGISTERS == 32 ? 4 : 2;
constexpr int PANEL_ROWS = REGISTERS == 32 ? 8 : 6, PANEL = (REGISTERS == 32 ? 3 : 2) * W;
constexpr long DEEP = 2048;  // numbers of a panel's row that are used before the next: they stay in the second cache

// c[m][n] = sum over k of a[m][k] b[n][k] + bias[n]: both lie in memory as they are, so a weight is read once and never turned.
template <int M, int N>
inline void dots(const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, const float* bias) {
  V acc[M][N] = {};
  long k = 0;
  for (; k + W <= depth; k += W) {
    V right[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) right[n] = load(b + n * ldb + k);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      V left = load(a + m * lda + k);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] += left * right[n];
    }
  }
  constexpr int COUNT = M * N, WHOLE = COUNT / W * W;
  float found[COUNT];
  const V* flat = &acc[0][0];
#pragma GCC unroll 8
  for (int i = 0; i < WHOLE; i += W) sums<W>(flat + i, found + i);
  if constexpr (2 * (COUNT - WHOLE) == W)
    sums<W / 2>(flat + WHOLE, found + WHOLE);
  else
#pragma GCC unroll 16
    for (int i = WHOLE; i < COUNT; i++) found[i] = sum(flat[i]);
  for (; k < depth; k++)
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) found[m * N + n] += a[m * lda + k] * b[n * ldb + k];
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) c[m * ldc + n] = bias ? found[m * N + n] + bias[n] : found[m * N + n];
}

template <int M, int N>
void dots_of_rows(long rows, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, const float* bias) {
  long m = 0;
  for (; m + M <= rows; m += M) dots<M, N>(a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, bias);
  if constexpr (M > 1)
    if (m < rows) dots_of_rows<M - 1, N>(rows - m, a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, bias);
}

// c [rows, columns] = a bᵀ + bias
void dots(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc,
          const float* bias) {
  long n = 0;
  for (; n + DOT_COLUMNS <= columns; n += DOT_COLUMNS)
    dots_of_rows<DOT_ROWS, DOT_COLUMNS>(rows, a, lda, b + n * ldb, ldb, depth, c + n, ldc, bias ? bias + n : nullptr);
  for (; n < columns; n++) dots_of_rows<DOT_ROWS, 1>(rows, a, lda, b + n * ldb, ldb, depth, c + n, ldc, bias ? bias + n : nullptr);
}

// c[m] = sum over k of a[m][k] b[k][0 ... N * W), on top of what c holds if it is to be added. What comes `next` is fetched, a line a k.
template <int M, int N>
inline void outer(const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, bool add, const float* next) {
  V acc[M][N] = {};
  if (add)
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] = load(c + m * ldc + n * W);
  for (long k = 0; k < depth; k++) {
    V right[N];
    if (next) __builtin_prefetch(next + 16 * k, 0, 2);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) right[n] = load(b + k * ldb + n * W);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      V left = all(a[m * lda + k]);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] += left * right[n];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(c + m * ldc + n * W, acc[m][n]);
}

// The same for more rows; `left` numbers are to be fetched from `next` on.
template <int M, int N>
void outer_of_rows(long rows, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc, bool add = false,
                   const float* next = nullptr, long left = 0) {
  long m = 0;
  for (; m + M <= rows; m += M, next += 16 * depth, left -= 16 * depth)
    outer<M, N>(a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, add, left > 0 ? next : nullptr);
  if constexpr (M > 1)
    if (m < rows) outer_of_rows<M / 2, N>(rows - m, a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc, add, next, left);
}

// c [rows, columns] = a b, where columns is a multiple of W
void outer(long rows, long columns, const float* a, long lda, const float* b, long ldb, long depth, float* c, long ldc) {
  long n = 0;
  for (; n + WIDE * W <= columns; n += WIDE * W) outer_of_rows<ROWS, WIDE>(rows, a, lda, b + n, ldb, depth, c + n, ldc);
  for (; n < columns; n += W) outer_of_rows<ROWS, 1>(rows, a, lda, b + n, ldb, depth, c + n, ldc);
}

// W numbers of each of W rows of `from` to W rows of `to`: row i's number j becomes row j's number i.
inline void turn(const float* from, long ldf, float* to, long ldt) {
  V a[W], b[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) a[i] = load(from + i * ldf);
  int level = 0;
#pragma GCC unroll 4
  for (int half = 1; half < W; half *= 2, level++) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      b[i] = i & half ? __builtin_shuffle(a[i - half], a[i], lanes.taken[level]) : __builtin_shuffle(a[i], a[i + half], lanes.kept[level]);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store(to + i * ldt, a[i]);
}

// `from` [rows, columns] to `to` [columns, wide], zeros behind its `rows`
void turn(long rows, long columns, const float* from, long ldf, float* to, long wide) {
  long row = 0;
  for (; row + W <= rows; row += W) {
    long i = 0;
    for (; i + W <= columns; i += W) turn(from + row * ldf + i, ldf, to + i * wide + row, wide);
    for (; i < columns; i++)
      for (long j = row; j < row + W; j++) to[i * wide + j] = from[j * ldf + i];
  }
  for (long i = 0; row < wide && i < columns; i++)
    for (long j = row; j < wide; j++) to[i * wide + j] = j < rows ? from[j * ldf + i] : 0.0f;
}

// c [rows, columns] = a wᵀ + bias for at most PANEL rows of w [columns, depth], which are turned; the rows behind them are fetched.
void panel(long rows, long columns, const float* a, const float* w, long depth, float* c, long ldc, const float* bias) {
  bool whole = columns == PANEL;
  float* to = whole ? c : spare(PRODUCT, rows * PANEL);
  long ldt = whole ? ldc : PANEL;
  for (long k = 0; k < depth; k += DEEP) {
    long deep = std::min(DEEP, depth - k);
    float* turned = spare(WEIGHT, deep * PANEL);
    turn(columns, deep, w + k, depth, turned, PANEL);
    bool last = k + DEEP >= depth;
    outer_of_rows<PANEL_ROWS, PANEL / W>(rows, a + k, depth, turned, PANEL, deep, to, ldt, k > 0, last ? w + columns * depth : nullptr,
                                         last ? columns * depth : 0);
  }
  if (!whole || bias)
    for (long m = 0; m < rows; m++)
      for (long n = 0; n < columns; n++) c[m * ldc + n] = to[m * ldt + n] + (bias ? bias[n] : 0.0f);
}

// -------------------------------------------------------------------------------------------------------- attention

enum Mask { NONE, CAUSAL, SEEN, ADDED };

struct Attention {
  const float *q, *k, *v;
  float* out;  // [B, T, H, E]
  const char* mask;
  long b, h, t, d, kv, length, e;
  long qs[3], ks[3], vs[3], ms[4];  // strides of row, head and position; the mask's, in its elements
  float scale;
  Mask kind;

  long groups() const { return h / kv; }
  long wide() const { return (length + WIDE * W - 1) / (WIDE * W) * (WIDE * W); }
  long value_width() const { return (e + W - 1) / W * W; }

  // Scores [groups * n, keys] of n queries from `start` to weights, in place; and 1 / their sums.
  void weigh(float* scores, long row, long head, long start, long n, long keys, float* shares) const {
    for (long r = 0; r < groups() * n; r++) {
      float* s = scores + r * wide();
      long at = start + r % n, seen = kind == CAUSAL ? length - t + at + 1 : keys, j = 0;
      long masked = row * ms[0] + (head * groups() + r / n) * ms[1] + at * ms[2];
      if (kind == SEEN)
        for (j = 0; j < seen; j++) s[j] = mask[masked + j * ms[3]] ? s[j] : -std::numeric_limits<float>::max();
      if (kind == ADDED)
        for (j = 0; j < seen; j++) s[j] += ((const float*)mask)[masked + j * ms[3]];
      for (j = seen; j % W; j++) s[j] = -INFINITE;
      V most = all(-INFINITE), total = {};
      for (j = 0; j < seen; j += W) {
        V x = load(s + j);
        most = most > x ? most : x;  // a NaN may be lost here; its weight is one all the same
      }
      float peak = most[0];
      for (int i = 1; i < W; i++) peak = std::max(peak, most[i]);
      for (j = 0; j < seen; j += W) {
        V weight = exp(load(s + j) - peak);
        store(s + j, weight);
        total += weight;
      }
      for (; j < keys; j += W) store(s + j, V{});
      shares[r] = 1.0f / sum(total);
    }
  }

  // Queries start ... stop - 1 of a row over one of its key heads; `turned` holds the keys as [D, wide], or is null.
  void tile(long row, long head, long start, long stop, const float* turned, const float* values, long ldv) const {
    long n = stop - start, rows = groups() * n, keys = kind == CAUSAL ? length - t + stop : length, width = value_width();
    float* queries = spare(QUERIES, rows * (d + 1 + width));
    float *shares = queries + rows * d, *made = shares + rows, *scores = spare(SCORES, rows * wide());
    for (long r = 0; r < rows; r++) {
      const float* from = q + row * qs[0] + (head * groups() + r / n) * qs[1] + (start + r % n) * qs[2];
      for (long i = 0; i < d; i++) queries[r * d + i] = scale * from[i];
    }
    if (turned)
      outer(rows, (keys + W - 1) / W * W, queries, d, turned, wide(), d, scores, wide());
    else
      dots(rows, keys, queries, d, k + row * ks[0] + head * ks[1], ks[2], d, scores, wide(), nullptr);
    weigh(scores, row, head, start, n, keys, shares);
    outer(rows, width, scores, wide(), values, ldv, keys, made, width);
    for (long r = 0; r < rows; r++) {
      float* to = out + ((row * t + start + r % n) * h + head * groups() + r / n) * e;
      for (long i = 0; i < e; i++) to[i] = made[r * width + i] * shares[r];
    }
  }

  void run() const {
    constexpr long QUERIES_AT_ONCE = 16, BYTES = 1 << 20, FEW = 8;  // of a tile's scores; rows for which keys are not turned
    long each = std::max(1l, std::min({QUERIES_AT_ONCE, t, BYTES / (4 * groups() * wide())}));
    long tiles = (t + each - 1) / each, parts = std::min(tiles, std::max(1l, 4 * pool.threads() / (b * kv)));
    pool.run(b * kv * parts, [&](long task) {
      long row = task / parts / kv, head = task / parts % kv, width = value_width(), ldv = vs[2];
      const float *keys = k + row * ks[0] + head * ks[1], *values = v + row * vs[0] + head * vs[1];
      float* turned = nullptr;
      if (groups() * t > FEW) {
        turned = spare(KEYS, d * wide());
        turn(length, d, keys, ks[2], turned, wide());
      }
      if (width != e) {
        float* to = spare(VALUES, length * width);
        for (long j = 0; j < length; j++)
          for (long i = 0; i < width; i++) to[j * width + i] = i < e ? values[j * ldv + i] : 0.0f;
        values = to, ldv = width;
      }
      for (long i = tiles - 1 - task % parts; i >= 0; i -= parts) tile(row, head, i * each, std::min(t, (i + 1) * each), turned, values, ldv);
    });
  }
};

// -------------------------------------------------------------------------------------------------------- rotations

// Cosines and sines of positions: those of a step are the same in all its layers.
struct Angles {
  std::vector<float> frequencies, cosines, sines;
  std::vector<int64_t> starts;
  long t = -1;
  float scale = 0;

  bool of(const float* f, long half, const int64_t* from, long rows, long length, float by) const {
    return t == length && scale == by && (long)frequencies.size() == half && (long)starts.size() == rows &&
           std::equal(f, f + half, frequencies.begin()) && std::equal(from, from + rows, starts.begin());
  }

  void make(const float* f, long half, const int64_t* from, long rows, long length, float by) {
    frequencies.assign(f, f + half), starts.assign(from, from + rows), t = length, scale = by;
    cosines.resize(rows * length * half), sines.resize(rows * length * half);
    pool.run(rows * length, [&](long i) {
      float position = (float)(from[i / length] + i % length) * scale;
      for (long j = 0; j < half; j++) {
        float angle = position * f[j];
        cosines[i * half + j] = std::cos(angle), sines[i * half + j] = std::sin(angle);
      }
    });
  }
};

// ---------------------------------------------------------------------------------------------------------- buffers

// The buffers of some objects, let go with this; the interpreter is free in between.
class Arrays {
 public:
  bool held = true;

  Arrays(std::initializer_list<PyObject*> objects) {
    constexpr int STRIDED = 0x18;
    for (PyObject* object : objects) {
      if (held && PyObject_GetBuffer(object, of + count, STRIDED) == 0) count++;
      else held = false;
    }
    thread = PyEval_SaveThread();
  }
  Arrays(const Arrays&) = delete;
  ~Arrays() {
    PyEval_RestoreThread(thread);
    while (count) PyBuffer_Release(of + --count);
  }
  template <typename T = float>
  T* data(int i) const { return (T*)of[i].buf; }
  long size(int i, int axis) const { return of[i].shape[axis]; }
  long stride(int i, int axis) const { return of[i].strides[axis] / of[i].itemsize; }
  long elements(int i) const { return of[i].len / of[i].itemsize; }

 private:
  Py_buffer of[5];
  int count = 0;
  void* thread;
};

// out = f(x, y) of each element
template <typename F>
void each(long n, const float* x, const float* y, float* out, F f) {
  constexpr long PART = 8192;
  pool.run((n + PART - 1) / PART, [&](long part) {
    long i = part * PART, end = std::min(n, i + PART);
    for (; i + W <= end; i += W) store(out + i, f(load(x + i), load(y + i)));
    if (i == end) return;
    float a[W] = {}, b[W] = {}, c[W];
    std::copy(x + i, x + end, a), std::copy(y + i, y + end, b);
    store(c, f(load(a), load(b)));
    std::copy(c, c + end - i, out + i);
  });
}

inline V over_one_and_exp(V x, V z) {  // x / (1 + exp(-z)), or x / 1.7e38 where that is more
  V below = -z;
  return x / (1.0f + exp(below > 88.0f ? all(88.0f) : below));
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- the entries

// Each returns 0, or -1 with Python's error set where an object has no buffer, or -2 where memory has run out. Arrays are dense where no
// strides are named. That shapes and types fit is for the callers to see to.
extern "C" {

void start(int threads) { pool.start(threads); }

// x [..., K], weight [N, K], bias [N] or null -> out [..., N]
int linear(PyObject* x, PyObject* weight, PyObject* bias, PyObject* out) try {
  Arrays arrays({x, weight, out, bias ? bias : x});
  if (!arrays.held) return -1;
  constexpr long FEW = 4;  // rows for which the weight is not turned
  long n = arrays.size(1, 0), k = arrays.size(1, 1), m = arrays.elements(0) / k;
  const float *a = arrays.data(0), *w = arrays.data(1), *b = bias ? arrays.data(3) : nullptr;
  float* c = arrays.data(2);
  long panels = (n + PANEL - 1) / PANEL, some = PANEL * std::max(1l, std::min(4l, panels / (2 * pool.threads())));
  pool.run((n + some - 1) / some, [&](long part) {
    long from = part * some, to = std::min(n, from + some);
    if (m <= FEW) return dots(m, to - from, a, k, w + from * k, k, k, c + from, n, b ? b + from : nullptr);
    for (long at = from; at < to; at += PANEL) panel(m, std::min<long>(PANEL, to - at), a, w + at * k, k, c + at, n, b ? b + at : nullptr);
  });
  return 0;
} catch (...) {
  return -2;
}

// q [B, H, T, D], k [B, K, L, D], v [B, K, L, E], any strides but for the last axis; mask null or 4 axes that broadcast to [B, H, T, L],
// of any strides -> out [B, T, H, E]
int attention(PyObject* q, PyObject* k, PyObject* v, PyObject* mask, PyObject* out, float scale, int kind) try {
  Arrays arrays({q, k, v, out, mask ? mask : q});
  if (!arrays.held) return -1;
  Attention a{};
  a.q = arrays.data(0), a.k = arrays.data(1), a.v = arrays.data(2), a.out = arrays.data(3), a.mask = arrays.data<char>(4);
  a.b = arrays.size(0, 0), a.h = arrays.size(0, 1), a.t = arrays.size(0, 2), a.d = arrays.size(0, 3);
  a.kv = arrays.size(1, 1), a.length = arrays.size(1, 2), a.e = arrays.size(2, 3);
  for (int i = 0; i < 3; i++) a.qs[i] = arrays.stride(0, i), a.ks[i] = arrays.stride(1, i), a.vs[i] = arrays.stride(2, i);
  for (int i = 0; i < 4; i++) a.ms[i] = mask && arrays.size(4, i) > 1 ? arrays.stride(4, i) : 0;
  a.scale = scale, a.kind = (Mask)kind;
  a.run();
  return 0;
} catch (...) {
  return -2;
}

// x [B, H, T, D] of any strides but for the last axis, frequencies [R / 2], starts [1] or [B] int64 -> out [B, T, H, D]; the first R of
// D are rotated, pairs of neighbours or of halves
int rotate(PyObject* x, PyObject* frequencies, PyObject* starts, PyObject* out, float scale, int neighbours) try {
  Arrays arrays({x, frequencies, starts, out});
  if (!arrays.held) return -1;
  static std::mutex mutex;
  static Angles angles;
  std::lock_guard<std::mutex> guard(mutex);
  long b = arrays.size(0, 0), h = arrays.size(0, 1), t = arrays.size(0, 2), d = arrays.size(0, 3);
  long half = arrays.elements(1), rows = arrays.elements(2), strides[3];
  for (int i = 0; i < 3; i++) strides[i] = arrays.stride(0, i);
  const int64_t* from = arrays.data<int64_t>(2);
  if (!angles.of(arrays.data(1), half, from, rows, t, scale)) angles.make(arrays.data(1), half, from, rows, t, scale);
  float* to = arrays.data(3);
  pool.run(b * t, [&](long i) {
    const float* c = angles.cosines.data() + (rows > 1 ? i : i % t) * half;
    const float* s = angles.sines.data() + (rows > 1 ? i : i % t) * half;
    for (long head = 0; head < h; head++) {
      const float* in = arrays.data(0) + i / t * strides[0] + head * strides[1] + i % t * strides[2];
      float* made = to + (i * h + head) * d;
      if (neighbours)
        for (long j = 0; j < half; j++) {
          made[2 * j] = in[2 * j] * c[j] - in[2 * j + 1] * s[j];
          made[2 * j + 1] = in[2 * j] * s[j] + in[2 * j + 1] * c[j];
        }
      else
        for (long j = 0; j < half; j++) {
          made[j] = in[j] * c[j] - in[j + half] * s[j];
          made[j + half] = in[j] * s[j] + in[j + half] * c[j];
        }
      for (long j = 2 * half; j < d; j++) made[j] = in[j];
    }
  });
  return 0;
} catch (...) {
  return -2;
}

// gate, x, out [...]: gate / (1 + exp(-gate)) * x
int swiglu(PyObject* gate, PyObject* x, PyObject* out) try {
  Arrays arrays({gate, x, out});
  if (!arrays.held) return -1;
  each(arrays.elements(0), arrays.data(0), arrays.data(1), arrays.data(2), [](V g, V y) { return over_one_and_exp(g * y, g); });
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

// x, out [..., D], weight [D]: x / sqrt(mean(x^2) + eps) * weight
int rms_norm(PyObject* x, PyObject* weight, PyObject* out, float eps) try {
  Arrays arrays({x, weight, out});
  if (!arrays.held) return -1;
  long d = arrays.elements(1), n = arrays.elements(0) / d, some = std::max(1l, 16384 / d);
  pool.run((n + some - 1) / some, [&](long part) {
    for (long row = part * some; row < std::min(n, (part + 1) * some); row++) {
      const float *a = arrays.data(0) + row * d, *w = arrays.data(1);
      float* to = arrays.data(2) + row * d;
      V squares = {};
      long j = 0;
      for (; j + W <= d; j += W) squares += load(a + j) * load(a + j);
      float total = sum(squares);
      for (; j < d; j++) total += a[j] * a[j];
      float share = 1.0f / std::sqrt(total / d + eps);
      for (j = 0; j + W <= d; j += W) store(to + j, load(a + j) * share * load(w + j));
      for (; j < d; j++) to[j] = a[j] * share * w[j];
    }
  });
  return 0;
} catch (...) {
  return -2;
}

// x [N, V] -> best [N] int32, the first of the largest; peak [N], its value; total [N], sum of exp(x - peak). A row that holds a NaN has
// the first of them as its best, and NaN for the rest.
int softmax_sums(PyObject* x, PyObject* best, PyObject* peak, PyObject* total) try {
  Arrays arrays({x, best, peak, total});
  if (!arrays.held) return -1;
  constexpr long BLOCK = 64 * W;  // summed in float32, the blocks in float64
  long n = arrays.size(0, 0), v = arrays.size(0, 1);
  pool.run(n, [&](long row) {
    const float* a = arrays.data(0) + row * v;
    V most = all(-INFINITE), odd = {};
    long j = 0;
    for (; j + W <= v; j += W) {
      V y = load(a + j);
      most = most > y ? most : y;
      odd += y == y ? V{} : all(1.0f);
    }
    float top = most[0], other = sum(odd);
    for (int i = 1; i < W; i++) top = std::max(top, most[i]);
    for (; j < v; j++) {
      top = std::max(top, a[j]);
      other += a[j] == a[j] ? 0.0f : 1.0f;
    }
    long first = 0;
    if (other > 0) {
      while (a[first] == a[first]) first++;
      arrays.data<int32_t>(1)[row] = first, arrays.data(2)[row] = arrays.data(3)[row] = a[first];
      return;
    }
    while (a[first] != top) first++;
    double sums = 0;
    for (j = 0; j + W <= v;) {
      V part = {};
      for (long end = std::min(v / W * W, j + BLOCK); j < end; j += W) part += exp(load(a + j) - top);
      sums += sum(part);
    }
    for (; j < v; j++) sums += std::exp(a[j] - top);
    arrays.data<int32_t>(1)[row] = first, arrays.data(2)[row] = top, arrays.data(3)[row] = (float)sums;
  });
  return 0;
} catch (...) {
  return -2;
}
}
