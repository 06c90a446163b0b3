#pragma once
// The events of many requests in one queue.

#include <chrono>
#include <memory>
#include <vector>

#include "accord/language_model.hpp"

namespace accord {

/// Submits requests to a model and collects the events of all of them, for a program that serves many requests with one
/// thread: next() returns a whole step's events at once.
///
/// Thread-safe. Its destruction cancels the requests that have not ended. Keeps its model alive.
class GenerationQueue {
 public:
  /// `model`: rank 0's. Fails with kWrongState on the other ranks.
  [[nodiscard]] static Result<GenerationQueue> create(LanguageModel model);
  GenerationQueue(GenerationQueue&&) noexcept = default;
  GenerationQueue& operator=(GenerationQueue&&) = delete;
  ~GenerationQueue();

  /// Fails as LanguageModel::submit() does.
  [[nodiscard]] Result<RequestId> submit(GenerationRequest request);
  /// Ends a request soon; its last events follow. Does nothing if the request has ended.
  void cancel(RequestId id);
  /// Returns the events that have arrived, oldest first. Waits for the first of them; returns none after `timeout`.
  std::vector<GenerationEvent> next(std::chrono::milliseconds timeout);

 private:
  struct State;
  GenerationQueue(LanguageModel model, std::shared_ptr<State> state);

  LanguageModel model_;
  std::shared_ptr<State> state_;  ///< null after a move
};

}  // namespace accord
