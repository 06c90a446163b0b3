#pragma once
// Calls that are checked once and run many times.

#include <memory>
#include <utility>

#include "accord/status.hpp"
#include "accord/work.hpp"

namespace accord {

namespace comm {
class PreparedCalls;
}

/// One call of a communicator, or several that run at once; created by Communicator::prepare(). The counts of parts,
/// the factor of premul_sum and the options are read then. The buffers must live as long as it is used.
///
/// A handle: copies refer to the same calls. It keeps its communicator's group open. Thread-safe. It may be started
/// again before the last start has ended; its calls then run in order.
class Prepared {
 public:
  explicit Prepared(std::shared_ptr<const comm::PreparedCalls> calls) : calls_(std::move(calls)) {}

  /// Same as Communicator::run() of the same call or list; for a single call it allocates nothing.
  [[nodiscard]] Status run();
  /// Same as Communicator::start().
  [[nodiscard]] Work start();

 private:
  std::shared_ptr<const comm::PreparedCalls> calls_;
};

}  // namespace accord
