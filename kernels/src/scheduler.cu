// The persistent scheduler as a kernel: the only node of a graph that is instantiated for device launch.
//
// Compile: nvcc -std=c++17 -arch=sm_90 -rdc=true -Ikernels/include -c kernels/src/scheduler.cu; link with cudadevrt.
#include "blink/platform_cuda.h"
#include "blink/scheduler.h"

using namespace blink;

constexpr unsigned kThreads = 256;

// `memory` is the block of blink/block.h in device memory, created by the host as in native.cpp.
extern "C" __global__ void __launch_bounds__(kThreads, 1) blink_scheduler(void *memory, CudaHost host) {
  __shared__ Local local;
  __shared__ Config config;
  const Block block(memory, in_shared_memory(memory, config));
  CudaPlatform platform(block, host);
  Scheduler<CudaPlatform> scheduler(platform, block, local);
  const Action last = scheduler.run();
  if (!platform.leader()) return;
  if (last == Action::RELAUNCH) {
    // E3: no child graph runs here. The successor starts when this grid has ended and adopts every slot from memory.
    const cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
    if (error == cudaSuccess) return;
    device_store_relaxed(&host.control->error, static_cast<uint64_t>(error));
  }
  device_store_release(&host.control->ended, 1);
}

// One iteration at the virtual time that stands in the state, for a lock-step comparison: boundary, decision, graph,
// tokens. What an instance keeps in shared memory stands in the block here, since each iteration is a launch of its own.
// The Action is left in the report.
extern "C" __global__ void __launch_bounds__(kThreads, 1) blink_step(void *memory, CudaHost host) {
  __shared__ Config config;
  const Block block(memory, in_shared_memory(memory, config));
  CudaPlatform platform(block, host);
  Local &local = *block.at<Local>(block.config().local_offset);
  Scheduler<CudaPlatform> scheduler(platform, block, local);
  if (!block.state().started) scheduler.adopt();
  platform.barrier();
  if (platform.leader()) {
    local.scanned = 0;  // what was written since the last step is older than this boundary: look again
    local.moved_ns = platform.now_ns();
  }
  platform.barrier();
  const Action action = scheduler.step();
  platform.barrier();
  if (platform.leader()) scheduler.settle();
  platform.barrier();
  if (action == Action::RELAUNCH) Scheduler<CudaPlatform>(platform, block, local).adopt();
}
