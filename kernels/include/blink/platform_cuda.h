// The scheduler's platform on an NVIDIA GPU: one thread block, words at system scope, device graph launch.
#ifndef BLINK_PLATFORM_CUDA_H
#define BLINK_PLATFORM_CUDA_H

#include <cuda_runtime.h>

#include "blink/block.h"
#include "blink/control.h"
#include "blink/device_words.h"

namespace blink {

// What the host hands over beside the block. Executables of the captured graphs by kind and index, two of each: an
// executable whose completion word was seen may not have retired, and launching it again would be refused, so launches
// alternate.
struct CudaHost {
  cudaGraphExec_t *graphs[2];
  Control *control;
};

// Where everything stands is asked at every step. In device memory the answer would come from L2 each time, since every
// load with acquire order empties L1.
__device__ inline const Config *in_shared_memory(const void *memory, Config &copy) {
  const uint64_t *from = static_cast<const uint64_t *>(memory);
  uint64_t *to = reinterpret_cast<uint64_t *>(&copy);
  for (uint32_t i = threadIdx.x; i < sizeof(Config) / 8; i += blockDim.x) to[i] = from[i];
  __syncthreads();
  return &copy;
}

class CudaPlatform {
 public:
  __device__ CudaPlatform(const Block &block, const CudaHost &host) : block_(block), host_(host) {}

  static constexpr uint32_t kScanParts = 8;  // between two looks at the completion word: two slots a thread

  __device__ uint32_t thread() const { return threadIdx.x; }
  __device__ uint32_t threads() const { return blockDim.x; }
  __device__ bool leader() const { return threadIdx.x == 0; }
  __device__ void barrier() { __syncthreads(); }

  // System scope: the NIC and the host read and write these words. Relaxed loads are not cached in L1 either.
  __device__ uint64_t load_relaxed(const uint64_t *word) const { return device_load_relaxed(word); }
  __device__ uint64_t load_acquire(const uint64_t *word) const { return device_load_acquire(word); }
  __device__ void store_relaxed(uint64_t *word, uint64_t value) { device_store_relaxed(word, value); }
  __device__ void store_release(uint64_t *word, uint64_t value) { device_store_release(word, value); }
  __device__ bool compare_and_swap(uint64_t *word, uint64_t expected, uint64_t desired) {
    return device_compare_and_swap(word, expected, desired);
  }
  __device__ void set_bits(uint64_t *word, uint64_t bits) {
    atomicOr_block(reinterpret_cast<unsigned long long *>(word), bits);
  }
  __device__ uint64_t bits(const uint64_t *word) const {
    return atomicOr_block(reinterpret_cast<unsigned long long *>(const_cast<uint64_t *>(word)), 0ull);
  }

  __device__ uint64_t now_ns() const {
    return block_.config().virtual_clock ? block_.state().virtual_now_ns : device_now_ns();
  }

  // A launch is per thread, so the leader alone calls this. Inputs must be visible before the graph starts.
  __device__ void launch(uint32_t kind, uint32_t index, uint64_t sequence) {
    __threadfence();  // R2 pairs with A2: the graph runs on this device
    const cudaError_t error =
        cudaGraphLaunch(host_.graphs[kind][2 * index + (sequence & 1)], cudaStreamGraphFireAndForget);
    if (error != cudaSuccess) refuse(error, sequence);
  }
  __device__ uint64_t completed() { return load_acquire(&block_.state().completion); }  // A3 pairs with R3

  __device__ bool waits_blindly() const { return false; }

  // A look at the host's memory takes a microsecond, so that the leader looks seldom and remembers.
  __device__ uint64_t stop_word(uint64_t now_ns) {
    if (block_.config().virtual_clock) return 0;
    if (now_ns - looked_ns_ >= kLookNs) {
      looked_ns_ = now_ns;
      stop_ = load_acquire(&host_.control->stop);  // A7 pairs with R7
    }
    return stop_;
  }

  // A store into the host's memory delays the next fence: seldom, too.
  __device__ void beat(uint64_t now_ns) {
    if (now_ns - beaten_ns_ < kBeatNs) return;
    beaten_ns_ = now_ns;
    store_relaxed(&block_.header()->heartbeat, now_ns);
    store_relaxed(&host_.control->heartbeat, now_ns);
  }

  __device__ void idle(uint32_t) {}
  __device__ bool alive() { return true; }  // the host's watchdog sets the stop word; there is no process to look at
  __device__ void linger() { __nanosleep(200000); }

 private:
  // A refused launch never completes, so the watchdog will end its requests; the host reads why.
  __device__ void refuse(cudaError_t error, uint64_t sequence) {
    if (device_load_relaxed(&host_.control->error)) return;
    store_relaxed(&host_.control->error_launch, sequence);
    store_release(&host_.control->error, static_cast<uint64_t>(error));
  }

  static constexpr uint64_t kLookNs = 100000, kBeatNs = 1000000;
  const Block block_;
  const CudaHost host_;
  uint64_t looked_ns_ = 0, beaten_ns_ = 0, stop_ = 0;
};

}  // namespace blink

#endif  // BLINK_PLATFORM_CUDA_H
