#pragma once
// Calls on devices with what they refer to, but for the buffers.

#include <deque>
#include <span>
#include <vector>

#include "accord/call.hpp"
#include "accord/call_options.hpp"

namespace accord::comm {

/// Factors that lie in the host's memory are read when it is made. REQUIRES: check_call() is ok for all.
class OwnedCalls {
 public:
  OwnedCalls(std::span<const Call> calls, const CallOptions& options);
  OwnedCalls(OwnedCalls&&) = default;
  OwnedCalls& operator=(OwnedCalls&&) = default;

  std::span<const Call> calls() const { return calls_; }
  const CallOptions& options() const { return options_; }

 private:
  std::vector<Call> calls_;
  std::deque<std::vector<std::size_t>> counts_;  ///< of the parts; they stay where they are
  CallOptions options_;
};

}  // namespace accord::comm
