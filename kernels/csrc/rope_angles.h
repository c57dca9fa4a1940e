// RoPE's cosines and sines. They are computed once for a step, as all its layers use the same.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "thread_pool.h"

namespace [[gnu::visibility("hidden")]] kernels {

// Cosines and sines [rows, t, half] of the positions from each row's start on, times `magnitude`.
struct Angles {
  std::vector<float> frequencies, cosines, sines;
  std::vector<int64_t> starts;
  long t = -1;
  float scale = 0, magnitude = 0;

  bool of(const float* f, long half, const int64_t* from, long rows, long length, float by, float times) const {
    return t == length && scale == by && magnitude == times && (long)frequencies.size() == half && (long)starts.size() == rows &&
           std::equal(f, f + half, frequencies.begin()) && std::equal(from, from + rows, starts.begin());
  }

  void make(const float* f, long half, const int64_t* from, long rows, long length, float by, float times) {
    t = -1;  // matches no request until all is computed, as memory may run out
    frequencies.assign(f, f + half), starts.assign(from, from + rows), scale = by, magnitude = times;
    cosines.resize(rows * length * half), sines.resize(rows * length * half);
    pool::run(rows * length, [&](long i) {
      float position = (float)(from[i / length] + i % length) * scale;
      for (long j = 0; j < half; j++) {
        float angle = position * f[j];
        cosines[i * half + j] = magnitude * __builtin_cosf(angle), sines[i * half + j] = magnitude * __builtin_sinf(angle);
      }
    });
    t = length;
  }
};

// A step's angles, shared by all its layers. Hold the lock while you use them.
extern pthread_mutex_t angles_lock;
const Angles& angles_of(const float* frequencies, long half, const int64_t* starts, long rows, long t, float scale, float magnitude);

}  // namespace kernels
