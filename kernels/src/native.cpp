// The scheduler compiled for the host, behind a small C interface. All state stands in one block that the caller provides.
//
// Compile: c++ -O2 -std=c++17 -pthread -shared -fPIC -Ikernels/include kernels/src/native.cpp -o libblink_native.so
#include <stdio.h>
#include <string.h>

#include <vector>

#include "blink/platform_host.h"
#include "blink/race.h"
#include "blink/scheduler.h"

using namespace blink;

namespace {

using HostScheduler = Scheduler<HostPlatform>;

void *address(const void *base, uint64_t offset_bytes) {
  return const_cast<unsigned char *>(static_cast<const unsigned char *>(base)) + offset_bytes;
}

// Instances one after another, as tail launches would make them, until one is told to stop.
void work(HostTeam &team, uint32_t thread, Local &local) {
  HostPlatform platform(team, thread);
  for (;;) {
    HostScheduler scheduler(platform, team.block, local);
    if (scheduler.run() != Action::RELAUNCH) return;
    platform.barrier();  // the old instance is gone in every thread before the new one clears its memory
  }
}

// All KV blocks and all places are free.
void reset_scheduler(const Block &block) {
  const Config &c = block.config();
  block.state().free_block_count = c.kv_block_count;
  block.state().free_place_count = c.batch_max;
  for (uint32_t i = 0; i < c.kv_block_count; ++i) block.free_blocks()[i] = c.kv_block_count - 1 - i;
  for (uint32_t i = 0; i < c.batch_max; ++i) block.free_places()[i] = c.batch_max - 1 - i;
}

void describe_one(std::vector<char> &text, const char *line) { text.insert(text.end(), line, line + strlen(line)); }

}  // namespace

extern "C" {

// One line a field: "structure.name offset size". Returns the length of the text; writes at most `size` bytes of it.
uint64_t blink_native_describe(char *out, uint64_t size) {
  std::vector<char> text;
  char line[128];
#define BLINK_LINE(structure, label, name)                                                              \
  snprintf(line, sizeof line, label ".%s %zu %zu\n", #name, offsetof(structure, name), \
           sizeof(static_cast<structure *>(nullptr)->name));                                            \
  describe_one(text, line);
#define BLINK_CONFIG_LINE(type, name) BLINK_LINE(Config, "config", name)
#define BLINK_STATE_LINE(type, name) BLINK_LINE(State, "state", name)
#define BLINK_LIVE_LINE(type, name) BLINK_LINE(Live, "live", name)
#define BLINK_RECORD_LINE(type, name) BLINK_LINE(Record, "record", name)
#define BLINK_REPORT_LINE(type, name) BLINK_LINE(Report, "report", name)
#define BLINK_INPUT_LINE(type, name) BLINK_LINE(Input, "input", name)
  BLINK_CONFIG_FIELDS(BLINK_CONFIG_LINE)
  BLINK_STATE_FIELDS(BLINK_STATE_LINE)
  BLINK_LIVE_FIELDS(BLINK_LIVE_LINE)
  BLINK_RECORD_FIELDS(BLINK_RECORD_LINE)
  BLINK_REPORT_FIELDS(BLINK_REPORT_LINE)
  BLINK_INPUT_FIELDS(BLINK_INPUT_LINE)
  if (out) memcpy(out, text.data(), text.size() < size ? text.size() : size);
  return text.size();
}

uint64_t blink_native_layout_hash() { return BLINK_LAYOUT_HASH; }

// Lays out the block: fills in the offsets and `total_bytes` of a configuration whose other fields are set.
void blink_native_plan(void *configuration) {
  Config &c = *static_cast<Config *>(configuration);
  uint64_t end = sizeof(Config);
  const auto place = [&end](uint64_t &offset, uint64_t bytes, uint64_t alignment) {
    end = (end + alignment - 1) / alignment * alignment;
    offset = end;
    end += bytes;
  };
  constexpr uint64_t kPage = 4096, kLine = 64;
  const uint64_t shapes =
      c.prefill_batch_count + c.prefill_sequence_count + c.decode_batch_count + c.decode_sequence_count;
  place(c.shapes_offset, 4 * shapes, kLine);
  place(c.ring_header_offset, sizeof(blink_ring_header), kPage);
  place(c.status_offset, BLINK_STATUS_ARRAY_BYTES, kPage);
  place(c.descriptors_offset, BLINK_DESCRIPTOR_ARRAY_BYTES, kPage);
  place(c.prompts_offset, 4 * c.prompt_area_tokens, kPage);
  place(c.outputs_offset, 4 * c.output_area_tokens, kPage);
  place(c.state_offset, sizeof(State), kPage);
  place(c.live_offset, sizeof(Live) * kSlots, kLine);
  place(c.waiting_offset, sizeof(Pending) * kWaitingCapacity, kLine);
  place(c.free_blocks_offset, uint64_t{4} * c.kv_block_count * 2, kLine);  // a mutant returns blocks twice
  place(c.free_places_offset, uint64_t{4} * c.batch_max, kLine);
  place(c.block_tables_offset, uint64_t{4} * c.batch_max * c.blocks_per_place, kLine);
  place(c.input_rows_offset, sizeof(Input) + uint64_t{4} * kSlots, kLine);
  place(c.sampled_offset, uint64_t{4} * c.batch_max, kLine);
  place(c.report_offset, sizeof(Report) + uint64_t{8} * kSlots, kLine);
  place(c.engine_offset, stub_bytes(c), kLine);
  place(c.eos_offset, uint64_t{4} * kSlots, kPage);
  place(c.local_offset, sizeof(Local), kLine);
  place(c.trace_offset, uint64_t{sizeof(Record)} * c.trace_capacity, kPage);
  place(c.total_bytes, 0, kPage);
}

// Makes a fresh ring and a fresh scheduler in a zeroed block that starts with its configuration.
void blink_native_create(void *base) {
  const Block block(base);
  const Config &c = block.config();
  blink_ring_header &header = *block.header();
  header = {BLINK_MAGIC, BLINK_LAYOUT_VERSION, BLINK_SLOT_COUNT, BLINK_LAYOUT_HASH, c.boot_id,
            c.frontend_epoch, 0, 0, 0};
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    *block.ctl(slot) = (c.frontend_epoch & BLINK_CTL_EPOCH_MASK) << BLINK_CTL_EPOCH_SHIFT;
    block.descriptor(slot)->cancel = BLINK_GENERATION_NONE;
  }
  reset_scheduler(block);
}

// Runs the scheduler on `threads` threads until the stop word is set, or until `parent` (if not 0) is no longer the
// parent process.
void blink_native_run(void *base, uint32_t threads, int32_t parent) {
  const Block block(base);
  HostTeam team(block, threads, parent);
  Local &local = *block.at<Local>(block.config().local_offset);
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back([&, i] { work(team, i, local); });
  work(team, 0, local);
  for (std::thread &other : others) other.join();
}

// The same on the calling thread alone, with captured graphs on a GPU that this thread launches: a scheduler that lives on
// the host. The block must be memory that the GPU has mapped.
void blink_native_run_graphs(void *base, HostGraphs *graphs) {
  const Block block(base);
  HostTeam team(block, 1, 0, graphs);
  work(team, 0, *block.at<Local>(block.config().local_offset));
}

// Launches one graph `rounds` times, waits for each with its copy, and notes how long each took, in nanoseconds.
void blink_native_time_graph(HostGraphs *graphs, uint32_t kind, uint32_t index, uint64_t rounds, uint64_t *out_ns) {
  const HostLauncher launcher(graphs);
  launcher.enter();
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t begun_ns = monotonic_ns();
    launcher.launch(kind, index, round);
    launcher.wait();
    out_ns[round] = monotonic_ns() - begun_ns;
  }
}

// Launches one graph `rounds` times back to back, alternating its executables; nanoseconds from the first launch to the end.
uint64_t blink_native_time_launches(HostGraphs *graphs, uint32_t kind, uint32_t index, uint64_t rounds) {
  const HostLauncher launcher(graphs);
  launcher.enter();
  launcher.launch(kind, index, 0);
  launcher.wait();
  const uint64_t begun_ns = monotonic_ns();
  for (uint64_t round = 0; round < rounds; ++round) launcher.launch(kind, index, round);
  launcher.wait();
  return monotonic_ns() - begun_ns;
}

// One iteration at a virtual time, on the calling thread: boundary, decision, graph, tokens. Returns the Action.
uint32_t blink_native_step(void *base, uint64_t now_ns) {
  const Block block(base);
  State &state = block.state();
  state.virtual_now_ns = now_ns;
  HostTeam team(block, 1, 0);
  HostPlatform platform(team, 0);
  Local &local = *block.at<Local>(block.config().local_offset);
  HostScheduler scheduler(platform, block, local);
  if (!state.started) scheduler.adopt();
  local.scanned = 0;  // what was written since the last step is older than this boundary: look again
  local.moved_ns = now_ns;
  const Action action = scheduler.step();
  scheduler.settle();
  if (action == Action::RELAUNCH) HostScheduler(platform, block, local).adopt();
  return static_cast<uint32_t>(action);
}

// --- the frontend's side: what a NIC does with one-sided operations ---

// A WRITE of whole words into the status array: every word untorn, in order, released (R0, R6).
void blink_native_write_status(void *base, uint64_t offset_bytes, const uint64_t *words, uint64_t count) {
  uint64_t *target = reinterpret_cast<uint64_t *>(Block(base).at<unsigned char>(Block(base).config().status_offset + offset_bytes));
  for (uint64_t i = 0; i < count; ++i) {
    const bool is_pulse = (offset_bytes / 8 + i) % 2;
    __atomic_store_n(target + i, words[i], is_pulse ? __ATOMIC_RELAXED : __ATOMIC_RELEASE);  // R0 pairs with A0, R6 with A6
  }
}

// A WRITE into the descriptor array: whole descriptors, or one cancel word (R7).
void blink_native_write_descriptors(void *base, uint64_t offset_bytes, const uint64_t *words, uint64_t count) {
  uint64_t *target =
      reinterpret_cast<uint64_t *>(Block(base).at<unsigned char>(Block(base).config().descriptors_offset + offset_bytes));
  for (uint64_t i = 0; i < count; ++i) {
    if ((offset_bytes / 8 + i) % 8 == 7) {
      __atomic_store_n(target + i, words[i], __ATOMIC_RELEASE);  // R7 pairs with A7
    } else {
      target[i] = words[i];
    }
  }
}

// A WRITE of prompt tokens; R0 of the control word that follows makes them visible.
void blink_native_write_prompt(void *base, uint64_t offset_bytes, const void *data, uint64_t size_bytes) {
  memcpy(address(base, Block(base).config().prompts_offset + offset_bytes), data, size_bytes);
}

// A READ of the status array: the control words of all slots, each at its own moment.
void blink_native_read_status(const void *base, uint64_t *ctl) {
  const Block block(const_cast<void *>(base));
  for (uint32_t slot = 0; slot < kSlots; ++slot) ctl[slot] = __atomic_load_n(block.ctl(slot), __ATOMIC_ACQUIRE);  // A1 pairs with R1
}

// READs of tokens: `count` ranges of the output area, one after another into `out`. Offsets and lengths in tokens.
void blink_native_read_tokens(const void *base, uint64_t count, const int64_t *offset, const int64_t *length,
                              uint32_t *out) {
  const uint32_t *outputs = Block(const_cast<void *>(base)).outputs();
  for (uint64_t i = 0; i < count; ++i) {
    memcpy(out, outputs + offset[i], static_cast<size_t>(length[i]) * 4);
    out += length[i];
  }
}

void blink_native_set_stop(void *base, uint64_t stop) {
  __atomic_store_n(&Block(base).header()->stop, stop, __ATOMIC_RELEASE);  // R7 pairs with A7
}

void blink_native_set_epoch(void *base, uint64_t epoch) {
  __atomic_store_n(&Block(base).header()->frontend_epoch, epoch, __ATOMIC_RELEASE);  // R7 pairs with A7
}

uint64_t blink_native_heartbeat_ns(const void *base) {
  return __atomic_load_n(&Block(const_cast<void *>(base)).header()->heartbeat, __ATOMIC_RELAXED);
}

uint64_t blink_native_now_ns() { return monotonic_ns(); }

// The token count from which on EOS ends this slot's next request, and with which the stub's text ends; written before its
// submission.
void blink_native_set_eos(void *base, uint32_t slot, uint32_t eos_at) { stub_buffers(Block(base)).eos_at[slot] = eos_at; }

// Durations of the captured graphs in nanoseconds, by index; the last is the largest shape's.
void blink_native_set_durations(void *base, const uint64_t *prefill_ns, const uint64_t *decode_ns) {
  const Block block(base);
  const StubBuffers stub = stub_buffers(block);
  memcpy(stub.prefill_ns, prefill_ns, 8 * graph_count(block.config(), Kind::PREFILL));
  memcpy(stub.decode_ns, decode_ns, 8 * graph_count(block.config(), Kind::DECODE));
}

// Moves up to `most` trace records to `out`; returns how many.
uint64_t blink_native_drain(void *base, void *out, uint64_t most) {
  const Block block(base);
  State &state = block.state();
  const uint64_t head = __atomic_load_n(&state.trace_head, __ATOMIC_ACQUIRE);  // A4 pairs with R4
  const uint64_t tail = state.trace_tail, capacity = block.config().trace_capacity;
  const uint64_t count = head - tail < most ? head - tail : most;
  const uint64_t first = count < capacity - tail % capacity ? count : capacity - tail % capacity;
  memcpy(out, block.trace() + tail % capacity, first * sizeof(Record));
  memcpy(static_cast<Record *>(out) + first, block.trace(), (count - first) * sizeof(Record));
  __atomic_store_n(&state.trace_tail, tail + count, __ATOMIC_RELEASE);  // R5 pairs with A5
  return count;
}

// Copies up to `most` trace records from number `*next` on, whoever drains them, and moves `*next` past them; returns how
// many. A looker that has fallen half a ring behind goes on with what comes from now on: those records may be overwritten.
uint64_t blink_native_look(void *base, uint64_t *next, void *out, uint64_t most) {
  const Block block(base);
  const uint64_t head = __atomic_load_n(&block.state().trace_head, __ATOMIC_ACQUIRE);  // A4 pairs with R4
  const uint64_t capacity = block.config().trace_capacity;
  if (head - *next > capacity / 2) *next = head;
  const uint64_t count = head - *next < most ? head - *next : most;
  const uint64_t first = count < capacity - *next % capacity ? count : capacity - *next % capacity;
  memcpy(out, block.trace() + *next % capacity, first * sizeof(Record));
  memcpy(static_cast<Record *>(out) + first, block.trace(), (count - first) * sizeof(Record));
  *next += count;
  return count;
}

// Adds records of a scheduler that keeps its own memory, for whoever drains this block; what there is no room for is left
// out. Returns how many were added.
uint64_t blink_native_append(void *base, const void *records, uint64_t count) {
  const Block block(base);
  State &state = block.state();
  const uint64_t head = state.trace_head, capacity = block.config().trace_capacity;
  const uint64_t room = capacity - (head - __atomic_load_n(&state.trace_tail, __ATOMIC_ACQUIRE));  // A5 pairs with R5
  count = count < room ? count : room;
  const uint64_t first = count < capacity - head % capacity ? count : capacity - head % capacity;
  memcpy(block.trace() + head % capacity, records, first * sizeof(Record));
  memcpy(block.trace(), static_cast<const Record *>(records) + first, (count - first) * sizeof(Record));
  __atomic_store_n(&state.trace_head, head + count, __ATOMIC_RELEASE);  // R4 pairs with A4
  return count;
}

// --- measurements and races, for tests ---

// Mean duration of a scan of all slots, in nanoseconds.
uint64_t blink_native_time_scan(void *base, uint32_t threads, uint32_t rounds) {
  const Block block(base);
  HostTeam team(block, threads, 0);
  Local &local = *block.at<Local>(block.config().local_offset);
  const auto run = [&](uint32_t thread) {
    HostPlatform platform(team, thread);
    const Context<HostPlatform> context{platform, block, local};
    for (uint32_t i = 0; i < rounds; ++i) {
      scan(context);
      platform.barrier();
    }
  };
  std::vector<std::thread> others;
  const uint64_t start_ns = monotonic_ns();
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread &other : others) other.join();
  return (monotonic_ns() - start_ns) / rounds;
}

// Two instances claim the same pending slot at once, `rounds` times, as an overlapping relaunch would: returns how often
// both believed that they had it. Must be 0. The memory is twice as large as planned: the second instance's state.
uint64_t blink_native_race_claims(void *base, uint32_t slot, uint32_t rounds) {
  const Block first(base);
  const Config apart = second_instance(first.config());
  const Block blocks[2] = {first, Block(base, &apart)};
  reset_scheduler(blocks[1]);
  TeamBarrier barrier(2);
  uint64_t won[2] = {0, 0}, doubles = 0;
  const auto run = [&](uint32_t who) {
    HostTeam team(blocks[who], 1, 0);
    HostPlatform platform(team, 0);
    const Context<HostPlatform> context{platform, blocks[who], *blocks[who].at<Local>(blocks[who].config().local_offset)};
    const uint64_t found = race_claims(context, who, slot, rounds, won, [&] { barrier.wait(); });
    if (!who) doubles = found;
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return doubles;
}

}  // extern "C"
