#pragma once
// Expert parallelism: tokens are sent to the ranks that hold the experts they chose, and the experts' results are
// sent back.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/call_options.hpp"
#include "accord/communicator.hpp"
#include "accord/status.hpp"
#include "accord/window.hpp"

namespace accord {

namespace expert {
class Group;
class Handle;
}  // namespace expert

/// The experts that each rank holds, by global id, ascending. An expert that is listed several times has replicas,
/// which are counted in the order of the ranks; the choices of token t of rank s are sent to replica (s + t) mod the
/// number of replicas.
using ExpertPlacement = std::vector<std::vector<int>>;

/// Gives each rank experts / ranks consecutive experts. Fails with kInvalidArgument if `experts` is not a multiple of
/// `ranks`.
Result<ExpertPlacement> uniform_expert_placement(int experts, int ranks);

/// Computes a placement of `per_rank` experts for each rank, replicas included, that evens out the measured loads
/// (rows, or anything proportional to them, by expert). It repeatedly adds a replica of the expert whose replicas
/// have the highest load each, until all places are taken. Then it assigns the replicas, the heaviest first, to the
/// rank with the lowest load that has room and, if there is one, does not hold that expert yet. Pure: equal arguments
/// give equal placements. Cost: O(places * experts).
Result<ExpertPlacement> balance_experts(std::span<const double> loads, int ranks, int per_rank);

/// The treatment of a rank's rows when it is sent more than its capacity, `max_recv_rows`.
enum class OverflowPolicy : std::uint8_t {
  kFail,          ///< prepare fails on all ranks before any data is moved
  kDropByWeight,  ///< drops the rows with the lowest router weight; of equal weights, the last by (rank, token, k)
  kDropBySlot,    ///< drops the rows whose slot is beyond the capacity
};
std::string_view to_string(OverflowPolicy policy);
Result<OverflowPolicy> overflow_policy_from_string(std::string_view name);

/// How rows are transferred. All results are bit-identical for all algorithms.
enum class ExpertAlgorithm : std::uint8_t {
  kAuto,    ///< kDirect if all ranks share memory, else kHierarchical, or kAllToAll on GPUs
  kDirect,  ///< ranks read and write each other's memory; kUnsupported if they do not share it
  /// Uses the communicator's all_to_all_v. Each row is sent once to each rank that needs it; on GPUs once for each
  /// choice.
  kAllToAll,
  /// Each row is sent once to each host that needs it and distributed there in shared memory. Not on GPUs.
  kHierarchical,
};
std::string_view to_string(ExpertAlgorithm algorithm);
Result<ExpertAlgorithm> expert_algorithm_from_string(std::string_view name);

/// Must be equal on all ranks, which compare it.
struct ExpertGroupConfig {
  int experts = 0;              ///< number of experts; global ids are 0 to experts - 1
  int top_k = 0;                ///< maximum number of choices of a token
  int hidden = 0;               ///< elements of a row
  int max_tokens_per_rank = 0;  ///< maximum over all ranks
  /// Capacity of each rank in rows, padding included; 0: no limit, see ExpertHandle::recv_rows().
  std::int64_t max_recv_rows = 0;
  int alignment = 1;               ///< each expert's rows are padded to a multiple of it
  DType dtype = DType::kBFloat16;  ///< widest dtype of rows
  OverflowPolicy overflow = OverflowPolicy::kFail;
  ExpertPlacement placement = {};  ///< empty: uniform_expert_placement()
  ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto;
  int ranks_per_host = 0;  ///< 0: ranks that share memory form a host; n: n consecutive ones of those form one
  /// Shared memory of each rank for rows in transit; 0: a twentieth of max_tokens_per_rank * top_k rows, 256 KiB to
  /// 8 MiB.
  std::size_t staging_bytes = 0;
  /// This rank's device, where the buffers of all calls are; of one type on all ranks, see ExpertGroup.
  Device device = {};
};

/// Settings that may differ between the handles of a group. 0 stands for the group's value.
struct ExpertLayerConfig {
  int top_k = 0;
  int alignment = 0;
};

/// One choice of a token.
struct ExpertChoice {
  Rank rank = 0;
  std::int32_t token = 0;
  std::int32_t k = 0;
  bool operator==(const ExpertChoice&) const = default;
};

/// One rank's input to prepare, as known to all ranks.
struct ExpertRankCounts {
  std::int64_t tokens = 0;
  std::int64_t out_of_range = 0;  ///< ids below -1 or beyond the last expert; they count as no choice
  std::int64_t duplicates = 0;    ///< ids that the token already has at a lower k; they count as no choice
  std::int64_t dropped = 0;       ///< choices of its tokens dropped because of overflow
  std::int64_t recv_rows = 0;     ///< rows that it receives, padding included
  std::int64_t total_rows = 0;    ///< recv_rows without dropping
};

/// The part of a map that is in GPU memory, for kernels and graphs: valid in a stream after prepare(), as long as the
/// handle exists.
struct ExpertDeviceMap {
  ConstBuffer counts;  ///< [local experts] int64: ExpertHandle::counts()
  /// [5] int64: recv_rows; 1 if a rank would get more rows than its capacity; 1 if nothing is moved for that reason;
  /// ids of this rank that are out of range or duplicates; rows that did not fit into the last call's buffer of
  /// slots.
  ConstBuffer numbers;
  ConstBuffer fingerprint;  ///< [1] int64: the bits of ExpertHandle::fingerprint()
};

/// A routing map: the destination of each choice of each token. Use one for each layer and microbatch in flight. It
/// may be prepared again once its last backward is done.
///
/// A handle of its group: copies refer to the same map. It may outlive the group, whose calls reject it then.
class ExpertHandle {
 public:
  explicit ExpertHandle(std::shared_ptr<expert::Handle> state);

  /// False until prepare() succeeds, and after it fails. On GPUs an overflow is a failure once fetch() has found it.
  bool prepared() const;
  int top_k() const;
  int alignment() const;
  /// Number of experts of the group.
  int experts() const;
  /// Number of the current map: increased by one when prepare() creates a map that differs from the last one, so a
  /// map that is prepared again for equal ids keeps its number. On GPUs, where the host does not know the ids,
  /// increased by one for each prepare(). The same on all ranks.
  std::uint64_t generation() const;

  // For GPUs.
  /// Waits for the work in `stream`, then copies the map to the host, including a map that a graph has prepared.
  /// Fails with kResourceExhausted in the cases in which prepare() does on the CPU, or with kAborted if the group
  /// failed before the map was computed. The accessors below call it once, for the stream of the last prepare(), and
  /// find only zeros if it fails. On the CPU it does nothing.
  [[nodiscard]] Status fetch(Stream stream) const;
  /// Has no buffers on the CPU.
  ExpertDeviceMap on_device() const;

  // All that follows REQUIRES: prepared().

  /// Equal for equal maps of a handle, whatever the handle was prepared for in between, and the same on all ranks;
  /// two different maps share a fingerprint with probability 2^-64. A backward uses it to check that the map is that
  /// of its forward, even if activation recompute has prepared the map again.
  std::uint64_t fingerprint() const;
  /// Tokens of this rank.
  std::int64_t tokens() const;
  /// Rows of each of this rank's experts, padding included; their slots follow each other in this order.
  std::span<const std::int64_t> counts() const;
  /// The same without padding.
  std::span<const std::int64_t> rows() const;
  /// Rows that dispatch writes on this rank: the sum of counts(), at most the capacity.
  std::int64_t recv_rows() const;
  /// recv_rows() without dropping.
  std::int64_t total_rows() const;
  /// Indexed by rank.
  std::span<const ExpertRankCounts> ranks() const;
  /// Every choice of any rank that was dropped because of overflow, ascending.
  std::span<const ExpertChoice> dropped() const;
  /// [tokens, top_k]: rank and slot of each choice of this rank's tokens, -1 where there is none.
  void slots(std::span<std::int32_t> ranks, std::span<std::int32_t> slots) const;
  /// [recv_rows]: the choice whose row is in each of this rank's slots; rank -1 for padding.
  void sources(std::span<ExpertChoice> sources) const;
  /// [size, size]: the number of rows that each rank (major) sends to each rank.
  void traffic(std::span<std::int64_t> rows) const;
  /// [experts]: the number of choices of each expert over all ranks, before any were dropped.
  void loads(std::span<std::int64_t> choices) const;

  const std::shared_ptr<expert::Handle>& state() const { return state_; }

 private:
  std::shared_ptr<expert::Handle> state_;
};

/// The choices of this rank's tokens.
struct ExpertRouting {
  ConstBuffer ids;           ///< [tokens, top_k] int32 or int64, the same dtype on all ranks; -1 is no choice
  ConstBuffer weights = {};  ///< [tokens, top_k] float32; required by OverflowPolicy::kDropByWeight, otherwise not read
  Stream stream = {};        ///< on GPUs, here and below: the stream of the call's kernels
};

/// Rows have dtype float64, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2, the same on all ranks. Weights
/// are float32 or float64, even where the comment says float32. A buffer without data is omitted.
struct ExpertDispatch {
  ConstBuffer tokens;        ///< [tokens, hidden]
  ConstBuffer scales = {};   ///< [tokens, ceil(hidden / 128)] float32, for float8 rows
  ConstBuffer weights = {};  ///< [tokens, top_k] float32
  Buffer recv_tokens;        ///< [at least recv_rows, hidden], with the dtype of `tokens`
  Buffer recv_scales = {};   ///< [at least recv_rows, ceil(hidden / 128)] float32
  Buffer recv_weights = {};  ///< [at least recv_rows] float32
  Stream stream = {};
};

struct ExpertCombine {
  ConstBuffer expert_out;    ///< [at least recv_rows, hidden]
  ConstBuffer scales = {};   ///< [at least recv_rows, ceil(hidden / 128)] float32, for float8 rows
  ConstBuffer weights = {};  ///< [tokens, top_k] float32: rows are multiplied by them (rounded) before they are added
  /// [tokens, hidden], with the dtype of expert_out, or float32, float16 or bfloat16 for narrower sums.
  Buffer result;
  Stream stream = {};
};

struct ExpertDispatchBackward {
  ConstBuffer grad;                    ///< [at least recv_rows, hidden], with respect to recv_tokens
  ConstBuffer grad_recv_weights = {};  ///< [at least recv_rows] float32
  Buffer grad_tokens;                  ///< [tokens, hidden]
  Buffer grad_weights = {};            ///< [tokens, top_k] float32
  Stream stream = {};
};

struct ExpertCombineBackward {
  ConstBuffer grad;        ///< [tokens, hidden], with respect to the result
  Buffer grad_expert_out;  ///< [at least recv_rows, hidden]
  Stream stream = {};
};

/// Totals of a group's calls on this rank so far, and how long they waited for other ranks.
struct ExpertStatistics {
  std::int64_t calls = 0;          ///< dispatch, combine and their backwards
  std::int64_t rows_sent = 0;      ///< to other ranks
  std::int64_t rows_received = 0;  ///< from other ranks
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t dropped = 0;          ///< choices of this rank's tokens
  std::vector<double> wait_seconds;  ///< by rank: how much later than this rank it arrived at calls
};

/// Ranks that share a set of experts.
///
/// Slots. Rank d holds its local experts in ascending order of (global id, replica). The rows of expert e are the
/// tokens that chose it, in ascending order of (rank, token), padded to the alignment if there are any; the experts'
/// rows follow each other.
///
///     dispatch           recv_tokens[slot] = tokens[t], recv_weights[slot] = weights[t, k]; padding is zero
///     combine            result[t] = sum of expert_out[slot] over the choices of t; zero if there are none
///     dispatch_backward  grad_tokens[t] = sum of grad[slot] over the choices of t;
///                        grad_weights[t, k] = grad_recv_weights[slot], zero without a choice
///     combine_backward   grad_expert_out[slot] = grad[t]; padding is zero
///
/// Rows from recv_rows on are not touched. Sums are computed in fp32 (float64 rows in float64) and rounded once, in
/// the canonical order: the binary tree over the bits of the experts' global ids. They are therefore bit-identical
/// for any number of ranks, any placement, any algorithm and any kind of memory.
///
/// All ranks make the same calls in the same order, one at a time on each rank. An invalid argument on one rank is an
/// error on all ranks, which names that rank and leaves the group usable. A dead peer ends the group within a second
/// with kPeerLost, as it does a Communicator. In shared memory, per-step calls (prepare, dispatch, combine and
/// backwards) allocate nothing once each of them has been made, except for a prepare that drops rows; between hosts,
/// all_to_all_v sets up its exchange again when counts change.
///
/// On GPUs (ExpertGroupConfig::device) a call puts a kernel into its stream and returns: nothing waits on the host,
/// nothing is allocated, and calls can be captured into a CUDA graph. The order of slots and sums is the same as on
/// the CPU, and so are the bits. Each rank has a GPU to itself, and uses max(ranks, top_k) * max_tokens_per_rank rows
/// of its memory for rows in transit. If the kernels of the ranks do not reach each other's memory, or with
/// ExpertAlgorithm::kAllToAll, rows travel over NCCL, without which the group is kUnsupported or kNotFound. Then the
/// first call after a prepare waits on the host until the map is built, memory grows with the largest call, and calls
/// in a captured stream are kUnsupported. What differs from the CPU:
/// - The number of rows that arrive is known only on the device, until fetch(). Buffers of slots may have any number
///   of rows. Rows that do not fit are left out and counted (ExpertDeviceMap), and are zero in sums. max_recv_rows
///   always fits.
/// - Under OverflowPolicy::kFail, a map that overflows moves nothing: the calls of its handle leave their results as
///   they were.
/// - An invalid argument on one rank is reported to that rank alone, before anything is in the stream. The rank may
///   make the call once more. If it makes another call instead, the group ends with kMismatch. The group also ends if
///   a rank does not arrive within the group's timeout (kTimeout), and after decline().
/// - If one rank makes calls in several streams, the caller must order them with events.
///
/// Buffers in windows added by add_window() are read and written in place; other buffers are transferred through
/// shared memory of the group. A handle: copies refer to the same group.
class ExpertGroup {
 public:
  /// Creates a group. Collective over `communicator`, which is borrowed: it is neither closed nor used for anything
  /// else, and may be destroyed before the group. kInvalidArgument names the field; kMismatch names the ranks and the
  /// field that differs.
  [[nodiscard]] static Result<ExpertGroup> create(Communicator& communicator, ExpertGroupConfig config);
  /// Does the same on a rank that may have no configuration: the status that says why is then an error on all ranks.
  [[nodiscard]] static Result<ExpertGroup> create(Communicator& communicator, Result<ExpertGroupConfig> config);

  Rank rank() const;
  int size() const;
  /// The group's own communicator, over which its calls run: it reports failures, and abort() ends calls.
  const Communicator& communicator() const;
  const ExpertGroupConfig& config() const;  ///< with all defaults filled in
  /// Experts of this rank.
  std::span<const int> local_experts() const;
  ExpertStatistics statistics() const;
  /// Returns the totals of all maps so far (rows from rank to rank, choices of each expert, dropped choices) and this
  /// rank's statistics, as the JSON that `accord moe report` draws.
  std::string report_json() const;

  /// Exchanges buffers in `window` without a copy from now on; its communicator has the same ranks. Collective. The
  /// group keeps the window alive.
  [[nodiscard]] Status add_window(const Window& window);

  /// Creates a handle with memory for the largest map. Not collective, but all ranks must create handles in the same
  /// order.
  [[nodiscard]] Result<ExpertHandle> make_handle(ExpertLayerConfig config = {});

  // The calls of a step, all of them collective.

  /// Makes `handle` the map of `routing`. Fails with kResourceExhausted if a rank would get more rows than its
  /// capacity and the policy is kFail; the group stays usable and the handle is not prepared. Cost: two all_gathers
  /// of the ids, O(all choices).
  [[nodiscard]] Status prepare(const ExpertHandle& handle, const ExpertRouting& routing);
  [[nodiscard]] Status dispatch(const ExpertHandle& handle, const ExpertDispatch& call);
  [[nodiscard]] Status combine(const ExpertHandle& handle, const ExpertCombine& call);
  [[nodiscard]] Status dispatch_backward(const ExpertHandle& handle, const ExpertDispatchBackward& call);
  [[nodiscard]] Status combine_backward(const ExpertHandle& handle, const ExpertCombineBackward& call);
  /// Takes part in a call that this rank cannot make: the other ranks get `why`, as the error of a rank with an
  /// invalid argument. A map that was to be prepared (`prepares`) is not prepared then. Returns ok if the other ranks
  /// have been notified.
  [[nodiscard]] Status decline(const ExpertHandle& handle, bool prepares, const Status& why);

  /// Closes the group: later calls return kClosed, and peers that wait for this rank get kPeerLost. Idempotent; the
  /// communicator that the group was created from is unaffected.
  void close();

 private:
  explicit ExpertGroup(std::shared_ptr<expert::Group> group);
  std::shared_ptr<expert::Group> group_;
};

}  // namespace accord
