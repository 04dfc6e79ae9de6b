// Captured graphs that a host launches: what a scheduler on a CPU does in place of a launch from the device.
//
// Functions of the CUDA driver API by address, so that this compiles where no CUDA is installed.
#ifndef BLINK_HOST_GRAPHS_H
#define BLINK_HOST_GRAPHS_H

#include <stdint.h>

namespace blink {

struct HostGraphs {
  int (*set_context)(void *context);
  int (*launch)(void *executable, void *stream);
  int (*copy_out)(void *target, uint64_t source, uint64_t size_bytes, void *stream);
  int (*synchronize)(void *stream);
  void *context;
  void *stream;
  void *const *executables[2];  // by kind; two an index, as on the device
  uint64_t source;              // of what is copied back after each graph; 0: nothing is
  void *target;
  uint64_t size_bytes;
  int64_t error;  // the first CUresult that is not 0; written here
};

// A graph from launch to the end of its copy.
class HostLauncher {
 public:
  explicit HostLauncher(HostGraphs *graphs) : graphs_(graphs) {}

  bool present() const { return graphs_ != nullptr; }
  void enter() const {
    if (graphs_) check(graphs_->set_context(graphs_->context));
  }
  void launch(uint32_t kind, uint32_t index, uint64_t sequence) const {
    check(graphs_->launch(graphs_->executables[kind][2 * index + (sequence & 1)], graphs_->stream));
    if (graphs_->source) {
      check(graphs_->copy_out(graphs_->target, graphs_->source, graphs_->size_bytes, graphs_->stream));
    }
  }
  void wait() const { check(graphs_->synchronize(graphs_->stream)); }

 private:
  void check(int result) const {
    if (result && !graphs_->error) graphs_->error = result;
  }

  HostGraphs *graphs_;
};

}  // namespace blink

#endif  // BLINK_HOST_GRAPHS_H
