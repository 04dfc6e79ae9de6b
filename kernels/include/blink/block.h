// The one block of memory that holds everything: configuration, ring, scheduler state, engine buffers, trace.
//
// The fields of each structure stand once, in a list; the host reads names, offsets and sizes from it (native.cpp,
// `blink_native_describe`), so that no second copy of a layout exists. All fields are 4 or 8 bytes; no implicit padding.
#ifndef BLINK_BLOCK_H
#define BLINK_BLOCK_H

#include "blink/platform.h"
#include "blink/ring_layout.h"

namespace blink {

constexpr uint32_t kSlots = BLINK_SLOT_COUNT;
constexpr uint32_t kSlotWords = kSlots / 64;

// Set by the host before the scheduler starts; constant from then on. Offsets count bytes from the start of the block.
#define BLINK_CONFIG_FIELDS(X)      \
  X(uint64_t, total_bytes)          \
  X(uint64_t, ring_header_offset)   \
  X(uint64_t, status_offset)        \
  X(uint64_t, descriptors_offset)   \
  X(uint64_t, prompts_offset)       \
  X(uint64_t, outputs_offset)       \
  X(uint64_t, state_offset)         \
  X(uint64_t, live_offset)          \
  X(uint64_t, waiting_offset)       \
  X(uint64_t, free_blocks_offset)   \
  X(uint64_t, free_places_offset)   \
  X(uint64_t, block_tables_offset)  \
  X(uint64_t, shapes_offset)        \
  X(uint64_t, input_rows_offset)    \
  X(uint64_t, sampled_offset)       \
  X(uint64_t, trace_offset)         \
  X(uint64_t, report_offset)        \
  X(uint64_t, engine_offset)        \
  X(uint64_t, eos_offset)           \
  X(uint64_t, local_offset)         \
  X(uint64_t, prompt_area_tokens)   \
  X(uint64_t, output_area_tokens)   \
  X(uint64_t, time_limit_ns)        \
  X(uint64_t, graph_timeout_ns)     \
  X(uint64_t, prefill_tokens_max)   \
  X(uint64_t, decode_tokens_max)    \
  X(uint64_t, boot_id)              \
  X(uint64_t, kv_token_q32_ns)      \
  X(uint64_t, hang_at)              \
  X(uint32_t, batch_max)            \
  X(uint32_t, prefill_batch_max)    \
  X(uint32_t, block_tokens)         \
  X(uint32_t, window)               \
  X(uint32_t, prefill_padding_tokens_max) \
  X(uint32_t, resume_after_tokens)  \
  X(uint32_t, kv_block_count)       \
  X(uint32_t, blocks_per_place)     \
  X(uint32_t, eos_token)            \
  X(uint32_t, trace_capacity)       \
  X(uint32_t, prefill_batch_count)  \
  X(uint32_t, prefill_sequence_count) \
  X(uint32_t, prefill_fallback_batch) \
  X(uint32_t, prefill_fallback_sequence) \
  X(uint32_t, decode_batch_count)   \
  X(uint32_t, decode_sequence_count) \
  X(uint32_t, decode_fallback_batch) \
  X(uint32_t, decode_fallback_sequence) \
  X(uint32_t, frontend_epoch)       \
  X(uint32_t, virtual_clock)        \
  X(uint32_t, report)               \
  X(uint32_t, engine_thread)

// What outlives a relaunch. Written by the leader, but for the words that say otherwise.
#define BLINK_STATE_FIELDS(X)        \
  X(uint64_t, step)                  \
  X(uint64_t, instance)              \
  X(uint64_t, launches)              \
  X(uint64_t, graph_sequence)        \
  X(uint64_t, launched_ns)           \
  X(uint64_t, virtual_now_ns)        \
  X(uint32_t, prefilled_tokens)  /* in a row, since the last decode */ \
  X(uint32_t, failed)                \
  X(uint32_t, relaunching)           \
  X(uint32_t, started)               \
  X(uint32_t, free_block_count)      \
  X(uint32_t, free_place_count)      \
  X(uint32_t, waiting_first)         \
  X(uint32_t, waiting_count)         \
  X(uint64_t, trace_dropped)         \
  X(uint64_t, iterations)            \
  X(uint64_t, accounted_ns)          \
  X(uint64_t, scan_count)            \
  X(uint64_t, claim_count)           \
  X(uint64_t, decode_launches)       \
  X(uint64_t, prefill_launches)      \
  X(uint64_t, relaunches)            \
  X(uint64_t, idle_ns)               \
  X(uint64_t, decode_ns)             \
  X(uint64_t, prefill_ns)            \
  X(uint64_t, loop_ns)               \
  X(uint64_t, batch_ns)              \
  X(uint64_t, batch_max)             \
  X(uint64_t, kv_block_ns)           \
  X(uint64_t, kv_blocks_max)         \
  X(uint64_t, decode_rows)           \
  X(uint64_t, padded_decode_rows)    \
  X(uint64_t, prefill_tokens)        \
  X(uint64_t, padded_prefill_tokens) \
  X(uint64_t, wait_batch_ns)         \
  X(uint64_t, wait_kv_ns)            \
  X(uint64_t, wait_window_ns)        \
  X(uint64_t, wait_gpu_ns)           \
  X(uint64_t, completion)   /* the graph's last node */       \
  X(uint64_t, trace_head)   /* records that are complete */   \
  X(uint64_t, trace_tail)   /* the host: records that are drained */

// A claimed request, one a slot; outlives a relaunch.
#define BLINK_LIVE_FIELDS(X)    \
  X(uint64_t, request_id)       \
  X(uint64_t, claimed_ns)       \
  X(uint32_t, prompt_offset)    \
  X(uint32_t, prompt_tokens)    \
  X(uint32_t, output_offset)    \
  X(uint32_t, limit)            \
  X(uint32_t, token_count)      \
  X(uint32_t, place)            \
  X(uint32_t, block_count)      \
  X(uint32_t, reserved)

// One event, 32 bytes. A slot's event carries its control word after the event and the state before it; a graph's event
// has the captured shape in its place. `request_id`, `instance` and `seq` follow from the order of the records.
#define BLINK_RECORD_FIELDS(X)                                      \
  X(uint64_t, t_ns)                                                 \
  X(uint64_t, ctl)    /* graph events: batch | sequence << 32 */    \
  X(uint32_t, step)   /* modulo 2^32 */                             \
  X(uint32_t, what)   /* event | from or graph kind << 8 | slot << 16 */ \
  X(uint32_t, detail) /* claim: KV blocks; graph events: live sequences */ \
  X(uint32_t, status) /* cancel_seen: the status that will follow */

// What the last step decided, for a lock-step comparison. The lists stand behind it: claimed slots, then members.
#define BLINK_REPORT_FIELDS(X)      \
  X(uint32_t, action)               \
  X(uint32_t, blocked)              \
  X(uint32_t, claim_count)          \
  X(uint32_t, paused_count)         \
  X(uint32_t, member_count)         \
  X(uint32_t, graph)                \
  X(uint32_t, graph_batch)          \
  X(uint32_t, graph_sequence)

// Inputs of the graph that is launched next; its rows (slots) stand in input_rows.
#define BLINK_INPUT_FIELDS(X) \
  X(uint64_t, sequence)       \
  X(uint64_t, kv_tokens)      \
  X(uint32_t, kind)           \
  X(uint32_t, index)          \
  X(uint32_t, rows)           \
  X(uint32_t, reserved)

#define BLINK_DECLARE(type, name) type name;
struct Config { BLINK_CONFIG_FIELDS(BLINK_DECLARE) };
struct State { BLINK_STATE_FIELDS(BLINK_DECLARE) };
struct Live { BLINK_LIVE_FIELDS(BLINK_DECLARE) };
struct Record { BLINK_RECORD_FIELDS(BLINK_DECLARE) };
struct Report { BLINK_REPORT_FIELDS(BLINK_DECLARE) };
struct Input { BLINK_INPUT_FIELDS(BLINK_DECLARE) };

#define BLINK_SIZE(type, name) +sizeof(type)
static_assert(sizeof(Config) == 0 BLINK_CONFIG_FIELDS(BLINK_SIZE), "Config has padding");
static_assert(sizeof(Config) % 8 == 0, "Config is copied by words");
static_assert(sizeof(State) == 0 BLINK_STATE_FIELDS(BLINK_SIZE), "State has padding");
static_assert(sizeof(Live) == 48, "Live has padding");
static_assert(sizeof(Record) == 32, "a trace record has 32 bytes");
static_assert(sizeof(Input) == 32, "Input has padding");

// A prompt that waits in the ring: what the guard of a claim needs of it.
struct Pending {
  uint64_t request_id;
  uint32_t slot;
  uint32_t prompt_tokens;
  uint32_t output_tokens_max;
  uint32_t reserved;
};
static_assert(sizeof(Pending) == 24, "Pending has padding");

constexpr uint32_t kEosIgnored = 1u << 31;
constexpr uint32_t kWaitingCapacity = 2 * kSlots;  // the queue drifts upwards; it is moved down when it meets the end

// The parts of the block by type.
class Block {
 public:
  BLINK_PURE explicit Block(void *base) : Block(base, static_cast<const Config *>(base)) {}
  // The same memory under another configuration than the one at its start.
  BLINK_PURE Block(void *base, const Config *config) : base_(static_cast<unsigned char *>(base)), config_(config) {}

  BLINK_PURE const Config &config() const { return *config_; }
  BLINK_PURE State &state() const { return *at<State>(config().state_offset); }
  BLINK_PURE blink_ring_header *header() const { return at<blink_ring_header>(config().ring_header_offset); }
  BLINK_PURE blink_status *status() const { return at<blink_status>(config().status_offset); }
  BLINK_PURE uint64_t *ctl(uint32_t slot) const { return &status()[slot].ctl; }
  BLINK_PURE blink_descriptor *descriptor(uint32_t slot) const {
    return at<blink_descriptor>(config().descriptors_offset) + slot;
  }
  BLINK_PURE uint32_t *prompts() const { return at<uint32_t>(config().prompts_offset); }
  BLINK_PURE uint32_t *outputs() const { return at<uint32_t>(config().outputs_offset); }
  BLINK_PURE Live &live(uint32_t slot) const { return at<Live>(config().live_offset)[slot]; }
  BLINK_PURE Pending *waiting() const { return at<Pending>(config().waiting_offset); }
  BLINK_PURE uint32_t *free_blocks() const { return at<uint32_t>(config().free_blocks_offset); }
  BLINK_PURE uint32_t *free_places() const { return at<uint32_t>(config().free_places_offset); }
  BLINK_PURE uint32_t *block_table(uint32_t place) const {
    return at<uint32_t>(config().block_tables_offset) + static_cast<uint64_t>(place) * config().blocks_per_place;
  }
  // Captured shapes: prefill batches, prefill sequences, decode batches, decode sequences, each ascending.
  BLINK_PURE uint32_t *shapes() const { return at<uint32_t>(config().shapes_offset); }
  BLINK_PURE Input &input() const { return *at<Input>(config().input_rows_offset); }
  BLINK_PURE uint32_t *input_rows() const { return reinterpret_cast<uint32_t *>(&input() + 1); }
  BLINK_PURE uint32_t *sampled() const { return at<uint32_t>(config().sampled_offset); }
  // The token, from 1, that is the first of the slot's request that may be EOS; the frontend writes the word before a
  // submission. 0: any. With kEosIgnored EOS ends nothing, for no count is that high.
  BLINK_PURE uint32_t eos_from(uint32_t slot) const { return at<uint32_t>(config().eos_offset)[slot]; }
  // Tokens that the slot's request must have before EOS may be drawn.
  BLINK_PURE uint32_t min_tokens(uint32_t slot) const {
    const uint32_t first = eos_from(slot) & ~kEosIgnored;
    return first ? first - 1 : 0;
  }
  BLINK_PURE Record *trace() const { return at<Record>(config().trace_offset); }
  BLINK_PURE Report &report() const { return *at<Report>(config().report_offset); }
  BLINK_PURE uint32_t *report_claimed() const { return reinterpret_cast<uint32_t *>(&report() + 1); }
  BLINK_PURE uint32_t *report_members() const { return report_claimed() + kSlots; }
  template <class T>
  BLINK_PURE T *at(uint64_t offset_bytes) const {
    return reinterpret_cast<T *>(base_ + offset_bytes);
  }

 private:
  unsigned char *base_;
  const Config *config_;
};

}  // namespace blink

#endif  // BLINK_BLOCK_H
