#pragma once
// Writes flight logs to files.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "flight/flight_log.hpp"

namespace accord::flight {

/// Writes `log` to accord-NAME-ID-rankRANK.json in `directory`, which is created if absent. The file is written
/// completely or not at all, and replaces an existing one. Returns its path.
Result<std::string> write_dump(const FlightLog& log, const std::string& directory);

/// The dump of a communicator's first failure. A thread of its own writes it, and callers that report the failure
/// wait a moment for that thread. So the dump exists if the program ends at once, and a file system that hangs blocks
/// nobody. Errors are logged and do no harm.
class FailureDump {
 public:
  /// Does nothing while another dump is being written.
  void start(FlightLog log, std::string directory);
  /// Returns once the dump is written, after at most kWriteTimeout; at once if none was started.
  void wait();

 private:
  static constexpr Duration kWriteTimeout = std::chrono::seconds(2);
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool under_way = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace accord::flight
