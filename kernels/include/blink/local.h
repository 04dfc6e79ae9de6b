// What one scheduler instance keeps in the block's fast memory: a cache that a successor rebuilds from the ring.
#ifndef BLINK_LOCAL_H
#define BLINK_LOCAL_H

#include "blink/policy.h"
#include "blink/trace_record.h"

namespace blink {

enum class Outcome : uint32_t { RUNNING = 0, DONE = 1, OVERDUE = 2, ABANDONED = 3 };
enum class Unsettled : uint32_t { NOTHING = 0, PREFILL = 1, DECODE = 2 };

struct Local {
  // Sets of slots, one bit each; threads set bits, the leader reads and clears them at the boundary.
  uint64_t fresh[kSlotWords];      // pending and not in the queue
  uint64_t bad[kSlotWords];        // ... with a descriptor that may not be claimed
  uint64_t cancelled[kSlotWords];  // in the queue or in the batch, and cancelled, fenced or out of time
  uint64_t fenced[kSlotWords];
  uint64_t overtime[kSlotWords];
  uint64_t adopted[kSlotWords];  // found decoding by a fresh instance
  uint64_t any_end;              // not 0 if a token that was just published ended a request
  uint64_t any;                  // not 0 once a bit of a set was set: most boundaries find nothing to look at

  uint8_t queued[kSlots];     // 1 if the slot is in the queue
  uint8_t end[kSlots];        // by position in the batch (or among the claimed): the status its last token brought
  uint16_t batch[kSlots];     // slots that decode (or are paused), ascending
  uint32_t kv_length[kSlots]; // by position in the batch: tokens of the prompt and of the output so far
  uint16_t claimed[kSlots];   // slots of the running prefill, in arrival order
  uint32_t batch_count, claimed_count;
  uint32_t waiting_first, waiting_count;  // of Block::waiting()

  Decision decision;
  Blocked blocked_before;
  GraphShape shape;
  Unsettled unsettled;
  uint32_t scanned;           // a scan has been done since the last boundary
  uint32_t idle_tries;
  Outcome outcome[2];         // of waiting for a graph, in turns, so that one barrier a try is enough
  uint64_t launched_ns;
  uint64_t moved_ns;          // the time of what all threads do next, read once by the leader; then of the boundary after it
  uint64_t record_next;       // the leader's head of the trace, not yet committed
  uint64_t record_place;      // where the threads' next records stand
  uint64_t records_committed; // up to here the host sees them
  uint64_t trace_tail;        // up to here the host had drained them when the leader last looked
  uint64_t kv_tokens;         // live KV tokens of the batch
  uint32_t kv_longest;        // of kv_length; 0 if the batch has changed since it was last computed
  uint32_t rows_stand;        // 1 while the batch stands in the input rows as it is
};
static_assert(sizeof(Local) % 8 == 0, "Local is cleared by words");
static_assert(sizeof(Local) < 48 * 1024, "Local must fit the static shared memory of a block");

BLINK_PURE bool has_bit(const uint64_t *set, uint32_t slot) { return set[slot / 64] >> (slot % 64) & 1; }

// Everything that the parts of the scheduler work on, as each thread sees it.
template <class P>
struct Context {
  P &platform;
  const Block &block;
  Local &local;
};

template <class P>
BLINK_DEVICE void set_bit(const Context<P> &c, uint64_t *set, uint32_t slot) {
  c.platform.set_bits(&set[slot / 64], uint64_t{1} << (slot % 64));
  c.platform.set_bits(&c.local.any, 1);
}

// --- records by the leader ---

template <class P>
BLINK_DEVICE void record(const Context<P> &c, const Record &row) {
  TraceRing<P> trace(c.platform, c.block);
  trace.put(trace.reserve(&c.local.record_next, &c.local.trace_tail, 1), row);
}

template <class P>
BLINK_DEVICE void commit_records(const Context<P> &c) {
  if (c.local.record_next == c.local.records_committed) return;
  c.local.records_committed = c.local.record_next;
  TraceRing<P>(c.platform, c.block).commit(c.local.record_next);
}

template <class P>
BLINK_DEVICE void reserve_records(const Context<P> &c, uint32_t count) {
  c.local.record_place = TraceRing<P>(c.platform, c.block).reserve(&c.local.record_next, &c.local.trace_tail, count);
}

// A record among those that the leader has reserved.
template <class P>
BLINK_DEVICE void record_at(const Context<P> &c, uint32_t position, const Record &row) {
  const uint64_t place = c.local.record_place;
  if (place != TraceRing<P>::kNone) TraceRing<P>(c.platform, c.block).put(place + position, row);
}

BLINK_PURE Record slot_record(uint64_t t_ns, uint64_t step, Event event, uint32_t slot, uint32_t from, uint64_t ctl,
                              uint32_t detail = 0, uint32_t status = 0) {
  return {t_ns, ctl, static_cast<uint32_t>(step), what(event, from, slot), detail, status};
}

BLINK_PURE Record graph_record(uint64_t t_ns, uint64_t step, Event event, Kind kind, const GraphShape &shape,
                               uint32_t live) {
  const uint64_t captured = shape.batch | static_cast<uint64_t>(shape.sequence) << 32;
  return {t_ns, captured, static_cast<uint32_t>(step), what(event, static_cast<uint32_t>(kind), kNoSlot), live, 0};
}

}  // namespace blink

#endif  // BLINK_LOCAL_H
