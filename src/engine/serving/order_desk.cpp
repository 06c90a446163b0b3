// A request is live from its submission until its last event is delivered, so a cancel finds it all that time.
#include "engine/serving/order_desk.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/serving/check_request.hpp"

namespace accord::engine {

Result<RequestId> RequestQueue::submit(GenerationRequest request, std::int32_t source_rows,
                                       GenerationCallback callback) {
  ACCORD_RETURN_IF_ERROR(check_request(request, source_rows, limits_));
  if (!callback) return Status(StatusCode::kInvalidArgument, "the callback of the request is empty");
  const auto shared = std::make_shared<const GenerationRequest>(std::move(request));
  const auto shared_callback = std::make_shared<GenerationCallback>(std::move(callback));
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex_);
    ACCORD_RETURN_IF_ERROR(status_);
    if (live_.size() >= static_cast<std::size_t>(max_requests_))
      return Status(StatusCode::kResourceExhausted,
                    fmt::format("{} requests are running or waiting, which is the maximum", live_.size()));
    id = ++last_id_;
    live_[id] = {shared_callback, shared->samples};
    orders_.submissions.push_back({id, shared, source_rows});
  }
  changed_.notify_one();
  return id;
}

Status RequestQueue::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    if (!live_.contains(id))
      return Status(StatusCode::kNotFound,
                    fmt::format("request {} does not exist: it has ended, or was never submitted", id));
    orders_.cancels.push_back(id);
  }
  changed_.notify_one();
  return Status();
}

void RequestQueue::stop(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (status_.ok() || status_.code() == StatusCode::kClosed) status_ = status;
    orders_.stop = true;
  }
  changed_.notify_one();
}

Status RequestQueue::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void RequestQueue::wait_for_orders(Orders& orders, Duration timeout) {
  orders.submissions.clear();
  orders.cancels.clear();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout,
                    [&] { return orders_.stop || !orders_.submissions.empty() || !orders_.cancels.empty(); });
  orders.submissions.swap(orders_.submissions);
  orders.cancels.swap(orders_.cancels);
  orders.stop = orders_.stop;
}

void RequestQueue::deliver(const GenerationEvent& event) {
  std::shared_ptr<GenerationCallback> callback;
  {
    const std::lock_guard lock(mutex_);
    const auto live = live_.find(event.request);
    callback = live->second.callback;
    if (event.finish && --live->second.samples == 0) live_.erase(live);
  }
  (*callback)(event);
}

}  // namespace accord::engine
