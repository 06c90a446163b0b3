// Rank 0 gives the growth a number in the store, records there how many ranks exist and how many more may come, and
// sends the number to the other members, which compare their requests (listed_exchange.hpp). Joiners read the same
// record, and each takes a ticket, which determines its rank. Then all of them meet like the ranks of a new group
// (bootstrap.hpp), under a prefix with the number of this growth, so that a rank with a ticket of a failed growth
// meets nobody. The growth is visible until its members have met or given up.
//
// While members wait in the store they watch each other, so that the wait ends if one of them dies or gives up. A
// member that gives up records that for the joiners, which check for it while they wait. The members watch the
// joiners' processes as well (joiners.hpp).
#include "comm/membership/grow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "comm/membership/bootstrap.hpp"
#include "comm/membership/joiners.hpp"
#include "comm/membership/listed_exchange.hpp"

namespace accord::comm {
namespace {

constexpr Duration kStoreWait = std::chrono::milliseconds(100);
constexpr auto kGrowPause = std::chrono::milliseconds(10);

/// A store whose waits end when `check` returns a failure.
class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> store, std::function<Status()> check)
      : store_(std::move(store)), check_(std::move(check)) {}

  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override { return store_->add(key, delta); }
  Status erase(std::string_view key) override { return store_->erase(key); }
  std::string describe() const override { return store_->describe(); }
  Result<std::string> get(std::string_view key, Duration timeout) override {
    const Deadline deadline = Deadline::in(timeout);
    while (true) {
      Result<std::string> value = store_->get(key, std::min(kStoreWait, deadline.remaining()));
      if (value.status().code() != StatusCode::kTimeout || deadline.passed()) return value;
      ACCORD_RETURN_IF_ERROR(check_());
    }
  }

 private:
  std::shared_ptr<Store> store_;
  std::function<Status()> check_;
};

std::string growing_key(const std::string& name) { return fmt::format("accord/{}/growing", name); }
std::string prefix_of(const std::string& name, std::int64_t number) {
  return fmt::format("accord/{}/growth/{}", name, number);
}

std::string abandoned_key(const std::string& name, std::int64_t number) {
  return prefix_of(name, number) + "/abandoned";
}

/// Called by rank 0: opens a growth and returns its number.
Result<std::int64_t> publish_growth(Store& store, const std::string& name, int size, int added) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, store.add(fmt::format("accord/{}/growths", name), 1));
  ACCORD_RETURN_IF_ERROR(store.set(growing_key(name), fmt::format("{} {} {}", number, size, added)));
  return number;
}

/// Rank 0 sends the members `number`, that of this growth.
Status agree(const std::string& where, ListedExchange& exchange, std::int64_t& number) {
  return exchange(std::to_string(number), [&](Rank from, const std::string& text) -> Status {
    if (from != 0) return {};
    ACCORD_ASSIGN_OR_RETURN(number, parse_integer(text, where));
    return {};
  });
}

/// The part of the store in which the ranks of a growth meet.
std::shared_ptr<Store> store_of(std::shared_ptr<Store> store, const std::string& name, std::int64_t number) {
  return make_prefix_store(std::move(store), prefix_of(name, number));
}

Result<std::shared_ptr<Group>> join_others(std::shared_ptr<Store> store, std::int64_t number,
                                           const JoinRequest& request) {
  return join(request, store_exchange(store_of(std::move(store), request.options.name, number), request));
}

/// A store whose waits end once the members have abandoned the growth.
std::shared_ptr<Store> watched_by_joiner(const std::shared_ptr<Store>& store, const std::string& name,
                                         std::int64_t number, const std::string& where) {
  return std::make_shared<WatchedStore>(store, [store, key = abandoned_key(name, number), where]() -> Status {
    const Result<std::string> why = store->get(key, Duration::zero());
    if (!why.ok()) return {};
    return Status(StatusCode::kPeerLost, fmt::format("{}: {}", where, *why));
  });
}

/// The record that publish_growth() wrote.
struct Growth {
  std::int64_t number = 0;
  int size = 0;
  int added = 0;
};

Result<Growth> read_growth(const std::string& text, const std::string& key) {
  std::int64_t numbers[3] = {};
  const std::vector<std::string_view> words = split_text(text, ' ');
  bool is_one = words.size() == std::size(numbers);
  for (std::size_t i = 0; is_one && i < words.size(); ++i) {
    const Result<std::int64_t> number = parse_integer(words[i], key);
    is_one = number.ok() && *number >= 1 && (i == 0 || *number <= kMaxRanks);
    if (is_one) numbers[i] = *number;
  }
  if (!is_one) return Status(StatusCode::kCorrupt, fmt::format("{} is {}", key, quoted_text(text)));
  return Growth{.number = numbers[0], .size = static_cast<int>(numbers[1]), .added = static_cast<int>(numbers[2])};
}

/// Checks a growth by itself, independent of the other ranks.
Status check_growth(const std::shared_ptr<Store>& store, int added, const std::string& where,
                    const Result<GroupOptions>& options) {
  if (store == nullptr) return Status(StatusCode::kInvalidArgument, fmt::format("{}: the store is null", where));
  if (added < 1 || added > kMaxRanks)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: {} ranks cannot be added; expected 1 to {}", where, added, kMaxRanks));
  ACCORD_RETURN_IF_ERROR(options.status());
  return check({.options = *options});
}

}  // namespace

Result<std::shared_ptr<Group>> grow(Group& group, const std::shared_ptr<Store>& store, int added,
                                    CommunicatorOptions given) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, group.keep_open("grow"));
  const std::string name = given.name;
  const std::string where = fmt::format("growing group \"{}\" to \"{}\"", group.options().name, name);
  GroupCreation creation{.call = "grow",
                         .name = name,
                         .members = group.topology().ranks(),
                         .deadline = Deadline::in(given.timeout.value_or(group.options().timeout))};
  const Result<GroupOptions> options = inherit(group.options(), std::move(given));
  if (const Status refused = check_growth(store, added, where, options); !refused.ok()) {
    refuse(group, creation, refused);
    return refused;
  }
  const JoinRequest request{
      .rank = group.rank(), .size = group.size() + added, .options = *options, .deadline = creation.deadline};
  creation.terms = terms(request);
  ListedExchange exchange(group, creation);
  ACCORD_RETURN_IF_ERROR(exchange.begin());
  std::int64_t number = 0;
  if (group.rank() == 0) {
    const Result<std::int64_t> published = publish_growth(*store, name, group.size(), added);
    if (!published.ok()) {
      refuse(group, creation, published.status());
      return published.status().with_context(where);
    }
    number = *published;
  }
  const Status agreed = agree(where, exchange, number);
  Result<std::shared_ptr<Group>> grown(agreed.ok() ? Status(StatusCode::kInternal, where) : agreed);
  if (agreed.ok()) {
    JoinerWatch joiners(store, prefix_of(name, number), group.size(), added);
    const auto check_others = [&]() -> Status {
      ACCORD_RETURN_IF_ERROR(exchange.check());
      return joiners.check(where);
    };
    grown = join_others(std::make_shared<WatchedStore>(store, check_others), number, request);
    // A wait in the store that ended because another member's time was over looks like a timeout of its own.
    if (const Status failure = exchange.check(); grown.status().code() == StatusCode::kTimeout && !failure.ok())
      grown = failure;
  }
  exchange.end(grown.status());
  if (!grown.ok() && number > 0)
    (void)store->set(abandoned_key(name, number),
                     fmt::format("rank {} gave up: {}", group.rank(), grown.status().message()));
  if (group.rank() == 0) (void)store->erase(growing_key(name));
  return grown;
}

Result<std::shared_ptr<Group>> join_growing(const std::shared_ptr<Store>& store, CommunicatorOptions given) {
  if (store == nullptr)
    return Status(StatusCode::kInvalidArgument, fmt::format("joining group \"{}\": the store is null", given.name));
  const std::string name = given.name;
  const std::string where = fmt::format("joining group \"{}\" in {}", name, store->describe());
  const Result<GroupOptions> options = resolve(std::move(given));
  const Status refused = options.ok() ? check({.options = *options}) : options.status();
  const Deadline deadline = Deadline::in(refused.ok() ? options->timeout : Duration::zero());
  const std::string key = growing_key(name);
  // Called early because it is slow: once this rank has a ticket it must be visible at once.
  const std::string table = process_table();
  std::int64_t full = 0;
  while (true) {
    const Result<std::string> published = store->get(key, deadline.remaining());
    if (!refused.ok() && !published.ok()) return refused;  // nobody waits for this rank
    if (published.status().code() == StatusCode::kTimeout)
      return Status(StatusCode::kTimeout, fmt::format("{}: no group of that name grew in time", where));
    if (!published.ok()) return published.status().with_context(where);
    ACCORD_ASSIGN_OR_RETURN(const Growth growth, read_growth(*published, key));
    if (growth.number != full) {
      const Result<std::int64_t> ticket = store->add(prefix_of(name, growth.number) + "/tickets", 1);
      if (!ticket.ok()) return ticket.status().with_context(where);
      if (*ticket <= growth.added) {
        JoinRequest request{.rank = growth.size + static_cast<Rank>(*ticket) - 1,
                            .size = growth.size + growth.added,
                            .options = refused.ok() ? *options : GroupOptions{.name = name},
                            .deadline = deadline};
        if (refused.ok()) {
          const PublishedJoiner joiner(store, prefix_of(name, growth.number), request.rank, table);
          return join_others(watched_by_joiner(store, name, growth.number, where), growth.number, request);
        }
        request.deadline = Deadline::never();
        decline(request, store_of(store, name, growth.number), refused);
        return refused;
      }
      full = growth.number;
    }
    if (!refused.ok()) return refused;
    if (deadline.passed())
      return Status(
          StatusCode::kTimeout,
          fmt::format("{}: {} ranks joined before this one, which is all that the group accepts", where, growth.added));
    std::this_thread::sleep_for(kGrowPause);
  }
}

}  // namespace accord::comm
