#pragma once
// The weights of an engine, which may be replaced while contexts run with the old ones.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/program/parameters.hpp"

namespace accord::engine {

/// Thread-safe.
class EngineWeights {
 public:
  struct Version {
    std::shared_ptr<const Parameters> parameters;
    std::uint64_t number = 0;  ///< how often the weights had been replaced before
  };

  /// Sets the first weights. Called once, before all others.
  void set(std::shared_ptr<const Parameters> parameters) { parameters_ = std::move(parameters); }
  Version newest() const;
  std::uint64_t newest_number() const { return number_.load(std::memory_order_acquire); }
  void replace(std::shared_ptr<const Parameters> parameters);
  /// Held while new weights are read, so that one thread at a time replaces them.
  std::mutex& loading() { return loading_; }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Parameters> parameters_;  ///< guarded by mutex_
  std::atomic<std::uint64_t> number_{0};
  std::mutex loading_;
};

}  // namespace accord::engine
