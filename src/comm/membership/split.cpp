// A split by color is collective: two all_gathers of the parent, the first of colors and keys, the second of what the
// ranks need to know about each other to connect (bootstrap.hpp).
//
// A split by ranks is between the listed ranks alone (listed_exchange.hpp).
//
// A rank that leaves because another one died is often noticed before the death is. So a rank that cannot connect
// waits a moment for what the parent or the other ranks know, before it names the ranks that it could not connect to.
#include "comm/membership/split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/membership/bootstrap.hpp"
#include "comm/membership/gather_texts.hpp"
#include "comm/membership/listed_exchange.hpp"

namespace accord::comm {
namespace {

constexpr Duration kSplitNewsTimeout = std::chrono::seconds(1);

/// The request of this rank to join the group of `members`, which are ranks of `parent`.
JoinRequest request_for(const Group& parent, std::span<const Rank> members, GroupOptions options, Deadline deadline) {
  return {.rank = static_cast<Rank>(std::find(members.begin(), members.end(), parent.rank()) - members.begin()),
          .size = static_cast<int>(members.size()),
          .options = std::move(options),
          .deadline = deadline};
}

/// Translates ranks of the new group in `failure` to those of `parent`, which the caller knows.
Status in_parent(const Group& parent, std::span<const Rank> members, const Status& failure) {
  std::vector<Rank> ranks;
  std::string numbers;
  for (const Rank rank : failure.ranks()) {
    ranks.push_back(members[static_cast<std::size_t>(rank)]);
    if (ranks.back() != rank)
      numbers += fmt::format("; its rank {} is rank {} of group \"{}\"", rank, ranks.back(), parent.options().name);
  }
  return failure.ok() ? failure : Status(failure.code(), failure.message() + numbers, std::move(ranks));
}

/// Connects `members`. `exchange_texts` exchanges their texts; `check_members` returns why the creation has failed as
/// soon as any member knows. All ranks in errors are those of `parent`.
Result<std::shared_ptr<Group>> connect_members(
    const Group& parent, std::span<const Rank> members, const JoinRequest& request,
    const std::function<Status(const std::string& mine, const OnText& on_text)>& exchange_texts,
    const std::function<Status()>& check_members) {
  bool has_exchanged = false;
  std::vector<topology::Place> places;
  places.reserve(members.size());
  for (const Rank member : members) places.push_back(parent.topology().place(member));
  Result<std::shared_ptr<Group>> made = connect(
      request, topology::Topology(std::move(places)),
      [&](std::string_view, const std::string& mine, const OnText& on_text) -> Status {
        ACCORD_RETURN_IF_ERROR(exchange_texts(
            mine, [&](Rank from, const std::string& text) { return in_parent(parent, members, on_text(from, text)); }));
        has_exchanged = true;
        return {};
      });
  if (made.ok() || !has_exchanged) return made;
  Waiter waiter(WaitPolicy::kYield);
  const Deadline soon = Deadline::in(kSplitNewsTimeout);
  while (made.status().code() == StatusCode::kPeerLost && !soon.passed()) {
    ACCORD_RETURN_IF_ERROR(check_members());
    waiter.pause();
  }
  return in_parent(parent, members, made.status());
}

Status check_list(const Group& parent, std::span<const Rank> ranks, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("creating group \"{}\" from group \"{}\": {}", name, parent.options().name, why));
  };
  std::set<Rank> listed;
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= parent.size())
      return refuse(
          fmt::format("the list names rank {}, but the group has {}", rank, ranks_text(parent.topology().ranks())));
    if (!listed.insert(rank).second) return refuse(fmt::format("the list names rank {} twice", rank));
  }
  if (!listed.contains(parent.rank()))
    return refuse(fmt::format("the list does not name rank {}, which makes the call; only listed ranks need to call",
                              parent.rank()));
  return {};
}

/// If all ranks of `parent` are connected on GPUs, connects their parts too. A collective of the parent. `made`: this
/// rank's part.
Status split_devices(Group& parent, int color, int key, const Result<std::shared_ptr<Group>>& made, Deadline deadline) {
  std::int64_t is_made = made.ok() ? 1 : 0;
  ACCORD_RETURN_IF_ERROR(parent.run(
      Call::all_reduce(ConstBuffer(&is_made, 1, DType::kInt64), Buffer{&is_made, 1, DType::kInt64}, ReduceOp::kMin),
      {.timeout = deadline.remaining()}));
  if (is_made == 0) return {};
  return parent.device_channel().split(color, key, made->get(), deadline);
}

}  // namespace

// A rank whose own options are refused still takes part, so that the others are notified and all stay in step.
Result<std::shared_ptr<Group>> split_by_color(Group& parent, int color, int key, CommunicatorOptions given) {
  const int size = parent.size();
  const Deadline deadline = Deadline::in(given.timeout.value_or(parent.options().timeout));
  Result<GroupOptions> options = inherit(parent.options(), std::move(given));
  const Status refused =
      options.ok() ? check({.rank = parent.rank(), .size = size, .options = *options}) : options.status();
  const std::int64_t mine[3] = {color, key, parent.device_channel().can_split() ? 1 : 0};
  std::vector<std::int64_t> all(3 * static_cast<std::size_t>(size));
  const Status gathered =
      parent.run(Call::all_gather(ConstBuffer(mine, 3, DType::kInt64), Buffer{all.data(), all.size(), DType::kInt64}),
                 {.timeout = deadline.remaining()});
  if (!gathered.ok()) return refused.ok() ? gathered : refused;
  std::vector<Rank> members;
  for (Rank r = 0; r < size; ++r)
    if (color >= 0 && all[3 * r] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](Rank a, Rank b) { return all[3 * a + 1] < all[3 * b + 1]; });
  const auto exchange_texts = [&](const std::string& text, const OnText& on_text) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(parent, text, deadline.remaining()));
    for (std::size_t i = 0; i < members.size(); ++i)
      ACCORD_RETURN_IF_ERROR(on_text(static_cast<Rank>(i), texts[static_cast<std::size_t>(members[i])]));
    return {};
  };
  const auto make = [&]() -> Result<std::shared_ptr<Group>> {
    if (color < 0 || !refused.ok()) {
      const Status received = gather_texts(parent, refused.ok() ? "" : refusal(refused), deadline.remaining()).status();
      if (!refused.ok()) return refused;
      ACCORD_RETURN_IF_ERROR(received);
      return std::shared_ptr<Group>();
    }
    const JoinRequest request = request_for(parent, members, *std::move(options), deadline);
    return connect_members(parent, members, request, exchange_texts, [&] {
      return parent.state().healthy()
                 ? Status()
                 : parent.state().examine_alarm(fmt::format("creating group \"{}\"", request.options.name));
    });
  };
  Result<std::shared_ptr<Group>> made = make();
  bool can_split = true;
  for (Rank r = 0; r < size; ++r) can_split &= all[3 * r + 2] == 1;
  if (!can_split) return made;
  const Status split = split_devices(parent, color, key, made, deadline);
  return made.ok() && !split.ok() ? split : std::move(made);
}

Result<std::shared_ptr<Group>> split_by_ranks(Group& parent, std::span<const Rank> ranks, CommunicatorOptions given) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, parent.keep_open("split_ranks"));
  if (ranks.empty()) return std::shared_ptr<Group>();
  GroupCreation creation{.call = "split_ranks",
                         .name = given.name,
                         .members = {ranks.begin(), ranks.end()},
                         .deadline = Deadline::in(given.timeout.value_or(parent.options().timeout))};
  const Result<GroupOptions> options = inherit(parent.options(), std::move(given));
  Status refused = check_list(parent, ranks, creation.name);
  if (refused.ok()) refused = options.status();
  if (refused.ok()) refused = check(request_for(parent, ranks, *options, creation.deadline));
  if (!refused.ok()) {
    if (std::find(ranks.begin(), ranks.end(), parent.rank()) != ranks.end()) refuse(parent, creation, refused);
    return refused;
  }
  const JoinRequest request = request_for(parent, ranks, *options, creation.deadline);
  creation.terms = terms(request);
  ListedExchange exchange(parent, std::move(creation));
  ACCORD_RETURN_IF_ERROR(exchange.begin());
  Result<std::shared_ptr<Group>> made = connect_members(
      parent, ranks, request, [&](const std::string& mine, const OnText& on_text) { return exchange(mine, on_text); },
      [&] { return exchange.check(); });
  exchange.end(made.status());
  return made;
}

}  // namespace accord::comm
