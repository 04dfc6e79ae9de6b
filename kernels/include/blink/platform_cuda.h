// The scheduler's platform on an NVIDIA GPU: one thread block, system-scope atomics, device graph launch.
#ifndef BLINK_PLATFORM_CUDA_H
#define BLINK_PLATFORM_CUDA_H

#include <cuda_runtime.h>

#include "blink/block.h"

namespace blink {

// Executables of the captured graphs by kind and index, two of each: an executable whose completion word was seen may not
// have retired, and launching it again would be refused, so launches alternate.
struct CudaGraphs {
  cudaGraphExec_t *of_kind[2];
};

class CudaPlatform {
 public:
  __device__ CudaPlatform(const Block &block, const CudaGraphs &graphs) : block_(block), graphs_(graphs) {}

  __device__ uint32_t thread() const { return threadIdx.x; }
  __device__ uint32_t threads() const { return blockDim.x; }
  __device__ bool leader() const { return threadIdx.x == 0; }
  __device__ void barrier() { __syncthreads(); }

  // System scope: the NIC and the host read and write these words. Relaxed loads are not cached in L1 either.
  __device__ uint64_t load_relaxed(const uint64_t *word) const {
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ uint64_t load_acquire(const uint64_t *word) const {
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ void store_relaxed(uint64_t *word, uint64_t value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  __device__ void store_release(uint64_t *word, uint64_t value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  __device__ bool compare_and_swap(uint64_t *word, uint64_t expected, uint64_t desired) {
    uint64_t found;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(found)
                 : "l"(word), "l"(expected), "l"(desired)
                 : "memory");
    return found == expected;
  }
  __device__ void set_bits(uint64_t *word, uint64_t bits) {
    atomicOr_block(reinterpret_cast<unsigned long long *>(word), bits);
  }
  __device__ uint64_t bits(const uint64_t *word) const { return *static_cast<const volatile uint64_t *>(word); }

  __device__ uint64_t now_ns() const {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }

  // A launch is per thread, so the leader alone calls this. Inputs must be visible before the graph starts.
  __device__ void launch(uint32_t kind, uint32_t index, uint64_t sequence) {
    __threadfence_system();  // R2 pairs with A2
    cudaGraphLaunch(graphs_.of_kind[kind][2 * index + (sequence & 1)], cudaStreamGraphFireAndForget);
  }
  __device__ uint64_t completed() { return load_acquire(&block_.state().completion); }  // A3 pairs with R3

  __device__ void idle(uint32_t) {}
  __device__ bool alive() { return true; }  // the host's watchdog writes the stop word, there is no process to look at
  __device__ void linger() { __nanosleep(200000); }

 private:
  const Block block_;
  const CudaGraphs graphs_;
};

}  // namespace blink

#endif  // BLINK_PLATFORM_CUDA_H
