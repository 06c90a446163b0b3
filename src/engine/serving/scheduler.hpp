#pragma once
// Decides which sequences compute what in the next step.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "accord/generation.hpp"
#include "engine/serving/block_pool.hpp"
#include "engine/serving/step_plan.hpp"

namespace accord::engine {

/// Whether blocks that were computed before are reused for equal prefixes.
enum class PrefixReuse : std::uint8_t { kOff, kOn };

struct SchedulerOptions {
  PlanLimits limits;
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  std::int32_t max_requests = 65536;  ///< waiting or running
  /// Steps of waiting that outweigh one level of priority.
  std::int32_t aging_steps = 1024;
};

/// A task for the sampler: one token of sample `sample` of `request` from row `logits` of the logits.
struct Draw {
  RequestId request = 0;
  int sample = 0;
  std::int32_t logits = 0;  ///< index in StepPlan::logit_rows
};

/// The sampler's input for a draw. Valid until the next call of the scheduler.
struct DrawInput {
  const GenerationRequest* request = nullptr;
  std::span<const TokenId> generated;
  int sample = 0;
};

/// The result of a draw: a token, or the reason why there is none, which ends the sample.
struct SampledToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  Status status;
};

/// Admits, batches, preempts, cancels and ends the sequences of requests over one paged cache.
///
/// No threads, no clock, no I/O; the same calls give the same plans, on every rank and in every run. plan_step() and
/// complete_step() alternate; submit(), cancel() and end_all() may be called at any time. In steady-state decoding,
/// plan_step() and complete_step() do not allocate.
///
/// Order. Sequences are served by turn: (step of submission - priority * aging_steps, order of submission, sample),
/// lowest first. All decoding sequences take part in each step; the rest of max_rows is used for prompts, in chunks.
/// If there are not enough blocks, the sequence whose turn is last loses all its blocks and waits to be computed
/// again. A waiting sequence also takes blocks from running ones of lower priority whose turn is later. No sequence
/// overtakes the head of the queue, even if the head does not fit yet.
///
/// Sources. An admitted sequence also gets the blocks of its source, which is computed in its first step. Its samples
/// share these blocks. If tokens of the prompt stand for its rows, it gets a slot instead, until the prompt has been
/// computed. A step computes sources of at most max_rows rows together, or a single longer one.
///
/// No starvation. The first sequence in turn is never preempted and, as submit() checks, fits alone. The running
/// sequences behind it hold blocks for a bounded number of tokens, and none is admitted before it. So it advances and
/// ends. Finitely many other requests precede a request: those submitted earlier, or later by at most aging_steps
/// steps for each level of higher priority.
///
/// Has a function for each rule of a step; they share the queue, the running sequences and the blocks.
class Scheduler {
 public:
  using Events = std::vector<GenerationEvent>;

  static Result<Scheduler> create(const SchedulerOptions& options);
  Scheduler(Scheduler&&) = default;
  Scheduler& operator=(Scheduler&&) = default;

  /// Fails like check_request(), with kInvalidArgument if `id` is not above all earlier ones, and with
  /// kResourceExhausted if max_requests are waiting or running. `request` is shared and never changed. `source_rows`:
  /// rows that the encoder makes of its source.
  Status submit(RequestId id, std::shared_ptr<const GenerationRequest> request, std::int32_t source_rows = 0);
  /// Ends all samples of a request, even during a step. Fails with kNotFound if the request has ended or never
  /// existed.
  Status cancel(RequestId id, Events& events);
  /// Ends all requests. A step in progress is discarded.
  void end_all(FinishReason reason, const Status& status, Events& events);

  /// Fills `plan`. If there is nothing to do, the plan is empty and no step begins. Fails with kWrongState if the
  /// previous step was not completed.
  Status plan_step(StepPlan& plan);
  /// The draws of the planned step, ascending by row of the logits.
  std::span<const Draw> draws() const { return draws_; }
  /// Returns the input of draw `index`. Its request is nullptr if the request was cancelled in the meantime; the
  /// result of the draw is then ignored.
  DrawInput draw_input(std::size_t index) const;
  /// Completes the step with `sampled`, one result for each draw, in the same order. Adds tokens and ends to `events`.
  /// Fails with kWrongState if no step was planned, and with kInvalidArgument if the number of results differs from
  /// that of draws or a token is outside the vocabulary; the step then remains to be completed.
  Status complete_step(std::span<const SampledToken> sampled, Events& events);

  GenerationStats stats() const;
  const PlanLimits& limits() const { return options_.limits; }
  /// Checks all invariants and looks for lost blocks. Returns kInternal, saying what is wrong.
  Status check() const;

  /// Invalidates the contents of the cache: running sequences wait to be computed again. Called between two steps.
  void invalidate_cache();

 private:
  using SequenceId = std::int32_t;  // index in sequences_

  struct Record {
    std::shared_ptr<const GenerationRequest> request;
    std::int64_t turn = 0;
    int new_tokens = 0;  // limit for each sample
    int live = 0;        // samples that have not ended
    std::int32_t source_rows = 0;
    std::int32_t adapter = 0;  // as in PlannedSequence
  };
  enum class State : std::uint8_t { kFree, kWaiting, kRunning };
  struct Sequence {
    State state = State::kFree;
    RequestId id = 0;
    Record* record = nullptr;
    int sample = 0;
    bool forks = false;                 // the request's other samples begin when its prompt has been computed
    std::vector<TokenId> tokens;        // the prompt, then generated tokens
    std::vector<BlockId> table;         // enough for all tokens, at times except the last one
    std::vector<BlockId> source_table;  // of a running sequence, enough for its source; never written to again
    bool source_computed = false;
    std::int32_t source_slot = PlannedSequence::kNoSlot;  // while the prompt of a running sequence is computed
    std::int32_t computed = 0;                            // tokens whose keys and values are in the cache
    std::int32_t published = 0;                           // blocks
    std::int32_t planned = 0;                             // rows in the current step

    std::int32_t remaining() const { return static_cast<std::int32_t>(tokens.size()) - computed; }
  };

  Scheduler(const SchedulerOptions& options, BlockPool pool)
      : options_(options),
        pool_(std::move(pool)),
        slots_in_use_(static_cast<std::size_t>(options.limits.max_sequences), false) {}
  Sequence& at(SequenceId id) { return sequences_[static_cast<std::size_t>(id)]; }
  const Sequence& at(SequenceId id) const { return sequences_[static_cast<std::size_t>(id)]; }
  bool before(SequenceId a, SequenceId b) const;
  /// True if blocks of the sequence may be those of another one with the same tokens: not if their keys and values
  /// also depend on a source.
  bool shares_prefixes(const Sequence& sequence) const {
    return options_.prefix_reuse == PrefixReuse::kOn && sequence.record->source_rows == 0;
  }
  void insert(std::vector<SequenceId>& queue, SequenceId id);
  SequenceId new_sequence(RequestId id, Record& record, int sample);
  void release_blocks(Sequence& sequence);
  void release_slot(Sequence& sequence);
  void end(SequenceId id);
  void preempt(SequenceId id);

  // Defined in scheduler_plan.cpp.
  std::int32_t blocks_needed(const Sequence& sequence, std::int32_t rows) const;
  bool writes_to_shared_block(const Sequence& sequence) const;
  std::int32_t source_blocks(const Sequence& sequence) const;
  std::int32_t free_slot() const;
  void grow(Sequence& sequence, std::int32_t rows, std::vector<BlockCopy>& copies);
  std::int32_t admission_blocks(const Sequence& sequence);
  bool fits(std::int32_t blocks, std::int32_t available, std::size_t running) const;
  void make_room();
  bool plan_running(std::int32_t budget, StepPlan& plan);
  void admit(StepPlan& plan);
  void write_sequence(SequenceId id, StepPlan& plan);

  // Defined in scheduler_complete.cpp.
  void advance(Sequence& sequence);
  void fork(std::size_t draw);
  void append(SequenceId id, const SampledToken& sampled, Events& events);
  std::optional<FinishReason> finished(const Sequence& sequence) const;

  SchedulerOptions options_;
  BlockPool pool_;
  std::map<RequestId, Record> records_;  // Sequence::record points into it
  std::vector<Sequence> sequences_;
  std::vector<SequenceId> free_;     // of sequences_
  std::vector<SequenceId> waiting_;  // by turn
  std::vector<SequenceId> running_;  // by turn
  std::vector<SequenceId> planned_;  // in the order of the plan
  std::vector<SequenceId> drawn_;    // the sequence of each draw
  std::vector<Draw> draws_;
  std::vector<bool> slots_in_use_;        // of sources
  std::vector<BlockId> reusable_blocks_;  // by admission_blocks()
  std::int32_t left_rows_ = 0;            // of the step that is being planned
  std::int32_t new_source_rows_ = 0;      // of that step
  RequestId last_id_ = 0;
  bool has_ids_ = false;
  bool step_planned_ = false;
  GenerationStats stats_;
};

}  // namespace accord::engine
