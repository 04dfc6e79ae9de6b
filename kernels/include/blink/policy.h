// What the scheduler decides, as pure functions: the same rules as blink/common/policy.py, compared with it step by step.
#ifndef BLINK_POLICY_H
#define BLINK_POLICY_H

#include "blink/block.h"

namespace blink {

enum class Kind : uint32_t { PREFILL = 0, DECODE = 1 };
enum class Action : uint32_t { IDLE = 0, PREFILL = 1, DECODE = 2, RELAUNCH = 3, STOP = 4 };
enum class Blocked : uint32_t { NOT = 0, BATCH = 1, KV = 2, WINDOW = 3, TURN = 4 };

constexpr uint32_t kLaunchesForPause = 2;  // one for the prefill, one for the resumed decode

// A captured graph: sequences, tokens a sequence, and its number among the graphs of its kind.
struct GraphShape {
  uint32_t batch, sequence, index;
};

// The captured shapes of one kind: a dense grid under a token limit, and one largest shape (the last index).
struct GraphTable {
  const uint32_t *batches;
  const uint32_t *sequences;
  uint32_t batch_count, sequence_count;
  uint64_t tokens_max;
  uint32_t fallback_batch, fallback_sequence;
};

struct Limits {
  uint32_t batch_max, prefill_batch_max, block_tokens, window, prefill_padding_tokens_max, resume_after_tokens;
};

struct Decision {
  Action action;
  uint32_t claim_count;
  Blocked blocked;
};

BLINK_PURE uint32_t lower_bound(const uint32_t *ascending, uint32_t count, uint32_t value) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (ascending[middle] < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The smallest captured shape of the grid that holds `batch` sequences of `sequence` tokens; false if there is none.
BLINK_PURE bool dense(const GraphTable &table, uint32_t batch, uint32_t sequence, GraphShape *found) {
  const uint32_t row = lower_bound(table.batches, table.batch_count, batch);
  const uint32_t column = lower_bound(table.sequences, table.sequence_count, sequence);
  if (row == table.batch_count || column == table.sequence_count) return false;
  const uint64_t shape_batch = table.batches[row], shape_sequence = table.sequences[column];
  if (shape_batch > 1 && shape_batch * shape_sequence > table.tokens_max) return false;
  *found = {table.batches[row], table.sequences[column], row * table.sequence_count + column};
  return true;
}

// The graph to launch: the grid's, else the largest. What not even that holds was rejected as a bad descriptor.
BLINK_PURE GraphShape choose(const GraphTable &table, uint32_t batch, uint32_t sequence) {
  GraphShape shape;
  if (dense(table, batch, sequence, &shape)) return shape;
  return {table.fallback_batch, table.fallback_sequence, table.batch_count * table.sequence_count};
}

// Blocks that a claim reserves: for the whole prompt and every token it may still produce.
BLINK_PURE uint32_t kv_blocks_needed(uint32_t prompt_tokens, uint32_t output_tokens_max, uint32_t block_tokens) {
  const uint64_t tokens = static_cast<uint64_t>(prompt_tokens) + output_tokens_max;
  return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
}

// How many prompts one prefill may claim from the head of `waiting`, and what stops the first that it may not.
// They share it only while its padding stays small: beyond that, two graphs are computed sooner than one.
BLINK_PURE uint32_t claimable(const Pending *waiting, uint32_t waiting_count, uint32_t places, uint32_t free_blocks,
                              const Limits &limits, const GraphTable &prefill, Blocked *blocked) {
  uint32_t count = 0, longest = 0;
  uint64_t tokens = 0;
  *blocked = Blocked::NOT;
  for (uint32_t i = 0; i < waiting_count; ++i) {
    const Pending &prompt = waiting[i];
    if (count == places) {
      *blocked = Blocked::BATCH;
      return count;
    }
    if (count == limits.prefill_batch_max) {
      *blocked = Blocked::TURN;
      return count;
    }
    const uint32_t need = kv_blocks_needed(prompt.prompt_tokens, prompt.output_tokens_max, limits.block_tokens);
    if (need > free_blocks) {
      *blocked = Blocked::KV;
      return count;
    }
    if (prompt.prompt_tokens > longest) longest = prompt.prompt_tokens;
    tokens += prompt.prompt_tokens;
    GraphShape shape;
    if (count && (!dense(prefill, count + 1, longest, &shape) ||
                  static_cast<uint64_t>(shape.batch) * shape.sequence - tokens > limits.prefill_padding_tokens_max)) {
      *blocked = Blocked::TURN;
      return count;
    }
    free_blocks -= need;
    ++count;
  }
  return count;
}

// (i) a prompt waits and (ii) there is room for it: claim_count > 0; (iii) launches for the prefill and the decode.
BLINK_PURE bool may_pause(uint32_t claim_count, uint32_t launches_left) {
  return claim_count > 0 && launches_left >= kLaunchesForPause;
}

BLINK_PURE Decision decide(uint32_t running, const Pending *waiting, uint32_t waiting_count, uint32_t free_blocks,
                           uint32_t launches_left, uint32_t prefilled_tokens, const Limits &limits,
                           const GraphTable &prefill) {
  if (!waiting_count) {
    if (!running) return {Action::IDLE, 0, Blocked::NOT};
    return {launches_left ? Action::DECODE : Action::RELAUNCH, 0, Blocked::NOT};
  }
  if (running && prefilled_tokens >= limits.resume_after_tokens) {
    if (launches_left) return {Action::DECODE, 0, Blocked::TURN};
    return {Action::RELAUNCH, 0, Blocked::NOT};
  }
  Blocked blocked;
  const uint32_t count =
      claimable(waiting, waiting_count, limits.batch_max - running, free_blocks, limits, prefill, &blocked);
  if (may_pause(count, launches_left)) return {Action::PREFILL, count, blocked};
  if (running && launches_left) return {Action::DECODE, 0, count ? Blocked::WINDOW : blocked};
  if (running || count) return {Action::RELAUNCH, 0, Blocked::NOT};
  return {Action::IDLE, 0, blocked};
}

// Prompt tokens computed since the last decode, after more of them; counted up to where it matters.
BLINK_PURE uint32_t prefilled(uint32_t before, uint32_t prompt_tokens, const Limits &limits) {
  const uint64_t tokens = static_cast<uint64_t>(before) + prompt_tokens;
  return tokens < limits.resume_after_tokens ? static_cast<uint32_t>(tokens) : limits.resume_after_tokens;
}

// Why a request ends with its `token_count`-th token, NONE if it goes on. Where EOS meets the limit, STOP wins.
BLINK_PURE uint32_t end_status(uint32_t token, uint32_t eos_token, uint32_t token_count, uint32_t limit) {
  if (token == eos_token) return BLINK_STATUS_STOP;
#ifndef BLINK_MUTANT_NO_CAPACITY_GUARD
  if (token_count >= limit) return BLINK_STATUS_LENGTH;
#endif
  return BLINK_STATUS_NONE;
}

}  // namespace blink

#endif  // BLINK_POLICY_H
