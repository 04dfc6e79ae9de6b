// The scheduler's kernel: one block of 256 threads, the single node of a graph that is instantiated for device launch.
//
// Compile: nvcc -std=c++17 -arch=sm_90 -rdc=true -Ikernels/include -c kernels/src/scheduler.cu; link with cudadevrt.
#include "blink/platform_cuda.h"
#include "blink/scheduler.h"

constexpr unsigned kThreads = 256;

// `memory` is the block of blink/block.h in device memory, created by the host as in native.cpp.
extern "C" __global__ void __launch_bounds__(kThreads, 1) blink_scheduler(void *memory, blink::CudaGraphs graphs) {
  __shared__ blink::Local local;
  const blink::Block block(memory);
  blink::CudaPlatform platform(block, graphs);
  blink::Scheduler<blink::CudaPlatform> scheduler(platform, block, local);
  const blink::Action last = scheduler.run();
  // E3: no child graph runs here. The successor starts when this grid has ended and adopts every slot from memory.
  if (last == blink::Action::RELAUNCH && platform.leader()) {
    cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
  }
}

// The last node of every captured graph: its sampled tokens are in memory, its number becomes visible.
extern "C" __global__ void blink_complete(void *memory) {
  const blink::Block block(memory);
  __threadfence_system();
  const uint64_t sequence = block.input().sequence;
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(&block.state().completion), "l"(sequence) : "memory");  // R3 pairs with A3
}
