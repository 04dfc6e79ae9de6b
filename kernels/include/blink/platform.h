// What the scheduler needs of the machine it runs on. Two implementations: platform_cuda.h and platform_host.h.
//
// The scheduler is written for one block of threads that all run the same code. A platform is an object of each thread:
//
//   uint32_t thread(), threads()                  this thread's number and how many there are
//   bool leader()                                 true in exactly one thread of the block
//   void barrier()                                all threads arrive; what each wrote before, all see after (B)
//   uint64_t load_relaxed(const uint64_t*)        one untorn word of the ring, system scope, never cached
//   uint64_t load_acquire(const uint64_t*)        the same, with acquire order at system scope
//   void store_relaxed(uint64_t*, uint64_t)       one untorn word
//   void store_release(uint64_t*, uint64_t)       the same, with release order at system scope
//   bool compare_and_swap(uint64_t*, expected, desired)   among instances of the scheduler, acquire and release among them
//   void set_bits(uint64_t*, uint64_t)            atomic or, in memory of the block alone
//   uint64_t bits(const uint64_t*)                one untorn word of such memory
//   kScanParts                                    in how many parts the slots are scanned while a graph runs
//   uint64_t now_ns()                             a monotonic clock
//   uint64_t stop_word(uint64_t now_ns)           the host's stop word, with acquire order; the leader only
//   void beat(uint64_t now_ns)                    the heartbeat that the host watches; the leader only
//   void launch(kind, index, sequence)            start a captured graph from the device; the leader only
//   uint64_t completed()                          sequence number of the last graph that is done, with acquire order
//   bool waits_blindly()                          whether `completed` waits for a graph, so that nobody scans meanwhile
//   void idle(uint32_t tries)                     nothing was found `tries` times in a row; the leader only
//   bool alive()                                  false if nobody is left who could stop the scheduler; the leader only
//
// Orders that pair, by name. A pair is an acquire and the release that it reads from:
//   A0 pairs with R0: the frontend publishes a prompt (T1: status WRITE after prompt and descriptor), the scan sees it.
//   A1 pairs with R1: the scheduler publishes tokens (T4, T5, T8), the frontend's READ of the status array sees them.
//   A2 pairs with R2: the scheduler hands inputs to a graph, the graph's first node reads them.
//   A3 pairs with R3: the graph's last node writes the completion word after the sampled tokens, the scheduler polls it.
//   A4 pairs with R4: trace records are complete, the host drains up to the head.
//   A5 pairs with R5: the host has copied records, the scheduler may overwrite up to the tail.
//   A6 pairs with R6: the frontend recycles a slot (T10) after its READs, a claim of the next generation follows it.
//   A7 pairs with R7: the frontend writes a cancel word, an epoch or the stop word; the boundary reads it.
#ifndef BLINK_PLATFORM_H
#define BLINK_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define BLINK_PURE __host__ __device__ inline
#define BLINK_DEVICE __device__
#define BLINK_UNROLL _Pragma("unroll")
#else
#define BLINK_PURE inline
#define BLINK_DEVICE
#define BLINK_UNROLL
#endif

#endif  // BLINK_PLATFORM_H
