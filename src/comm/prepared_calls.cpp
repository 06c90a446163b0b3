// A caller that runs several operations drives the channels that it finds idle, all of them in turns, so that no
// message waits for the one before it in the list. A channel with earlier works is driven by the thread that drives
// those.
#include "comm/prepared_calls.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/group.hpp"
#include "comm/progress.hpp"

namespace accord::comm {

Result<PreparedCalls> PreparedCalls::make(std::shared_ptr<Group> group, std::span<const Call> calls,
                                          const CallOptions& options) {
  PreparedCalls prepared(std::move(group));
  const bool on_device = std::any_of(calls.begin(), calls.end(), DeviceChannel::serves);
  prepared.entries_.reserve(on_device ? 0 : calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto wrong = [&](const Status& status) {
      return calls.size() == 1 ? status : status.with_context(fmt::format("call {} of {}", i + 1, calls.size()));
    };
    if (on_device) {
      if (Status status = prepared.group_->check(calls[i]); !status.ok()) return wrong(status);
      continue;
    }
    Result<Channel*> channel = prepared.group_->channel_for(calls[i]);
    if (!channel.ok()) return wrong(channel.status());
    prepared.entries_.push_back({*channel, prepared.group_->operation_of(calls[i], options)});
  }
  if (on_device) prepared.on_device_.emplace(calls, options);
  return prepared;
}

Status PreparedCalls::run() const {
  ACCORD_RETURN_IF_ERROR(group_->used_after_fork());
  if (on_device_) return group_->device_channel().run(on_device_->calls(), on_device_->options());
  if (entries_.size() == 1) return entries_[0].channel->run(entries_[0].operation->get());
  ACCORD_RETURN_IF_ERROR(check_may_wait());
  const std::vector<Channel::Queued> queued = enqueue();
  std::vector<Channel*> mine;
  for (std::size_t i = 0; i < queued.size(); ++i)
    if (queued[i].owned) mine.push_back(entries_[i].channel);
  const auto ended = [](const Channel::Queued& one) { return one.work->done(); };
  auto first_left = queued.begin();
  const WaitPolicy policy = group_->wait_policy();
  Waiter waiter(policy);
  while (!mine.empty()) {
    first_left = std::find_if_not(first_left, queued.end(), ended);
    if (first_left == queued.end()) break;
    bool moved = false;
    std::erase_if(mine, [&moved](Channel* channel) {
      EndedWorks one;
      const Channel::Advance advance = channel->advance(one);
      one.notify();
      moved |= advance != Channel::Advance::kStalled;
      return advance == Channel::Advance::kIdle;
    });
    if (moved) {
      waiter = Waiter(policy);
    } else {
      (void)waiter.pause();
    }
  }
  for (Channel* const channel : mine) channel->hand_over();
  Status first;
  for (const Channel::Queued& one : queued)
    if (Status status = one.work->wait(); first.ok()) first = std::move(status);
  return first;
}

std::shared_ptr<PendingWork> PreparedCalls::start() const {
  if (Status status = group_->used_after_fork(); !status.ok()) return PendingWork::ended(std::move(status));
  if (on_device_) return group_->device_channel().start(on_device_->calls(), on_device_->options());
  if (entries_.size() == 1) return entries_[0].channel->start(entries_[0].operation->get());
  std::vector<Channel::Queued> queued = enqueue();
  std::vector<std::shared_ptr<PendingWork>> works;
  works.reserve(queued.size());
  for (std::size_t i = 0; i < queued.size(); ++i) {
    if (queued[i].owned) entries_[i].channel->begin_driving(entries_[i].operation->get());
    works.push_back(std::move(queued[i].work));
  }
  return PendingWork::all(std::move(works));
}

std::vector<Channel::Queued> PreparedCalls::enqueue() const {
  std::vector<Channel::Queued> queued;
  queued.reserve(entries_.size());
  for (const Entry& entry : entries_) queued.push_back(entry.channel->enqueue(entry.operation->get()));
  return queued;
}

}  // namespace accord::comm
