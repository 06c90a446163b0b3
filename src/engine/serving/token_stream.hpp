#pragma once
// A stream of the events of one request.

#include <memory>
#include <optional>

#include "accord/generation.hpp"
#include "accord/store.hpp"
#include "engine/serving/order_desk.hpp"

namespace accord::engine {

/// For callers that take events instead of being called back. Movable, not copyable; its destructor cancels the
/// request if it has not ended. One thread at a time. It may outlive its Generation.
class TokenStream {
 public:
  static Result<TokenStream> submit(std::shared_ptr<RequestQueue> queue, GenerationRequest request,
                                    std::int32_t source_rows);
  TokenStream(TokenStream&&) noexcept = default;
  TokenStream& operator=(TokenStream&&) = delete;
  ~TokenStream();

  RequestId id() const { return id_; }
  /// Blocks until the next event. Returns nullopt once all samples have ended. Fails with kTimeout after `timeout`; it
  /// may then be called again.
  Result<std::optional<GenerationEvent>> next(Duration timeout);
  /// Ends the request soon. Events that already exist or arrive until then are returned first.
  void cancel();

 private:
  struct State;
  TokenStream(RequestId id, std::shared_ptr<RequestQueue> queue, std::shared_ptr<State> state)
      : id_(id), queue_(std::move(queue)), state_(std::move(state)) {}

  RequestId id_ = 0;
  std::shared_ptr<RequestQueue> queue_;
  std::shared_ptr<State> state_;
};

}  // namespace accord::engine
