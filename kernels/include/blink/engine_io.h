// The fixed buffers of a captured model, which a graph's first node fills from the block and whose samples its last node
// takes back. Arrays are row-major; the structure is passed to kernels by value.
#ifndef BLINK_ENGINE_IO_H
#define BLINK_ENGINE_IO_H

#include <stdint.h>

namespace blink {

struct EngineIo {
  int32_t *tokens;          // (batch, sequence); a decode: (batch)
  int32_t *context_tokens;  // (batch): tokens in the KV cache before this step
  int32_t *query_tokens;    // (batch): real tokens of the row in this step; 0 in a padding row
  int32_t *block_tables;    // (batch, blocks_per_sequence_max)
  float *temperature;       // (batch)
  float *top_p;             // (batch)
  uint32_t *top_k;          // (batch)
  uint32_t *seed;           // (batch)
  uint32_t *sample_index;   // (batch): tokens that the request has already
  uint32_t *min_tokens;     // (batch): EOS is not drawn while sample_index is below
  uint32_t *sampled;        // (batch): the engine's answer
  uint32_t blocks_per_sequence_max;
  uint32_t scratch_block;  // of the block tables of padding rows
};
static_assert(sizeof(EngineIo) == 96, "the host builds this structure, too");

}  // namespace blink

#endif  // BLINK_ENGINE_IO_H
