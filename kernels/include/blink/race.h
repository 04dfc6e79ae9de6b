// Two instances that claim the same pending slot at once, as a relaunch that overlaps its predecessor would make them.
#ifndef BLINK_RACE_H
#define BLINK_RACE_H

#include "blink/batch.h"

namespace blink {

// The second instance shares the ring of the first. What a scheduler keeps for itself stands in a second block behind it.
BLINK_PURE Config second_instance(const Config &first) {
  Config c = first;
  c.state_offset += first.total_bytes;
  c.live_offset += first.total_bytes;
  c.waiting_offset += first.total_bytes;
  c.free_blocks_offset += first.total_bytes;
  c.free_places_offset += first.total_bytes;
  c.block_tables_offset += first.total_bytes;
  c.input_rows_offset += first.total_bytes;
  c.trace_offset += first.total_bytes;
  c.local_offset += first.total_bytes;
  return c;
}

// `rounds` races for a slot, by one thread of each instance: `who` is 0 or 1, `meet()` returns once both have called it.
// `won` are two words that both see. Returns, to the first, how often both believed that they had it. Must be 0.
template <class P, class Meet>
BLINK_DEVICE uint64_t race_claims(const Context<P> &c, uint32_t who, uint32_t slot, uint32_t rounds, uint64_t *won,
                                  Meet meet) {
  P &p = c.platform;
  const blink_descriptor &d = *c.block.descriptor(slot);
  const uint64_t pending = p.load_acquire(c.block.ctl(slot));
  uint64_t doubles = 0;
  for (uint32_t round = 0; round < rounds; ++round) {
    meet();
    const bool mine = claim(c, {d.request_id, slot, d.prompt_tokens, d.output_tokens_max, 0}, p.now_ns());
    if (mine) release(c, slot);
    p.store_relaxed(&won[who], mine);
    meet();
    if (who) continue;
    doubles += p.load_relaxed(&won[0]) && p.load_relaxed(&won[1]);
    p.store_release(c.block.ctl(slot), pending);
  }
  return doubles;
}

}  // namespace blink

#endif  // BLINK_RACE_H
