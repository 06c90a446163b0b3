#pragma once
// Where ranks that are threads hand each other their handles.

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace accord::testing {

class HandleBoard {
 public:
  /// Posts `handle` as that of `who` in `round`, and returns the handles of `members` in their order, once all of them
  /// have posted.
  std::vector<std::string> gather(int round, const std::vector<int>& members, int who, std::string handle) {
    std::unique_lock lock(mutex_);
    posted_[{round, who}] = std::move(handle);
    changed_.notify_all();
    std::vector<std::string> handles;
    for (const int member : members) {
      changed_.wait(lock, [&] { return posted_.contains({round, member}); });
      handles.push_back(posted_.at({round, member}));
    }
    return handles;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::string> posted_;
};

}  // namespace accord::testing
