#pragma once
// How ranks that know only their number tell each other what the others need to know.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "base/clock.hpp"
#include "comm/group_options.hpp"

namespace accord::comm {

/// Looks at the text of one rank.
using Take = std::function<Status(Rank from, const std::string& text)>;

/// Bytes that a text may have.
inline constexpr std::size_t kMostText = 2560;

/// Gives every rank the texts of all ranks: `take` gets them in rank order, each as soon as it is there, and its first failure
/// ends the exchange. Called by all of them in the same order. `step` names it in errors.
using Exchange = std::function<Status(std::string_view step, const std::string& mine, const Take& take)>;

/// Of a group: what is beyond is a slip, and would take its time and memory before anyone could say so.
inline constexpr int kMostRanks = 1 << 20;

/// One rank's wish to be in a group.
struct JoinRequest {
  Rank rank = 0;
  int size = 1;
  GroupOptions options;
  Deadline deadline = Deadline::never();  ///< for the whole way, from the first exchange to the last connection
};

/// An Exchange through `store` under the name of the group. Removes what it set once all have read it. kTimeout names the
/// ranks that did not come. After a failure the same ranks may try again, in any order.
Exchange store_exchange(std::shared_ptr<Store> store, const JoinRequest& request);

/// Of rank 0, after a first step that it ended itself: waits, until the request's deadline, for the other ranks to read why.
void await_readers(Store& store, const JoinRequest& request, std::string_view step);

}  // namespace accord::comm
