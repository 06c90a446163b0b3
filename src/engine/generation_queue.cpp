// The callback of each request appends to one list, which next() takes as a whole. It shares the list with the queue,
// so that the events of cancelled requests may arrive after the queue has been destroyed.
#include "accord/generation_queue.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace accord {

struct GenerationQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<GenerationEvent> events;
  std::map<RequestId, int> live;  // samples that have not ended
};

Result<GenerationQueue> GenerationQueue::create(LanguageModel model) {
  if (!model.leads())
    return Status(StatusCode::kWrongState, "only rank 0 accepts requests; the other ranks call follow()");
  return GenerationQueue(std::move(model), std::make_shared<State>());
}

GenerationQueue::GenerationQueue(LanguageModel model, std::shared_ptr<State> state)
    : model_(std::move(model)), state_(std::move(state)) {}

GenerationQueue::~GenerationQueue() {
  if (state_ == nullptr) return;
  std::map<RequestId, int> live;
  {
    const std::lock_guard lock(state_->mutex);
    live = state_->live;
  }
  for (const auto& [id, samples] : live) cancel(id);
}

Result<RequestId> GenerationQueue::submit(GenerationRequest request) {
  const int samples = request.samples;
  const std::lock_guard lock(state_->mutex);  // the first event must find the request among the live ones
  Result<RequestId> id = model_.submit(std::move(request), [state = state_](const GenerationEvent& event) {
    {
      const std::lock_guard guard(state->mutex);
      state->events.push_back(event);
      const auto live = state->live.find(event.request);
      if (event.finish && --live->second == 0) state->live.erase(live);
    }
    state->changed.notify_one();
  });
  if (id.ok()) state_->live[*id] = samples;
  return id;
}

void GenerationQueue::cancel(RequestId id) {
  // A request that has ended need not be cancelled.
  (void)model_.cancel(id).ok();
}

std::vector<GenerationEvent> GenerationQueue::next(std::chrono::milliseconds timeout) {
  std::vector<GenerationEvent> events;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, timeout, [&] { return !state_->events.empty(); });
  events.swap(state_->events);
  return events;
}

}  // namespace accord
