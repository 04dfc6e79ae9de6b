// KV blocks: a stack of free block numbers. The blocks of a request go back in the order in which they were taken.
#ifndef BLINK_KV_BLOCKS_H
#define BLINK_KV_BLOCKS_H

#include "blink/block.h"

namespace blink {

// Take `count` blocks off the end of the stack into `table`; the caller has made sure that there are enough.
BLINK_PURE void take_blocks(const Block &block, uint32_t count, uint32_t *table) {
  State &state = block.state();
  state.free_block_count -= count;
  const uint32_t *taken = block.free_blocks() + state.free_block_count;
  for (uint32_t i = 0; i < count; ++i) table[i] = taken[i];
}

BLINK_PURE void return_blocks(const Block &block, uint32_t count, const uint32_t *table) {
  State &state = block.state();
  uint32_t *end = block.free_blocks() + state.free_block_count;
  for (uint32_t i = 0; i < count; ++i) end[i] = table[i];
  state.free_block_count += count;
}

}  // namespace blink

#endif  // BLINK_KV_BLOCKS_H
