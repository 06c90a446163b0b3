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

/// One call, or several that run at once, of a communicator; Communicator::prepare() makes it. What it was made of is read then:
/// counts of parts, the factor of premul_sum and the options. The buffers must live as long as it is used.
///
/// A handle: copies refer to the same calls. It keeps its communicator's group open. Thread-safe; may be started again before
/// the last start has ended, as its calls run in order then.
class Prepared {
 public:
  explicit Prepared(std::shared_ptr<const comm::PreparedCalls> calls) : calls_(std::move(calls)) {}

  /// As Communicator::run() of the same call or list; of a single call it allocates nothing.
  [[nodiscard]] Status run();
  /// As Communicator::start().
  [[nodiscard]] Work start();

 private:
  std::shared_ptr<const comm::PreparedCalls> calls_;
};

}  // namespace accord
