// When captured graphs began and ended, by the GPU's own clock: written by their first and last node where somebody measures.
#ifndef BLINK_GRAPH_MARKS_H
#define BLINK_GRAPH_MARKS_H

#include "blink/device_words.h"

namespace blink {

// Graphs follow one another, so their nodes need no atomics. Pairs of times stand behind this head; the oldest give way.
struct GraphMarks {
  uint64_t count;     // graphs that have ended
  uint64_t capacity;  // pairs
};

__device__ inline uint64_t *mark_of(GraphMarks *marks) {
  return reinterpret_cast<uint64_t *>(marks + 1) + 2 * (marks->count % marks->capacity);
}

// By one thread. `marks` null: nobody measures.
__device__ inline void mark_begun(GraphMarks *marks) {
  if (marks) mark_of(marks)[0] = device_now_ns();
}
__device__ inline void mark_ended(GraphMarks *marks) {
  if (!marks) return;
  mark_of(marks)[1] = device_now_ns();
  ++marks->count;
}

}  // namespace blink

#endif  // BLINK_GRAPH_MARKS_H
