// The threads that compute, and scratch memory for each. Knows nothing of what is computed.
//
// Every unit includes this file. So it includes little itself: <thread>, <mutex> and <functional> take the compiler half a second a unit.

#pragma once

#include <pthread.h>

#include <cstddef>

namespace [[gnu::visibility("hidden")]] kernels {

// Calls a function that someone else holds. What calls it is compiled once for all functions.
template <typename>
class FunctionRef;

template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename F>
  FunctionRef(const F& f) : held(&f), calls([](const void* f, Arguments... arguments) -> Result { return (*(const F*)f)(arguments...); }) {}
  Result operator()(Arguments... arguments) const { return calls(held, arguments...); }

 private:
  const void* held;
  Result (*calls)(const void*, Arguments...);
};

// Holds a lock while it lives.
class Guard {
 public:
  explicit Guard(pthread_mutex_t& lock) : lock(&lock) { pthread_mutex_lock(&lock); }
  Guard(const Guard&) = delete;
  ~Guard() { pthread_mutex_unlock(lock); }

 private:
  pthread_mutex_t* lock;
};

namespace pool {

// Starts the process's threads, once.
void start(int threads);

// Returns how many threads compute, with the caller's own.
int threads();

// Calls f(0) ... f(count - 1), each once, in all threads; returns when all are done. Throws bad_alloc if a call did.
void run(long count, FunctionRef<void(long)> f);

}  // namespace pool

// Scratch memory of a thread, one piece for each use, aligned to a cache line.
enum Use {
  KEYS, VALUES, QUERIES, SCORES, WEIGHT, PRODUCT, INPUT, MADE, TOKENS,
  PROJECTED, ATTENDED, NEW_KEYS, NEW_VALUES, HIDDEN, GATE, UP, INNER, FRONT, SHARED_FRONT, PRODUCTS, STATE, PANELS, SUMMED, USES
};

float* spare(Use use, size_t size);

}  // namespace kernels

using namespace kernels;
