#pragma once
// Where any thread leaves orders for the thread that runs the model.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accord/generation.hpp"
#include "accord/store.hpp"
#include "engine/serving/scheduler.hpp"

namespace accord::engine {

/// Orders since the last wait_for_orders().
struct Orders {
  struct Submission {
    RequestId id;
    std::shared_ptr<const GenerationRequest> request;
    std::int32_t source_rows = 0;
  };
  std::vector<Submission> submissions;
  std::vector<RequestId> cancels;  ///< of live or ended requests
  bool stop = false;               ///< no orders follow
};

/// Numbers requests, and keeps track of the live ones and their callbacks. Thread-safe.
class RequestQueue {
 public:
  RequestQueue(const PlanLimits& limits, std::int32_t max_requests) : limits_(limits), max_requests_(max_requests) {}

  /// `source_rows`: rows that the encoder makes of the request's source.
  Result<RequestId> submit(GenerationRequest request, std::int32_t source_rows, GenerationCallback callback);
  Status cancel(RequestId id);
  /// Ends submissions: they fail with `status`, which is kClosed or a failure. The first failure is kept.
  void stop(const Status& status);
  /// Returns ok, or the status given to stop().
  Status status() const;

  /// For the loop: takes all orders, waiting for some for at most `timeout`.
  void wait_for_orders(Orders& orders, Duration timeout);
  /// For the loop: calls the callback of the event's request, without holding the mutex.
  void deliver(const GenerationEvent& event);

 private:
  struct Live {
    std::shared_ptr<GenerationCallback> callback;
    int samples = 0;  // not ended
  };

  const PlanLimits limits_;
  const std::int32_t max_requests_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Orders orders_;
  std::map<RequestId, Live> live_;
  RequestId last_id_ = 0;
  Status status_;
};

}  // namespace accord::engine
