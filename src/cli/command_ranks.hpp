#pragma once
// The ranks of a command: those of a launcher, or processes that the command starts itself.

#include <memory>
#include <optional>
#include <string>

#include "accord/communicator.hpp"

namespace accord::cli {

/// Default number of ranks started by a command that measures what ranks do together.
inline constexpr int kDefaultRanks = 2;

/// Not thread-safe. Move-only.
class CommandRanks {
 public:
  /// Uses the ranks of a launcher if one started this process (accord run, torchrun, mpirun); `wanted` must then
  /// match their number. Otherwise this process becomes rank 0 of `wanted` ranks (of `default_ranks` ranks if absent)
  /// and forks the others, each with a share of the cores. From then on all of them run the same code. REQUIRES: no
  /// thread has been started yet.
  static Result<CommandRanks> create(std::optional<int> wanted, int default_ranks);
  CommandRanks(CommandRanks&& other) noexcept;
  CommandRanks& operator=(CommandRanks&&) = delete;
  /// Ends the processes started here that have not ended by themselves.
  ~CommandRanks();

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  /// Creates a communicator of all ranks. All ranks must call it in the same order.
  Result<Communicator> communicator(const std::string& name, const std::string& select = "") const;

 private:
  CommandRanks() = default;
  Status fork_others();
  Status meet(int read_end, int write_end);

  Rank rank_ = 0;
  int size_ = 1;
  std::shared_ptr<Store> store_;
  class Watcher;
  std::unique_ptr<Watcher> watcher_;  ///< on rank 0, if it started the others
};

}  // namespace accord::cli
