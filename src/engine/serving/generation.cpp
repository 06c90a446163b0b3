// One thread runs the loop: execute orders, plan, send the plan, run the model, sample, deliver events. It owns the
// scheduler and the samplers, so nothing is locked while it works. A cancel takes effect between two steps.
#include "engine/serving/generation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/serving/plan_message.hpp"

namespace accord::engine {

Result<std::unique_ptr<Generation>> Generation::create(std::shared_ptr<StepModel> model,
                                                       std::shared_ptr<PlanChannel> channel,
                                                       const GenerationOptions& options) {
  if (options.sampling_threads < 1 || options.heartbeat <= Duration::zero())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("sampling_threads={} and a heartbeat of {} ns; expected 1 or more of each",
                              options.sampling_threads, options.heartbeat.count()));
  ACCORD_ASSIGN_OR_RETURN(auto scheduler, Scheduler::create({model->limits(), options.prefix_reuse,
                                                             options.max_requests, options.aging_steps}));
  std::unique_ptr<Generation> made(new Generation(std::move(model), std::move(channel), options, std::move(scheduler)));
  made->thread_ = std::thread([generation = made.get()] { generation->loop(); });
  made->loop_thread_ = made->thread_.get_id();
  return made;
}

Generation::Generation(std::shared_ptr<StepModel> model, std::shared_ptr<PlanChannel> channel,
                       const GenerationOptions& options, Scheduler scheduler)
    : model_(std::move(model)),
      channel_(std::move(channel)),
      limits_(model_->limits()),
      heartbeat_(options.heartbeat),
      queue_(std::make_shared<RequestQueue>(limits_, options.max_requests)),
      scheduler_(std::move(scheduler)),
      samplers_(static_cast<std::size_t>(options.sampling_threads), Sampler(limits_.vocabulary)),
      pool_(options.sampling_threads),
      stats_(scheduler_.stats()) {}

Generation::~Generation() { (void)stop().ok(); }

Result<RequestId> Generation::submit(GenerationRequest request, GenerationCallback callback) {
  ACCORD_ASSIGN_OR_RETURN(const std::int32_t source_rows, model_->source_rows(request.source));
  return queue_->submit(std::move(request), source_rows, std::move(callback));
}

Result<TokenStream> Generation::submit(GenerationRequest request) {
  ACCORD_ASSIGN_OR_RETURN(const std::int32_t source_rows, model_->source_rows(request.source));
  return TokenStream::submit(queue_, std::move(request), source_rows);
}

Status Generation::cancel(RequestId id) { return queue_->cancel(id); }

Status Generation::stop() {
  queue_->stop(Status(StatusCode::kClosed, "the generation was stopped"));
  if (std::this_thread::get_id() == loop_thread_) return Status();
  const std::lock_guard lock(joining_);
  if (thread_.joinable()) thread_.join();
  const Status ended = status();
  return ended.code() == StatusCode::kClosed ? Status() : ended;
}

GenerationStats Generation::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

// Submissions were checked, so the scheduler accepts them; cancelled requests may have ended in the meantime.
Status Generation::execute_orders() {
  for (auto& submission : orders_.submissions)
    ACCORD_RETURN_IF_ERROR(scheduler_.submit(submission.id, std::move(submission.request), submission.source_rows));
  for (const RequestId id : orders_.cancels) (void)scheduler_.cancel(id, events_).ok();
  return Status();
}

void Generation::prepare_masks() {
  const auto draws = scheduler_.draws();
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const DrawInput input = scheduler_.draw_input(i);
    if (input.request != nullptr && input.request->sampling.mask != nullptr)
      input.request->sampling.mask->prepare(input.sample, input.generated);
  }
}

// Lets the model choose tokens where it can; the other draws are left in unchosen_.
Status Generation::choose() {
  const auto draws = scheduler_.draws();
  sampled_.assign(draws.size(), SampledToken());
  choices_.clear();
  chosen_.clear();
  unchosen_.clear();
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (const auto choice = Sampler::choice(scheduler_.draw_input(i), draws[i].logits)) {
      choices_.push_back(*choice);
      chosen_.push_back(i);
    } else {
      unchosen_.push_back(i);
    }
  }
  tokens_.resize(choices_.size());
  if (!choices_.empty()) ACCORD_RETURN_IF_ERROR(model_->choose(choices_, tokens_));
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] == kNoToken) unchosen_.push_back(chosen_[i]);
    sampled_[chosen_[i]].token = tokens_[i];
  }
  std::ranges::sort(unchosen_);
  return Status();
}

// Samples the draws in unchosen_ from logits that it reads here. Draws are in the order of their rows; adjacent rows
// are read at once.
Status Generation::sample() {
  const auto draws = scheduler_.draws();
  const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
  const std::size_t wanted = unchosen_.empty() ? 0 : plan_.logit_rows.size() * vocabulary;
  if (logits_.size() < wanted) logits_.resize(wanted);
  const auto row_of = [&](std::size_t i) { return static_cast<std::size_t>(draws[unchosen_[i]].logits); };
  for (std::size_t i = 0; i < unchosen_.size();) {
    const std::size_t first = row_of(i);
    std::size_t end = first;
    for (; i < unchosen_.size() && row_of(i) <= end; ++i) end = row_of(i) + 1;
    ACCORD_RETURN_IF_ERROR(
        model_->read_logits(first, std::span(logits_).subspan(first * vocabulary, (end - first) * vocabulary)));
  }
  const std::span<const float> logits(logits_);
  const int parts = pool_.threads();
  const auto sample_part = [&](int part) {
    const PartRange range = part_range(static_cast<std::int64_t>(unchosen_.size()), 1, part, parts);
    for (auto i = static_cast<std::size_t>(range.first); i < static_cast<std::size_t>(range.last); ++i) {
      sampled_[unchosen_[i]] = samplers_[static_cast<std::size_t>(part)].sample(
          logits.subspan(row_of(i) * vocabulary, vocabulary), scheduler_.draw_input(unchosen_[i]));
    }
    return Status();
  };
  if (!unchosen_.empty()) (void)pool_.run(parts, sample_part).ok();  // failures are in sampled_
  return Status();
}

Status Generation::step() {
  ACCORD_RETURN_IF_ERROR(execute_orders());
  // Follower ranks keep their initial weights.
  if (channel_ == nullptr && model_->use_newest_weights()) scheduler_.invalidate_cache();
  ACCORD_RETURN_IF_ERROR(scheduler_.plan_step(plan_));
  if (channel_ != nullptr) {
    write_message(plan_.empty() ? PlanMessage::kIdle : PlanMessage::kStep, plan_, message_);
    ACCORD_RETURN_IF_ERROR(channel_->send(message_));
  }
  if (plan_.empty()) return Status();
  prepare_masks();
  ACCORD_RETURN_IF_ERROR(model_->run(plan_));
  ACCORD_RETURN_IF_ERROR(choose());
  ACCORD_RETURN_IF_ERROR(sample());
  return scheduler_.complete_step(sampled_, events_);
}

void Generation::deliver_events() {
  {
    const std::lock_guard lock(stats_mutex_);
    stats_ = scheduler_.stats();
  }
  for (const GenerationEvent& event : events_) queue_->deliver(event);
  events_.clear();
}

// Ends all requests, including those submitted last.
void Generation::end() {
  (void)execute_orders().ok();
  const Status status = queue_->status();
  const bool stopped = status.code() == StatusCode::kClosed;
  scheduler_.end_all(stopped ? FinishReason::kCancelled : FinishReason::kError, status, events_);
  deliver_events();
  if (channel_ == nullptr) return;
  write_message(PlanMessage::kEnd, plan_, message_);
  if (!stopped || !channel_->send(message_).ok()) channel_->fail(status);
}

void Generation::loop() {
  for (;;) {
    queue_->wait_for_orders(orders_, scheduler_.stats().requests == 0 ? heartbeat_ : Duration::zero());
    if (orders_.stop) return end();
    const Status status = step();
    if (!status.ok()) queue_->stop(status);
    deliver_events();
  }
}

}  // namespace accord::engine
