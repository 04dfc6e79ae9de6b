// The queue and the batch: who waits, who runs, and how a request enters and leaves. The leader alone.
#ifndef BLINK_BATCH_H
#define BLINK_BATCH_H

#include "blink/kv_blocks.h"
#include "blink/local.h"
#include "blink/ring.h"
#include "blink/scan.h"

namespace blink {

// --- the queue: (request_id, slot) ascending, first come first served ---

BLINK_PURE bool before(const Pending &a, const Pending &b) {
  return a.request_id != b.request_id ? a.request_id < b.request_id : a.slot < b.slot;
}

template <class P>
BLINK_DEVICE void enqueue(const Context<P> &c, const Pending &prompt) {
  Local &local = c.local;
  if (local.waiting_first + local.waiting_count == kWaitingCapacity) {
    Pending *all = c.block.waiting();
    for (uint32_t i = 0; i < local.waiting_count; ++i) all[i] = all[local.waiting_first + i];
    local.waiting_first = 0;
  }
  Pending *waiting = c.block.waiting() + local.waiting_first;
  uint32_t at = local.waiting_count++;
  for (; at && before(prompt, waiting[at - 1]); --at) waiting[at] = waiting[at - 1];
  waiting[at] = prompt;
  local.queued[prompt.slot] = 1;
}

template <class P>
BLINK_DEVICE void leave_queue(const Context<P> &c, uint32_t slot) {
  Pending *waiting = c.block.waiting() + c.local.waiting_first;
  uint32_t at = 0;
  while (waiting[at].slot != slot) ++at;
  --c.local.waiting_count;
  for (; at < c.local.waiting_count; ++at) waiting[at] = waiting[at + 1];
  c.local.queued[slot] = 0;
}

// --- T3 and T9 ---

// One store that ends a request with a status, its cancel_seen before it where the status has one.
template <class P>
BLINK_DEVICE void complete(const Context<P> &c, uint32_t slot, Event event, uint32_t status) {
  P &p = c.platform;
  const uint64_t word = p.load_relaxed(c.block.ctl(slot)), t_ns = p.now_ns(), step = c.block.state().step;
  if (status == BLINK_STATUS_CANCELLED || status == BLINK_STATUS_FENCED) {
    record(c, slot_record(t_ns, step, Event::CANCEL_SEEN, slot, 0, word, 0, status));
  }
  const uint64_t after = moved(word, BLINK_STATE_DECODE_COMPLETED, status, 0);
  record(c, slot_record(t_ns, step, event, slot, state_of(word), after));
  p.store_release(c.block.ctl(slot), after);  // R1 pairs with A1: the tokens so far were published before
}

// Places and blocks of an ended request go back.
template <class P>
BLINK_DEVICE void release(const Context<P> &c, uint32_t slot) {
  State &state = c.block.state();
  const Live &live = c.block.live(slot);
#ifndef BLINK_MUTANT_KV_BLOCKS_RETURNED_AT_CLAIM
  return_blocks(c.block, live.block_count, c.block.block_table(live.place));
#endif
  c.block.free_places()[state.free_place_count++] = live.place;
}

// --- the boundary ---

// New prompts, then cancels and fences of those that wait: the rejects in the order of their slots.
template <class P>
BLINK_DEVICE void take_in(const Context<P> &c) {
  Local &local = c.local;
  for (uint32_t word = 0; word < kSlotWords; ++word) {
    uint64_t set = local.fresh[word] | local.cancelled[word] | local.fenced[word];
    for (uint32_t bit = 0; set; ++bit, set >>= 1) {
      if (!(set & 1)) continue;
      const uint32_t slot = word * 64 + bit;
      const bool is_fresh = has_bit(local.fresh, slot);
      if (!is_fresh && !local.queued[slot]) continue;  // it runs: aborts come later
      uint32_t status = BLINK_STATUS_NONE;
      if (is_fresh && has_bit(local.bad, slot)) {
        status = BLINK_STATUS_BAD_DESCRIPTOR;
      } else if (is_fresh ? is_cancelled(c, slot) : has_bit(local.cancelled, slot)) {
        status = BLINK_STATUS_CANCELLED;
      } else if (is_fresh ? is_fenced(c, slot) : has_bit(local.fenced, slot)) {
        status = BLINK_STATUS_FENCED;
      }
      if (status) {
        if (!is_fresh) leave_queue(c, slot);
        complete(c, slot, Event::REJECT, status);
      } else {
        const blink_descriptor &d = *c.block.descriptor(slot);
        enqueue(c, {d.request_id, slot, d.prompt_tokens, d.output_tokens_max, 0});
      }
    }
  }
}

// Who is in the batch has changed: what was derived from it is no longer right.
BLINK_PURE void batch_changed(Local &local) { local.kv_longest = local.rows_stand = 0; }

// A member of the batch moves up to a place that became free.
BLINK_PURE void keep(Local &local, uint32_t to, uint32_t from, uint32_t kv_length) {
  local.batch[to] = local.batch[from];
  local.kv_length[to] = kv_length;
}

// Requests of the batch that end without a token, in the order of their slots.
template <class P>
BLINK_DEVICE void abort_ended(const Context<P> &c) {
  Local &local = c.local;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < local.batch_count; ++i) {
    const uint32_t slot = local.batch[i];
    uint32_t status = BLINK_STATUS_NONE;
    if (has_bit(local.cancelled, slot)) {
      status = BLINK_STATUS_CANCELLED;
    } else if (has_bit(local.fenced, slot)) {
      status = BLINK_STATUS_FENCED;
    } else if (has_bit(local.overtime, slot)) {
      status = BLINK_STATUS_TIME_LIMIT;
    }
#ifdef BLINK_MUTANT_CANCEL_SEEN_AND_IGNORED
    if (status == BLINK_STATUS_CANCELLED) {
      const uint64_t word = c.platform.load_relaxed(c.block.ctl(slot));
      record(c, slot_record(c.platform.now_ns(), c.block.state().step, Event::CANCEL_SEEN, slot, 0, word, 0, status));
      status = BLINK_STATUS_NONE;
    }
#endif
    if (!status) {
      keep(local, kept++, i, local.kv_length[i]);
      continue;
    }
    complete(c, slot, Event::ABORT, status);
    local.kv_tokens -= local.kv_length[i];
    release(c, slot);
  }
  if (kept != local.batch_count) batch_changed(local);
  local.batch_count = kept;
}

template <class P>
BLINK_DEVICE void clear_sets(const Context<P> &c) {
  Local &local = c.local;
  local.any = 0;
  for (uint32_t i = 0; i < kSlotWords; ++i) {
    local.fresh[i] = local.bad[i] = local.cancelled[i] = local.fenced[i] = local.overtime[i] = 0;
    local.adopted[i] = 0;
  }
}

// --- entering and staying ---

// T2: the head of the queue becomes part of the next prefill. False if the slot is not as the scan saw it.
template <class P>
BLINK_DEVICE bool claim(const Context<P> &c, const Pending &prompt, uint64_t now_ns) {
  P &p = c.platform;
  State &state = c.block.state();
  uint64_t *ctl = c.block.ctl(prompt.slot);
  const uint64_t seen = p.load_acquire(ctl);  // A6 pairs with R6
  const uint64_t after = moved(seen, BLINK_STATE_PREFILL_PROCESSING, BLINK_STATUS_NONE, 0);
  if (state_of(seen) != BLINK_STATE_PREFILL_PENDING) return false;
#ifdef BLINK_MUTANT_CLAIM_WITHOUT_CAS
  p.linger();
  p.store_release(ctl, after);
#else
  if (!p.compare_and_swap(ctl, seen, after)) return false;
#endif
  const blink_descriptor &d = *c.block.descriptor(prompt.slot);
  Live &live = c.block.live(prompt.slot);
  const uint32_t need = kv_blocks_needed(d.prompt_tokens, d.output_tokens_max, c.block.config().block_tokens);
  live.request_id = d.request_id;
  live.claimed_ns = now_ns;
  live.prompt_offset = d.prompt_offset;
  live.prompt_tokens = d.prompt_tokens;
  live.output_offset = d.output_offset;
  live.limit = limit_of(d);
  live.token_count = 0;
  live.place = c.block.free_places()[--state.free_place_count];
  live.block_count = need;
  take_blocks(c.block, need, c.block.block_table(live.place));
#ifdef BLINK_MUTANT_KV_BLOCKS_RETURNED_AT_CLAIM
  return_blocks(c.block, need, c.block.block_table(live.place));
#endif
  record(c, slot_record(live.claimed_ns, state.step, Event::CLAIM, prompt.slot, BLINK_STATE_PREFILL_PENDING, after,
                        need));
  return true;
}

// Put a slot into the batch, which stays ascending.
template <class P>
BLINK_DEVICE void join_batch(const Context<P> &c, uint32_t slot) {
  Local &local = c.local;
  uint32_t at = local.batch_count++;
  for (; at && local.batch[at - 1] > slot; --at) keep(local, at, at - 1, local.kv_length[at - 1]);
  const Live &live = c.block.live(slot);
  local.batch[at] = static_cast<uint16_t>(slot);
  local.kv_length[at] = live.prompt_tokens + live.token_count;
  local.kv_tokens += local.kv_length[at];
  batch_changed(local);
}

// After a decode: who has ended leaves. The others have one KV token more, which publishing has counted for each.
template <class P>
BLINK_DEVICE void settle_decode(const Context<P> &c) {
  Local &local = c.local;
  if (!local.any_end) {
    local.kv_tokens += local.batch_count;
    if (local.kv_longest) ++local.kv_longest;
    return;
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i < local.batch_count; ++i) {
    if (local.end[i]) {
      local.kv_tokens -= local.kv_length[i] - 1;
      release(c, local.batch[i]);
    } else {
      ++local.kv_tokens;
      keep(local, kept++, i, local.kv_length[i]);
    }
  }
  local.batch_count = kept;
  local.any_end = 0;
  batch_changed(local);
}

// After a prefill: who goes on joins the batch.
template <class P>
BLINK_DEVICE void settle_prefill(const Context<P> &c) {
  Local &local = c.local;
  for (uint32_t i = 0; i < local.claimed_count; ++i) {
    if (local.end[i]) {
      release(c, local.claimed[i]);
    } else {
      join_batch(c, local.claimed[i]);
    }
  }
  local.claimed_count = 0;
  local.any_end = 0;
}

template <class P>
BLINK_DEVICE uint32_t longest_kv(const Context<P> &c) {
  uint32_t longest = c.local.kv_longest;
  for (uint32_t i = 0; !c.local.kv_longest && i < c.local.batch_count; ++i) {
    if (c.local.kv_length[i] > longest) longest = c.local.kv_length[i];
  }
  return c.local.kv_longest = longest;
}

}  // namespace blink

#endif  // BLINK_BATCH_H
