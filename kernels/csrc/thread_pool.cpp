// The threads that compute, see thread_pool.h. A thread waits awake for the next call for a while, as waking takes long.

#include "thread_pool.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

namespace kernels {
namespace {

// Nanoseconds for which a thread waits awake for the next call. A decode step is a thousand calls, and waking a thread takes longer than
// most of them.
constexpr long LOOK_OUT = 1000000;
constexpr long SOON = 1000;

// Nothing here is ever destroyed: the threads may run until the process ends.
pthread_mutex_t entry = PTHREAD_MUTEX_INITIALIZER, mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
std::atomic<unsigned> turn{0};
std::atomic<int> busy{0}, asleep{0};
std::atomic<long> next{0};
std::atomic<bool> failed{false};
const FunctionRef<void(long)>* job = nullptr;
long total = 0;
int others = 0;
pid_t owner = 0;  // a forked process has none of its parent's threads

// Pauses between two looks. After SOON looks it yields, as a BLAS may need this core.
void rest(long looks) {
#if defined(__x86_64__)
  if (looks < SOON) return __builtin_ia32_pause();
#elif defined(__aarch64__)
  if (looks < SOON) {
    asm volatile("isb" ::: "memory");  // "yield" does nothing on most of these processors
    return;
  }
#endif
  sched_yield();
}

long now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000l + time.tv_nsec;
}

void take() {
  try {
    for (long i; (i = next.fetch_add(1)) < total;) (*job)(i);
  } catch (...) {
    failed.store(true), next.store(total);
  }
}

// A thread's work. `first` is the turn before its first one.
void* work(void* first) {
  for (unsigned seen = (unsigned)(uintptr_t)first;; seen++) {
    long until = now() + LOOK_OUT;
    for (long i = 0; turn.load() == seen && now() < until; i++) rest(i);
    if (turn.load() == seen) {
      Guard guard(mutex);
      asleep++;
      while (turn.load() == seen) pthread_cond_wait(&wake, &mutex);
      asleep--;
    }
    take();
    busy--;
  }
}

}  // namespace

void pool::start(int threads) {
  if (owner == getpid()) return;
  owner = getpid(), others = 0, busy = 0, asleep = 0, next = 0;
  auto* seen = (void*)(uintptr_t)turn.load();
  pthread_t thread;
  // Where no more threads are allowed, those that started do the work.
  for (; others < threads - 1 && !pthread_create(&thread, nullptr, work, seen); others++) pthread_detach(thread);
}

int pool::threads() { return owner == getpid() ? others + 1 : 1; }

void pool::run(long count, FunctionRef<void(long)> f) {
  if (count <= 1 || threads() == 1) {
    for (long i = 0; i < count; i++) f(i);
    return;
  }
  Guard one(entry);
  job = &f, total = count;
  next.store(0), busy.store(others), failed.store(false);
  {
    Guard guard(mutex);
    turn++;
  }
  if (asleep.load()) pthread_cond_broadcast(&wake);
  take();
  for (long i = 0; busy.load(); i++) rest(i);
  if (failed.load()) throw std::bad_alloc();
}

float* spare(Use use, size_t size) {
  thread_local std::vector<float> kept[USES];
  if (kept[use].size() < size + 16) kept[use].resize(size + 16);
  return (float*)(((uintptr_t)kept[use].data() + 63) & ~(uintptr_t)63);
}

}  // namespace kernels
