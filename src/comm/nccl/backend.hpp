#pragma once
// A group's calls on GPUs by NCCL.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/backend.hpp"
#include "comm/nccl/calls.hpp"
#include "comm/nccl/library.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// One NCCL communicator for the collectives of all ranks, and one for each pair of ranks that has messages, each made with the first of them. None of NCCL's calls blocks: what is under way is asked for until the deadline, or until the group fails.
class NcclBackend final : public CollectiveBackend {
 public:
  /// REQUIRES: the group outlives it.
  NcclBackend(Group& group, device::Runtime& runtime, Device device);
  /// Waits a little for what the library has under way; then it is aborted.
  ~NcclBackend() override;

  std::string_view name() const override { return "nccl"; }
  Status check(const Call& call) const override;
  /// A rank without NCCL, or with another version or other options than the others, is told to all.
  Status agree(std::span<const Call> calls, Deadline deadline) override;
  Status enqueue(std::span<const Call> calls, Stream stream, Deadline deadline) override;
  Status asynchronous_error() override;
  void abort() override;

 private:
  // REQUIRES, for all of these: calls_ is held, and the device is current.
  Result<nccl::Communicator*> connect(const nccl::UniqueId& id, Rank rank, int size);
  Status connect_whole(Deadline deadline);
  /// Until `communicator` has nothing under way.
  Status settle(nccl::Communicator* communicator, std::string_view function, Deadline deadline);
  /// Connects this rank with those of `calls` that it has no communicator with yet. Ids go as messages of the group: from the lower rank, which waits
  /// for nobody before it has sent all of its own.
  Status connect_pairs(std::span<const Call> calls, Deadline deadline);
  Status enqueue_messages(std::span<const Call> calls, Stream stream, Deadline deadline);
  /// What a collective reads: a copy where NCCL cannot do it in place.
  Result<const void*> input_of(const Call& call, Stream stream);
  nccl::Member member(nccl::Communicator* communicator, Rank rank, int size) const {
    return {.library = library(), .communicator = communicator, .rank = rank, .size = size};
  }
  nccl::Member whole() const;
  nccl::Member pair_with(Rank peer) const;

  const nccl::Library& library() const { return **library_; }

  Group& group_;
  const Result<const nccl::Library*> library_;
  device::Runtime& runtime_;
  const Device device_;
  std::atomic<bool> aborted_ = false;
  std::mutex calls_;  ///< into the library; guards what follows
  std::optional<nccl::UniqueId> id_;  ///< once the ranks have agreed
  nccl::Communicator* whole_ = nullptr;
  std::map<Rank, nccl::Communicator*> pairs_;
  struct Copies {
    void* memory = nullptr;
    std::size_t bytes = 0;
    device::Event read = {};  ///< once the last call that reads it is over
  };
  Copies copies_;
};

}  // namespace accord::comm
