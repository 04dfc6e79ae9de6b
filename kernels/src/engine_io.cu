// The first and the last node of every captured graph, and the stub engine between them.
#include <cuda_runtime.h>

#include "blink/control.h"
#include "blink/device_words.h"
#include "blink/engine_io.h"
#include "blink/graph_marks.h"
#include "blink/stub_engine.h"

using namespace blink;

namespace {

constexpr uint32_t kWarp = 32;

// One row of a decode is one token; of a prefill `sequence` tokens, padded with zeros.
__device__ void fill_tokens(const Block &block, const EngineIo &io, uint32_t row, const Live *live, bool prefill,
                            uint32_t sequence) {
  if (!prefill) {
    if (threadIdx.x == 0) io.tokens[row] = live ? static_cast<int32_t>(block.sampled()[live->place]) : 0;
    return;
  }
  int32_t *tokens = io.tokens + static_cast<uint64_t>(row) * sequence;
  const uint32_t *prompt = live ? block.prompts() + live->prompt_offset : nullptr;
  const uint32_t count = live ? live->prompt_tokens : 0;
  for (uint32_t i = threadIdx.x; i < sequence; i += blockDim.x) {
    tokens[i] = i < count ? static_cast<int32_t>(prompt[i]) : 0;
  }
}

}  // namespace

// `config` is the block's own, which a kernel's parameters bring without a look at memory.

// One block a row of the captured shape. `kind` is a blink::Kind; rows beyond the live ones are padding.
extern "C" __global__ void blink_prologue(void *memory, const __grid_constant__ Config config, EngineIo io, uint32_t kind,
                                         uint32_t sequence, GraphMarks *marks) {
  if (blockIdx.x == 0 && threadIdx.x == 0) mark_begun(marks);
  const Block block(memory, &config);
  const Input &input = block.input();
  const uint32_t row = blockIdx.x;
  const bool prefill = kind == static_cast<uint32_t>(Kind::PREFILL), is_live = row < input.rows;
  const uint32_t slot = is_live ? block.input_rows()[row] : 0;
  const Live *live = is_live ? &block.live(slot) : nullptr;
  fill_tokens(block, io, row, live, prefill, sequence);

  int32_t *table = io.block_tables + static_cast<uint64_t>(row) * io.blocks_per_sequence_max;
  const uint32_t *owned = is_live ? block.block_table(live->place) : nullptr;
  const uint32_t owned_count = is_live ? live->block_count : 0;
  for (uint32_t i = threadIdx.x; i < io.blocks_per_sequence_max; i += blockDim.x) {
    table[i] = static_cast<int32_t>(i < owned_count ? owned[i] : io.scratch_block);
  }
  if (threadIdx.x) return;
  // All loads before the first store: behind a store each would wait for the one before, over PCIe in a mapped ring.
  const blink_descriptor *d = is_live ? block.descriptor(slot) : nullptr;
  const float temperature = is_live ? d->temperature : 0.0f, top_p = is_live ? d->top_p : 1.0f;
  const uint32_t top_k = is_live ? d->top_k : 0, seed = is_live ? d->seed : 0;
  const uint32_t min_tokens = is_live ? block.min_tokens(slot) : 0;
  io.context_tokens[row] = is_live && !prefill ? static_cast<int32_t>(live->prompt_tokens + live->token_count - 1) : 0;
  io.query_tokens[row] = !is_live ? 0 : prefill ? static_cast<int32_t>(live->prompt_tokens) : 1;
  io.temperature[row] = temperature;
  io.top_p[row] = top_p;
  io.top_k[row] = top_k;
  io.seed[row] = seed;
  io.sample_index[row] = is_live ? live->token_count : 0;
  io.min_tokens[row] = min_tokens;
}

// One block. The samples go to their places, then the graph's number becomes visible.
extern "C" __global__ void blink_epilogue(void *memory, const __grid_constant__ Config config, EngineIo io,
                                         GraphMarks *marks) {
  const Block block(memory, &config);
  const Input &input = block.input();
  for (uint32_t row = threadIdx.x; row < input.rows; row += blockDim.x) {
    block.sampled()[block.live(block.input_rows()[row]).place] = io.sampled[row];
  }
  __syncthreads();
  if (threadIdx.x) return;
  mark_ended(marks);
  device_store_release(&block.state().completion, input.sequence);  // R3 pairs with A3
}

// The stub: tokens of stub_engine.h from the buffers of the contract, after the time that the graph takes. A warp a row.
extern "C" __global__ void blink_stub(void *memory, EngineIo io, uint32_t sequence, Control *control) {
  const Block block(memory);
  const Input input = block.input();
  const StubBuffers b = stub_buffers(block);
  const uint64_t begun_ns = device_now_ns(), duration_ns = stub_duration_ns(block, input);
  const uint32_t lane = threadIdx.x % kWarp;
  for (uint32_t row = threadIdx.x / kWarp; row < input.rows; row += blockDim.x / kWarp) {
    const uint32_t slot = block.input_rows()[row];
    const Live &live = block.live(slot);
    if (static_cast<Kind>(input.kind) == Kind::PREFILL) {
      const int32_t *tokens = io.tokens + static_cast<uint64_t>(row) * sequence;
      const uint32_t count = static_cast<uint32_t>(io.query_tokens[row]);
      uint64_t hash = 0;
      for (uint32_t i = lane; i < count; i += kWarp) hash += prompt_hash_at(static_cast<uint32_t>(tokens[i]), i);
      for (uint32_t step = kWarp / 2; step; step /= 2) hash += __shfl_xor_sync(~0u, hash, step);
      if (lane == 0) stub_prefill(block, b, live, hash);
    }
    if (lane == 0) {
      const int32_t *table = io.block_tables + static_cast<uint64_t>(row) * io.blocks_per_sequence_max;
      io.sampled[row] = stub_sample(block, b, slot, reinterpret_cast<const uint32_t *>(table));
    }
  }
  if (threadIdx.x) return;
  while (device_now_ns() - begun_ns < duration_ns) __nanosleep(200);
  if (input.sequence == block.config().hang_at) {
    while (!device_load_relaxed(&control->release)) __nanosleep(20000);  // a test wants this graph to hang
  }
}
