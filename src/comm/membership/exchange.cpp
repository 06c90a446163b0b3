// The ranks of a group may meet in one store many times under one name, and sometimes not all of them arrive. So rank
// 0 gives each attempt a number that was never used before, its generation: it increments "generations" and publishes
// the number at "open" until all ranks have arrived or its time is over. The others wait for an open generation and
// enter it, once each: "joined/RANK" holds the last one, so that no rank returns to one that failed. "entered/RANK"
// is incremented there, so that a second process of one rank that arrives at the same time is refused. When ranks
// disagree, rank 0 leaves its generation open: ranks that arrive later then find the disagreement too and need not
// wait for a timeout.
//
// Within a generation a step is one key for each rank. Each rank sets its own and reads all others; the last rank to
// have read removes them.
#include "comm/membership/exchange.hpp"

#include <fmt/format.h>

#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace accord::comm {
namespace {

/// Pause between two looks at a generation that this rank has been in before. Happens only after a failure.
constexpr auto kExchangePause = std::chrono::milliseconds(10);

std::string key_in_group(std::string_view group, std::string_view what) {
  return fmt::format("accord/{}/{}", group, what);
}

class StoreExchange {
 public:
  StoreExchange(std::shared_ptr<Store> store, const JoinRequest& request)
      : store_(std::move(store)),
        rank_(request.rank),
        size_(request.size),
        name_(request.options.name),
        deadline_(request.deadline) {}

  Status operator()(std::string_view step, const std::string& mine, const OnText& on_text) {
    const bool first = generation_ == 0;
    if (first) ACCORD_RETURN_IF_ERROR(rank_ == 0 ? open_generation() : join_generation());
    const auto key_of = [&](Rank rank) { return key(fmt::format("{}/{}/{}", generation_, step, rank)); };
    ACCORD_RETURN_IF_ERROR(here(store_->set(key_of(rank_), mine)));
    std::vector<Rank> missing;
    for (Rank r = 0; r < size_; ++r) {
      const Result<std::string> theirs =
          store_->get(key_of(r), missing.empty() ? deadline_.remaining() : Duration::zero());
      if (theirs.ok()) {
        if (Status status = on_text(r, *theirs); !status.ok()) {
          (void)store_->add(key_of(size_), 1);  // this rank has read all that it needs
          return status;
        }
      } else if (theirs.status().code() == StatusCode::kTimeout) {
        missing.push_back(r);
      } else {
        return here(theirs.status());
      }
    }
    if (first && rank_ == 0) ACCORD_RETURN_IF_ERROR(here(store_->erase(key("open"))));
    if (!missing.empty()) return timed_out(std::move(missing));
    const Result<std::int64_t> readers = store_->add(key_of(size_), 1);
    ACCORD_RETURN_IF_ERROR(here(readers.status()));
    for (Rank r = 0; *readers == size_ && r <= size_; ++r) {
      ACCORD_RETURN_IF_ERROR(here(store_->erase(key_of(r))));
      if (first && r > 0 && r < size_) ACCORD_RETURN_IF_ERROR(here(store_->erase(entered(r))));
    }
    return {};
  }

 private:
  std::string key(std::string_view what) const { return key_in_group(name_, what); }
  std::string entered(Rank rank) const { return key(fmt::format("{}/entered/{}", generation_, rank)); }
  std::string where() const { return fmt::format("creating group \"{}\" in {}", name_, store_->describe()); }

  /// Adds context to a failure of the store.
  Status here(const Status& status) const { return status.ok() ? status : status.with_context(where()); }

  Status timed_out(std::vector<Rank> missing) const {
    return Status(StatusCode::kTimeout,
                  fmt::format("{}: {} of {} did not arrive in time", where(), ranks_text(missing), size_), missing);
  }

  /// Rank 0 is late also if it hosts a store that does not let it go until all ranks have connected. `before`: the
  /// last generation that a process of this rank entered.
  Status was_not_opened(std::int64_t before) const {
    const Result<std::int64_t> generations = store_->add(key("generations"), 0);
    const std::string who = before > 0 ? fmt::format("a process joined as rank {} before", rank_)
                            : generations.ok() && *generations > 0 ? "rank 0 opened the group earlier, for other ranks"
                                                                   : "";
    return Status(StatusCode::kTimeout,
                  fmt::format("{}: rank 0 of {} did not arrive in time to open the group; it may be waiting itself for "
                              "another rank that has not arrived{}",
                              where(), size_,
                              who.empty() ? ""
                                          : "; " + who +
                                                ": if that was another job, give each job a MASTER_PORT, "
                                                "or a store, of its own"),
                  {0});
  }

  Status already_joined() const {
    return Status(
        StatusCode::kWrongState,
        fmt::format("{}: rank {} of {} has already joined as another process; if two jobs share a MASTER_PORT or "
                    "a store, give each its own",
                    where(), rank_, size_),
        {rank_});
  }

  Status open_generation() {
    const Result<std::int64_t> counted = store_->add(key("generations"), 1);
    ACCORD_RETURN_IF_ERROR(here(counted.status()));
    generation_ = *counted;
    return here(store_->set(key("open"), std::to_string(generation_)));
  }

  Status join_generation() {
    const std::string joined = key(fmt::format("joined/{}", rank_));
    const Result<std::int64_t> last = store_->add(joined, 0);
    ACCORD_RETURN_IF_ERROR(here(last.status()));
    std::int64_t open = 0;
    while (true) {
      const Result<std::string> published = store_->get(key("open"), deadline_.remaining());
      if (published.status().code() == StatusCode::kTimeout) return was_not_opened(*last);
      ACCORD_RETURN_IF_ERROR(here(published.status()));
      ACCORD_ASSIGN_OR_RETURN(open, parse_integer(*published, key("open")));
      if (open > *last) break;
      if (deadline_.passed()) return was_not_opened(*last);
      std::this_thread::sleep_for(kExchangePause);
    }
    generation_ = open;
    const Result<std::int64_t> processes = store_->add(entered(rank_), 1);
    ACCORD_RETURN_IF_ERROR(here(processes.status()));
    if (*processes > 1) return already_joined();
    return here(store_->set(joined, std::to_string(generation_)));
  }

  std::shared_ptr<Store> store_;
  Rank rank_;
  int size_;
  std::string name_;
  Deadline deadline_;
  std::int64_t generation_ = 0;  // 0 before the first step
};

}  // namespace

void await_readers(Store& store, const JoinRequest& request, std::string_view step) {
  const std::string& name = request.options.name;
  const Result<std::string> generation = store.get(key_in_group(name, "open"), Duration::zero());
  if (!generation.ok()) return;
  const std::string readers = key_in_group(name, fmt::format("{}/{}/{}", *generation, step, request.size));
  while (!request.deadline.passed()) {
    const Result<std::int64_t> count = store.add(readers, 0);
    if (!count.ok() || *count >= request.size) return;
    std::this_thread::sleep_for(kExchangePause);
  }
}

Exchange store_exchange(std::shared_ptr<Store> store, const JoinRequest& request) {
  return StoreExchange(std::move(store), request);
}

}  // namespace accord::comm
