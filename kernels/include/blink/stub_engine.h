// A stand-in for the captured model: an opaque graph with a duration and tokens that anybody can compute.
//
// A token depends on the request, on its whole prompt and on its index, so that a prompt that was read too early, a token
// that was read too early and a KV block that two requests share all show as a wrong token.
#ifndef BLINK_STUB_ENGINE_H
#define BLINK_STUB_ENGINE_H

#include "blink/block.h"
#include "blink/policy.h"
#include "blink/ring.h"

namespace blink {

constexpr uint32_t kTokenBase = 16;    // below are special tokens
constexpr uint32_t kBrokenToken = 1;   // the KV cache of the request was not its own
constexpr uint32_t kTokenShift = 44;   // 20 bits of the hash

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
BLINK_PURE uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

// The hash of a prompt is the sum of its tokens' parts, in any order.
BLINK_PURE uint64_t prompt_hash_at(uint32_t token, uint32_t index) {
  return mix(token | static_cast<uint64_t>(index + 1) << 32);
}

BLINK_PURE uint64_t prompt_hash(const uint32_t *tokens, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += prompt_hash_at(tokens[i], i);
  return sum;
}

BLINK_PURE uint32_t stub_token(uint64_t seed, uint32_t index) {
  return kTokenBase + static_cast<uint32_t>(mix(seed + index) >> kTokenShift);
}

// Buffers of the stub in the block: durations by graph, seed by place, owner by KV block; and EOS by slot, which the
// frontend writes.
struct StubBuffers {
  uint64_t *prefill_ns, *decode_ns, *seed, *owner;
  uint32_t *eos_at;
};

BLINK_PURE uint64_t graph_count(const Config &c, Kind kind) {
  return kind == Kind::PREFILL ? uint64_t{c.prefill_batch_count} * c.prefill_sequence_count + 1
                               : uint64_t{c.decode_batch_count} * c.decode_sequence_count + 1;
}

BLINK_PURE uint64_t stub_bytes(const Config &c) {
  return 8 * (graph_count(c, Kind::PREFILL) + graph_count(c, Kind::DECODE) + c.batch_max + c.kv_block_count);
}

BLINK_PURE StubBuffers stub_buffers(const Block &block) {
  const Config &c = block.config();
  StubBuffers b;
  b.prefill_ns = block.at<uint64_t>(c.engine_offset);
  b.decode_ns = b.prefill_ns + graph_count(c, Kind::PREFILL);
  b.seed = b.decode_ns + graph_count(c, Kind::DECODE);
  b.owner = b.seed + c.batch_max;
  b.eos_at = block.at<uint32_t>(c.eos_offset);
  return b;
}

BLINK_PURE uint64_t stub_duration_ns(const Block &block, const Input &input) {
  const StubBuffers b = stub_buffers(block);
  if (static_cast<Kind>(input.kind) == Kind::PREFILL) return b.prefill_ns[input.index];
  const unsigned __int128 kv = static_cast<unsigned __int128>(input.kv_tokens) * block.config().kv_token_q32_ns;
  return b.decode_ns[input.index] + static_cast<uint64_t>(kv >> 32);
}

// The three parts of a row, which a GPU does with a warp and a host one after another.

// A prefill remembers the prompt and takes the KV blocks.
BLINK_PURE void stub_prefill(const Block &block, const StubBuffers &b, const Live &live, uint64_t hash) {
  b.seed[live.place] = mix(hash + live.request_id);
  const uint32_t *table = block.block_table(live.place);
  for (uint32_t i = 0; i < live.block_count; ++i) b.owner[table[i]] = live.request_id + 1;
}

// The sampled token of a row. `table` are its KV blocks: the newest known token's key and value go into one of them.
BLINK_PURE uint32_t stub_sample(const Block &block, const StubBuffers &b, uint32_t slot, const uint32_t *table) {
  const Live &live = block.live(slot);
  uint32_t token = stub_token(b.seed[live.place], live.token_count);
  if (live.token_count + 1 == b.eos_at[slot]) token = block.config().eos_token;
  const uint32_t position = live.prompt_tokens + (live.token_count ? live.token_count - 1 : 0);
  const uint32_t at = position / block.config().block_tokens;
  if (at < live.block_count && b.owner[table[at]] != live.request_id + 1) token = kBrokenToken;
  return token;
}

// What the graph does: reads its inputs, writes one sampled token a row.
BLINK_PURE void stub_execute(const Block &block, const Input &input) {
  const StubBuffers b = stub_buffers(block);
  for (uint32_t row = 0; row < input.rows; ++row) {
    const uint32_t slot = block.input_rows()[row];
    const Live &live = block.live(slot);
    if (static_cast<Kind>(input.kind) == Kind::PREFILL) {
      stub_prefill(block, b, live, prompt_hash(block.prompts() + live.prompt_offset, live.prompt_tokens));
    }
    block.sampled()[live.place] = stub_sample(block, b, slot, block.block_table(live.place));
  }
}

}  // namespace blink

#endif  // BLINK_STUB_ENGINE_H
