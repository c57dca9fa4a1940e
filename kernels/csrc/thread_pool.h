// The threads that compute, and scratch memory for each. A thread waits awake for the next call for a while, as waking takes long. Knows
// nothing of what is computed.

#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace [[gnu::visibility("hidden")]] kernels {

class Pool {
 public:
  void start(int threads) {
    if (owner == getpid()) return;
    owner = getpid(), others = 0, busy = 0, asleep = 0, next = 0;
    unsigned seen = turn.load();
    try {
      for (; others < threads - 1; others++) std::thread([this, seen] { work(seen); }).detach();
    } catch (const std::system_error&) {  // no more threads are allowed: those that started do the work
    }
  }

  int threads() const { return owner == getpid() ? others + 1 : 1; }  // a forked process has none of its parent's

  // Calls f(0) ... f(count - 1), each once, in all threads; returns when all are done. Throws bad_alloc if a call did.
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
  // Microseconds for which a thread waits awake for the next call. A decode step is a thousand calls, and waking a thread takes longer than
  // most of them.
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

  // Pauses between two looks. After SOON looks it yields, as a BLAS may need this core.
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

inline Pool& pool = *new Pool;  // of all units; never destroyed: its threads may run until the process ends

// Scratch memory of a thread, one piece for each use, aligned to a cache line.
enum Use {
  KEYS, VALUES, QUERIES, SCORES, WEIGHT, PRODUCT, INPUT, MADE, TOKENS,
  PROJECTED, ATTENDED, NEW_KEYS, NEW_VALUES, HIDDEN, GATE, UP, INNER, FRONT, PRODUCTS, STATE, PANELS, USES
};

inline float* spare(Use use, size_t size) {
  thread_local std::vector<float> kept[USES];
  if (kept[use].size() < size + 16) kept[use].resize(size + 16);
  return (float*)(((uintptr_t)kept[use].data() + 63) & ~(uintptr_t)63);
}

}  // namespace kernels

using namespace kernels;
