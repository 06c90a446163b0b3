#pragma once
// The store of an elastic group, and the rounds that its processes decide in it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "accord/store.hpp"
#include "base/clock.hpp"
#include "elastic/records.hpp"

namespace accord::elastic {

/// A part of a store. Its failures are kIo or kResourceExhausted, whatever the store says: they concern no rank.
class GroupStore {
 public:
  /// where: "elastic group "NAME"", for messages. patience: how long the store's host may stand still.
  GroupStore(std::shared_ptr<Store> store, std::string_view name, std::string where, Duration patience);

  Status set(const std::string& key, std::string_view text);
  /// Adds `by` to a counter and returns the sum.
  Result<std::int64_t> raise(const std::string& key, std::int64_t by);
  /// Empty if the key is not set within `timeout`.
  Result<std::optional<std::string>> find(const std::string& key, Duration timeout = Duration::zero());
  void erase(const std::string& key) { (void)store_->erase(key); }
  const std::string& where() const { return where_; }

 private:
  Status failure(const Status& status) const;

  const std::shared_ptr<Store> store_;
  const std::string where_;
  const Duration patience_;
};

/// The rounds in the order of their numbers, as one process knows them.
class Rounds {
 public:
  /// REQUIRES: `store` outlives this object.
  explicit Rounds(GroupStore& store) : store_(store) {}

  const Round& latest() const { return latest_; }
  /// Reads all rounds that were decided since.
  Status read();
  /// Makes what `make` returns the next round, unless another process is about to decide one. To be called again until
  /// read() finds a round.
  Status decide(const std::function<Result<Round>()>& make);
  /// Waits for the next round, for at most `timeout`; true if it is decided.
  Result<bool> await_next(Duration timeout);

 private:
  Result<bool> read(std::int64_t number);
  Status propose(const Round& round);
  Status announce(std::int64_t number, const std::string& text);

  GroupStore& store_;
  Round latest_;
  int attempt_ = 0;                         ///< at the next round; those before it are void
  std::optional<Deadline> claim_deadline_;  ///< of the process that has claimed it
};

}  // namespace accord::elastic
