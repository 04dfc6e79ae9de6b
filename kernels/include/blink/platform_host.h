// The scheduler's platform on a host CPU: threads of a team, C++ atomics, a stub engine, the monotonic clock.
#ifndef BLINK_PLATFORM_HOST_H
#define BLINK_PLATFORM_HOST_H

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "blink/host_graphs.h"
#include "blink/platform.h"
#include "blink/stub_engine.h"

namespace blink {

inline uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * UINT64_C(1000000000) + static_cast<uint64_t>(now.tv_nsec);
}

inline void sleep_ns(uint64_t duration_ns) {
  const timespec duration = {static_cast<time_t>(duration_ns / UINT64_C(1000000000)),
                             static_cast<long>(duration_ns % UINT64_C(1000000000))};
  nanosleep(&duration, nullptr);
}

// A barrier of a fixed team: spins for a moment, then sleeps, so that more threads than cores still make progress.
class TeamBarrier {
 public:
  explicit TeamBarrier(uint32_t count) : count_(count), spins_(count <= std::thread::hardware_concurrency() ? 2000 : 0) {}

  void wait() {
    if (count_ == 1) return;
    const uint64_t round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      {
        const std::lock_guard<std::mutex> hold(mutex_);
        round_.store(round + 1, std::memory_order_release);
      }
      gone_on_.notify_all();
      return;
    }
    for (uint32_t i = 0; i < spins_; ++i) {
      if (round_.load(std::memory_order_acquire) != round) return;
    }
    std::unique_lock<std::mutex> hold(mutex_);
    gone_on_.wait(hold, [&] { return round_.load(std::memory_order_acquire) != round; });
  }

 private:
  const uint32_t count_, spins_;
  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint64_t> round_{0};
  std::mutex mutex_;
  std::condition_variable gone_on_;
};

// Runs stub graphs, on a thread of its own or on the leader's as it polls; or launches captured graphs on a GPU.
class HostEngine {
 public:
  HostEngine(const Block &block, HostGraphs *graphs)
      : block_(block), launcher_(graphs), launched_(block.state().graph_sequence), done_(block.state().graph_sequence) {
    launcher_.enter();
    if (block.config().engine_thread) thread_ = std::thread([this] { serve(); });
  }

  ~HostEngine() {
    if (!thread_.joinable()) return;
    closing_.store(true, std::memory_order_release);
    thread_.join();
  }

  void launch(uint32_t kind, uint32_t index, uint64_t sequence, uint64_t now_ns) {
    if (launcher_.present()) {
      launcher_.launch(kind, index, sequence);
      return;
    }
    due_ns_.store(now_ns + stub_duration_ns(block_, block_.input()), std::memory_order_relaxed);
    launched_.store(sequence, std::memory_order_release);  // R2 pairs with A2
  }

  uint64_t completed(uint64_t now_ns) {
    if (launcher_.present()) {
      launcher_.wait();  // the graph's last node has stored its number before this returns
    } else if (!thread_.joinable()) run_if_due(now_ns);
    return __atomic_load_n(&block_.state().completion, __ATOMIC_ACQUIRE);  // A3 pairs with R3
  }

  // A driver's call waits for a captured graph, and nobody scans meanwhile.
  bool waits_blindly() const { return launcher_.present(); }

  // How long nothing can happen.
  uint64_t left_ns(uint64_t now_ns) const {
    const uint64_t due_ns = due_ns_.load(std::memory_order_relaxed);
    return due_ns > now_ns ? due_ns - now_ns : 0;
  }

 private:
  void run_if_due(uint64_t now_ns) {
    const uint64_t sequence = launched_.load(std::memory_order_acquire);  // A2 pairs with R2
    if (sequence == done_ || now_ns < due_ns_.load(std::memory_order_relaxed)) return;
    if (sequence == block_.config().hang_at) return;  // a test wants this graph to hang
    stub_execute(block_, block_.input());
    done_ = sequence;
    __atomic_store_n(&block_.state().completion, sequence, __ATOMIC_RELEASE);  // R3 pairs with A3
  }

  void serve() {
    for (uint32_t tries = 0; !closing_.load(std::memory_order_acquire); ++tries) {
      const uint64_t before = done_, now_ns = monotonic_ns();
      run_if_due(now_ns);
      if (done_ != before) {
        tries = 0;
      } else if (left_ns(now_ns) > kCloseNs) {
        sleep_ns(left_ns(now_ns) / 2);
      } else if (tries > kYields) {
        sleep_ns(kNapNs);
      } else {
        std::this_thread::yield();
      }
    }
  }

  static constexpr uint64_t kCloseNs = 200000, kNapNs = 20000;
  static constexpr uint32_t kYields = 200;
  const Block block_;
  const HostLauncher launcher_;
  std::atomic<uint64_t> launched_, due_ns_{0};
  std::atomic<bool> closing_{false};
  uint64_t done_;  // of the thread that runs graphs
  std::thread thread_;
};

// What the threads of one scheduler share.
struct HostTeam {
  HostTeam(const Block &block, uint32_t thread_count, pid_t parent, HostGraphs *graphs = nullptr)
      : block(block), threads(thread_count), parent(parent), barrier(thread_count), engine(block, graphs) {}

  const Block block;
  const uint32_t threads;
  const pid_t parent;  // 0: nobody to wait for
  TeamBarrier barrier;
  HostEngine engine;
};

class HostPlatform {
 public:
  HostPlatform(HostTeam &team, uint32_t thread) : team_(team), thread_(thread) {}

  static constexpr uint32_t kScanParts = 1;

  uint32_t thread() const { return thread_; }
  uint32_t threads() const { return team_.threads; }
  bool leader() const { return thread_ == 0; }
  void barrier() { team_.barrier.wait(); }

  uint64_t load_relaxed(const uint64_t *word) const { return __atomic_load_n(word, __ATOMIC_RELAXED); }
  uint64_t load_acquire(const uint64_t *word) const { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  void store_relaxed(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
  void store_release(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
  bool compare_and_swap(uint64_t *word, uint64_t expected, uint64_t desired) {
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  void set_bits(uint64_t *word, uint64_t bits) { __atomic_fetch_or(word, bits, __ATOMIC_RELAXED); }
  uint64_t bits(const uint64_t *word) const { return __atomic_load_n(word, __ATOMIC_RELAXED); }

  uint64_t now_ns() const {
    return team_.block.config().virtual_clock ? team_.block.state().virtual_now_ns : monotonic_ns();
  }
  uint64_t stop_word(uint64_t) const { return load_acquire(&team_.block.header()->stop); }  // A7 pairs with R7
  void beat(uint64_t now_ns) { store_relaxed(&team_.block.header()->heartbeat, now_ns); }

  void launch(uint32_t kind, uint32_t index, uint64_t sequence) { team_.engine.launch(kind, index, sequence, now_ns()); }
  uint64_t completed() { return team_.engine.completed(now_ns()); }
  bool waits_blindly() const { return team_.engine.waits_blindly(); }

  // Sleep only where nothing is missed: a graph whose end is known, or a ring that has been quiet for a while.
  void idle(uint32_t tries) {
    if (team_.block.config().virtual_clock) return;
    const uint64_t left_ns = team_.engine.left_ns(now_ns());
    if (left_ns > 2 * kMarginNs) {
      sleep_ns(left_ns - kMarginNs < kNapMaxNs ? left_ns - kMarginNs : kNapMaxNs);
    } else if (tries > kQuietTries && !left_ns) {
      sleep_ns(kQuietNapNs);
    } else {
      std::this_thread::yield();
    }
  }

  // A scheduler whose parent process has died must not spin for ever.
  bool alive() {
    if (!team_.parent || ++asked_ % 64) return alive_;
    return alive_ = getppid() == team_.parent;
  }

  // Only mutants call this: time for somebody else to come in between.
  void linger() { sleep_ns(200000); }

 private:
  static constexpr uint64_t kMarginNs = 80000, kNapMaxNs = 500000, kQuietNapNs = 20000;
  static constexpr uint32_t kQuietTries = 500;
  HostTeam &team_;
  const uint32_t thread_;
  uint32_t asked_ = 0;
  bool alive_ = true;
};

}  // namespace blink

#endif  // BLINK_PLATFORM_HOST_H
