#pragma once
// Writes flight logs to files.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "comm/flight/flight_log.hpp"

namespace accord::comm::flight {

/// Writes `log` to accord-NAME-ID-rankRANK.json in `directory`, which is made if absent, as a whole or not at all, and gives the
/// path. One that is there is replaced.
Result<std::string> write_dump(const FlightLog& log, const std::string& directory);

/// The dump of a communicator's first failure. It is written by a thread of its own, for which those that report the failure
/// wait a moment: so it is there when a program ends at once, and a file system that hangs holds nobody up. What goes wrong is
/// logged and harms nothing.
class FailureDump {
 public:
  /// Does nothing while another one is being written.
  void start(FlightLog log, std::string directory);
  /// Until it is written, at most kPatience; at once if none was started.
  void wait();

 private:
  static constexpr Duration kPatience = std::chrono::seconds(2);
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool under_way = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace accord::comm::flight
