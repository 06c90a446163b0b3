// Rank 0 numbers the growth in the store, writes down how many ranks there are and how many more may come, and tells the other
// members the number by a collective of the old group, which also compares what they want. Joiners read the same, and each takes
// a ticket, which is its rank. Then all of them meet as the ranks of a new group do (bootstrap.hpp), under a prefix of this growth's
// number, so that whoever still has a ticket of one that failed meets nobody. The growth is shown until its members have
// come or given up. While members wait in the store they watch the old group, so that a death among them ends the wait.
#include "comm/grow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "comm/bootstrap.hpp"

namespace accord::comm {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);
constexpr auto kPause = std::chrono::milliseconds(10);
constexpr int kMostAdded = 1 << 20;

/// A store whose waits end when the group fails.
class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> store, Group& group) : store_(std::move(store)), group_(group) {}

  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override { return store_->add(key, delta); }
  Status erase(std::string_view key) override { return store_->erase(key); }
  std::string describe() const override { return store_->describe(); }
  Result<std::string> get(std::string_view key, Duration timeout) override {
    const Deadline deadline = Deadline::in(timeout);
    while (true) {
      Result<std::string> value = store_->get(key, std::min(kLookEvery, deadline.remaining()));
      if (value.status().code() != StatusCode::kTimeout || deadline.passed()) return value;
      if (!group_.healthy()) return group_.examine_alarm("waiting for the ranks that join");
    }
  }

 private:
  std::shared_ptr<Store> store_;
  Group& group_;
};

std::string growing_key(const std::string& name) { return fmt::format("accord/{}/growing", name); }
std::string prefix_of(const std::string& name, std::int64_t number) {
  return fmt::format("accord/{}/growth/{}", name, number);
}

/// Rank 0: opens a growth; its number.
Result<std::int64_t> show(Store& store, const std::string& name, int size, int added) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, store.add(fmt::format("accord/{}/growths", name), 1));
  ACCORD_RETURN_IF_ERROR(store.set(growing_key(name), fmt::format("{} {} {}", number, size, added)));
  return number;
}

/// What the members want of this growth, compared; rank 0's number of it.
Result<std::int64_t> agree(Group& group, const Result<std::int64_t>& number, int added, const std::string& where) {
  const std::int64_t mine[2] = {added, number.ok() ? *number : -1};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(group.size()));
  ACCORD_RETURN_IF_ERROR(group.run(
      Call::all_gather(ConstBuffer(mine, 2, DType::kInt64), Buffer{all.data(), all.size(), DType::kInt64}), {}));
  for (Rank r = 0; r < group.size(); ++r)
    if (all[2 * static_cast<std::size_t>(r)] != added)
      return Status(StatusCode::kMismatch,
                    fmt::format("{}: rank {} wants {} more ranks, rank {} wants {}", where, r,
                                all[2 * static_cast<std::size_t>(r)], group.rank(), added),
                    {r});
  if (!number.ok()) return number.status().with_context(where);
  if (all[1] < 0) return Status(StatusCode::kIo, fmt::format("{}: rank 0 cannot use the store", where), {0});
  return all[1];
}

Result<std::shared_ptr<Group>> meet(const std::shared_ptr<Store>& store, std::int64_t number,
                                    const JoinRequest& request) {
  const std::shared_ptr<Store> own = make_prefix_store(store, prefix_of(request.options.name, number));
  return join(request, store_exchange(own, request));
}

/// What show() wrote down.
struct Growth {
  std::int64_t number = 0;
  int size = 0;
  int added = 0;
};

Result<Growth> read_growth(const std::string& text, const std::string& key) {
  std::int64_t numbers[3] = {};
  const std::vector<std::string_view> words = split_text(text, ' ');
  if (words.size() != std::size(numbers))
    return Status(StatusCode::kCorrupt, fmt::format("{} is {}", key, quoted_text(text)));
  for (std::size_t i = 0; i < words.size(); ++i) {
    ACCORD_ASSIGN_OR_RETURN(numbers[i], parse_integer(words[i], key));
  }
  return Growth{.number = numbers[0], .size = static_cast<int>(numbers[1]), .added = static_cast<int>(numbers[2])};
}

}  // namespace

Result<std::shared_ptr<Group>> grow(Group& group, const std::shared_ptr<Store>& store, int added,
                                    GroupOptions options) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, group.keep_open());
  const std::string name = options.name;
  const std::string where = fmt::format("growing group \"{}\" to \"{}\"", group.options().name, name);
  if (added < 1 || added > kMostAdded)
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} more ranks cannot be", where, added));
  const Deadline deadline = Deadline::in(options.timeout);
  const JoinRequest request{
      .rank = group.rank(), .size = group.size() + added, .options = std::move(options), .deadline = deadline};
  ACCORD_RETURN_IF_ERROR(check(request));
  const Result<std::int64_t> shown =
      group.rank() == 0 ? show(*store, name, group.size(), added) : Result<std::int64_t>(std::int64_t{0});
  const Result<std::int64_t> number = agree(group, shown, added, where);
  Result<std::shared_ptr<Group>> grown(number.status().ok() ? Status(StatusCode::kInternal, where) : number.status());
  if (number.ok()) grown = meet(std::make_shared<WatchedStore>(store, group), *number, request);
  if (group.rank() == 0 && shown.ok()) (void)store->erase(growing_key(name));
  return grown;
}

Result<std::shared_ptr<Group>> join_growing(const std::shared_ptr<Store>& store, GroupOptions options) {
  const Deadline deadline = Deadline::in(options.timeout);
  const std::string key = growing_key(options.name);
  const std::string where = fmt::format("joining group \"{}\" in {}", options.name, store->describe());
  std::int64_t full = 0;
  while (true) {
    const Result<std::string> shown = store->get(key, deadline.remaining());
    if (shown.status().code() == StatusCode::kTimeout)
      return Status(StatusCode::kTimeout, fmt::format("{}: no group of that name grew in time", where));
    if (!shown.ok()) return shown.status().with_context(where);
    ACCORD_ASSIGN_OR_RETURN(const Growth growth, read_growth(*shown, key));
    if (growth.number != full) {
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t ticket,
                              store->add(prefix_of(options.name, growth.number) + "/tickets", 1));
      if (ticket <= growth.added) {
        const JoinRequest request{.rank = growth.size + static_cast<Rank>(ticket) - 1,
                                  .size = growth.size + growth.added,
                                  .options = std::move(options),
                                  .deadline = deadline};
        return meet(store, growth.number, request);
      }
      full = growth.number;
    }
    if (deadline.passed())
      return Status(StatusCode::kTimeout,
                    fmt::format("{}: {} ranks joined before this one, as many as were wanted", where, growth.added));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace accord::comm
