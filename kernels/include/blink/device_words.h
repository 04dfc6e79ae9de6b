// Loads and stores of single words on an NVIDIA GPU, at system scope but for the atomic one, and its clock.
#ifndef BLINK_DEVICE_WORDS_H
#define BLINK_DEVICE_WORDS_H

#include <stdint.h>

namespace blink {

__device__ inline uint64_t device_load_relaxed(const uint64_t *word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline uint64_t device_load_acquire(const uint64_t *word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline void device_store_relaxed(uint64_t *word, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ inline void device_store_release(uint64_t *word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// At device scope: over PCIe a GPU has no atomics on the host's memory, and only instances of the scheduler race.
__device__ inline bool device_compare_and_swap(uint64_t *word, uint64_t expected, uint64_t desired) {
  uint64_t found;
  asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(found)
               : "l"(word), "l"(expected), "l"(desired)
               : "memory");
  return found == expected;
}

__device__ inline uint64_t device_now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace blink

#endif  // BLINK_DEVICE_WORDS_H
