#pragma once
// Expert parallelism: tokens go to the ranks that hold the experts they chose, and what the experts make of them comes back.

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

/// Which experts each rank holds, by global id, ascending. An expert that is listed several times has replicas, which are counted in
/// the order of the ranks; the choices of token t of rank s go to replica (s + t) mod their number.
using ExpertPlacement = std::vector<std::vector<int>>;

/// experts / ranks consecutive experts for each rank. kInvalidArgument: the ranks do not divide them.
Result<ExpertPlacement> uniform_expert_placement(int experts, int ranks);

/// A placement of `per_rank` experts for each rank, replicas among them, that evens out the measured loads (rows, or anything in proportion,
/// by expert): the expert whose replicas have most to do each gets one more until all places are taken, then the replicas go, the
/// heaviest first, to the rank that has least to do, has room and lacks that expert if there is one. Pure: equal arguments give equal placements. Cost: O(places * experts).
Result<ExpertPlacement> balance_experts(std::span<const double> loads, int ranks, int per_rank);

/// What happens to a rank's rows when it is sent more than its capacity, `max_recv_rows`.
enum class OverflowPolicy : std::uint8_t {
  kFail,          ///< prepare fails on all ranks, before anything is moved
  kDropByWeight,  ///< those of the lowest router weight are dropped, of equal ones the last by (rank, token, k)
  kDropBySlot,    ///< those whose slot is beyond the capacity are dropped
};
std::string_view to_string(OverflowPolicy policy);
Result<OverflowPolicy> overflow_policy_from_string(std::string_view name);

/// How rows travel. The bits of all results are the same.
enum class ExpertAlgorithm : std::uint8_t {
  kAuto,          ///< kDirect where all ranks share memory, else kHierarchical
  kDirect,        ///< ranks read and write each other's memory; kUnsupported where they do not share it
  kAllToAll,      ///< by the communicator's all_to_all_v, each row once for each rank it goes to
  kHierarchical,  ///< each row crosses once to a host it goes to, and is passed on there in shared memory
};
std::string_view to_string(ExpertAlgorithm algorithm);
Result<ExpertAlgorithm> expert_algorithm_from_string(std::string_view name);

/// Equal on all ranks, which compare it.
struct ExpertGroupConfig {
  int experts = 0;              ///< global ids are 0 to experts - 1
  int top_k = 0;                ///< the most choices of a token
  int hidden = 0;               ///< elements of a row
  int max_tokens_per_rank = 0;  ///< the most that any rank has
  std::int64_t max_recv_rows =
      0;  ///< capacity of each rank in rows, padding included; 0: what is sent fits, see ExpertHandle::recv_rows()
  int alignment = 1;               ///< each expert's rows are padded to a multiple of it
  DType dtype = DType::kBFloat16;  ///< the widest one of rows
  OverflowPolicy overflow = OverflowPolicy::kFail;
  ExpertPlacement placement = {};  ///< empty: uniform_expert_placement()
  ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto;
  int ranks_per_host = 0;  ///< 0: ranks that share memory are a host; n: n consecutive ones of those that do
  std::size_t staging_bytes =
      0;  ///< shared memory of each rank for rows on their way; 0: a twentieth of the rows that a rank may get, 256 KiB to 8 MiB
  Device device = {};  ///< this rank's, of one type on all ranks: where the buffers of all calls lie, see ExpertGroup
};

/// What may differ among the handles of a group. 0 is the group's.
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

/// What a rank put into prepare, as all ranks learnt it.
struct ExpertRankCounts {
  std::int64_t tokens = 0;
  std::int64_t out_of_range = 0;  ///< ids below -1 or beyond the last expert; they count as no choice
  std::int64_t duplicates = 0;    ///< ids that the same token has at a lower k; they count as no choice
  std::int64_t dropped = 0;       ///< choices of its tokens that overflow took
  std::int64_t recv_rows = 0;     ///< rows that it receives, padding included
  std::int64_t total_rows = 0;    ///< the same before any was dropped
};

/// What a map on a GPU says of itself there, for kernels and graphs: valid in a stream behind prepare(), as long as the handle lives.
struct ExpertDeviceMap {
  ConstBuffer counts;  ///< [local experts] int64: ExpertHandle::counts()
  /// [5] int64: recv_rows; 1 if a rank would get more rows than its capacity; 1 if nothing is moved for that; ids of this rank that are
  /// out of range or duplicates; rows for which the last call's buffer of slots had no room.
  ConstBuffer numbers;
  ConstBuffer fingerprint;  ///< [1] int64: the bits of ExpertHandle::fingerprint()
};

/// A routing map: where each choice of each token goes. One for each layer and microbatch in flight; it may be prepared anew once its last
/// backward is done.
///
/// A handle of its group: copies refer to the same map. May outlive the group, whose calls refuse it then.
class ExpertHandle {
 public:
  explicit ExpertHandle(std::shared_ptr<expert::Handle> state);

  /// False until prepare() succeeds, and once it fails; on GPUs, once fetch() has found that.
  bool prepared() const;
  int top_k() const;
  int alignment() const;
  /// Of its group.
  int experts() const;
  /// Counts its maps: one more where prepare() made another map than the last one, so a map that is prepared again
  /// for equal ids keeps its number. On GPUs, where the host does not know the ids, one more for each prepare().
  /// Alike on all ranks.
  std::uint64_t generation() const;

  // On GPUs.
  /// Waits for what is in `stream`, and copies the map, also one that a graph has prepared. kResourceExhausted as prepare() has it
  /// elsewhere; kAborted: the group has failed before the map was made. What is below calls it for the stream of the last prepare(),
  /// once, and finds nothing but zeros if it fails. Elsewhere it does nothing.
  [[nodiscard]] Status fetch(Stream stream) const;
  /// Elsewhere: no buffers.
  ExpertDeviceMap on_device() const;

  // The rest REQUIRES: prepared().

  /// Equal for equal maps of a handle, whatever it was in between, and alike on all ranks; two different maps share
  /// one with a chance of 2^-64. A backward finds by it that the map is that of its forward, also where activation
  /// recompute has prepared it again.
  std::uint64_t fingerprint() const;
  /// Tokens of this rank.
  std::int64_t tokens() const;
  /// Rows of each of this rank's experts, padding included; their slots follow each other in this order.
  std::span<const std::int64_t> counts() const;
  /// The same without padding.
  std::span<const std::int64_t> rows() const;
  /// What dispatch writes on this rank: the sum of counts(), at most the capacity.
  std::int64_t recv_rows() const;
  /// What it would be without dropping.
  std::int64_t total_rows() const;
  /// By rank.
  std::span<const ExpertRankCounts> ranks() const;
  /// Every choice that overflow dropped, of all ranks, ascending.
  std::span<const ExpertChoice> dropped() const;
  /// [tokens, top_k]: the rank and the slot there of each choice of this rank's tokens, -1 where there is none.
  void slots(std::span<std::int32_t> ranks, std::span<std::int32_t> slots) const;
  /// [recv_rows]: the choice whose row each of this rank's slots holds; rank -1 for padding.
  void sources(std::span<ExpertChoice> sources) const;
  /// [size, size]: rows that each rank (major) sends to each.
  void traffic(std::span<std::int64_t> rows) const;
  /// [experts]: choices of each expert over all ranks, before any was dropped.
  void loads(std::span<std::int64_t> choices) const;

  const std::shared_ptr<expert::Handle>& state() const { return state_; }

 private:
  std::shared_ptr<expert::Handle> state_;
};

/// The choices of this rank's tokens.
struct ExpertRouting {
  ConstBuffer ids;           ///< [tokens, top_k] int32 or int64, on all ranks the same; -1 is no choice
  ConstBuffer weights = {};  ///< [tokens, top_k] float32; asked for by OverflowPolicy::kDropByWeight, else not read
  Stream stream = {};        ///< on GPUs, here and below: where the call's kernels go
};

/// Rows of dtype float64, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2, the same on all ranks. Weights are float32 or float64, also
/// where float32 is said. A buffer without data is left out.
struct ExpertDispatch {
  ConstBuffer tokens;        ///< [tokens, hidden]
  ConstBuffer scales = {};   ///< [tokens, ceil(hidden / 128)] float32, of float8 rows
  ConstBuffer weights = {};  ///< [tokens, top_k] float32
  Buffer recv_tokens;        ///< [at least recv_rows, hidden], of the dtype of `tokens`
  Buffer recv_scales = {};   ///< [at least recv_rows, ceil(hidden / 128)] float32
  Buffer recv_weights = {};  ///< [at least recv_rows] float32
  Stream stream = {};
};

struct ExpertCombine {
  ConstBuffer expert_out;    ///< [at least recv_rows, hidden]
  ConstBuffer scales = {};   ///< [at least recv_rows, ceil(hidden / 128)] float32, of float8 rows
  ConstBuffer weights = {};  ///< [tokens, top_k] float32: rows are multiplied by them (rounded) before they are added
  Buffer
      result;  ///< [tokens, hidden], of the dtype of expert_out, or of float32, float16 or bfloat16 for narrower sums
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

/// What the calls of a group have moved on this rank so far, and whom they waited for.
struct ExpertStatistics {
  std::int64_t calls = 0;          ///< dispatch, combine and their backwards
  std::int64_t rows_sent = 0;      ///< to other ranks
  std::int64_t rows_received = 0;  ///< from other ranks
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t dropped = 0;          ///< choices of this rank's tokens
  std::vector<double> wait_seconds;  ///< by rank: how much later than this rank it came to calls
};

/// Ranks that share a set of experts.
///
/// Slots. Rank d holds local experts in ascending (global id, replica). The rows of expert e are the tokens that chose it, ascending by
/// (rank, token), padded to the alignment if there are any; the experts' rows follow each other.
///
///     dispatch           recv_tokens[slot] = tokens[t], recv_weights[slot] = weights[t, k]; padding is zero
///     combine            result[t] = sum of expert_out[slot] over the choices of t; zero if there are none
///     dispatch_backward  grad_tokens[t] = the same sum of grad; grad_weights[t, k] = grad_recv_weights[slot], zero without a choice
///     combine_backward   grad_expert_out[slot] = grad[t]; padding is zero
///
/// Rows from recv_rows on are not touched. Sums are made in fp32 (float64 in float64) and rounded once, in the canonical order: the binary
/// tree over the bits of the experts' global ids, so that they have the same bits whatever the ranks, the placement, the
/// algorithm and the memory.
///
/// All ranks make the same calls in the same order, one at a time on each rank. What one rank's arguments lack is an error on all, which
/// names the rank, and harms nothing; a dead peer ends the group within a second with kPeerLost, as it does a Communicator. In shared memory per-step
/// calls (prepare, dispatch, combine and backwards) allocate nothing once each was made, but for a prepare that drops rows; between
/// hosts all_to_all_v lays out its exchange anew for other counts.
///
/// On GPUs (ExpertGroupConfig::device) a call puts kernels into its stream and returns: nothing waits on the host, nothing is allocated,
/// and calls can be captured into a CUDA graph. The same order of slots and sums gives the same bits as on the CPU. The kernels of all
/// ranks reach each other's memory, or the group is kUnsupported; each rank has a GPU to itself, and max_tokens_per_rank * top_k rows of
/// its memory for rows on their way. What differs:
/// - How many rows come is known on the device alone, until fetch(). Buffers of slots may have any number of rows; those that they have
///   no room for are left out and counted (ExpertDeviceMap), in sums they are zero. max_recv_rows is a number that always fits.
/// - Under OverflowPolicy::kFail a map that overflows moves nothing: the calls of its handle leave their results as they were.
/// - What one rank's arguments lack is told to that rank alone, before anything is in the stream. It may make the call once more; if it
///   makes another, that is kMismatch and ends the group, and so does a rank that does not come within the group's timeout (kTimeout).
///   decline() ends it as well.
/// - Calls of one rank in several streams are put in order by the caller, by events.
///
/// Buffers that lie in windows of add_window() are read and written where they are; others go through shared memory of the group. A handle:
/// copies refer to the same group.
class ExpertGroup {
 public:
  /// Collective over `communicator`, which is borrowed: it is neither closed nor otherwise used, and may go before the group. kInvalidArgument names
  /// the field; kMismatch, the ranks and the field that differs.
  [[nodiscard]] static Result<ExpertGroup> create(Communicator& communicator, ExpertGroupConfig config);
  /// The same on a rank that may have no configuration: why it has none is then an error on all ranks.
  [[nodiscard]] static Result<ExpertGroup> create(Communicator& communicator, Result<ExpertGroupConfig> config);

  Rank rank() const;
  int size() const;
  /// The one that calls run over, the group's own: it tells of failures, and abort() ends calls.
  const Communicator& communicator() const;
  const ExpertGroupConfig& config() const;  ///< with all defaults filled in
  /// Experts of this rank.
  std::span<const int> local_experts() const;
  ExpertStatistics statistics() const;
  /// What all maps so far added up to (rows from rank to rank, choices of each expert, what was dropped) and this rank's statistics, as the JSON that
  /// `accord moe report` draws.
  std::string report_json() const;

  /// Collective. From now on buffers in `window`, of a communicator with the same ranks, are exchanged without a copy. The group keeps it.
  [[nodiscard]] Status add_window(const Window& window);

  /// A handle with memory for the largest map. Not collective, but to be made in the same order on all ranks.
  [[nodiscard]] Result<ExpertHandle> make_handle(ExpertLayerConfig config = {});

  // The calls of a step, all of them collective.

  /// Makes `handle` the map of `routing`. kResourceExhausted: a rank would get more rows than its capacity and the policy is kFail; the
  /// group goes on, the handle is not prepared. Cost: two all_gathers of the ids, O(all choices).
  [[nodiscard]] Status prepare(const ExpertHandle& handle, const ExpertRouting& routing);
  [[nodiscard]] Status dispatch(const ExpertHandle& handle, const ExpertDispatch& call);
  [[nodiscard]] Status combine(const ExpertHandle& handle, const ExpertCombine& call);
  [[nodiscard]] Status dispatch_backward(const ExpertHandle& handle, const ExpertDispatchBackward& call);
  [[nodiscard]] Status combine_backward(const ExpertHandle& handle, const ExpertCombineBackward& call);
  /// This rank comes to a call of the others, but cannot make it: they get `why` as the error of a rank whose arguments lack something. A map that
  /// was to be prepared (`prepares`) is not prepared then. Ok if they have been told.
  [[nodiscard]] Status decline(const ExpertHandle& handle, bool prepares, const Status& why);

  /// Ends it: later calls give kClosed, peers that wait for this rank get kPeerLost. Idempotent; the communicator it was made of goes on.
  void close();

 private:
  explicit ExpertGroup(std::shared_ptr<expert::Group> group);
  std::shared_ptr<expert::Group> group_;
};

}  // namespace accord
