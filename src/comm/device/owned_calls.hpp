#pragma once
// Calls on devices together with everything that they refer to, except the buffers.

#include <deque>
#include <span>
#include <vector>

#include "accord/call.hpp"
#include "accord/call_options.hpp"

namespace accord::comm {

/// Factors in host memory are read at construction. REQUIRES: check_call() is ok for all.
class OwnedCalls {
 public:
  OwnedCalls(std::span<const Call> calls, const CallOptions& options);
  OwnedCalls(OwnedCalls&&) = default;
  OwnedCalls& operator=(OwnedCalls&&) = default;

  std::span<const Call> calls() const { return calls_; }
  const CallOptions& options() const { return options_; }

 private:
  std::vector<Call> calls_;
  std::deque<std::vector<std::size_t>> counts_;  ///< of the parts; their addresses are stable
  CallOptions options_;
};

}  // namespace accord::comm
