// Kernels that measure what the scheduler's loop is made of, that compare the GPU's clock with the host's, and that let two
// instances race.
#include "blink/platform_cuda.h"
#include "blink/race.h"
#include "blink/scheduler.h"

using namespace blink;

// Answers `rounds` numbers of the host with the time at which each was seen.
extern "C" __global__ void blink_clock(Control *control, uint32_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    while (device_load_acquire(&control->ping) < round) {
    }
    device_store_relaxed(&control->pong_ns, device_now_ns());
    device_store_release(&control->pong, round);
  }
}

// The same for two words anywhere: `asked` in device memory is written by the copy engine.
extern "C" __global__ void blink_echo(const uint64_t *asked, uint64_t *answered, uint32_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    while (device_load_acquire(asked) < round) {
    }
    device_store_release(answered, round);
  }
}

// Durations of `rounds` scans of all slots by one thread block, in nanoseconds (the clock ticks in steps of 32).
extern "C" __global__ void __launch_bounds__(256, 1) blink_time_scan(void *memory, CudaHost host, uint64_t *out_ns,
                                                                     uint32_t rounds) {
  __shared__ Local local;
  __shared__ Config config;
  const Block block(memory, in_shared_memory(memory, config));
  CudaPlatform platform(block, host);
  unsigned char *bytes = reinterpret_cast<unsigned char *>(&local);
  for (uint32_t i = threadIdx.x; i < sizeof(Local); i += blockDim.x) bytes[i] = 0;
  __syncthreads();
  const Context<CudaPlatform> context{platform, block, local};
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint64_t begun_ns = device_now_ns();
    scan(context);
    __syncthreads();
    if (threadIdx.x == 0) out_ns[round] = device_now_ns() - begun_ns;
    __syncthreads();
  }
}

// Two instances of one thread each, a block apart, claim the same pending slot at once. `memory` holds two blocks of
// blink/block.h; `words`, zeroed: who has won, the number of meetings so far twice, how often both had won.
extern "C" __global__ void __launch_bounds__(1, 1) blink_race(void *memory, CudaHost host, uint32_t slot,
                                                              uint32_t rounds, uint64_t *words) {
  const uint32_t who = blockIdx.x;
  const Block first(memory);
  const Config apart = who ? second_instance(first.config()) : first.config();
  const Block block(memory, &apart);
  CudaPlatform platform(block, host);
  const Context<CudaPlatform> context{platform, block, *block.at<Local>(apart.local_offset)};
  unsigned long long *met = reinterpret_cast<unsigned long long *>(words + 2);
  uint64_t meetings = 0;
  const auto meet = [&] {
    __threadfence();
    atomicAdd(met, 1ull);
    meetings += 2;
    while (device_load_acquire(words + 2) < meetings) {
    }
  };
  const uint64_t doubles = race_claims(context, who, slot, rounds, words, meet);
  if (!who) words[3] = doubles;
}
