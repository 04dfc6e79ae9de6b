// Words of the ring: the fields of a control word, the checksum and the guard of a descriptor.
#ifndef BLINK_RING_H
#define BLINK_RING_H

#include "blink/policy.h"

namespace blink {

BLINK_PURE uint32_t state_of(uint64_t ctl) { return ctl >> BLINK_CTL_STATE_SHIFT & BLINK_CTL_STATE_MASK; }
BLINK_PURE uint32_t epoch_of(uint64_t ctl) { return ctl >> BLINK_CTL_EPOCH_SHIFT & BLINK_CTL_EPOCH_MASK; }
BLINK_PURE uint32_t generation_of(uint64_t ctl) {
  return ctl >> BLINK_CTL_GENERATION_SHIFT & BLINK_CTL_GENERATION_MASK;
}
BLINK_PURE uint32_t token_count_of(uint64_t ctl) {
  return ctl >> BLINK_CTL_TOKEN_COUNT_SHIFT & BLINK_CTL_TOKEN_COUNT_MASK;
}

// The control word after a move: state, status and token count in one store; epoch and generation stay.
BLINK_PURE uint64_t moved(uint64_t ctl, uint32_t state, uint32_t status, uint32_t new_tokens) {
  const uint64_t kept = ctl & ~(BLINK_CTL_STATE_MASK << BLINK_CTL_STATE_SHIFT |
                                BLINK_CTL_STATUS_MASK << BLINK_CTL_STATUS_SHIFT);
  return (kept | static_cast<uint64_t>(state) << BLINK_CTL_STATE_SHIFT |
          static_cast<uint64_t>(status) << BLINK_CTL_STATUS_SHIFT) +
         (static_cast<uint64_t>(new_tokens) << BLINK_CTL_TOKEN_COUNT_SHIFT);
}

BLINK_PURE uint64_t pulse_of(uint64_t ctl, uint64_t step) {
  return static_cast<uint64_t>(generation_of(ctl)) << BLINK_PULSE_GENERATION_SHIFT |
         (step & BLINK_PULSE_STEP_MASK) << BLINK_PULSE_STEP_SHIFT;
}

// CRC-32C (RFC 3720, appendix B.4) by nibbles: sixteen entries fit anywhere, and a descriptor has only 52 bytes.
BLINK_PURE uint32_t crc32c(const unsigned char *data, uint32_t size_bytes) {
  constexpr uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                  0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                  0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
  uint32_t value = 0xffffffffu;
  for (uint32_t i = 0; i < size_bytes; ++i) {
    value = value >> 4 ^ table[(value ^ data[i]) & 15];
    value = value >> 4 ^ table[(value ^ data[i] >> 4) & 15];
  }
  return value ^ 0xffffffffu;
}

BLINK_PURE uint32_t limit_of(const blink_descriptor &d) {
  return d.output_tokens_max < d.output_capacity ? d.output_tokens_max : d.output_capacity;
}

BLINK_PURE GraphTable graph_table(const Block &block, Kind kind) {
  const Config &c = block.config();
  const uint32_t *prefill = block.shapes();
  const uint32_t *decode = prefill + c.prefill_batch_count + c.prefill_sequence_count;
  if (kind == Kind::PREFILL) {
    return {prefill, prefill + c.prefill_batch_count, c.prefill_batch_count, c.prefill_sequence_count,
            c.prefill_tokens_max, c.prefill_fallback_batch, c.prefill_fallback_sequence};
  }
  return {decode, decode + c.decode_batch_count, c.decode_batch_count, c.decode_sequence_count,
          c.decode_tokens_max, c.decode_fallback_batch, c.decode_fallback_sequence};
}

// Whether a descriptor may be claimed under this control word: checksum, generation and epoch are of this life, its
// areas lie inside the ring, and some graph and the KV cache can hold it at all (else it would block the line for ever).
BLINK_PURE bool valid(const Block &block, const blink_descriptor &d, uint64_t ctl) {
  const Config &c = block.config();
  if (d.crc32c != crc32c(reinterpret_cast<const unsigned char *>(&d), BLINK_CRC_COVERS_BYTES)) return false;
  if (d.generation != generation_of(ctl) || (d.epoch & BLINK_CTL_EPOCH_MASK) != epoch_of(ctl)) return false;
  if (!d.prompt_tokens || !d.output_tokens_max || !d.output_capacity) return false;
  if (d.output_tokens_max > BLINK_CTL_TOKEN_COUNT_MASK) return false;
  if (static_cast<uint64_t>(d.prompt_offset) + d.prompt_tokens > c.prompt_area_tokens) return false;
  if (static_cast<uint64_t>(d.output_offset) + d.output_capacity > c.output_area_tokens) return false;
  if (d.prompt_tokens > c.prefill_fallback_sequence) return false;
  if (static_cast<uint64_t>(d.prompt_tokens) + limit_of(d) - 1 > c.decode_fallback_sequence) return false;
  const uint32_t need = kv_blocks_needed(d.prompt_tokens, d.output_tokens_max, c.block_tokens);
  return need <= c.kv_block_count && need <= c.blocks_per_place;
}

}  // namespace blink

#endif  // BLINK_RING_H
