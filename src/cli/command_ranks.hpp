#pragma once
// The ranks of a command: those of a launcher, or processes that the command starts itself.

#include <memory>
#include <optional>
#include <string>

#include "accord/communicator.hpp"

namespace accord::cli {

/// Ranks that a command starts which measures what ranks do together, unless it is told.
inline constexpr int kDefaultRanks = 2;

/// Not thread-safe. Move-only.
class CommandRanks {
 public:
  /// Those of a launcher if one started this process (accord run, torchrun, mpirun); `wanted` has to agree with it. Else this process
  /// becomes rank 0 of `wanted` (absent: `otherwise`), and the others are forked here, each with a share of the cores: from then on all
  /// of them run the same code. REQUIRES: no thread was started yet.
  static Result<CommandRanks> create(std::optional<int> wanted, int otherwise);
  CommandRanks(CommandRanks&& other) noexcept;
  CommandRanks& operator=(CommandRanks&&) = delete;
  /// Ends the processes that were started here, if they have not ended by themselves.
  ~CommandRanks();

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  /// A communicator of all ranks; all of them call it in the same order.
  Result<Communicator> communicator(const std::string& name, const std::string& select = "") const;

 private:
  CommandRanks() = default;
  Status fork_others();
  Status meet(int pipe_in, int pipe_out);

  Rank rank_ = 0;
  int size_ = 1;
  std::shared_ptr<Store> store_;
  class Watcher;
  std::unique_ptr<Watcher> watcher_;  ///< of rank 0, if it started the others
};

}  // namespace accord::cli
