#pragma once
// Which sequences compute what in the next step.

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

/// Whether blocks that were computed before are used again for equal beginnings.
enum class PrefixReuse : std::uint8_t { kOff, kOn };

struct SchedulerOptions {
  PlanLimits limits;
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  std::int32_t max_requests = 65536;  ///< that run or wait
  /// Steps of waiting that outweigh one level of priority.
  std::int32_t aging_steps = 1024;
};

/// What the sampler is to do: one token of sample `sample` of `request` from row `logits` of the logits.
struct Draw {
  RequestId request = 0;
  int sample = 0;
  std::int32_t logits = 0;  ///< index in StepPlan::logit_rows
};

/// What the sampler has to know for a draw. Valid until the scheduler is called again.
struct DrawInput {
  const GenerationRequest* request = nullptr;
  std::span<const TokenId> generated;
  int sample = 0;
};

/// What came of a draw: a token, or why there is none, which ends the sample.
struct SampledToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  Status status;
};

struct SchedulerStats {
  std::int32_t requests = 0;  ///< not ended
  std::int32_t waiting = 0;   ///< sequences
  std::int32_t running = 0;   ///< sequences
  std::int32_t available_blocks = 0;
  std::uint64_t steps = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t reused_tokens = 0;  ///< found in the cache instead
  std::uint64_t preemptions = 0;
};

/// Admits, batches, preempts, cancels and ends the sequences of requests over one paged cache.
///
/// No threads, no clock, no I/O; the same calls give the same plans, on every rank and in every run. plan_step() and
/// complete_step() take turns; submit(), cancel() and end_all() may come at any time. In the steady state of decoding
/// neither allocates.
///
/// Order. Sequences are served by their turn: (step of submission - priority * aging_steps, order of submission,
/// sample), lowest first. All decoding sequences take part in each step; what is left of max_rows goes to prompts, in
/// chunks. When blocks run out, the one whose turn is last loses all of its own and waits to be computed anew; a
/// waiting one also takes them from running ones of lower priority whose turn is later. Nobody overtakes the head of
/// the queue, also if it does not fit yet.
///
/// Nobody starves. The first in turn is preempted by nobody and, as submit() checks, fits alone; those behind it that
/// run hold blocks for a bounded number of tokens, and none is admitted before it. So it advances and ends. Finitely
/// many others come before a request: those submitted earlier, or within (difference of priority) * aging_steps steps.
class Scheduler {
 public:
  using Events = std::vector<GenerationEvent>;

  static Result<Scheduler> create(const SchedulerOptions& options);
  Scheduler(Scheduler&&) = default;
  Scheduler& operator=(Scheduler&&) = default;

  /// What check_request() says; kInvalidArgument if `id` is not above all earlier ones; kResourceExhausted if
  /// max_requests wait or run. `request` is shared, never changed.
  Status submit(RequestId id, std::shared_ptr<const GenerationRequest> request);
  /// Ends all samples of a request, also while a step is under way. kNotFound: it ended, or never was.
  Status cancel(RequestId id, Events& events);
  /// Ends everything. A step that is under way is forgotten.
  void end_all(FinishReason reason, const Status& status, Events& events);

  /// Fills `plan`; empty, and no step, if nothing is to be done. kWrongState: the step before was not completed.
  Status plan_step(StepPlan& plan);
  /// Of the planned step, in ascending order of their logits.
  std::span<const Draw> draws() const { return draws_; }
  /// What is needed for draw `index`; nothing of a request that was cancelled meanwhile (request is nullptr), whose
  /// result is ignored.
  DrawInput draw_input(std::size_t index) const;
  /// `sampled`: one for each draw, in their order. Adds tokens and ends to `events`. kWrongState: no step was planned;
  /// kInvalidArgument: not one for each draw, or a token outside the vocabulary; the step remains to be completed then.
  Status complete_step(std::span<const SampledToken> sampled, Events& events);

  SchedulerStats stats() const;
  const PlanLimits& limits() const { return options_.limits; }
  /// Looks for contradictions and lost blocks; kInternal says what is wrong.
  Status check() const;

  /// What is in the cache is of no use any more: running sequences wait, and are computed again. Between two steps.
  void forget_cache();

 private:
  using SequenceId = std::int32_t;  // index in sequences_

  struct Record {
    std::shared_ptr<const GenerationRequest> request;
    std::int64_t turn = 0;
    int new_tokens = 0;  // at most, of each sample
    int live = 0;        // samples that have not ended
  };
  enum class State : std::uint8_t { kFree, kWaiting, kRunning };
  struct Sequence {
    State state = State::kFree;
    RequestId id = 0;
    Record* record = nullptr;
    int sample = 0;
    bool forks = false;           // the request's other samples begin when its prompt is computed
    std::vector<TokenId> tokens;  // prompt, then what was generated
    std::vector<BlockId> table;   // enough for all tokens but, at times, the last one
    std::int32_t computed = 0;    // tokens whose keys and values are in the cache
    std::int32_t published = 0;   // blocks
    std::int32_t planned = 0;     // rows in the step under way

    std::int32_t remaining() const { return static_cast<std::int32_t>(tokens.size()) - computed; }
  };

  Scheduler(const SchedulerOptions& options, BlockPool pool) : options_(options), pool_(std::move(pool)) {}
  Sequence& at(SequenceId id) { return sequences_[static_cast<std::size_t>(id)]; }
  const Sequence& at(SequenceId id) const { return sequences_[static_cast<std::size_t>(id)]; }
  bool before(SequenceId a, SequenceId b) const;
  void insert(std::vector<SequenceId>& queue, SequenceId id);
  SequenceId new_sequence(RequestId id, Record& record, int sample);
  void release_blocks(Sequence& sequence);
  void end(SequenceId id);
  void preempt(SequenceId id);

  // scheduler_plan.cpp
  std::int32_t blocks_needed(const Sequence& sequence, std::int32_t rows) const;
  bool writes_shared(const Sequence& sequence) const;
  void grow(Sequence& sequence, std::int32_t rows, std::vector<BlockCopy>& copies);
  std::int32_t admission_blocks(const Sequence& sequence);
  bool fits(std::int32_t blocks, std::int32_t available, std::size_t running) const;
  void make_room();
  bool plan_running(std::int32_t budget, StepPlan& plan);
  void admit(StepPlan& plan);
  void write_sequence(SequenceId id, StepPlan& plan);

  // scheduler_complete.cpp
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
  std::vector<SequenceId> drawn_;    // for each draw its sequence
  std::vector<Draw> draws_;
  std::vector<BlockId> found_;  // by admission_blocks()
  std::int32_t left_rows_ = 0;  // of the step that is being planned
  RequestId last_id_ = 0;
  bool any_id_ = false;
  bool step_planned_ = false;
  SchedulerStats stats_;
};

}  // namespace accord::engine
