// Whole blocks of encoders, for Python; see library.cpp.

#include <cstdint>

#include "encoder_block.h"
#include "py_buffers.h"
#include "rope_angles.h"
#include "thread_pool.h"

extern "C" {

// An encoder's block, see encoder_block.h. It points to dense, evaluated arrays.
int encoder_block(const EncoderBlock* block) try {
  Free free;
  if (!block->half) return block->run(nullptr), 0;
  Guard guard(angles_lock);
  const int64_t start = 0;
  block->run(&angles_of(block->frequencies, block->half, &start, 1, block->t, 1.0f, 1.0f));
  return 0;
} catch (...) {
  return -2;
}
}
