// The scan: all threads look at all slots for new prompts, and at the words that may end a request.
#ifndef BLINK_SCAN_H
#define BLINK_SCAN_H

#include "blink/local.h"
#include "blink/ring.h"

namespace blink {

// Find slots that are pending and not in the queue, and judge their descriptors. Runs at any time; finds nothing twice.
template <class P>
BLINK_DEVICE void scan(const Context<P> &c) {
  P &p = c.platform;
  for (uint32_t slot = p.thread(); slot < kSlots; slot += p.threads()) {
    if (state_of(p.load_relaxed(c.block.ctl(slot))) != BLINK_STATE_PREFILL_PENDING) continue;
    if (c.local.queued[slot] || p.bits(&c.local.fresh[slot / 64]) >> (slot % 64) & 1) continue;
    const uint64_t ctl = p.load_acquire(c.block.ctl(slot));  // A0 pairs with R0
    if (!valid(c.block, *c.block.descriptor(slot), ctl)) set_bit(c, c.local.bad, slot);
    set_bit(c, c.local.fresh, slot);
  }
}

template <class P>
BLINK_DEVICE bool is_cancelled(const Context<P> &c, uint32_t slot) {
  const uint64_t cancel = c.platform.load_acquire(&c.block.descriptor(slot)->cancel);  // A7 pairs with R7
  const uint32_t generation = cancel >> BLINK_CANCEL_GENERATION_SHIFT & BLINK_CANCEL_GENERATION_MASK;
  return generation == generation_of(c.platform.load_relaxed(c.block.ctl(slot)));
}

// A slot of an epoch that is gone: the frontend that submitted it was replaced.
template <class P>
BLINK_DEVICE bool is_fenced(const Context<P> &c, uint32_t slot) {
  const uint64_t epoch = c.platform.load_acquire(&c.block.header()->frontend_epoch);  // A7 pairs with R7
  return (epoch & BLINK_CTL_EPOCH_MASK) != epoch_of(c.platform.load_relaxed(c.block.ctl(slot)));
}

template <class P>
BLINK_DEVICE void look_at_slot(const Context<P> &c, uint32_t slot) {
  if (is_cancelled(c, slot)) {
    set_bit(c, c.local.cancelled, slot);
  } else if (is_fenced(c, slot)) {
    set_bit(c, c.local.fenced, slot);
  }
}

// Cancels and fences of the queue, the batch and the prefill that has just ended, and the time limit of the latter two.
template <class P>
BLINK_DEVICE void look_at_words(const Context<P> &c) {
  P &p = c.platform;
  const Pending *waiting = c.block.waiting() + c.local.waiting_first;
  for (uint32_t i = p.thread(); i < c.local.waiting_count; i += p.threads()) look_at_slot(c, waiting[i].slot);
  const uint64_t limit_ns = c.block.config().time_limit_ns;
  const uint64_t now_ns = c.local.moved_ns;  // one time for all threads: that of the stores before this boundary
  const uint32_t members = c.local.batch_count + c.local.claimed_count;
  for (uint32_t i = p.thread(); i < members; i += p.threads()) {
    const uint32_t slot = i < c.local.batch_count ? c.local.batch[i] : c.local.claimed[i - c.local.batch_count];
    look_at_slot(c, slot);
    if (limit_ns && now_ns - c.block.live(slot).claimed_ns >= limit_ns) set_bit(c, c.local.overtime, slot);
  }
}

}  // namespace blink

#endif  // BLINK_SCAN_H
