#pragma once
// A model that answers requests: scheduler, sampler and model in one loop.

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "accord/generation.hpp"
#include "accord/store.hpp"
#include "engine/runtime/thread_pool.hpp"
#include "engine/serving/order_desk.hpp"
#include "engine/serving/plan_channel.hpp"
#include "engine/serving/sampler.hpp"
#include "engine/serving/scheduler.hpp"
#include "engine/serving/step_model.hpp"
#include "engine/serving/token_stream.hpp"

namespace accord::engine {

struct GenerationOptions {
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  std::int32_t max_requests = 65536;
  std::int32_t aging_steps = 1024;
  int sampling_threads = 1;
  /// How often the other ranks hear of rank 0 while there is nothing to do; below the timeout of their channel.
  Duration heartbeat = std::chrono::seconds(1);
};

/// Rank 0's side; the other ranks call follow(). It runs until it is stopped, or the model or the channel fails, which
/// ends all requests and is what every later submit() gets.
///
/// Thread-safe: any thread may submit, cancel and stop at any time, also from a callback. The destructor stops; not
/// from a callback.
class Generation {
 public:
  /// `channel`: nullptr if there are no other ranks.
  static Result<std::unique_ptr<Generation>> create(std::shared_ptr<StepModel> model,
                                                    std::shared_ptr<PlanChannel> channel,
                                                    const GenerationOptions& options = {});
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// `callback` is called for each event of the request, in order, by the loop's thread, which it should not keep
  /// waiting. What check_request() says; kResourceExhausted: max_requests wait or run; kClosed after stop(), or the
  /// failure.
  Result<RequestId> submit(GenerationRequest request, EventCallback callback);
  /// The same for who takes events from a stream.
  Result<TokenStream> submit(GenerationRequest request);
  /// Ends a request after the step that is under way. kNotFound: it has ended, or never was.
  Status cancel(RequestId id);
  /// Ends all requests (kCancelled, with kClosed) after the step that is under way, tells the other ranks, and returns
  /// when the loop has ended; from a callback at once. Idempotent. Gives the failure if there was one.
  Status stop();
  /// ok while running, kClosed after stop(), else the failure.
  Status status() const { return desk_->status(); }
  /// As of the last step.
  SchedulerStats stats() const;

 private:
  Generation(std::shared_ptr<StepModel> model, std::shared_ptr<PlanChannel> channel, const GenerationOptions& options,
             Scheduler scheduler);
  void loop();
  Status obey();
  Status step();
  Status choose();
  Status sample();
  void tell();
  void end();

  const std::shared_ptr<StepModel> model_;
  const std::shared_ptr<PlanChannel> channel_;
  const PlanLimits limits_;
  const Duration heartbeat_;
  const std::shared_ptr<OrderDesk> desk_;

  // The loop's own.
  Scheduler scheduler_;
  std::vector<Sampler> samplers_;  // one for each thread of pool_
  ThreadPool pool_;
  Orders orders_;
  StepPlan plan_;
  std::vector<std::byte> message_;
  std::vector<TokenChoice> choices_;   // that the model is asked for
  std::vector<std::size_t> chosen_;    // their draws
  std::vector<TokenId> tokens_;        // and what the model chose
  std::vector<std::size_t> unchosen_;  // draws that are sampled here
  std::vector<float> logits_;
  std::vector<SampledToken> sampled_;
  std::vector<GenerationEvent> events_;

  mutable std::mutex stats_mutex_;
  SchedulerStats stats_;
  std::mutex joining_;
  std::thread thread_;
  std::thread::id loop_thread_;
};

/// What the ranks other than 0 do: run the plans that come through `channel`, until rank 0 stops (ok) or something
/// fails.
Status follow(StepModel& model, PlanChannel& channel);

}  // namespace accord::engine
