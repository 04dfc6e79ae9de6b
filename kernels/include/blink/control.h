// The words through which a host process rules a scheduler on a GPU: pinned host memory that the GPU has mapped.
//
// While a persistent kernel runs, a call of the CUDA API may wait for it for ever. These words need none: the host stores
// and loads them. The GPU looks at the host's words seldom, since each look crosses PCIe.
#ifndef BLINK_CONTROL_H
#define BLINK_CONTROL_H

#include "blink/platform.h"

namespace blink {

#define BLINK_CONTROL_FIELDS(X)                                                        \
  X(uint64_t, stop)          /* the host: as in the ring header */                     \
  X(uint64_t, release)       /* the host: not 0 lets a graph go on that a test hangs */ \
  X(uint64_t, ping)          /* the host: a number that blink_clock answers */         \
  X(uint64_t, heartbeat)     /* the GPU: %globaltimer of a recent boundary */          \
  X(uint64_t, ended)         /* the GPU: 1 once the last instance has stopped */       \
  X(uint64_t, error)         /* the GPU: first cudaError_t of a launch, 0 if none */   \
  X(uint64_t, error_launch)  /* the GPU: number of the graph that it refused */        \
  X(uint64_t, pong)          /* the GPU: the number that it answered */                \
  X(uint64_t, pong_ns)       /* the GPU: %globaltimer of the answer */

#define BLINK_CONTROL_DECLARE(type, name) type name;
struct Control { BLINK_CONTROL_FIELDS(BLINK_CONTROL_DECLARE) };

}  // namespace blink

#endif  // BLINK_CONTROL_H
