#pragma once
// How the ranks of a group begin and end a call together.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "exec/placement.hpp"

namespace accord::expert {

enum class Operation : std::uint8_t {
  kCreate,
  kAddWindow,
  kPrepare,
  kDispatch,
  kCombine,
  kDispatchBackward,
  kCombineBackward,
  kDecline  ///< it makes none, see ExpertGroup::decline()
};
std::string_view to_string(Operation operation);

/// Whether a call has some buffer of float32, or float64 where it may be; kAny where the rank has no elements of it either way.
enum class Given : std::uint8_t { kNo, kYes, kFloat64, kAny };

/// What a rank says when it comes to a call.
struct CallRecord {
  // The same on all ranks.
  Operation operation = Operation::kCreate;
  std::uint8_t dtype = 0;
  std::uint8_t result_dtype = 0;
  Given scales = Given::kNo;
  Given weights = Given::kNo;
  std::uint8_t error = 0;  ///< the StatusCode of what is wrong with this rank's arguments
  std::uint8_t unused[2] = {};
  std::uint32_t handle = 0;
  std::uint32_t generation = 0;
  // Its own.
  std::int64_t tokens = 0;
  std::int64_t out_of_range = 0;
  std::int64_t duplicates = 0;
  std::int64_t clock = 0;  ///< when it came, in nanoseconds of its host's clock
  // Where its buffers lie: in which of the group's windows, and at which offset there.
  exec::PlaceWord input = exec::kNoPlace;
  exec::PlaceWord input_scales = exec::kNoPlace;
  exec::PlaceWord output = exec::kNoPlace;
  exec::PlaceWord output_scales = exec::kNoPlace;
};

/// "dispatch of handle 0, prepared 3 times, float32 to float32, with weights"
std::string text_of(const CallRecord& record);

/// Two all_gathers around each call: of what the ranks are about to do, which must be the same, and of having done it.
class Rendezvous {
 public:
  explicit Rendezvous(Communicator communicator);

  /// Returns when all ranks have come. An error of some rank's arguments, `mine` or another's, is given on all ranks and names the lowest one that has
  /// one; kMismatch if they came for different calls. Afterwards the ranks are in step, unless the communicator failed.
  Status meet(CallRecord record, const Status& mine);
  /// What all said, by rank. REQUIRES: meet().
  std::span<const CallRecord> records() const { return all_; }
  bool has_scales() const { return scales_ != Given::kNo; }
  bool has_weights() const { return weights_ != Given::kNo; }
  /// Their dtype.
  DType weights() const { return weights_ == Given::kFloat64 ? DType::kFloat64 : DType::kFloat32; }
  /// Returns when all ranks are done.
  Status part();

  /// From now on waits() counts for `ranks`: those that share this rank's clock.
  void share_clock_with(std::span<const Rank> ranks) { same_clock_.assign(ranks.begin(), ranks.end()); }
  /// By rank: how much later than this one it came to calls and ended them, in seconds.
  std::span<const double> waits() const { return waits_; }

 private:
  Status tell(std::string_view operation, const Status& mine);
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
