#pragma once
// The communicator: everything that a group of ranks does together.

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/call.hpp"
#include "accord/call_options.hpp"
#include "accord/counters.hpp"
#include "accord/device_window.hpp"
#include "accord/prepared.hpp"
#include "accord/status.hpp"
#include "accord/store.hpp"
#include "accord/window.hpp"
#include "accord/work.hpp"

namespace accord {

namespace comm {
class Group;
}

/// Options that are fixed when a communicator is created. A communicator that is split off inherits the options that
/// are not given, and all of `select`.
struct CommunicatorOptions {
  std::string name = "world";                 ///< appears in every error; equal on all ranks
  std::optional<Duration> timeout = {};       ///< for creation and for each call; absent: ACCORD_TIMEOUT, or 5 minutes
  std::optional<std::string> transport = {};  ///< "auto", "inproc", "shm" or "ucx"; absent: ACCORD_TRANSPORT, or "auto"
  std::string select = {};  ///< rules for selecting plans, after those of ACCORD_SELECT; see docs/architecture.md
  /// "wait=yield,slot_bytes=64k": how this group waits and how much memory it uses, in place of the settings that the
  /// environment makes for all groups. docs/communicator.md lists the hints. Hints that are left out are inherited;
  /// an unknown hint is rejected.
  std::string hints = {};
};

/// How reconfigure() numbers the ranks: by their places in the list, or in an order that the library chooses.
enum class RankOrder : std::uint8_t { kAsListed, kAny };

struct ReconfigureOptions {
  std::optional<Duration> timeout = {};  ///< absent: the communicator's
  RankOrder order = RankOrder::kAsListed;
};

enum class CommunicatorState : std::uint8_t { kReady, kFailed, kClosed };

std::string_view to_string(CommunicatorState state);

/// A group of ranks that compute together.
///
/// A handle: copies refer to the same group, which closes when close() is called or when the last handle and Work are
/// gone. Thread-safe: any thread may call any method. Calls on one communicator run in the order in which they were
/// made; calls on different communicators are independent. Messages of send and recv are ordered for each pair of
/// ranks, direction and tag.
///
/// Failure is sticky: the first failure (a dead peer, a timeout, a mismatch between ranks, abort) ends every pending
/// and later call with its Status, which names the ranks at fault. Nothing hangs: each call ends within its timeout,
/// and within a second of a peer's death.
class Communicator {
 public:
  /// Joins, as rank `rank` of `size`, the group that meets in `store` under `options.name`. Collective: returns once
  /// all ranks have arrived. Fails with kTimeout, which names the missing ranks, or with kMismatch if ranks disagree
  /// on the size or options. After a failure the ranks may try again in the same store. Each rank may have only one
  /// creation of a given name in progress.
  [[nodiscard]] static Result<Communicator> create(std::shared_ptr<Store> store, Rank rank, int size,
                                                   CommunicatorOptions options = {});
  /// Does the same from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (set by accord run, by torchrun or by hand), or
  /// else from the variables of Open MPI, PMI or Slurm. Without any of them, creates a group of one rank. All groups
  /// that a process creates this way share one store.
  [[nodiscard]] static Result<Communicator> from_environment(const CommunicatorOptions& options = {});

  /// Creates a communicator of this process alone, without a store. It can join others by reconfigure().
  [[nodiscard]] static Result<Communicator> alone(CommunicatorOptions options = {});

  Rank rank() const;
  int size() const;
  const std::string& name() const;
  CommunicatorState state() const;
  /// The reason why the state is kFailed or kClosed; ok when kReady.
  Status status() const;

  /// Returns the ranks that have died (known within a second) or closed, in the order in which this rank learned of
  /// it, even after a failure; none once this rank has closed. Useful to ranks that wait for each other elsewhere,
  /// such as in a store. Cost: one check of each rank.
  std::vector<Rank> gone() const;

  /// Runs `call` and returns when it has ended.
  [[nodiscard]] Status run(const Call& call, const CallOptions& options = {});
  /// Starts `call` and returns at once. The Work reports the outcome, including invalid arguments.
  [[nodiscard]] Work start(const Call& call, const CallOptions& options = {});

  /// Runs several calls at once and returns when all have ended, with the status of the first one in the list that
  /// failed. Messages to and from any ranks are in flight at the same time, so ranks may list theirs in any order
  /// (messages of one pair and direction stay in order). Collectives run one after the other in the order of the
  /// list, which must be equal on all ranks. If one call is invalid, none begins.
  [[nodiscard]] Status run(std::span<const Call> calls, const CallOptions& options = {});
  /// Starts the calls and returns at once. The Work ends when all of them have.
  [[nodiscard]] Work start(std::span<const Call> calls, const CallOptions& options = {});

  /// Checks a call, or several that run at once; Prepared::run() and start() may then be called any number of times.
  [[nodiscard]] Result<Prepared> prepare(const Call& call, const CallOptions& options = {});
  [[nodiscard]] Result<Prepared> prepare(std::span<const Call> calls, const CallOptions& options = {});

  /// Returns once all ranks have called it.
  [[nodiscard]] Status barrier(const CallOptions& options = {}) { return run(Call::barrier(), options); }
  /// Copies the root's `buffer` to all ranks; count and dtype are equal on all ranks. Cost: one write and one read of
  /// the buffer per rank.
  [[nodiscard]] Status broadcast(Buffer buffer, Rank root, const CallOptions& options = {}) {
    return run(Call::broadcast(buffer, root), options);
  }
  /// Gathers the `input` of all ranks into `output` in rank order; output.count = size * input.count. In place if
  /// `input` is this rank's part of `output`.
  [[nodiscard]] Status all_gather(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return run(Call::all_gather(input, output), options);
  }
  /// Combines `input` over all ranks and gives part r of the result to rank r; input.count = size * output.count. Same
  /// order and rounding as all_reduce.
  [[nodiscard]] Status reduce_scatter(ConstBuffer input, Buffer output, Reduction op, const CallOptions& options = {}) {
    return run(Call::reduce_scatter(input, output, op), options);
  }
  /// Combines `buffer` over all ranks, in place, in the canonical order: results are bit-identical on all ranks and
  /// in every run.
  ///
  /// The canonical order is the balanced binary tree over the ranks, split at the largest power of two below the
  /// size. Floats of 8 and 16 bits accumulate in fp32 and are rounded once. Count, dtype and op must be equal on all
  /// ranks, or the call fails with kMismatch. An op that is not defined for the dtype fails at once with
  /// kInvalidArgument (docs/communicator.md has the table).
  /// Cost: (n-1) messages per rank for small buffers (packets), 2 (n-1)/n of the bytes moved for large ones
  /// (two-shot).
  [[nodiscard]] Status all_reduce(Buffer buffer, Reduction op, const CallOptions& options = {}) {
    return run(Call::all_reduce(buffer, buffer, op), options);
  }
  /// Does the same out of place.
  [[nodiscard]] Status all_reduce(ConstBuffer input, Buffer output, Reduction op, const CallOptions& options = {}) {
    return run(Call::all_reduce(input, output, op), options);
  }
  /// Like all_reduce, but only `root` gets the result; `output` is not used on the other ranks.
  [[nodiscard]] Status reduce(ConstBuffer input, Buffer output, Reduction op, Rank root,
                              const CallOptions& options = {}) {
    return run(Call::reduce(input, output, op, root), options);
  }
  /// Gathers the `input` of all ranks into the root's `output` in rank order; output.count = size * input.count.
  /// `output` is not used on the other ranks. In place if the root's input is its part of `output`. Cost: the root
  /// reads each part once.
  [[nodiscard]] Status gather(ConstBuffer input, Buffer output, Rank root, const CallOptions& options = {}) {
    return run(Call::gather(input, output, root), options);
  }
  /// Gives part r of the root's `input` to rank r; input.count = size * output.count. `input` is not used on the
  /// other ranks. In place if the root's output is its part of `input`. Cost: the root writes each part once.
  [[nodiscard]] Status scatter(ConstBuffer input, Buffer output, Rank root, const CallOptions& options = {}) {
    return run(Call::scatter(input, output, root), options);
  }
  /// Moves part p of rank r's `input` to part r of rank p's `output`; both have the same count, a multiple of size.
  /// In place if they are the same memory. Cost: one write and one read of (n-1)/n of the buffer.
  [[nodiscard]] Status all_to_all(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return run(Call::all_to_all(input, output), options);
  }
  // The same calls with parts of unequal counts, which may be zero: `counts[r]` is rank r's, in rank order and
  // without gaps. If all ranks pass all counts, the counts are compared as other arguments are. Otherwise the ranks
  // exchange them first, at the cost of one all_gather of 8 bytes per rank (8 * size for all_to_all_v).

  /// `counts`: of the parts of `output`, equal on all ranks; input.count is this rank's count.
  [[nodiscard]] Status all_gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                                    const CallOptions& options = {}) {
    return run(Call::all_gather_v(input, output, counts), options);
  }
  /// `counts`: of the parts of `input`, equal on all ranks; output.count is this rank's count.
  [[nodiscard]] Status reduce_scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                                        Reduction op, const CallOptions& options = {}) {
    return run(Call::reduce_scatter_v(input, output, counts, op), options);
  }
  /// `counts`: of the parts of `output`, passed at the root. Fails with kMismatch if a rank's input has another
  /// count.
  [[nodiscard]] Status gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root,
                                const CallOptions& options = {}) {
    return run(Call::gather_v(input, output, counts, root), options);
  }
  /// `counts`: of the parts of `input`, passed at the root. Fails with kMismatch if a rank's output has another
  /// count.
  [[nodiscard]] Status scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root,
                                 const CallOptions& options = {}) {
    return run(Call::scatter_v(input, output, counts, root), options);
  }
  /// Sends `input_counts[p]` elements to rank p and receives `output_counts[p]` elements from it. Fails with
  /// kMismatch if rank p's counts differ. In place only if both lists of counts are the same.
  [[nodiscard]] Status all_to_all_v(ConstBuffer input, std::span<const std::size_t> input_counts, Buffer output,
                                    std::span<const std::size_t> output_counts, const CallOptions& options = {}) {
    return run(Call::all_to_all_v(input, input_counts, output, output_counts), options);
  }

  /// Sends `buffer` to rank `to`, which must call recv with the same count, dtype and tag. Returns when the buffer
  /// may be reused.
  [[nodiscard]] Status send(ConstBuffer buffer, Rank to, const CallOptions& options = {}) {
    return send(buffer, to, 0, options);
  }
  [[nodiscard]] Status send(ConstBuffer buffer, Rank to, std::int32_t tag, const CallOptions& options = {}) {
    return run(Call::send(buffer, to, tag), options);
  }
  /// Receives the next message with that tag from rank `from`. Fails with kMismatch if it has another count or dtype.
  /// A message matches the earliest receive for its tag. An earlier message with another tag for which no receive is
  /// waiting is an unexpected message: it is kept in separate memory until a matching receive is called, and copied
  /// then. Tags are 0 (the default) to 2^31 - 1.
  [[nodiscard]] Status recv(Buffer buffer, Rank from, const CallOptions& options = {}) {
    return recv(buffer, from, 0, options);
  }
  [[nodiscard]] Status recv(Buffer buffer, Rank from, std::int32_t tag, const CallOptions& options = {}) {
    return run(Call::recv(buffer, from, tag), options);
  }

  /// Receives the next message with that tag from any rank, and returns that rank. Ranks are polled round-robin,
  /// starting after the one served last. Earlier receives from one particular rank get its messages first. Fails with
  /// kMismatch and kPeerLost as recv does, with kPeerLost also once all other ranks have closed, and with kTimeout,
  /// which names all of them. Cost: one check of each rank.
  [[nodiscard]] Result<Rank> recv_any(Buffer buffer, std::int32_t tag = 0, const CallOptions& options = {});

  // The asynchronous forms.
  [[nodiscard]] Work barrier_async(const CallOptions& options = {}) { return start(Call::barrier(), options); }
  [[nodiscard]] Work broadcast_async(Buffer buffer, Rank root, const CallOptions& options = {}) {
    return start(Call::broadcast(buffer, root), options);
  }
  [[nodiscard]] Work all_gather_async(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return start(Call::all_gather(input, output), options);
  }
  [[nodiscard]] Work reduce_scatter_async(ConstBuffer input, Buffer output, Reduction op,
                                          const CallOptions& options = {}) {
    return start(Call::reduce_scatter(input, output, op), options);
  }
  [[nodiscard]] Work all_reduce_async(Buffer buffer, Reduction op, const CallOptions& options = {}) {
    return start(Call::all_reduce(buffer, buffer, op), options);
  }
  [[nodiscard]] Work all_reduce_async(ConstBuffer input, Buffer output, Reduction op, const CallOptions& options = {}) {
    return start(Call::all_reduce(input, output, op), options);
  }
  [[nodiscard]] Work reduce_async(ConstBuffer input, Buffer output, Reduction op, Rank root,
                                  const CallOptions& options = {}) {
    return start(Call::reduce(input, output, op, root), options);
  }
  [[nodiscard]] Work gather_async(ConstBuffer input, Buffer output, Rank root, const CallOptions& options = {}) {
    return start(Call::gather(input, output, root), options);
  }
  [[nodiscard]] Work scatter_async(ConstBuffer input, Buffer output, Rank root, const CallOptions& options = {}) {
    return start(Call::scatter(input, output, root), options);
  }
  [[nodiscard]] Work all_to_all_async(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return start(Call::all_to_all(input, output), options);
  }
  [[nodiscard]] Work all_gather_v_async(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                                        const CallOptions& options = {}) {
    return start(Call::all_gather_v(input, output, counts), options);
  }
  [[nodiscard]] Work reduce_scatter_v_async(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                                            Reduction op, const CallOptions& options = {}) {
    return start(Call::reduce_scatter_v(input, output, counts, op), options);
  }
  [[nodiscard]] Work gather_v_async(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root,
                                    const CallOptions& options = {}) {
    return start(Call::gather_v(input, output, counts, root), options);
  }
  [[nodiscard]] Work scatter_v_async(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root,
                                     const CallOptions& options = {}) {
    return start(Call::scatter_v(input, output, counts, root), options);
  }
  [[nodiscard]] Work all_to_all_v_async(ConstBuffer input, std::span<const std::size_t> input_counts, Buffer output,
                                        std::span<const std::size_t> output_counts, const CallOptions& options = {}) {
    return start(Call::all_to_all_v(input, input_counts, output, output_counts), options);
  }
  [[nodiscard]] Work send_async(ConstBuffer buffer, Rank to, const CallOptions& options = {}) {
    return send_async(buffer, to, 0, options);
  }
  [[nodiscard]] Work send_async(ConstBuffer buffer, Rank to, std::int32_t tag, const CallOptions& options = {}) {
    return start(Call::send(buffer, to, tag), options);
  }
  [[nodiscard]] Work recv_async(Buffer buffer, Rank from, const CallOptions& options = {}) {
    return recv_async(buffer, from, 0, options);
  }
  [[nodiscard]] Work recv_async(Buffer buffer, Rank from, std::int32_t tag, const CallOptions& options = {}) {
    return start(Call::recv(buffer, from, tag), options);
  }

  /// Creates a new communicator for each set of ranks with the same `color`, ordered by (`key`, rank). Collective
  /// over this communicator; a rank with a negative color joins none and gets nullopt. The new communicator is
  /// independent and may outlive this one. Options that are not given are inherited. Fails with kMismatch if another
  /// rank of the new communicator has different rules or options, or with kPeerLost if another rank was rejected or
  /// died.
  [[nodiscard]] Result<std::optional<Communicator>> split(int color, int key, CommunicatorOptions options);
  template <std::convertible_to<std::string> Name>
  [[nodiscard]] Result<std::optional<Communicator>> split(int color, int key, Name&& name) {
    return split(color, key, CommunicatorOptions{.name = std::forward<Name>(name)});
  }

  /// Creates a new communicator of the listed ranks, in the order of the list, which must be equal on all of them.
  /// Only the listed ranks call it, and neither the order of calls on this communicator nor its messages are
  /// affected: any thread may call it at any time. Groups that are created at the same time and have two or more
  /// ranks in common need different names. An empty list gives nullopt.
  ///
  /// Errors: kInvalidArgument if the list lacks this rank, repeats a rank or contains an invalid one. kMismatch if
  /// another rank has a different list, or different rules or options. kTimeout if a rank did not call. kPeerLost if
  /// a rank was rejected or died. kWrongState if another thread of this rank is creating the same group. After a
  /// failure this communicator is as it was, unless one of its ranks died, and the ranks may try again (after
  /// kMismatch, or if a rank's own arguments were rejected, under another name). Cost: one message for each pair of
  /// ranks.
  [[nodiscard]] Result<std::optional<Communicator>> split_ranks(std::span<const Rank> ranks,
                                                                CommunicatorOptions options);
  template <std::convertible_to<std::string> Name>
  [[nodiscard]] Result<std::optional<Communicator>> split_ranks(std::span<const Rank> ranks, Name&& name) {
    return split_ranks(ranks, CommunicatorOptions{.name = std::forward<Name>(name)});
  }

  /// Creates a new communicator of this one's ranks and `added` more ranks, which call join() with the same store and
  /// name. The old ranks keep their ranks; the new ones follow in the order of their arrival. Called by all ranks of
  /// this communicator, like a collective; this communicator itself is unaffected. Fails with kTimeout, which names
  /// the ranks that did not arrive, in the new numbering (they may try again); with kMismatch if another rank passes
  /// a different `added`, or has different rules or options; or with kPeerLost if a rank was rejected or died.
  [[nodiscard]] Result<Communicator> grow(const std::shared_ptr<Store>& store, int added, CommunicatorOptions options);
  /// Waits until a communicator grows to `options.name` in `store`, and joins it. `transport`, `select` and slots
  /// must be those of the existing ranks, or the call fails with kMismatch. Fails with kTimeout if no communicator
  /// grew or other ranks took all places, or with kPeerLost, with the reason, if the other ranks gave up.
  [[nodiscard]] static Result<Communicator> join(const std::shared_ptr<Store>& store, CommunicatorOptions options);

  /// Creates a new communicator of the remaining ranks, in the order of their ranks; this one stays as it is and can
  /// be closed. Each remaining rank calls it once, after a failure or without one. Ranks that have died or closed are
  /// left out immediately. A live rank that has not called within the timeout is left out then, and gets kAborted
  /// when it does call. Needs no store.
  [[nodiscard]] Result<Communicator> shrink(std::string name, const CallOptions& options = {});

  /// Returns the text by which other ranks name this one in reconfigure(). They may get it in any way: it holds all
  /// that they need to reach this rank, also from other hosts. It is valid for one reconfiguration, in which this rank
  /// may succeed or fail; afterwards handle() returns another one, of the old communicator as of the new one. Works
  /// after a failure. Cost: the first call opens a TCP socket.
  [[nodiscard]] Result<std::string> handle() const;

  /// Creates a new communicator of the ranks with the given handles, whatever communicators they are in now: more of
  /// them, fewer, or the same ones. This one stays as it is and can be closed; it may have failed. The new one has its
  /// name and options. All ranks call it with the same handles, which include their own, and with the same `uuid`, any
  /// text that none of them has passed before. With RankOrder::kAsListed, ranks are numbered by their places in the
  /// list, otherwise in the same order on all ranks, and ranks of a host are neighbours.
  ///
  /// All ranks get the communicator, or all get an error (see below for the exceptions), which names the ranks at fault
  /// by their new numbers: kPeerLost if a rank has died or its handle has been used, at once if rank 0 is in the call;
  /// kMismatch if a rank takes part in another reconfiguration, or has other handles or options; kTimeout if a rank did
  /// not call in time; kInvalidArgument if the uuid was already used, or a text is no handle. Then they may try again,
  /// with new handles and another uuid. If rank 0 dies at the last moment, or a rank gives up then, some ranks may have
  /// the communicator: it fails there at once. Cost: rank 0 exchanges three rounds of messages with every rank.
  [[nodiscard]] Result<Communicator> reconfigure(std::string_view uuid, std::span<const std::string> handles,
                                                 const ReconfigureOptions& options = {});

  /// Creates memory that all ranks can access: this rank contributes `bytes`. Ranks may contribute different amounts,
  /// including 0. Collective: all ranks get the window, or none does, and the error names the rank that failed.
  [[nodiscard]] Result<Window> window(std::size_t bytes, const CallOptions& options = {});

  /// Registers GPU memory that calls then use in place: `bytes` on `device`, the same number on each rank, or the
  /// program's own `memory`, which must outlive the windows of all ranks. Collective; it connects the ranks as the
  /// first call on a GPU does. All ranks get the window, or none does, and the error names the rank that failed
  /// (docs/gpu.md).
  [[nodiscard]] Result<DeviceWindow> device_window(std::size_t bytes, Device device, const CallOptions& options = {});
  [[nodiscard]] Result<DeviceWindow> device_window(Buffer memory, const CallOptions& options = {});

  /// Ends every pending and later call on all ranks with kAborted and `reason`. The same happens to groups that this
  /// rank has made from this one by split(), split_ranks() or a mesh, and to theirs; not to those of grow(), shrink()
  /// and reconfigure(), which are this one's successors; a reconfigure() in progress goes on, and close() ends it. May
  /// be called from any thread at any time.
  void abort(std::string_view reason);
  /// Leaves the group: later calls return kClosed, and a peer that waits for this rank gets kPeerLost. Idempotent.
  void close();

  /// Writes the contents of the flight recorder (this rank's last operations and those in progress) to a file in
  /// `directory`, which is created if absent, and returns the file's path. `accord diagnose` reads the files of all
  /// ranks (docs/diagnose.md). Disturbs nothing: any thread may call it at any time, even after a failure or close().
  /// Fails with kNotFound, kIo or kResourceExhausted if the file cannot be written.
  [[nodiscard]] Result<std::string> dump(const std::string& directory) const;
  /// Returns this rank's counts on this communicator so far. Cost: microseconds.
  Counters counters() const;

  explicit Communicator(std::shared_ptr<comm::Group> group);
  const std::shared_ptr<comm::Group>& group() const { return group_; }

 private:
  std::shared_ptr<comm::Group> group_;
};

}  // namespace accord
