#pragma once
// The state behind an ExpertGroup.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "exec/store_chooser.hpp"
#include "expert/config.hpp"
#include "expert/device/device_group.hpp"
#include "expert/domains.hpp"
#include "expert/handle.hpp"
#include "expert/rendezvous.hpp"
#include "expert/report.hpp"
#include "expert/token_tree.hpp"
#include "kernels/row_tree.hpp"

namespace accord::expert {

/// Rows in memory: [count, row bytes], and beside them [count, scale bytes] or nothing.
struct RowsAt {
  std::byte* rows = nullptr;
  std::byte* scales = nullptr;
};
struct ConstRowsAt {
  const std::byte* rows = nullptr;
  const std::byte* scales = nullptr;
};

/// Bytes of one row.
struct RowSize {
  std::size_t row = 0;
  std::size_t scales = 0;
  std::size_t both() const { return row + scales; }
};

/// The ranks, their memory, and the state that calls need besides their arguments. One call at a time.
class Group {
 public:
  static Result<std::shared_ptr<Group>> create(Communicator& borrowed, Result<ExpertGroupConfig> config);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const ExpertGroupConfig& config() const { return config_; }
  const Placement& placement() const { return *placement_; }
  const Communicator& communicator() const { return communicator_; }
  Rank rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  ExpertStatistics statistics() const;
  /// Sums over all maps so far, and this rank's statistics.
  Report report() const;

  Status add_window(const Window& window);
  Result<std::shared_ptr<Handle>> make_handle(ExpertLayerConfig layer);
  Status prepare(Handle& handle, const ExpertRouting& routing);
  Status dispatch(const Handle& handle, const ExpertDispatch& call);
  Status combine(const Handle& handle, const ExpertCombine& call);
  Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call);
  Status combine_backward(const Handle& handle, const ExpertCombineBackward& call);
  Status decline(Handle& handle, bool prepares, const Status& why);
  void close();

 private:
  friend class RowsOut;
  friend class RowsBack;
  /// Held by one thread at a time.
  class CallGuard;

  Group(Communicator communicator, Resolved resolved, Window staging, Domains domains,
        std::unique_ptr<DeviceGroup> device);

  Status gather_ids(Handle& handle);
  Status overflow(Handle& handle, const ConstBuffer& weights);
  /// Gathers the weights of all ranks into gathered_weights_. counts_ has the number of weights of each rank.
  Status gather_weights(const ConstBuffer& weights);
  /// Gathers the [tokens, top_k] weights of all ranks.
  Status gather_token_weights(const Handle& handle, const ConstBuffer& weights);
  /// Fills recv_weights from the weights of all ranks.
  Status deliver_weights(const Handle& handle, const ConstBuffer& weights, const Buffer& recv_weights);
  /// Fills grad_weights from the grad_recv_weights of all ranks.
  Status return_weights(const Handle& handle, const ConstBuffer& grad, const Buffer& grad_weights);
  /// Returns what is wrong with the arguments of a call.
  template <typename Call>
  Status checked(const Call& call, const Handle& handle) const;
  /// The same for a call on GPUs, whose argument errors are not reported to the other ranks.
  template <typename Call>
  Status on_device(std::string_view operation, const Call& call, const Handle& handle);
  template <typename Call>
  Status run_on_device(Status (DeviceGroup::*move)(const Handle&, const Call&), std::string_view operation,
                       const Call& call, const Handle& handle);
  /// Runs a call: meet(), `move`, finish().
  template <typename Move>
  Status run(CallRecord record, const Handle& handle, const Status& arguments, Move move);

  /// Place of a buffer in a window; exec::kNoPlace if it is in none.
  exec::PlaceWord place_of(const ConstBuffer& buffer) const;
  /// Address on this rank of a place of `rank`.
  std::byte* address(exec::PlaceWord place, Rank rank) const;
  /// Memory of at least `bytes` bytes. Keeps its contents when it grows.
  std::byte* outgoing(std::size_t bytes) { return grown(outgoing_, bytes); }
  std::byte* incoming(std::size_t bytes) { return grown(incoming_, bytes); }
  static std::byte* grown(std::vector<std::byte>& memory, std::size_t bytes) {
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
  }
  /// A rank's part of the staging window. Each part has two halves, used in alternate rounds.
  std::span<std::byte> staging(Rank rank, std::int64_t round) const;

  Communicator communicator_;
  ExpertGroupConfig config_;
  std::shared_ptr<const Placement> placement_;
  Window staging_;
  Domains domains_;
  std::vector<std::vector<Rank>> guests_of_;  ///< indexed by rank: ranks elsewhere whose rows enter through it
  std::size_t max_guests_ = 0;
  int max_nodes_;
  std::vector<Window> windows_;
  Rendezvous rendezvous_;
  std::uint64_t id_;
  std::uint32_t handles_ = 0;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;

  // Scratch memory of calls.
  std::vector<std::int32_t> ids_;           ///< of this rank's tokens
  std::vector<double> gathered_weights_;    ///< of all ranks' choices or rows
  std::vector<std::size_t> counts_;         ///< indexed by rank
  std::vector<std::size_t> back_counts_;    ///< indexed by rank
  std::vector<std::byte> outgoing_;         ///< rows and sums that leave the domain
  std::vector<std::byte> incoming_;         ///< sums that arrive from other domains
  std::vector<Leaf> leaves_;                ///< [top_k]
  std::vector<kernels::TreeRow> operands_;  ///< [top_k]
  std::vector<std::int32_t> keys_;          ///< [top_k]: of operands_
  std::vector<const std::byte*> pieces_;    ///< indexed by rank: next piece to read
  MergeOrder merge_order_;
  exec::StoreChooser push_stores_, pull_stores_;
  ExpertStatistics statistics_;
  Report report_;
  std::unique_ptr<DeviceGroup> device_;  ///< null on CPU ranks; on GPU ranks it runs the calls
};

}  // namespace accord::expert
