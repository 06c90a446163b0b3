#pragma once
// One operation of one size on one rank: its buffers, its calls, and the check of its result.

#include <cstdlib>
#include <memory>
#include <vector>

#include "accord/communicator.hpp"
#include "cli/bench/operations.hpp"
#include "cli/bench/reference.hpp"

namespace accord::cli {

/// The operation to run, and its size.
struct ExerciseRequest {
  BenchOperation operation;
  std::size_t bytes = 0;  ///< as in a selection table: of one part if the collective divides a buffer
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  int ranks = 1;
};

/// Not thread-safe. Its buffers serve any number of communicators, one after the other.
class Exercise {
 public:
  /// Fails with kResourceExhausted if there is no memory for the buffers.
  static Result<std::unique_ptr<Exercise>> create(const ExerciseRequest& request, Rank rank);

  /// Runs the operation `calls` times.
  Status repeat(Communicator& comm, int calls);
  /// Number of operations that one call counts as: the time of one operation is the time of repeat() divided by the
  /// calls and by this number.
  int operations_per_call() const;
  /// Runs the operation once on known data, and returns the wrong elements on this rank.
  Result<WrongElements> check(Communicator& comm);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<void, Free>;

  Exercise(const ExerciseRequest& request, Rank rank);
  Status allocate();
  Call call() const;
  std::vector<Call> messages() const;
  Status exchange(Communicator& comm);
  Buffer buffer(void* data, std::size_t count) const { return {data, count, request_.dtype}; }

  const ExerciseRequest request_;
  const Rank rank_;
  Reference reference_;
  Memory memory_, more_memory_;
  Buffer input_, output_;
  std::vector<Call> messages_;
};

}  // namespace accord::cli
