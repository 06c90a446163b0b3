// A joiner writes its process number into the store, together with the table that the number belongs to: that of a
// host, a network namespace and a process namespace. A waiting rank with the same table watches the process through a
// pidfd.
#include "comm/membership/joiners.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/text.hpp"
#include "topology/namespaces.hpp"
#include "topology/topology.hpp"

namespace accord::comm {
namespace {

constexpr std::string_view kUnknown = "-";

std::string key_of(std::string_view prefix, Rank rank) { return fmt::format("{}/joiner/{}", prefix, rank); }

}  // namespace

std::string process_table() {
  const Result<topology::Place> place = topology::this_place();
  const Result<std::uint64_t> processes = topology::namespace_number("pid");
  if (!place.ok() || !processes.ok()) return std::string(kUnknown);
  return fmt::format("{}/pid-{}", place->host, *processes);
}

PublishedJoiner::PublishedJoiner(std::shared_ptr<Store> store, std::string_view prefix, Rank rank,
                                 std::string_view table)
    : store_(std::move(store)), key_(key_of(prefix, rank)) {
  (void)store_->set(key_, fmt::format("{} {}", table, ::getpid()));
}

PublishedJoiner::~PublishedJoiner() { (void)store_->erase(key_); }

JoinerWatch::JoinerWatch(std::shared_ptr<Store> store, std::string prefix, Rank first, int added)
    : store_(std::move(store)), prefix_(std::move(prefix)), first_(first), added_(added), table_(process_table()) {}

Status JoinerWatch::check(std::string_view where) {
  while (static_cast<int>(watches_.size()) < added_ && watch_next()) {
  }
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    const transport::ProcessWatch& watch = watches_[i];
    const bool ended =
        watch.process == nullptr ? watch.life == transport::ProcessLife::kEnded : watch.process->has_ended();
    const Rank rank = first_ + static_cast<Rank>(i);
    if (ended)
      return Status(StatusCode::kPeerLost, fmt::format("{}: rank {} died while it joined", where, rank), {rank});
  }
  return {};
}

bool JoinerWatch::watch_next() {
  const Rank rank = first_ + static_cast<Rank>(watches_.size());
  const Result<std::string> published = store_->get(key_of(prefix_, rank), Duration::zero());
  if (!published.ok()) return false;
  const std::size_t space = published->rfind(' ');
  const Result<std::int64_t> process = parse_integer(std::string_view(*published).substr(space + 1), "process");
  const bool here = process.ok() && table_ != kUnknown && published->substr(0, space) == table_;
  watches_.push_back(here ? transport::watch_process(static_cast<pid_t>(*process)) : transport::ProcessWatch());
  return true;
}

}  // namespace accord::comm
