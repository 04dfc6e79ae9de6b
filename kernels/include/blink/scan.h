// The scan: all threads look at all slots for new prompts, and at the words that may end a request.
#ifndef BLINK_SCAN_H
#define BLINK_SCAN_H

#include "blink/local.h"
#include "blink/ring.h"

namespace blink {

// Calls `found(slot)` for the slots from `first` to `end` whose state, seen without an order, is `state`; each thread for
// its own. Words are loaded several at a time: a load that waits for the one before takes a GPU most of a microsecond.
template <class P, class Found>
BLINK_DEVICE void each_in_state(const Context<P> &c, uint32_t first, uint32_t end, uint32_t state, Found found) {
  constexpr uint32_t kAhead = 8;
  P &p = c.platform;
  const blink_status *status = c.block.status();
  const uint32_t stride = p.threads();
  for (uint32_t slot = first + p.thread(); slot < end; slot += stride * kAhead) {
    uint64_t words[kAhead];
    BLINK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      words[i] = slot + i * stride < end ? p.load_relaxed(&status[slot + i * stride].ctl) : ~uint64_t{0};
    }
    BLINK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (state_of(words[i]) == state) found(slot + i * stride);
    }
  }
}

// Find slots that are pending and not in the queue, and judge their descriptors. Runs at any time; finds nothing twice.
template <class P>
BLINK_DEVICE void scan(const Context<P> &c, uint32_t first = 0, uint32_t end = kSlots) {
  each_in_state(c, first, end, BLINK_STATE_PREFILL_PENDING, [&](uint32_t slot) {
    P &p = c.platform;
    if (c.local.queued[slot] || p.bits(&c.local.fresh[slot / 64]) >> (slot % 64) & 1) return;
    const uint64_t ctl = p.load_acquire(c.block.ctl(slot));  // A0 pairs with R0
    if (!valid(c.block, *c.block.descriptor(slot), ctl)) set_bit(c, c.local.bad, slot);
    set_bit(c, c.local.fresh, slot);
  });
}

// One of the platform's parts of a scan; `number` counts them from the first.
template <class P>
BLINK_DEVICE void scan_part(const Context<P> &c, uint32_t number) {
  constexpr uint32_t kSlotsEach = kSlots / P::kScanParts;
  const uint32_t first = number % P::kScanParts * kSlotsEach;
  scan(c, first, first + kSlotsEach);
}

BLINK_PURE bool is_cancelled(uint64_t cancel, uint64_t ctl) {
  return (cancel >> BLINK_CANCEL_GENERATION_SHIFT & BLINK_CANCEL_GENERATION_MASK) == generation_of(ctl);
}

BLINK_PURE bool is_fenced(uint64_t epoch, uint64_t ctl) { return (epoch & BLINK_CTL_EPOCH_MASK) != epoch_of(ctl); }

// The words that end a request are looked at without an order, all at once: only one that does is loaded again with
// acquire order. A loop over words that each wait for the one before would take a microsecond a word on a GPU.
template <class P>
BLINK_DEVICE bool is_cancelled(const Context<P> &c, uint32_t slot) {
  return is_cancelled(c.platform.load_relaxed(&c.block.descriptor(slot)->cancel),
                      c.platform.load_relaxed(c.block.ctl(slot))) &&
         is_cancelled(c.platform.load_acquire(&c.block.descriptor(slot)->cancel),  // A7 pairs with R7
                      c.platform.load_relaxed(c.block.ctl(slot)));
}

// A slot of an epoch that is gone: the frontend that submitted it was replaced.
template <class P>
BLINK_DEVICE bool is_fenced(const Context<P> &c, uint32_t slot) {
  return is_fenced(c.platform.load_relaxed(&c.block.header()->frontend_epoch),
                   c.platform.load_relaxed(c.block.ctl(slot))) &&
         is_fenced(c.platform.load_acquire(&c.block.header()->frontend_epoch),  // A7 pairs with R7
                   c.platform.load_relaxed(c.block.ctl(slot)));
}

template <class P>
BLINK_DEVICE void look_at_slot(const Context<P> &c, uint32_t slot) {
  P &p = c.platform;
  const uint64_t cancel = p.load_relaxed(&c.block.descriptor(slot)->cancel), ctl = p.load_relaxed(c.block.ctl(slot)),
                 epoch = p.load_relaxed(&c.block.header()->frontend_epoch);
  if (!is_cancelled(cancel, ctl) && !is_fenced(epoch, ctl)) return;
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
