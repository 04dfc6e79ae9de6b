// The scheduler under load in one process, for sanitizers: several scan threads, an engine thread, and a frontend that
// submits, cancels, reads, checks and recycles through the same interface as every other.
//
// Compile: c++ -O1 -g -std=c++17 -pthread -fsanitize=thread -Ikernels/include kernels/src/stress.cpp -o stress
// Run:     stress [requests] [scan threads]; exits 0 if every token was right and every slot came back.
#include <stdlib.h>

#include "native.cpp"

namespace {

constexpr uint32_t kSlotsUsed = 96, kPromptRoom = 24, kOutputRoom = 12, kBlockTokens = 4;

Config small_config() {
  Config c = {};
  c.batch_max = 16;
  c.prefill_batch_max = 4;
  c.block_tokens = kBlockTokens;
  c.window = 3;
  c.prefill_padding_tokens_max = kPromptRoom;
  c.resume_after_tokens = 2 * kPromptRoom;
  c.kv_block_count = 80;  // fewer than the batch could want: requests wait for blocks
  c.blocks_per_place = (kPromptRoom + kOutputRoom + kBlockTokens - 1) / kBlockTokens;
  c.eos_token = 2;
  c.trace_capacity = 1 << 10;
  c.prompt_area_tokens = kSlots * kPromptRoom;
  c.output_area_tokens = kSlots * kOutputRoom;
  c.prefill_batch_count = c.prefill_sequence_count = c.decode_batch_count = c.decode_sequence_count = 1;
  c.prefill_tokens_max = c.decode_tokens_max = 1 << 20;
  c.prefill_fallback_batch = 1;
  c.prefill_fallback_sequence = kPromptRoom;
  c.decode_fallback_batch = 16;
  c.decode_fallback_sequence = kPromptRoom + kOutputRoom;
  c.graph_timeout_ns = UINT64_C(60000000000);
  c.engine_thread = 1;
  return c;
}

// One request in the frontend's eyes.
struct Flight {
  bool used, cancelled;
  uint32_t generation, eos_at, read;
  uint64_t seed;
};

class StressFrontend {
 public:
  StressFrontend(void *base, uint64_t requests) : base_(base), block_(base), left_(requests), flights_(kSlotsUsed) {}

  // Until every request has ended; the number of wrong tokens.
  uint64_t run() {
    std::vector<uint64_t> ctl(kSlots);
    std::vector<Record> records(256);
    while (left_ || flying_) {
      for (uint32_t slot = 0; slot < kSlotsUsed && left_; ++slot) {
        if (!flights_[slot].used) submit(slot);
      }
      blink_native_read_status(base_, ctl.data());
      for (uint32_t slot = 0; slot < kSlotsUsed; ++slot) {
        if (flights_[slot].used) look(slot, ctl[slot]);
      }
      while (blink_native_drain(base_, records.data(), records.size())) {
      }
      std::this_thread::yield();
    }
    return wrong_;
  }

 private:
  void submit(uint32_t slot) {
    const uint64_t id = ++last_id_;
    Flight &flight = flights_[slot];
    const uint32_t prompt_tokens = 1 + static_cast<uint32_t>(mix(id) % kPromptRoom);
    std::vector<uint32_t> prompt(prompt_tokens);
    for (uint32_t i = 0; i < prompt_tokens; ++i) prompt[i] = static_cast<uint32_t>(mix(id * 1000 + i) >> 44);
    flight = {true, false, flight.generation, 1 + static_cast<uint32_t>(mix(~id) % (2 * kOutputRoom)), 0,
              mix(prompt_hash(prompt.data(), prompt_tokens) + id)};
    blink_native_set_eos(base_, slot, flight.eos_at);
    blink_native_write_prompt(base_, uint64_t{4} * slot * kPromptRoom, prompt.data(), uint64_t{4} * prompt_tokens);
    blink_descriptor d = {id, flight.generation, 0, slot * kPromptRoom, prompt_tokens, slot * kOutputRoom, kOutputRoom,
                          kOutputRoom, 0, 1, 0, 0, 0, BLINK_GENERATION_NONE};
    d.crc32c = crc32c(reinterpret_cast<const unsigned char *>(&d), BLINK_CRC_COVERS_BYTES);
    if (id % 41 == 0) d.crc32c ^= 1;  // a descriptor that was torn on its way
    uint64_t words[8];
    memcpy(words, &d, sizeof d);
    blink_native_write_descriptors(base_, 64 * slot, words, 8);
    write_ctl(slot, BLINK_STATE_PREFILL_PENDING, flight.generation);
    if (id % 7 == 0) {
      flight.cancelled = true;
      const uint64_t cancel = flight.generation;
      blink_native_write_descriptors(base_, 64 * slot + 56, &cancel, 1);
    }
    --left_;
    ++flying_;
  }

  void write_ctl(uint32_t slot, uint64_t state, uint64_t generation) {
    const uint64_t word = state | generation << BLINK_CTL_GENERATION_SHIFT;
    blink_native_write_status(base_, 16 * slot, &word, 1);
  }

  void look(uint32_t slot, uint64_t ctl) {
    Flight &flight = flights_[slot];
    if (generation_of(ctl) != flight.generation) return;
    const int64_t from = slot * kOutputRoom + flight.read, count = token_count_of(ctl) - flight.read;
    std::vector<uint32_t> tokens(kOutputRoom);
    blink_native_read_tokens(base_, 1, &from, &count, tokens.data());
    for (int64_t i = 0; i < count; ++i, ++flight.read) {
      const uint32_t right = flight.read + 1 == flight.eos_at ? 2 : stub_token(flight.seed, flight.read);
      wrong_ += tokens[static_cast<size_t>(i)] != right;
    }
    if (state_of(ctl) != BLINK_STATE_DECODE_COMPLETED) return;
    flight.used = false;
    ++flight.generation;
    --flying_;
    write_ctl(slot, BLINK_STATE_EMPTY, flight.generation);
  }

  void *base_;
  const Block block_;
  uint64_t left_, flying_ = 0, last_id_ = 0, wrong_ = 0;
  std::vector<Flight> flights_;
};

}  // namespace

int main(int count, char **arguments) {
  const uint64_t requests = count > 1 ? strtoull(arguments[1], nullptr, 10) : 3000;
  const uint32_t threads = count > 2 ? static_cast<uint32_t>(strtoul(arguments[2], nullptr, 10)) : 4;
  Config config = small_config();
  blink_native_plan(&config);
  void *base = aligned_alloc(4096, config.total_bytes);
  memset(base, 0, config.total_bytes);
  memcpy(base, &config, sizeof config);
  const Block block(base);
  const uint32_t shapes[4] = {4, kPromptRoom, 16, kPromptRoom + kOutputRoom};
  memcpy(block.shapes(), shapes, sizeof shapes);
  blink_native_create(base);
  std::thread scheduler([&] { blink_native_run(base, threads, 0); });
  const uint64_t wrong = StressFrontend(base, requests).run();
  blink_native_set_stop(base, static_cast<uint64_t>(Stop::DRAIN));
  scheduler.join();
  const State &state = block.state();
  printf("requests %llu, wrong tokens %llu, claims %llu, relaunches %llu, dropped %llu, blocks free %u of %u\n",
         static_cast<unsigned long long>(requests), static_cast<unsigned long long>(wrong),
         static_cast<unsigned long long>(state.claim_count), static_cast<unsigned long long>(state.relaunches),
         static_cast<unsigned long long>(state.trace_dropped), state.free_block_count, config.kv_block_count);
  const bool good = !wrong && state.free_block_count == config.kv_block_count && state.claim_count;
  free(base);
  return good ? 0 : 1;
}
