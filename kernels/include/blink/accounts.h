// What the scheduler counts for the report of a run. The leader alone.
#ifndef BLINK_ACCOUNTS_H
#define BLINK_ACCOUNTS_H

#include "blink/local.h"

namespace blink {

// Integrals of batch and KV occupancy up to now; `busy` says what the time since the last call went into.
enum class Busy { LOOP, IDLE, PREFILL, DECODE };

template <class P>
BLINK_DEVICE void account(const Context<P> &c, Busy busy, uint64_t now_ns) {
  State &state = c.block.state();
  const uint64_t elapsed = state.accounted_ns ? now_ns - state.accounted_ns : 0;
  state.accounted_ns = now_ns;
  const uint64_t running = c.local.batch_count + c.local.claimed_count;
  const uint64_t blocks = c.block.config().kv_block_count - state.free_block_count;
  state.batch_ns += running * elapsed;
  state.kv_block_ns += blocks * elapsed;
  if (running > state.batch_max) state.batch_max = running;
  if (blocks > state.kv_blocks_max) state.kv_blocks_max = blocks;
  switch (busy) {
    case Busy::LOOP: state.loop_ns += elapsed; break;
    case Busy::IDLE: state.idle_ns += elapsed; break;
    case Busy::PREFILL: state.prefill_ns += elapsed; break;
    case Busy::DECODE: state.decode_ns += elapsed; break;
  }
  switch (c.local.blocked_before) {
    case Blocked::NOT: break;
    case Blocked::BATCH: state.wait_batch_ns += elapsed; break;
    case Blocked::KV: state.wait_kv_ns += elapsed; break;
    case Blocked::WINDOW: state.wait_window_ns += elapsed; break;
    case Blocked::TURN: state.wait_gpu_ns += elapsed; break;
  }
}

template <class P>
BLINK_DEVICE void count_launch(const Context<P> &c, Kind kind) {
  State &state = c.block.state();
  const Local &local = c.local;
  if (kind == Kind::DECODE) {
    ++state.decode_launches;
    state.decode_rows += local.shape.batch;
    state.padded_decode_rows += local.shape.batch - local.batch_count;
    return;
  }
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < local.claimed_count; ++i) tokens += c.block.live(local.claimed[i]).prompt_tokens;
  const uint64_t places = static_cast<uint64_t>(local.shape.batch) * local.shape.sequence;
  ++state.prefill_launches;
  state.prefill_tokens += places;
  state.padded_prefill_tokens += places - tokens;
}

}  // namespace blink

#endif  // BLINK_ACCOUNTS_H
