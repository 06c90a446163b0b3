#pragma once
// The processes of ranks that are on their way into a group, for those that wait for them.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "transport/shm/process_watch.hpp"

namespace accord::comm {

/// Where process numbers mean the same as here: equal for two processes that share them.
std::string process_table();

/// A joiner's word of its process, for as long as it is on its way.
class ShownJoiner {
 public:
  /// `prefix`: of the growth's keys. `table`: process_table(), which takes too long to be asked for between a ticket and this.
  ShownJoiner(std::shared_ptr<Store> store, std::string_view prefix, Rank rank, std::string_view table);
  ~ShownJoiner();
  ShownJoiner(const ShownJoiner&) = delete;
  ShownJoiner& operator=(const ShownJoiner&) = delete;

 private:
  const std::shared_ptr<Store> store_;
  const std::string key_;
};

/// The joiners as a rank sees them that waits for them: it watches the processes that share its table.
class JoinerWatch {
 public:
  /// `added` ranks are to come, from `first` on.
  JoinerWatch(std::shared_ptr<Store> store, std::string prefix, Rank first, int added);

  /// kPeerLost if one has died. Cost: one look into the store for each that came since, and one more.
  Status look(std::string_view where);

 private:
  /// False if the next one has not come. They come in the order of their ranks.
  bool watch_next();

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const Rank first_;
  const int added_;
  const std::string table_;
  std::vector<transport::ProcessWatch> watches_;  ///< by order of coming
};

}  // namespace accord::comm
