#pragma once
// The events of one request, to be taken as they come.

#include <memory>
#include <optional>

#include "accord/generation.hpp"
#include "accord/store.hpp"
#include "engine/serving/order_desk.hpp"

namespace accord::engine {

/// For who takes events instead of being called. Moved, not copied; its end cancels what has not ended. One thread at a
/// time; it may outlive its Generation.
class TokenStream {
 public:
  static Result<TokenStream> submit(std::shared_ptr<OrderDesk> desk, GenerationRequest request);
  TokenStream(TokenStream&&) noexcept = default;
  TokenStream& operator=(TokenStream&&) = delete;
  ~TokenStream();

  RequestId id() const { return id_; }
  /// Waits for the next event; nullopt once all samples have ended; kTimeout after `timeout`, and it may be called
  /// again.
  Result<std::optional<GenerationEvent>> next(Duration timeout);
  /// Ends the request soon: events that are there, or come until then, are given first.
  void cancel();

 private:
  struct State;
  TokenStream(RequestId id, std::shared_ptr<OrderDesk> desk, std::shared_ptr<State> state)
      : id_(id), desk_(std::move(desk)), state_(std::move(state)) {}

  RequestId id_ = 0;
  std::shared_ptr<OrderDesk> desk_;
  std::shared_ptr<State> state_;
};

}  // namespace accord::engine
