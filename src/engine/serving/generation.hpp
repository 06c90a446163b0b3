#pragma once
// Serves requests with a model: scheduler, sampler and model in one loop.

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "accord/generation.hpp"
#include "accord/store.hpp"
#include "engine/host/thread_pool.hpp"
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
  /// The interval at which rank 0 contacts the other ranks while there is nothing to do. Shorter than the timeout of
  /// their channel.
  Duration heartbeat = std::chrono::seconds(1);
};

/// Rank 0's side; the other ranks call follow(). Runs until it is stopped, or until the model or the channel fails. A
/// failure ends all requests, and every later submit() returns it.
///
/// Thread-safe: any thread may submit, cancel and stop at any time, even in a callback. The destructor stops; it must
/// not run in a callback.
/// Keeps the buffers of a step, so that a step allocates nothing.
class Generation {
 public:
  /// `channel`: nullptr if there are no other ranks.
  static Result<std::unique_ptr<Generation>> create(std::shared_ptr<StepModel> model,
                                                    std::shared_ptr<PlanChannel> channel,
                                                    const GenerationOptions& options = {});
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Calls `callback` for each event of the request, in order, on the loop's thread; it should return quickly. Fails
  /// like StepModel::source_rows() and check_request(); with kResourceExhausted if max_requests are waiting or running;
  /// with kClosed after stop(); or with the failure that ended the loop.
  Result<RequestId> submit(GenerationRequest request, GenerationCallback callback);
  /// The same, with a stream to take the events from.
  Result<TokenStream> submit(GenerationRequest request);
  /// Ends a request after the current step. Fails with kNotFound if the request has ended or never existed.
  Status cancel(RequestId id);
  /// Ends all requests (kCancelled, with kClosed) after the current step, notifies the other ranks, and returns when
  /// the loop has ended; in a callback it returns at once. Idempotent. Returns the failure if there was one.
  Status stop();
  /// ok while running, kClosed after stop(), otherwise the failure.
  Status status() const { return queue_->status(); }
  /// As of the last step.
  GenerationStats stats() const;

 private:
  Generation(std::shared_ptr<StepModel> model, std::shared_ptr<PlanChannel> channel, const GenerationOptions& options,
             Scheduler scheduler);
  void loop();
  Status execute_orders();
  Status step();
  void prepare_masks();
  Status choose();
  Status sample();
  void deliver_events();
  void end();

  const std::shared_ptr<StepModel> model_;
  const std::shared_ptr<PlanChannel> channel_;
  const PlanLimits limits_;
  const Duration heartbeat_;
  const std::shared_ptr<RequestQueue> queue_;

  // Used by the loop's thread only.
  Scheduler scheduler_;
  std::vector<Sampler> samplers_;  // one for each thread of pool_
  ThreadPool pool_;
  Orders orders_;
  StepPlan plan_;
  std::vector<std::byte> message_;
  std::vector<TokenChoice> choices_;   // for the model to choose
  std::vector<std::size_t> chosen_;    // the draws of choices_
  std::vector<TokenId> tokens_;        // the tokens that the model chose
  std::vector<std::size_t> unchosen_;  // draws that are sampled here
  std::vector<float> logits_;
  std::vector<SampledToken> sampled_;
  std::vector<GenerationEvent> events_;

  mutable std::mutex stats_mutex_;
  GenerationStats stats_;
  std::mutex joining_;
  std::thread thread_;
  std::thread::id loop_thread_;
};

/// The loop of the ranks other than 0: runs the plans that arrive through `channel`, until rank 0 stops (ok) or
/// something fails.
Status follow(StepModel& model, PlanChannel& channel);

}  // namespace accord::engine
