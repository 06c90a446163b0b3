#pragma once
// The communicator: everything a group of ranks does together.

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

/// What is fixed when a communicator is made. One that is split off inherits what is left open, and all of `select`.
struct CommunicatorOptions {
  std::string name = "world";                 ///< in every error; equal on all ranks
  std::optional<Duration> timeout = {};       ///< of creation and of each call; absent: ACCORD_TIMEOUT, or 5 minutes
  std::optional<std::string> transport = {};  ///< "auto", "inproc" or "shm"; absent: ACCORD_TRANSPORT, or "auto"
  std::string select = {};  ///< overrides the plan selection after ACCORD_SELECT, see docs/architecture.md
  /// "wait=yield,slot_bytes=64k": how this group waits and what it takes of memory, in place of what the environment says for
  /// all; docs/communicator.md has the list. One that is left out is inherited, one that is unknown is refused.
  std::string hints = {};
};

enum class CommunicatorState : std::uint8_t { kReady, kFailed, kClosed };

std::string_view to_string(CommunicatorState state);

/// A group of ranks that compute together.
///
/// A handle: copies refer to the same group, which closes when close() is called or the last handle and Work are gone.
/// Thread-safe: any thread may call any method; calls on one communicator run in the order they were made, calls on
/// different communicators are independent. Messages of send and recv are ordered for each pair of ranks, direction and tag.
///
/// Failure is sticky: the first one (a dead peer, a timeout, a mismatch between ranks, abort) ends every pending and later
/// call with its Status, which names the ranks at fault. Nothing hangs: each call ends within its timeout, and within a
/// second of a peer's death.
class Communicator {
 public:
  /// Joins rank `rank` of `size` that meet in `store` under `options.name`. Collective: returns when all have come.
  /// kTimeout names the ranks that did not; kMismatch if ranks disagree on the size or options. After a failure they may try
  /// again in the same store. One creation of a name at a time on each rank.
  [[nodiscard]] static Result<Communicator> create(std::shared_ptr<Store> store, Rank rank, int size,
                                                   CommunicatorOptions options = {});
  /// The same from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (accord run, torchrun, by hand), else from the variables
  /// of Open MPI, PMI or Slurm; without any of them a group of one. Every such group of a process shares one store.
  [[nodiscard]] static Result<Communicator> from_environment(const CommunicatorOptions& options = {});

  Rank rank() const;
  int size() const;
  const std::string& name() const;
  CommunicatorState state() const;
  /// Why the state is kFailed or kClosed; ok when kReady.
  Status status() const;

  /// The ranks that have died (known within a second) or closed, in the order in which this rank learnt of it, also after a failure; none
  /// once this rank has closed. For those who wait for each other elsewhere, in a store. Cost: a look at each rank.
  std::vector<Rank> gone() const;

  /// Runs `call` to its end.
  [[nodiscard]] Status run(const Call& call, const CallOptions& options = {});
  /// Starts it and leaves it to go on: the Work tells how it ended, also when the arguments are wrong.
  [[nodiscard]] Work start(const Call& call, const CallOptions& options = {});

  /// Runs several calls at once, to the end of all; the status is that of the first in the list that failed. Messages to and from
  /// any ranks are under way at the same time, so ranks may list theirs in any order (those of one pair and direction stay in
  /// order); collectives run one after the other, in the order of the list, equal on all ranks. None begins if one is wrong.
  [[nodiscard]] Status run(std::span<const Call> calls, const CallOptions& options = {});
  /// Starts them. The Work ends when all have.
  [[nodiscard]] Work start(std::span<const Call> calls, const CallOptions& options = {});

  /// Checks a call, or several that shall run at once, for Prepared::run() and start() as often as they are wanted.
  [[nodiscard]] Result<Prepared> prepare(const Call& call, const CallOptions& options = {});
  [[nodiscard]] Result<Prepared> prepare(std::span<const Call> calls, const CallOptions& options = {});

  /// Returns once all ranks have called it.
  [[nodiscard]] Status barrier(const CallOptions& options = {}) { return run(Call::barrier(), options); }
  /// `buffer` of `root` goes to all; count and dtype equal on all ranks. Cost: one write, one read of it per rank.
  [[nodiscard]] Status broadcast(Buffer buffer, Rank root, const CallOptions& options = {}) {
    return run(Call::broadcast(buffer, root), options);
  }
  /// `output` gets all ranks' `input` in rank order; output.count = size * input.count. In place if input lies in its part.
  [[nodiscard]] Status all_gather(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return run(Call::all_gather(input, output), options);
  }
  /// Rank r gets part r of the sum of all `input`s; input.count = size * output.count. Same order and rounding as all_reduce.
  [[nodiscard]] Status reduce_scatter(ConstBuffer input, Buffer output, Reduction op, const CallOptions& options = {}) {
    return run(Call::reduce_scatter(input, output, op), options);
  }
  /// Combines `buffer` over all ranks, in place, in the canonical order: every rank ends with the same bits, in every run.
  ///
  /// The canonical order is the balanced binary tree over the ranks, split at the largest power of two below the size.
  /// Floats of 8 and 16 bits accumulate in fp32 and round once. Count, dtype and op equal on all ranks, else kMismatch; an op
  /// that has no meaning for the dtype is kInvalidArgument at once (docs/communicator.md has the table).
  /// Cost: (n-1) messages per rank for small buffers (packets), 2 (n-1)/n of the bytes moved for large ones (two-shot).
  [[nodiscard]] Status all_reduce(Buffer buffer, Reduction op, const CallOptions& options = {}) {
    return run(Call::all_reduce(buffer, buffer, op), options);
  }
  /// The same out of place.
  [[nodiscard]] Status all_reduce(ConstBuffer input, Buffer output, Reduction op, const CallOptions& options = {}) {
    return run(Call::all_reduce(input, output, op), options);
  }
  /// The same, but only `root` gets the result; `output` is not used on the others.
  [[nodiscard]] Status reduce(ConstBuffer input, Buffer output, Reduction op, Rank root,
                              const CallOptions& options = {}) {
    return run(Call::reduce(input, output, op, root), options);
  }
  /// `output` of `root` gets all ranks' `input` in rank order; output.count = size * input.count. `output` is not used on
  /// the others. In place if the root's input lies in its part. Cost: the root reads each part once.
  [[nodiscard]] Status gather(ConstBuffer input, Buffer output, Rank root, const CallOptions& options = {}) {
    return run(Call::gather(input, output, root), options);
  }
  /// Rank r gets part r of `input` of `root`; input.count = size * output.count. `input` is not used on the others.
  /// In place if the root's output is its part. Cost: the root writes each part once.
  [[nodiscard]] Status scatter(ConstBuffer input, Buffer output, Rank root, const CallOptions& options = {}) {
    return run(Call::scatter(input, output, root), options);
  }
  /// Part p of rank r's `input` becomes part r of rank p's `output`; both have the same count, a multiple of size. In place
  /// if they are the same memory. Cost: one write and one read of (n-1)/n of the buffer.
  [[nodiscard]] Status all_to_all(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return run(Call::all_to_all(input, output), options);
  }
  // The same with parts of unequal counts, zero among them: `counts[r]` is rank r's, in rank order and without gaps. Where all
  // ranks are given all counts, they are compared as other arguments are; else the ranks tell each other first, which costs
  // one all_gather of 8 bytes a rank, of 8 * size for all_to_all_v.

  /// `counts`: of the parts of `output`, equal on all ranks; input.count is this rank's.
  [[nodiscard]] Status all_gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                                    const CallOptions& options = {}) {
    return run(Call::all_gather_v(input, output, counts), options);
  }
  /// `counts`: of the parts of `input`, equal on all ranks; output.count is this rank's.
  [[nodiscard]] Status reduce_scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                                        Reduction op, const CallOptions& options = {}) {
    return run(Call::reduce_scatter_v(input, output, counts, op), options);
  }
  /// `counts`: of the parts of `output`, given at the root; kMismatch if a rank has another.
  [[nodiscard]] Status gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root,
                                const CallOptions& options = {}) {
    return run(Call::gather_v(input, output, counts, root), options);
  }
  /// `counts`: of the parts of `input`, given at the root; kMismatch if a rank has another.
  [[nodiscard]] Status scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root,
                                 const CallOptions& options = {}) {
    return run(Call::scatter_v(input, output, counts, root), options);
  }
  /// `input_counts[p]` elements go to rank p, `output_counts[p]` come from it; kMismatch if p says otherwise. In place only if both
  /// are the same.
  [[nodiscard]] Status all_to_all_v(ConstBuffer input, std::span<const std::size_t> input_counts, Buffer output,
                                    std::span<const std::size_t> output_counts, const CallOptions& options = {}) {
    return run(Call::all_to_all_v(input, input_counts, output, output_counts), options);
  }

  /// Sends `buffer` to rank `to`, which must call recv with the same count, dtype and tag. Returns when the buffer may be reused.
  [[nodiscard]] Status send(ConstBuffer buffer, Rank to, const CallOptions& options = {}) {
    return send(buffer, to, 0, options);
  }
  [[nodiscard]] Status send(ConstBuffer buffer, Rank to, std::int32_t tag, const CallOptions& options = {}) {
    return run(Call::send(buffer, to, tag), options);
  }
  /// Receives the next message of that tag from rank `from`; kMismatch if it has another count or dtype. A message goes to the receive
  /// of its tag that was called first. What comes before it with other tags, and finds no receive, is kept in memory of its own until
  /// one is called, and then copied. Tags: 0 (what is meant without one) to 2^31 - 1.
  [[nodiscard]] Status recv(Buffer buffer, Rank from, const CallOptions& options = {}) {
    return recv(buffer, from, 0, options);
  }
  [[nodiscard]] Status recv(Buffer buffer, Rank from, std::int32_t tag, const CallOptions& options = {}) {
    return run(Call::recv(buffer, from, tag), options);
  }

  /// Receives the next message of that tag from whichever rank has sent one, and gives that rank. Ranks are served in turns: who comes after
  /// the one served last is looked at first. Receives from one rank that were called before take its messages first. kMismatch,
  /// kPeerLost as recv; kPeerLost also once all other ranks have closed; kTimeout names all of them. Cost: a look at each rank.
  [[nodiscard]] Result<Rank> recv_any(Buffer buffer, std::int32_t tag = 0, const CallOptions& options = {});

  // The same, started.
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

  /// Ranks with the same `color` form a new communicator, ordered by (`key`, rank). Collective over this one; a negative
  /// color joins none and gets nullopt. The new one lives on its own: it may outlive this one. It has the options that are
  /// given, and for the rest this one's. kMismatch: another rank of it has other rules or options; kPeerLost: it was refused, or died.
  [[nodiscard]] Result<std::optional<Communicator>> split(int color, int key, CommunicatorOptions options);
  template <std::convertible_to<std::string> Name>
  [[nodiscard]] Result<std::optional<Communicator>> split(int color, int key, Name&& name) {
    return split(color, key, CommunicatorOptions{.name = std::forward<Name>(name)});
  }

  /// The listed ranks form a new communicator, in the order of the list, which is equal on all of them. Only they call it, and
  /// neither the order of calls on this one nor its messages are touched: any thread may call it at any time. Groups that are in
  /// the making at the same time and have two ranks or more in common need different names. An empty list gives nullopt.
  /// kInvalidArgument: the list lacks this rank, or names one twice or one that there is not. kMismatch: another rank has
  /// another list, or other rules or options. kTimeout: a rank did not call. kPeerLost: it was refused, or died. kWrongState: another
  /// thread of this rank is making the same. After a failure this communicator is as it was, unless one of its ranks died, and they
  /// may try again (after kMismatch, or if a rank's own arguments were refused, by another name). Cost: a message for each pair of ranks.
  [[nodiscard]] Result<std::optional<Communicator>> split_ranks(std::span<const Rank> ranks,
                                                                CommunicatorOptions options);
  template <std::convertible_to<std::string> Name>
  [[nodiscard]] Result<std::optional<Communicator>> split_ranks(std::span<const Rank> ranks, Name&& name) {
    return split_ranks(ranks, CommunicatorOptions{.name = std::forward<Name>(name)});
  }

  /// `added` more ranks, which call join() with the same store and name, make a new communicator with the ranks of this one: these
  /// keep their ranks, the others follow in the order in which they come. All ranks of this one call it, like a collective; this one
  /// goes on as it is. kTimeout names the ranks that did not come, in the new numbering; they may try again. kMismatch: another rank
  /// wants another number, or has other rules or options. kPeerLost: it was refused, or died.
  [[nodiscard]] Result<Communicator> grow(const std::shared_ptr<Store>& store, int added, CommunicatorOptions options);
  /// Waits until a communicator grows to `options.name` in `store`, and joins it. Its `transport`, `select` and slots are to be those of the
  /// ranks that are there, else kMismatch. kTimeout: none did, or others took all places. kPeerLost: the others gave up, and why.
  [[nodiscard]] static Result<Communicator> join(const std::shared_ptr<Store>& store, CommunicatorOptions options);

  /// The ranks that are left make a new communicator, in the order of their ranks; this one stays as it is and can be closed.
  /// Each of them calls it once, after a failure or without one. Whoever has died or closed is left out at once; whoever is
  /// alive and has not called it within the timeout, then (it gets kAborted when it does). Needs no store.
  [[nodiscard]] Result<Communicator> shrink(std::string name, const CallOptions& options = {});

  /// Memory that the ranks lend each other: `bytes` of this one, as many as each likes, 0 too. Collective: all ranks get the window, or none
  /// does, and the error names the rank that could not.
  [[nodiscard]] Result<Window> window(std::size_t bytes, const CallOptions& options = {});

  /// Memory of a GPU that calls use where it lies: `bytes` on `device`, equally many on each rank, or `memory` of the program's own, which has to outlive the
  /// window. Collective, and like the first call on a GPU it connects: all ranks get the window, or none does, and the error names who could not (docs/gpu.md).
  [[nodiscard]] Result<DeviceWindow> device_window(std::size_t bytes, Device device, const CallOptions& options = {});
  [[nodiscard]] Result<DeviceWindow> device_window(Buffer memory, const CallOptions& options = {});

  /// Ends every pending and later call on all ranks with kAborted and `reason`. From any thread, at any time.
  void abort(std::string_view reason);
  /// Leaves the group: later calls give kClosed; a peer that waits for this rank gets kPeerLost. Idempotent.
  void close();

  /// Writes what the flight recorder holds (this rank's last operations, and those under way) to a file in `directory`, which is
  /// made if absent, and gives its path; `accord diagnose` reads those of all ranks (docs/diagnose.md). Disturbs nothing: any
  /// thread may call it at any time, also after a failure or close(). kNotFound, kIo, kResourceExhausted: it could not.
  [[nodiscard]] Result<std::string> dump(const std::string& directory) const;
  /// What this rank has done on this communicator so far. Cost: microseconds.
  Counters counters() const;

  explicit Communicator(std::shared_ptr<comm::Group> group);
  const std::shared_ptr<comm::Group>& group() const { return group_; }

 private:
  std::shared_ptr<comm::Group> group_;
};

}  // namespace accord
