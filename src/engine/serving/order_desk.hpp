#pragma once
// Where any thread leaves orders for the one that runs the model.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accord/generation.hpp"
#include "accord/store.hpp"
#include "engine/serving/scheduler.hpp"

namespace accord::engine {

using EventCallback = std::function<void(const GenerationEvent&)>;

/// What was ordered since it was last asked for.
struct Orders {
  struct Submission {
    RequestId id;
    std::shared_ptr<const GenerationRequest> request;
  };
  std::vector<Submission> submissions;
  std::vector<RequestId> cancels;  ///< of requests that are there, or were
  bool stop = false;               ///< nothing comes after these
};

/// Numbers requests, knows which of them have not ended, and who is told of their events. Thread-safe.
class OrderDesk {
 public:
  OrderDesk(const PlanLimits& limits, std::int32_t max_requests) : limits_(limits), max_requests_(max_requests) {}

  Result<RequestId> submit(GenerationRequest request, EventCallback callback);
  Status cancel(RequestId id);
  /// No more submissions: they get `status`, kClosed or a failure. The first failure stays.
  void stop(const Status& status);
  /// ok, or what stop() was told.
  Status status() const;

  /// For the loop: takes all orders; waits for some as long as `patience`.
  void take(Orders& orders, Duration patience);
  /// For the loop: tells who submitted its request; outside of the mutex.
  void tell(const GenerationEvent& event);

 private:
  struct Live {
    std::shared_ptr<EventCallback> callback;
    int samples = 0;  // that have not ended
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
