#pragma once
// Ranks as threads: rank 0 with a Generation, the others as followers, each with a toy model.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/serving/generation.hpp"
#include "unit/engine/serving/toy_model.hpp"

namespace accord::engine::testing {

/// Carries messages between threads. Each rank other than 0 has its own queue.
class ThreadChannel {
 public:
  explicit ThreadChannel(int ranks) : queues_(static_cast<std::size_t>(ranks)) {}

  /// Returns the number of messages that rank 0 has sent.
  int messages() const { return messages_; }
  std::shared_ptr<PlanChannel> end(int rank) { return std::make_shared<End>(*this, rank); }

 private:
  class End final : public PlanChannel {
   public:
    End(ThreadChannel& channel, int rank) : channel_(channel), rank_(static_cast<std::size_t>(rank)) {}
    Status send(std::span<const std::byte> message) override {
      const std::lock_guard lock(channel_.mutex_);
      ++channel_.messages_;
      for (std::size_t rank = 1; rank < channel_.queues_.size(); ++rank)
        channel_.queues_[rank].emplace_back(message.begin(), message.end());
      channel_.changed_.notify_all();
      return channel_.status_;
    }
    Status receive(std::vector<std::byte>& message) override {
      std::unique_lock lock(channel_.mutex_);
      auto& queue = channel_.queues_[rank_];
      channel_.changed_.wait(lock, [&] { return !queue.empty() || !channel_.status_.ok(); });
      if (!channel_.status_.ok()) return channel_.status_;
      message = std::move(queue.front());
      queue.pop_front();
      return Status();
    }
    void fail(const Status& status) override {
      const std::lock_guard lock(channel_.mutex_);
      if (channel_.status_.ok()) channel_.status_ = status;
      channel_.changed_.notify_all();
    }

   private:
    ThreadChannel& channel_;
    const std::size_t rank_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::vector<std::byte>>> queues_;
  Status status_;
  std::atomic<int> messages_ = 0;
};

/// Rank 0 with a Generation, and threads that follow.
class Ranks {
 public:
  Ranks(int ranks, const PlanLimits& limits, const GenerationOptions& options = {}) : channel_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) models.push_back(std::make_shared<ToyModel>(limits));
    for (int rank = 1; rank < ranks; ++rank) {
      followers_.push_back(std::async(std::launch::async, [model = models[static_cast<std::size_t>(rank)],
                                                           end = channel_.end(rank)] { return follow(*model, *end); }));
    }
    generation = Generation::create(models[0], ranks > 1 ? channel_.end(0) : nullptr, options).value();
  }
  ~Ranks() { (void)end(); }

  /// Ends the generation and returns its status on each rank.
  std::vector<Status> end() {
    std::vector<Status> ends = {generation->stop()};
    for (auto& follower : followers_) ends.push_back(follower.get());
    followers_.clear();
    return ends;
  }

  int messages() const { return channel_.messages(); }

  std::vector<std::shared_ptr<ToyModel>> models;
  std::unique_ptr<Generation> generation;

 private:
  ThreadChannel channel_;
  std::vector<std::future<Status>> followers_;
};

}  // namespace accord::engine::testing
