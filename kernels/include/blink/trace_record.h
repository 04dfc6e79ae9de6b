// Trace records: 32 bytes each in a ring of memory that the host drains. A full ring drops and counts, it never waits.
#ifndef BLINK_TRACE_RECORD_H
#define BLINK_TRACE_RECORD_H

#include "blink/block.h"

namespace blink {

// Codes of blink/common/events.py.
enum class Event : uint32_t {
  SUBMIT = 0, CLAIM = 1, REJECT = 2, FIRST_TOKEN = 3, FINISH_AT_PREFILL = 4, TOKEN = 5, PAUSE = 6, RESUME = 7,
  FINISH = 8, ABORT = 9, RECYCLE = 10, CANCEL_SEEN = 15, GRAPH_LAUNCHED = 16, GRAPH_DONE = 17, RELAUNCHED = 18,
  RESTARTED = 20,
};
constexpr uint32_t kNoSlot = 0xffff;

// The leader reserves places, any thread fills them, and after a barrier the leader commits them.
template <class P>
class TraceRing {
 public:
  BLINK_DEVICE TraceRing(P &platform, const Block &block) : platform_(platform), block_(block) {}

  // Where `count` records will stand, or kNone if the ring is full. `next` is the leader's private head, `tail` the tail as
  // it was last seen: it is looked at again only when room seems to be short.
  static constexpr uint64_t kNone = ~uint64_t{0};
  BLINK_DEVICE uint64_t reserve(uint64_t *next, uint64_t *tail, uint32_t count) {
    State &state = block_.state();
    const uint64_t capacity = block_.config().trace_capacity;
    if (*next + count - *tail > capacity) *tail = platform_.load_acquire(&state.trace_tail);  // A5 pairs with R5
    if (*next + count - *tail > capacity) {
      platform_.store_relaxed(&state.trace_dropped, state.trace_dropped + count);
      return kNone;
    }
    const uint64_t place = *next;
    *next += count;
    return place;
  }

  BLINK_DEVICE void put(uint64_t place, const Record &record) {
    if (place != kNone) block_.trace()[place & (block_.config().trace_capacity - 1)] = record;
  }

  BLINK_DEVICE void commit(uint64_t next) {
    platform_.store_release(&block_.state().trace_head, next);  // R4 pairs with A4
  }

 private:
  P &platform_;
  const Block &block_;
};

BLINK_PURE uint32_t what(Event event, uint32_t from, uint32_t slot) {
  return static_cast<uint32_t>(event) | from << 8 | slot << 16;
}

}  // namespace blink

#endif  // BLINK_TRACE_RECORD_H
