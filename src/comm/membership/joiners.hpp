#pragma once
// Watches the processes of ranks that are joining a group, for the ranks that wait for them.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "transport/shm/process_watch.hpp"

namespace accord::comm {

/// Identifies the space in which process numbers are valid: equal for two processes that share it.
std::string process_table();

/// Publishes a joiner's process number for as long as it is joining.
class PublishedJoiner {
 public:
  /// `prefix`: of the growth's keys. `table`: from process_table(), which is too slow to be called between taking the
  /// ticket and this.
  PublishedJoiner(std::shared_ptr<Store> store, std::string_view prefix, Rank rank, std::string_view table);
  ~PublishedJoiner();
  PublishedJoiner(const PublishedJoiner&) = delete;
  PublishedJoiner& operator=(const PublishedJoiner&) = delete;

 private:
  const std::shared_ptr<Store> store_;
  const std::string key_;
};

/// The joiners, for a rank that waits for them. Watches the processes that share this rank's table.
class JoinerWatch {
 public:
  /// `added` ranks are expected, starting with `first`.
  JoinerWatch(std::shared_ptr<Store> store, std::string prefix, Rank first, int added);

  /// kPeerLost if a joiner has died. Cost: one look into the store for each joiner that arrived since the last call,
  /// and one more.
  Status check(std::string_view where);

 private:
  /// Returns false if the next joiner has not arrived. They are watched in the order of their ranks.
  bool watch_next();

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const Rank first_;
  const int added_;
  const std::string table_;
  std::vector<transport::ProcessWatch> watches_;  ///< in the order of their ranks
};

}  // namespace accord::comm
