#pragma once
// How the ranks of a group begin and end a call together.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "exec/placement.hpp"
#include "expert/rows.hpp"

namespace accord::expert {

enum class Operation : std::uint8_t {
  kCreate,
  kAddWindow,
  kPrepare,
  kDispatch,
  kCombine,
  kDispatchBackward,
  kCombineBackward,
  kDecline  ///< the rank makes no call, see ExpertGroup::decline()
};
std::string_view to_string(Operation operation);

/// The record that a rank announces when it arrives at a call.
struct CallRecord {
  // Equal on all ranks, except `error`.
  Operation operation = Operation::kCreate;
  std::uint8_t dtype = 0;
  std::uint8_t result_dtype = 0;
  Given scales = Given::kNo;
  Given weights = Given::kNo;
  std::uint8_t error = 0;  ///< StatusCode of the error in this rank's arguments
  std::uint8_t unused[2] = {};
  std::uint32_t handle = 0;
  std::uint32_t generation = 0;
  // Specific to this rank.
  std::int64_t tokens = 0;
  std::int64_t out_of_range = 0;
  std::int64_t duplicates = 0;
  std::int64_t clock = 0;  ///< time of arrival, in nanoseconds of its host's clock
  // Places of its buffers: the window of the group, and the offset in it.
  exec::PlaceWord input = exec::kNoPlace;
  exec::PlaceWord input_scales = exec::kNoPlace;
  exec::PlaceWord output = exec::kNoPlace;
  exec::PlaceWord output_scales = exec::kNoPlace;
};

/// For example "dispatch of handle 0, prepared 3 times, float32 to float32, with weights".
std::string text_of(const CallRecord& record);

/// Two all_gathers around each call. The first exchanges what the ranks are about to do, which must match; the second
/// confirms that they have done it.
class Rendezvous {
 public:
  explicit Rendezvous(Communicator communicator);

  /// Blocks until all ranks have arrived. If the arguments of some rank are invalid, `mine` or another's, the error
  /// of the lowest such rank is returned on all ranks and names it. Fails with kMismatch if the ranks came for
  /// different calls. Afterwards the ranks are in step, unless the communicator failed.
  Status meet(CallRecord record, const Status& mine);
  /// Records of all ranks, indexed by rank. REQUIRES: meet().
  std::span<const CallRecord> records() const { return all_; }
  bool has_scales() const { return scales_ != Given::kNo; }
  bool has_weights() const { return weights_ != Given::kNo; }
  /// Dtype of the weights.
  DType weights() const { return weights_ == Given::kFloat64 ? DType::kFloat64 : DType::kFloat32; }
  /// Blocks until all ranks are done.
  Status finish();

  /// From now on waits() counts for `ranks`, the ranks that share this rank's clock.
  void share_clock_with(std::span<const Rank> ranks) { same_clock_.assign(ranks.begin(), ranks.end()); }
  /// Seconds by which each rank arrived at calls, and finished them, later than this rank. Indexed by rank.
  std::span<const double> waits() const { return waits_; }

 private:
  Status share_error(std::string_view operation, const Status& mine);
  Status compare(const CallRecord& mine);
  void note_waits(std::int64_t mine);

  Communicator communicator_;
  std::vector<CallRecord> all_;
  Given scales_ = Given::kNo, weights_ = Given::kNo;
  std::vector<std::int64_t> clocks_;
  std::vector<double> waits_;
  std::vector<Rank> same_clock_;
};

}  // namespace accord::expert
