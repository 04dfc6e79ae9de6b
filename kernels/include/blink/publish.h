// Publishing: tokens into the output area, then control words. All threads; a slot belongs to one thread.
#ifndef BLINK_PUBLISH_H
#define BLINK_PUBLISH_H

#include "blink/local.h"
#include "blink/ring.h"

namespace blink {

template <class P>
BLINK_DEVICE void note_end(const Context<P> &c, uint32_t position, uint32_t status) {
  c.local.end[position] = static_cast<uint8_t>(status);
  if (status) c.platform.set_bits(&c.local.any_end, 1);
}

// The status that a sampled token brings. EOS before the token that the frontend named for the slot is a token like any
// other: its client ignores EOS. (One that wants a longer text gets none: the engine's sampler holds it back.)
template <class P>
BLINK_DEVICE uint32_t status_of(const Context<P> &c, uint32_t slot, const Live &live, uint32_t token) {
  const uint32_t eos_token = c.block.config().eos_token, count = live.token_count + 1;
  const bool is_early = token == eos_token && count < c.block.eos_from(slot);
  return end_status(is_early ? ~eos_token : token, eos_token, count, live.limit);
}

// First half: the sampled token of each slot goes behind those that are published. A barrier must follow.
template <class P>
BLINK_DEVICE void store_tokens(const Context<P> &c, const uint16_t *slots, uint32_t count) {
  for (uint32_t i = c.platform.thread(); i < count; i += c.platform.threads()) {
    const Live &live = c.block.live(slots[i]);
    const uint32_t token = c.block.sampled()[live.place];
#ifdef BLINK_MUTANT_NO_CAPACITY_GUARD
    if (live.token_count < c.block.descriptor(slots[i])->output_capacity)  // keep the mutant inside its own memory
#endif
    c.block.outputs()[live.output_offset + live.token_count] = token;
    note_end(c, i, status_of(c, slots[i], live, token));
  }
}

// Second half: count and status become visible in one store a slot.
template <class P>
BLINK_DEVICE void store_counts(const Context<P> &c, const uint16_t *slots, uint32_t count, Event going_on,
                               Event ended) {
  P &p = c.platform;
  const uint64_t t_ns = c.local.moved_ns, step = c.block.state().step;
  for (uint32_t i = p.thread(); i < count; i += p.threads()) {
    const uint32_t slot = slots[i], status = c.local.end[i];
    uint64_t *ctl = c.block.ctl(slot);
    const uint64_t before = p.load_relaxed(ctl);
    const uint32_t to = status ? BLINK_STATE_DECODE_COMPLETED : BLINK_STATE_DECODE_PROCESSING;
    const uint64_t after = moved(before, to, status, 1);
    ++c.block.live(slot).token_count;
    if (going_on == Event::TOKEN) ++c.local.kv_length[i];  // of the batch, not of a prefill
    record_at(c, i, slot_record(t_ns, step, status ? ended : going_on, slot, state_of(before), after));
    p.store_relaxed(&c.block.status()[slot].pulse, pulse_of(after, step));
    p.store_release(ctl, after);  // R1 pairs with A1: the tokens were stored before the last barrier
  }
}

// Both halves and the barrier between them: T4, T5, T8 in the order that the protocol asks for.
template <class P>
BLINK_DEVICE void publish(const Context<P> &c, const uint16_t *slots, uint32_t count, Event going_on, Event ended) {
#ifdef BLINK_MUTANT_COUNT_BEFORE_TOKEN
  for (uint32_t i = c.platform.thread(); i < count; i += c.platform.threads()) {
    const Live &live = c.block.live(slots[i]);
    note_end(c, i, status_of(c, slots[i], live, c.block.sampled()[live.place]));
  }
  if (c.platform.leader()) c.local.moved_ns = c.platform.now_ns();
  c.platform.barrier();
  store_counts(c, slots, count, going_on, ended);
  c.platform.linger();
  for (uint32_t i = c.platform.thread(); i < count; i += c.platform.threads()) {
    const Live &live = c.block.live(slots[i]);
    c.block.outputs()[live.output_offset + live.token_count - 1] = c.block.sampled()[live.place];
  }
#else
  store_tokens(c, slots, count);
  if (c.platform.leader()) c.local.moved_ns = c.platform.now_ns();
  c.platform.barrier();
  store_counts(c, slots, count, going_on, ended);
#endif
}

// T6 and T7: the whole batch changes state between two steps.
template <class P>
BLINK_DEVICE void move_batch(const Context<P> &c, Event event, uint32_t from, uint32_t to) {
  P &p = c.platform;
  const uint64_t t_ns = c.local.moved_ns, step = c.block.state().step;
  for (uint32_t i = p.thread(); i < c.local.batch_count; i += p.threads()) {
    const uint32_t slot = c.local.batch[i];
    const uint64_t after = moved(p.load_relaxed(c.block.ctl(slot)), to, BLINK_STATUS_NONE, 0);
    record_at(c, i, slot_record(t_ns, step, event, slot, from, after));
    p.store_release(c.block.ctl(slot), after);
  }
}

}  // namespace blink

#endif  // BLINK_PUBLISH_H
