// The persistent scheduler: scan, boundary, decision, one graph, tokens; over and over, until it relaunches or stops.
//
// Every thread of the block runs this code. What only one may do stands in functions of the leader, between barriers.
#ifndef BLINK_SCHEDULER_H
#define BLINK_SCHEDULER_H

#include "blink/accounts.h"
#include "blink/batch.h"
#include "blink/publish.h"
#include "blink/scan.h"
#include "blink/watchdog.h"

namespace blink {

// The stop word of the ring header.
enum class Stop : uint64_t { RUN = 0, DRAIN = 1, ABORT = 2 };

template <class P>
class Scheduler {
 public:
  BLINK_DEVICE Scheduler(P &platform, const Block &block, Local &local) : c_{platform, block, local} {}

  // A fresh instance over the memory of its predecessor, until it wants a successor (RELAUNCH) or is told to STOP.
  BLINK_DEVICE Action run() {
    adopt();
    for (;;) {
      const Action action = step();
      if (action == Action::RELAUNCH || action == Action::STOP) return action;
    }
  }

  // E3: the batch is what decodes in the ring. The queue is what the predecessor handed over, else it is found again by the
  // first scan: to sort thousands of prompts anew at every relaunch would take one thread of a GPU milliseconds.
  BLINK_DEVICE void adopt() {
    P &p = c_.platform;
    Local &local = c_.local;
    uint64_t *words = reinterpret_cast<uint64_t *>(&local);
    for (uint32_t i = p.thread(); i < sizeof(Local) / 8; i += p.threads()) words[i] = 0;
    p.barrier();
    if (p.leader()) start();
    p.barrier();
#ifndef BLINK_MUTANT_RELAUNCH_ADOPTS_NOTHING
    each_in_state(c_, 0, kSlots, BLINK_STATE_DECODE_PROCESSING,
                  [&](uint32_t slot) { p.set_bits(&local.adopted[slot / 64], uint64_t{1} << (slot % 64)); });
#endif
    p.barrier();
    if (p.leader()) list_adopted();
    const Pending *waiting = c_.block.waiting() + local.waiting_first;
    for (uint32_t i = p.thread(); i < local.waiting_count; i += p.threads()) local.queued[waiting[i].slot] = 1;
    p.barrier();
    for (uint32_t i = p.thread(); i < local.batch_count; i += p.threads()) {
      const Live &live = c_.block.live(local.batch[i]);
      local.kv_length[i] = live.prompt_tokens + live.token_count;
    }
    p.barrier();
    if (p.leader()) {
      for (uint32_t i = 0; i < local.batch_count; ++i) local.kv_tokens += local.kv_length[i];
    }
    p.barrier();
  }

  // One boundary, one decision, and what it asks for.
  BLINK_DEVICE Action step() {
    P &p = c_.platform;
    if (!c_.local.scanned) scan(c_);
    look_at_words(c_);
    p.barrier();
    if (p.leader()) boundary();
    p.barrier();
    const Action action = c_.local.decision.action;
    if (action == Action::PREFILL) {
      prefill();
    } else if (action == Action::DECODE) {
      decode();
    } else if (action == Action::IDLE && p.leader()) {
      p.idle(++c_.local.idle_tries);
    }
    return action;
  }

  // What a step leaves to the next boundary: who has ended leaves, records become visible. The leader alone.
  BLINK_DEVICE void settle() {
    settle_step();
    commit_records(c_);
  }

 private:
  BLINK_DEVICE void settle_step() {
    Local &local = c_.local;
    if (local.unsettled != Unsettled::NOTHING) {
      State &state = c_.block.state();
      ++state.step;
      if (local.unsettled == Unsettled::DECODE) {
        state.prefilled_tokens = 0;
        settle_decode(c_);
      } else {
        settle_prefill(c_);
      }
      local.unsettled = Unsettled::NOTHING;
    }
  }

  // Adopted slots become the batch, ascending.
  BLINK_DEVICE void list_adopted() {
    Local &local = c_.local;
    for (uint32_t word = 0; word < kSlotWords; ++word) {
      uint64_t set = local.adopted[word];
      for (uint32_t slot = word * 64; set; ++slot, set >>= 1) {
        if (set & 1) local.batch[local.batch_count++] = static_cast<uint16_t>(slot);
      }
    }
  }

  BLINK_DEVICE void start() {
    State &state = c_.block.state();
    Local &local = c_.local;
    local.record_next = local.records_committed = state.trace_head;
    local.moved_ns = c_.platform.now_ns();
    if (state.relaunching) {
      state.relaunching = 0;
      state.launches = 0;
      local.waiting_first = state.waiting_first;
      local.waiting_count = state.waiting_count;
      ++state.instance;
      ++state.relaunches;
      record(c_, {local.moved_ns, 0, static_cast<uint32_t>(state.step), what(Event::RELAUNCHED, 0, kNoSlot), 0, 0});
      commit_records(c_);
    }
    state.started = 1;
  }

  // To the successor, which trusts it only after a relaunch: a scheduler that died may have left it half done.
  BLINK_DEVICE void hand_over() {
    State &state = c_.block.state();
    state.waiting_first = c_.local.waiting_first;
    state.waiting_count = c_.local.waiting_count;
    state.relaunching = 1;
  }

  // --- the leader's work at a step boundary ---

  BLINK_DEVICE void boundary() {
    P &p = c_.platform;
    Local &local = c_.local;
    State &state = c_.block.state();
    settle_step();
    if (local.any) {
      take_in(c_);
      abort_ended(c_);
      clear_sets(c_);
    }
    local.scanned = 0;
    ++state.iterations;
    const uint64_t now_ns = p.now_ns();
    local.decision = stopped(now_ns) ? Decision{Action::STOP, 0, Blocked::NOT} : decision();
    p.beat(now_ns);
    account(c_, local.idle_tries ? Busy::IDLE : Busy::LOOP, now_ns);
    local.blocked_before = local.decision.blocked;
    if (local.decision.action != Action::IDLE) local.idle_tries = 0;
    if (c_.block.config().report) report_decision();
    if (local.decision.action == Action::RELAUNCH) hand_over();
    if (local.decision.action == Action::DECODE) launch_decode();
    if (local.decision.action == Action::PREFILL) {
      if (local.batch_count) {
        prepare_move();
      } else {
        launch_prefill();
      }
      return;  // records of the pause are committed after it
    }
    commit_records(c_);
  }

  BLINK_DEVICE Decision decision() {
    const State &state = c_.block.state();
    if (state.failed) return {Action::IDLE, 0, Blocked::NOT};  // a graph hangs: nothing is ever launched again
    const Local &local = c_.local;
    return decide(local.batch_count, c_.block.waiting() + local.waiting_first, local.waiting_count,
                  state.free_block_count, c_.block.config().window - static_cast<uint32_t>(state.launches),
                  state.prefilled_tokens, limits(), graph_table(c_.block, Kind::PREFILL));
  }

  // Places are counted where they are kept: free ones and those of the batch are batch_max in all.
  BLINK_DEVICE Limits limits() const {
    const Config &config = c_.block.config();
    return {c_.local.batch_count + c_.block.state().free_place_count, config.prefill_batch_max, config.block_tokens,
            config.window, config.prefill_padding_tokens_max, config.resume_after_tokens};
  }

  BLINK_DEVICE bool stopped(uint64_t now_ns) {
    P &p = c_.platform;
    const Stop stop = static_cast<Stop>(p.stop_word(now_ns));  // A7 pairs with R7
    const bool abandoned = stop == Stop::ABORT || !p.alive();
    if (abandoned) abort_all(c_);
    return abandoned || (stop == Stop::DRAIN && !c_.local.batch_count && !c_.local.waiting_count);
  }

  BLINK_DEVICE void report_decision() {
    Report &report = c_.block.report();
    const Decision &decision = c_.local.decision;
    report = {static_cast<uint32_t>(decision.action), static_cast<uint32_t>(decision.blocked), 0, 0, 0, 0, 0, 0};
  }

  BLINK_DEVICE void report_graph(Kind kind, const uint16_t *members, uint32_t count) {
    Report &report = c_.block.report();
    report.graph = static_cast<uint32_t>(kind);
    report.graph_batch = c_.local.shape.batch;
    report.graph_sequence = c_.local.shape.sequence;
    report.member_count = count;
    for (uint32_t i = 0; i < count; ++i) c_.block.report_members()[i] = members[i];
    if (kind != Kind::PREFILL) return;
    report.paused_count = c_.local.batch_count;
    report.claim_count = count;
    for (uint32_t i = 0; i < count; ++i) c_.block.report_claimed()[i] = members[i];
  }

  // Before T6 or T7 of the batch.
  BLINK_DEVICE void prepare_move() {
    c_.local.moved_ns = c_.platform.now_ns();
    reserve_records(c_, c_.local.batch_count);
  }

  // --- graphs ---

  BLINK_DEVICE void launch_decode() {
    const uint32_t rows = c_.local.batch_count, longest = longest_kv(c_);
    // While the batch stays as it is, its longest sequence only grows: the last shape is right until it is too short.
    if (!c_.local.rows_stand || longest > c_.local.shape.sequence) {
      c_.local.shape = choose(graph_table(c_.block, Kind::DECODE), rows, longest);
    }
    launch(Kind::DECODE, c_.local.batch, rows);
  }

  // T2 of as many prompts as were decided, and their graph.
  BLINK_DEVICE void launch_prefill() {
    Local &local = c_.local;
    local.claimed_count = 0;
    const uint64_t now_ns = c_.platform.now_ns();  // prompts that are claimed together have one age
    uint32_t longest = 0;
    for (uint32_t i = 0; i < local.decision.claim_count; ++i) {
      const Pending prompt = c_.block.waiting()[local.waiting_first];
      ++local.waiting_first;
      --local.waiting_count;
      local.queued[prompt.slot] = 0;
      if (!claim(c_, prompt, now_ns)) continue;  // somebody else owns it now
      local.claimed[local.claimed_count++] = static_cast<uint16_t>(prompt.slot);
      if (prompt.prompt_tokens > longest) longest = prompt.prompt_tokens;
      State &state = c_.block.state();
      state.prefilled_tokens = prefilled(state.prefilled_tokens, prompt.prompt_tokens, limits());
      ++state.claim_count;
    }
    if (!local.waiting_count) local.waiting_first = 0;
    if (!local.claimed_count) return;
    local.shape = choose(graph_table(c_.block, Kind::PREFILL), local.claimed_count, longest);
    launch(Kind::PREFILL, local.claimed, local.claimed_count);
  }

  BLINK_DEVICE void launch(Kind kind, const uint16_t *slots, uint32_t rows) {
    State &state = c_.block.state();
    Input &input = c_.block.input();
    const bool is_batch = kind == Kind::DECODE;
    for (uint32_t i = 0; !(is_batch && c_.local.rows_stand) && i < rows; ++i) c_.block.input_rows()[i] = slots[i];
    c_.local.rows_stand = is_batch;
    input = {++state.graph_sequence, c_.local.kv_tokens, static_cast<uint32_t>(kind), c_.local.shape.index, rows, 0};
    ++state.launches;
    count_launch(c_, kind);
    if (c_.block.config().report) report_graph(kind, slots, rows);
    c_.local.unsettled = kind == Kind::PREFILL ? Unsettled::PREFILL : Unsettled::DECODE;
    c_.local.launched_ns = c_.platform.now_ns();
    c_.platform.launch(static_cast<uint32_t>(kind), c_.local.shape.index, state.graph_sequence);  // R2 pairs with A2
    // While the graph starts: what is noted has its time already.
    account(c_, Busy::LOOP, c_.local.launched_ns);
    record(c_, graph_record(c_.local.launched_ns, state.step, Event::GRAPH_LAUNCHED, kind, c_.local.shape, rows));
    commit_records(c_);
  }

  // While the graph runs, all threads scan. True once it is done; false if it never will be.
  BLINK_DEVICE bool wait(Kind kind, uint32_t rows) {
    P &p = c_.platform;
    for (uint32_t tries = 0;; ++tries) {
      scan_part(c_, tries);
      if (p.leader()) {
        const Outcome outcome = watch(c_);
        if (outcome == Outcome::DONE) {
          done(kind, rows);
          // Else not all slots were looked at while it ran, or long before its end.
          c_.local.scanned = tries + 1 >= P::kScanParts && !p.waits_blindly();
        } else if (outcome != Outcome::RUNNING) {
          give_up(outcome);
        } else {
          p.idle(tries);
        }
        c_.local.outcome[tries & 1] = outcome;
      }
      p.barrier();
      const Outcome outcome = c_.local.outcome[tries & 1];
      if (outcome != Outcome::RUNNING) return outcome == Outcome::DONE;
    }
  }

  BLINK_DEVICE void done(Kind kind, uint32_t rows) {
    Local &local = c_.local;
    const uint64_t now_ns = c_.platform.now_ns();
    account(c_, kind == Kind::PREFILL ? Busy::PREFILL : Busy::DECODE, now_ns);
    record(c_, graph_record(now_ns, c_.block.state().step, Event::GRAPH_DONE, kind, local.shape, rows));
    reserve_records(c_, rows);
  }

  BLINK_DEVICE void give_up(Outcome outcome) {
    c_.local.unsettled = Unsettled::NOTHING;
    abort_all(c_);
    commit_records(c_);
    if (outcome == Outcome::OVERDUE) c_.block.state().failed = 1;
  }

  BLINK_DEVICE void decode() {
    if (!wait(Kind::DECODE, c_.local.batch_count)) return;
    publish(c_, c_.local.batch, c_.local.batch_count, Event::TOKEN, Event::FINISH);
  }

  BLINK_DEVICE void prefill() {
    P &p = c_.platform;
    const bool pauses = c_.local.batch_count > 0;
    if (pauses) {
      move_batch(c_, Event::PAUSE, BLINK_STATE_DECODE_PROCESSING, BLINK_STATE_DECODE_PAUSED);
      p.barrier();
      if (p.leader()) launch_prefill();
      p.barrier();
    }
    if (c_.local.claimed_count) {
      if (!wait(Kind::PREFILL, c_.local.claimed_count)) return;
      publish(c_, c_.local.claimed, c_.local.claimed_count, Event::FIRST_TOKEN, Event::FINISH_AT_PREFILL);
    }
    if (!pauses) return;
    p.barrier();
#ifndef BLINK_MUTANT_NEVER_RESUME
    if (p.leader()) prepare_move();
    p.barrier();
    move_batch(c_, Event::RESUME, BLINK_STATE_DECODE_PAUSED, BLINK_STATE_DECODE_PROCESSING);
#endif
  }

  Context<P> c_;
};

}  // namespace blink

#endif  // BLINK_SCHEDULER_H
