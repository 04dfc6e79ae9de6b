// The watchdog: a graph that is overdue cannot be killed from the device, so the scheduler gives its requests up.
#ifndef BLINK_WATCHDOG_H
#define BLINK_WATCHDOG_H

#include "blink/batch.h"

namespace blink {

// What became of the graph, as the leader sees it now. The heartbeat goes on while a graph runs.
template <class P>
BLINK_DEVICE Outcome watch(const Context<P> &c) {
  P &p = c.platform;
  const State &state = c.block.state();
  if (p.completed() >= state.graph_sequence) return Outcome::DONE;  // numbers are compared, no flag is ever reset
  const uint64_t now_ns = p.now_ns(), timeout_ns = c.block.config().graph_timeout_ns;
  p.beat(now_ns);
  if (timeout_ns && now_ns - c.local.launched_ns > timeout_ns) return Outcome::OVERDUE;
  return p.alive() ? Outcome::RUNNING : Outcome::ABANDONED;
}

// T9 with status ENGINE for everything that was claimed, in the order of slots.
template <class P>
BLINK_DEVICE void abort_all(const Context<P> &c) {
  Local &local = c.local;
  for (uint32_t i = 0; i < local.claimed_count; ++i) join_batch(c, local.claimed[i]);
  local.claimed_count = 0;
  for (uint32_t i = 0; i < local.batch_count; ++i) {
    complete(c, local.batch[i], Event::ABORT, BLINK_STATUS_ENGINE);
    release(c, local.batch[i]);
  }
  local.batch_count = 0;
  local.kv_tokens = 0;
  batch_changed(local);
}

}  // namespace blink

#endif  // BLINK_WATCHDOG_H
