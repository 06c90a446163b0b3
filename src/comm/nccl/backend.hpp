#pragma once
// A group's calls on GPUs through NCCL.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/backend.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/nccl/calls.hpp"
#include "comm/nccl/connection.hpp"
#include "comm/nccl/registered_memory.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class Group;

/// One NCCL communicator serves the collectives of all ranks, created with the first of them. A pair of ranks that
/// exchanged messages before that creates one of its own. A call returns when NCCL has accepted it; at the deadline, or
/// when the group fails, interrupt() makes it return.
class NcclBackend final : public CollectiveBackend {
 public:
  /// REQUIRES: the group outlives it.
  /// `lent`: an owner's communicator of the same ranks; null: it creates its own.
  NcclBackend(Group& group, device::Runtime& runtime, Device device, nccl::Communicator* lent);
  /// Waits a little for pending operations of the library, then aborts them.
  ~NcclBackend() override;

  Status check(const Call& call) const override;
  /// Settles everything that the ranks must agree on before such calls. All ranks are notified if a rank has no NCCL,
  /// or has another version or other options than the others. Messages are agreed on when they are enqueued, except by
  /// a rank without NCCL, which tells its peers here.
  Status agree(std::span<const Call> calls, Deadline deadline);
  Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                 Deadline deadline) override;
  /// Messages can always be captured: connecting their pairs is allowed during a capture.
  bool can_capture(const Call& call) const override { return whole_ != nullptr || call.direction != Direction::kNone; }
  /// Calls are about to be captured.
  void note_capture();
  // As those of DeviceBackends.
  bool can_split() const { return whole_ != nullptr; }
  Status split(int color, int key, NcclBackend* child, Deadline deadline);
  bool can_shrink() const;
  Status shrink(std::span<const Rank> lost, NcclBackend& child, Deadline deadline);
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes, Deadline deadline);

  Status asynchronous_error() override;
  /// The communicator of all ranks is revoked if NCCL's version can do so, which keeps it for shrink(). Waits a little
  /// for that.
  void abort() override;

 private:
  using Connection = nccl::Connection;

  /// The beginning of abort(): makes calls that are in NCCL return, and refuses later ones. Does not wait, and calls
  /// neither NCCL nor the device.
  void interrupt();
  Status enqueue_calls(std::span<const Call> calls, Stream stream, Deadline deadline);

  // REQUIRES, for all of these: the device is current.
  nccl::Settings settings() const;
  /// Says when a call that began with `deadline` must not wait any longer.
  nccl::WaitCheck check_until(Deadline deadline) const;
  /// Stores a new connection in `slot`, where interrupt() finds it.
  Result<std::shared_ptr<Connection>> add_connection(std::shared_ptr<Connection>& slot);
  Status connect_whole(Deadline deadline);
  struct Offers;
  /// Agrees on the communicator for messages with each rank of `calls` that this one has exchanged none with before.
  /// The two ranks exchange messages of the group: the lower rank first, which sends to all its peers before it waits
  /// for any. If a rank has no NCCL, or no id for the pair, both get an error.
  Result<std::map<Rank, Offers>> exchange_offers(std::span<const Call> calls, Deadline deadline);
  /// Lets the peers of messages know if this rank has no NCCL, and returns that error.
  Status agree_on_messages(std::span<const Call> calls, Deadline deadline);
  Status connect_pairs(std::span<const Call> calls, Deadline deadline);
  struct Pair;
  Pair& add_pair(Rank peer);
  /// Puts `calls` into `stream` as one group. Messages on communicators of pairs run concurrently, in streams of
  /// their own: in one stream they would wait for each other, in circles.
  Status enqueue_messages(std::span<const Call> calls, Stream stream, Deadline deadline);
  /// Returns the memory that a collective reads: a copy if NCCL cannot do it in place.
  Result<const void*> input_of(const Call& call, Stream stream);
  /// fork() lets the pair's stream wait for the current contents of `stream`, and returns it; it is created when
  /// first needed.
  Result<Stream> fork(Pair& pair, Stream stream);
  Status join(const Pair& pair, Stream stream);
  void release_streams_and_copies(Deadline deadline);

  nccl::Place place() const { return {.library = library(), .runtime = runtime_, .device = device_}; }
  bool is_aborted() const;
  std::vector<std::shared_ptr<Connection>> connections() const;
  const nccl::Library& library() const { return **library_; }

  Group& group_;
  const Result<const nccl::Library*> library_;
  device::Runtime& runtime_;
  const Device device_;
  std::optional<nccl::UniqueId> id_;          ///< once the ranks have agreed; not needed after split()
  std::shared_ptr<nccl::Registry> registry_;  ///< of whole_
  /// Held briefly, to change the connections and by interrupt(): they are changed by one thread at a time.
  mutable std::mutex connections_mutex_;
  bool aborted_ = false;                     ///< guarded by connections_mutex_, as is captured_
  bool captured_ = false;                    ///< note_capture() was called
  Deadline aborted_by_ = Deadline::never();  ///< the end of the time for abort(), written by the first interrupt()
  std::shared_ptr<Connection> whole_;
  struct Pair {
    std::shared_ptr<Connection> connection = {};  ///< null: their messages use that of all ranks
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
