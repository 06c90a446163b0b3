#pragma once
// A group's calls on GPUs through NCCL.

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/backend.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/nccl/calls.hpp"
#include "comm/nccl/library.hpp"
#include "comm/nccl/registered_memory.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// One NCCL communicator serves the collectives of all ranks, created with the first of them. A pair of ranks that
/// exchanged messages before that creates one of its own. No call of NCCL blocks: a pending one is polled until the
/// deadline, or until the group fails.
class NcclBackend final : public CollectiveBackend {
 public:
  /// REQUIRES: the group outlives it.
  /// `lent`: an owner's communicator of the same ranks; null: it creates its own.
  NcclBackend(Group& group, device::Runtime& runtime, Device device, nccl::Communicator* lent);
  /// Waits a little for pending operations of the library, then aborts them.
  ~NcclBackend() override;

  Status check(const Call& call) const override;
  /// Settles everything that the ranks must agree on before such calls. All ranks are notified if a rank has no NCCL,
  /// or has another version or other options than the others.
  Status agree(std::span<const Call> calls, Deadline deadline);
  Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                 Deadline deadline) override;
  /// Messages can always be captured: connecting their pairs is allowed during a capture.
  bool can_capture(const Call& call) const override { return whole_ != nullptr || call.direction != Direction::kNone; }
  // As those of DeviceBackends.
  bool can_split() const { return whole_ != nullptr; }
  Status split(int color, int key, NcclBackend* child, Deadline deadline);
  bool can_shrink() const {
    return whole_ != nullptr && library().call.CommShrink != nullptr && (!aborted_ || is_revoked_);
  }
  Status shrink(std::span<const Rank> lost, NcclBackend& child, Deadline deadline);
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes, Deadline deadline);

  Status asynchronous_error() override;
  /// The communicator of all ranks is revoked if NCCL's version can do so, which keeps it for shrink().
  void abort() override;

 private:
  Status enqueue_calls(std::span<const Call> calls, Stream stream, Deadline deadline);

  // REQUIRES, for all of these: calls_ is held, and the device is current.
  nccl::Config config() const;
  Result<nccl::Communicator*> connect(const nccl::UniqueId& id, Rank rank, int size);
  Status connect_whole(Deadline deadline);
  /// Returns once `communicator` has no pending operation.
  Status wait_until_idle(nccl::Communicator* communicator, std::string_view function, Deadline deadline);
  /// Agrees on the communicator for messages with each rank of `calls` that this one has exchanged none with before.
  /// The two ranks exchange messages of the group: the lower rank first, which sends to all its peers before it waits
  /// for any.
  Status connect_pairs(std::span<const Call> calls, Deadline deadline);
  struct Pair;
  /// Puts `calls` into `stream` as one group. Messages on communicators of pairs run concurrently, in streams of
  /// their own: in one stream they would wait for each other, in circles.
  Status enqueue_messages(std::span<const Call> calls, Stream stream, Deadline deadline);
  /// Returns the memory that a collective reads: a copy if NCCL cannot do it in place.
  Result<const void*> input_of(const Call& call, Stream stream);
  nccl::Member member(nccl::Communicator* communicator, Rank rank, int size) const {
    return {.library = library(), .communicator = communicator, .rank = rank, .size = size};
  }
  nccl::Member whole() const;
  /// fork() lets the pair's stream wait for the current contents of `stream`, and returns it; it is created when
  /// first needed.
  Result<Stream> fork(Pair& pair, Stream stream);
  Status join(const Pair& pair, Stream stream);

  /// Stops pending operations, and keeps the communicator. Returns false if it has to be aborted instead.
  bool revoke(nccl::Communicator* communicator);

  /// The communicators that this backend owns.
  std::vector<nccl::Communicator*> communicators() const;
  const nccl::Library& library() const { return **library_; }

  Group& group_;
  const Result<const nccl::Library*> library_;
  device::Runtime& runtime_;
  const Device device_;
  std::atomic<bool> aborted_ = false;
  const std::shared_ptr<nccl::Registry> registry_ = std::make_shared<nccl::Registry>();
  std::mutex& calls_ = registry_->calls;  ///< held for calls of the library; guards what follows
  bool is_revoked_ = false;               ///< whole_ was revoked, not aborted
  std::optional<nccl::UniqueId> id_;      ///< once the ranks have agreed; not needed after split()
  nccl::Communicator* whole_;
  const bool is_lent_;
  /// Memory into which the library stores the communicators that it creates. It stores each once more, or only then,
  /// from a thread of its own when the communicator is connected, which may be late.
  std::list<nccl::Communicator*> created_;
  struct Pair {
    nccl::Communicator* communicator = nullptr;  ///< null: their messages use that of all ranks
    Stream stream = {};
    device::Event event = {};  ///< orders that stream and those of calls
  };
  std::map<Rank, Pair> pairs_;
  struct Copies {
    void* memory = nullptr;
    std::size_t bytes = 0;
    device::Event read = {};  ///< recorded after the last call that reads it
  };
  Copies copies_;
  std::vector<void*> captured_copies_;  ///< of calls in graphs, one each
};

}  // namespace accord::comm
