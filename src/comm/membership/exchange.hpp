#pragma once
// Lets ranks that know only their number tell each other what the others need to know.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "base/clock.hpp"
#include "comm/group_options.hpp"

namespace accord::comm {

/// Receives the text of one rank.
using OnText = std::function<Status(Rank from, const std::string& text)>;

/// Largest size of a text, in bytes.
inline constexpr std::size_t kMaxText = 2560;

/// Gives every rank the texts of all ranks. `on_text` gets them in rank order, each as soon as it is available, and its
/// first failure ends the exchange. All ranks call it in the same order. `step` names the exchange in errors.
using Exchange = std::function<Status(std::string_view step, const std::string& mine, const OnText& on_text)>;

/// Largest number of ranks of a group. A larger number is a mistake, and would use time and memory before it could be
/// reported.
inline constexpr int kMaxRanks = 1 << 20;

/// One rank's request to be in a group.
struct JoinRequest {
  Rank rank = 0;
  int size = 1;
  GroupOptions options;
  Deadline deadline = Deadline::never();  ///< for everything, from the first exchange to the last connection
};

/// Returns an Exchange through `store` under the name of the group. It removes its keys once all ranks have read
/// them. kTimeout names the ranks that did not arrive. After a failure the same ranks may try again, in any order.
Exchange store_exchange(std::shared_ptr<Store> store, const JoinRequest& request);

/// For rank 0 after a first step that it ended itself: waits, until the request's deadline, for the other ranks to
/// read the reason.
void await_readers(Store& store, const JoinRequest& request, std::string_view step);

}  // namespace accord::comm
