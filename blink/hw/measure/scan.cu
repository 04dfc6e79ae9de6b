// Times one block of 256 threads that scans the control words of 4096 slots at the ring's 16-byte stride.
// Build and run: nvcc -std=c++17 -arch=sm_90 -I kernels/include scan.cu -o scan && ./scan
#include <algorithm>
#include <cstdio>
#include <vector>

#include "blink/ring_layout.h"

__device__ unsigned long long now_ns() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ uint64_t load_acquire(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

__device__ uint64_t load_relaxed(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

template <bool Acquire, bool Interleaved>
__global__ void scan(const blink_status *status, unsigned *found, long long *cycles, int rounds) {
  __shared__ unsigned pending;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) pending = 0;
    __syncthreads();
    const long long start = clock64();
    unsigned mine = 0;
    const unsigned each = BLINK_SLOT_COUNT / 256;
#pragma unroll
    for (unsigned i = 0; i < each; ++i) {
      const unsigned slot = Interleaved ? i * 256 + threadIdx.x : threadIdx.x * each + i;
      const uint64_t word = Acquire ? load_acquire(&status[slot].ctl) : load_relaxed(&status[slot].ctl);
      mine += (word & BLINK_CTL_STATE_MASK) == BLINK_STATE_PREFILL_PENDING;
    }
    if (mine) atomicAdd(&pending, mine);
    __syncthreads();
    if (threadIdx.x == 0) {
      cycles[round] = clock64() - start;
      *found = pending;
    }
    __syncthreads();
  }
}

__global__ void rate(double *ghz) {
  const unsigned long long t0 = now_ns();
  const long long c0 = clock64();
  while (now_ns() - t0 < 20000000) {
  }
  *ghz = double(clock64() - c0) / double(now_ns() - t0);
}

template <bool Acquire, bool Interleaved>
void run(const char *name, const blink_status *status, double ghz) {
  const int rounds = 2000;
  unsigned *found;
  long long *cycles;
  cudaMalloc(&found, sizeof *found);
  cudaMalloc(&cycles, rounds * sizeof *cycles);
  scan<Acquire, Interleaved><<<1, 256>>>(status, found, cycles, rounds);
  std::vector<long long> host(rounds);
  cudaMemcpy(host.data(), cycles, rounds * sizeof(long long), cudaMemcpyDeviceToHost);
  std::sort(host.begin(), host.end());
  printf("%-24s p50 %.0f ns  p99 %.0f ns\n", name, host[rounds / 2] / ghz, host[rounds * 99 / 100] / ghz);
}

int main() {
  blink_status *status;
  cudaMalloc(&status, BLINK_STATUS_ARRAY_BYTES);
  cudaMemset(status, 0, BLINK_STATUS_ARRAY_BYTES);
  double *ghz_device, ghz;
  cudaMalloc(&ghz_device, sizeof ghz);
  rate<<<1, 1>>>(ghz_device);
  cudaMemcpy(&ghz, ghz_device, sizeof ghz, cudaMemcpyDeviceToHost);
  run<false, true>("relaxed, interleaved", status, ghz);
  run<false, false>("relaxed, contiguous", status, ghz);
  run<true, true>("acquire, interleaved", status, ghz);
  run<true, false>("acquire, contiguous", status, ghz);
  printf("%.3f GHz, %s\n", ghz, cudaGetErrorString(cudaDeviceSynchronize()));
  return cudaGetLastError() != cudaSuccess;
}
