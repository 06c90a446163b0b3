// The callback of the request appends events to a queue that it shares with the stream.
#include "engine/serving/token_stream.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/text.hpp"

namespace accord::engine {

struct TokenStream::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<GenerationEvent> events;
  int samples = 0;  // whose last event has not been taken
};

Result<TokenStream> TokenStream::submit(std::shared_ptr<RequestQueue> queue, GenerationRequest request,
                                        std::int32_t source_rows) {
  auto state = std::make_shared<State>();
  state->samples = request.samples;
  const auto callback = [state](const GenerationEvent& event) {
    {
      const std::lock_guard lock(state->mutex);
      state->events.push_back(event);
    }
    state->changed.notify_one();
  };
  ACCORD_ASSIGN_OR_RETURN(const RequestId id, queue->submit(std::move(request), source_rows, callback));
  return TokenStream(id, std::move(queue), std::move(state));
}

TokenStream::~TokenStream() {
  if (queue_ != nullptr) cancel();
}

void TokenStream::cancel() {
  // A request that has ended need not be cancelled.
  (void)queue_->cancel(id_).ok();
}

Result<std::optional<GenerationEvent>> TokenStream::next(Duration timeout) {
  std::unique_lock lock(state_->mutex);
  if (state_->samples == 0) return std::optional<GenerationEvent>();
  if (!state_->changed.wait_for(lock, timeout, [&] { return !state_->events.empty(); }))
    return Status(StatusCode::kTimeout, fmt::format("request {}: no event within {}", id_, duration_text(timeout)));
  std::optional<GenerationEvent> event = std::move(state_->events.front());
  state_->events.pop_front();
  if (event->finish) --state_->samples;
  return event;
}

}  // namespace accord::engine
