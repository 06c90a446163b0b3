#pragma once
// A group's calls on GPUs by NCCL.

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/backend.hpp"
#include "comm/nccl/calls.hpp"
#include "comm/nccl/library.hpp"
#include "comm/nccl/registered_memory.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// One NCCL communicator for the collectives of all ranks, made with the first of them; a pair of ranks that had messages before makes one of its
/// own. None of NCCL's calls blocks: what is under way is asked for until the deadline, or until the group fails.
class NcclBackend final : public CollectiveBackend {
 public:
  /// REQUIRES: the group outlives it.
  /// `lent`: an owner's communicator of the same ranks; null: it makes its own.
  NcclBackend(Group& group, device::Runtime& runtime, Device device, nccl::Communicator* lent);
  /// Waits a little for what the library has under way; then it is aborted.
  ~NcclBackend() override;

  Status check(const Call& call) const override;
  /// A rank without NCCL, or with another version or other options than the others, is told to all.
  Status agree(std::span<const Call> calls, Deadline deadline) override;
  Status enqueue(std::span<const Call> calls, Stream stream, Deadline deadline) override;
  /// Messages connect their pairs, which a capture forbids to none.
  bool can_capture(std::span<const Call> calls) const override {
    const auto is_message = [](const Call& call) { return call.direction != Direction::kNone; };
    return whole_ != nullptr || std::all_of(calls.begin(), calls.end(), is_message);
  }
  bool can_part() const override { return whole_ != nullptr; }
  Status part(int color, int key, CollectiveBackend* child, Deadline deadline) override;
  bool can_shrink() const override {
    return whole_ != nullptr && library().call.CommShrink != nullptr && (!aborted_ || is_revoked_);
  }
  Status shrink(std::span<const Rank> lost, CollectiveBackend* child, Deadline deadline) override;
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes,
                                                            Deadline deadline) override;
  Status asynchronous_error() override;
  /// That of all ranks is revoked where NCCL's version can do so, which keeps it for shrink().
  void abort() override;

 private:
  // REQUIRES, for all of these: calls_ is held, and the device is current.
  nccl::Config config() const;
  Result<nccl::Communicator*> connect(const nccl::UniqueId& id, Rank rank, int size);
  Status connect_whole(Deadline deadline);
  /// Until `communicator` has nothing under way.
  Status settle(nccl::Communicator* communicator, std::string_view function, Deadline deadline);
  /// Agrees with those ranks of `calls` that this one had no messages with before by which communicator they go. They tell each other by messages of
  /// the group: the lower rank first, which waits for nobody before it has told all.
  Status connect_pairs(std::span<const Call> calls, Deadline deadline);
  struct Pair;
  /// Puts `calls` into `stream` as one group. Those of communicators of pairs go on beside each other, in streams of their own: in one they would
  /// wait for each other, in circles.
  Status enqueue_messages(std::span<const Call> calls, Stream stream, Deadline deadline);
  /// What a collective reads: a copy where NCCL cannot do it in place.
  Result<const void*> input_of(const Call& call, Stream stream);
  nccl::Member member(nccl::Communicator* communicator, Rank rank, int size) const {
    return {.library = library(), .communicator = communicator, .rank = rank, .size = size};
  }
  nccl::Member whole() const;
  /// With what is enqueued before in `stream`, in the pair's own; made when it is first needed.
  Result<Stream> fork(Pair& pair, Stream stream);
  Status join(const Pair& pair, Stream stream);

  /// Stops what is under way, and keeps the communicator. False if it has to be aborted instead.
  bool revoke(nccl::Communicator* communicator);

  /// Those of its own.
  std::vector<nccl::Communicator*> communicators() const;
  const nccl::Library& library() const { return **library_; }

  Group& group_;
  const Result<const nccl::Library*> library_;
  device::Runtime& runtime_;
  const Device device_;
  std::atomic<bool> aborted_ = false;
  const std::shared_ptr<nccl::Registry> registry_ = std::make_shared<nccl::Registry>();
  std::mutex& calls_ = registry_->calls;  ///< into the library; guards what follows
  bool is_revoked_ = false;               ///< what is left of whole_, once aborted
  std::optional<nccl::UniqueId> id_;      ///< once the ranks have agreed; not needed by one that was parted
  nccl::Communicator* whole_;
  const bool is_lent_;
  /// Where the library puts those that it makes. It does so once more, or only then, from a thread of its own when they are connected, which may be late.
  std::list<nccl::Communicator*> made_;
  struct Pair {
    nccl::Communicator* communicator = nullptr;  ///< null: their messages go by that of all ranks
    Stream stream = {};
    device::Event event = {};  ///< for the order of that stream and those of calls
  };
  std::map<Rank, Pair> pairs_;
  struct Copies {
    void* memory = nullptr;
    std::size_t bytes = 0;
    device::Event read = {};  ///< once the last call that reads it is over
  };
  Copies copies_;
  std::vector<void*> captured_copies_;  ///< of calls in graphs, one each
};

}  // namespace accord::comm
