#pragma once
// One operation of a communicator, as a value.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord {

enum class Collective : std::uint8_t {
  kBarrier,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kSendRecv,
};
inline constexpr int kCollectiveCount = 10;

/// Returns "all_reduce", for example.
std::string_view to_string(Collective collective);
/// The inverse of to_string. An unknown name fails with kInvalidArgument, which names the nearest one.
Result<Collective> collective_from_string(std::string_view name);

/// A rank's side of a message; kNone for operations of all ranks.
enum class Direction : std::uint8_t { kNone, kSend, kReceive };

/// How a buffer that has a part for each rank is divided among the ranks.
enum class Division : std::uint8_t {
  kEqual,     ///< all parts have the same count
  kByCounts,  ///< each part has its own count: the forms with "_v"
};

/// How a collective combines the values of several ranks. A ReduceOp converts to a Reduction.
///
/// The op is equal on all ranks; the factor of premul_sum is each rank's own. The factor is applied in the precision
/// of the addition (fp32, or fp64 for float64 and complex128), before the sum, which is rounded once.
class Reduction {
 public:
  /// None, a number, or one element of the input's dtype.
  using Factor = std::variant<std::monostate, std::complex<double>, ConstBuffer>;

  Reduction(ReduceOp op) : op_(op) {}  // implicit: most reductions are just an op
  static Reduction premul_sum(double factor) { return Reduction(std::complex<double>(factor)); }
  /// For complex64 and complex128.
  static Reduction premul_sum(std::complex<double> factor) { return Reduction(factor); }
  /// `factor`: one element of the input's dtype, which is read before the call, or its start, returns.
  static Reduction premul_sum(ConstBuffer factor) { return Reduction(factor); }

  ReduceOp op() const { return op_; }
  const Factor& factor() const { return factor_; }

 private:
  explicit Reduction(Factor factor) : op_(ReduceOp::kPremulSum), factor_(factor) {}

  ReduceOp op_;
  Factor factor_;
};

/// An operation for Communicator::run() and start(); the method of the same name describes it. Nothing is checked
/// until it runs.
struct Call {
  Collective collective = Collective::kBarrier;
  ConstBuffer input = {};
  Buffer output = {};
  Reduction op = ReduceOp::kSum;
  Rank root = 0;                           ///< for collectives that have one
  Rank peer = -1;                          ///< send, recv
  Direction direction = Direction::kNone;  ///< send, recv
  std::int32_t tag = 0;                    ///< send, recv: distinguishes messages of one pair of ranks; not negative
  /// kByCounts must be set on all ranks alike, including those that have no divided buffer.
  Division division = Division::kEqual;
  /// For kByCounts: the number of elements of each rank's part, in rank order and without gaps, if this rank has the
  /// buffer and the buffer is divided. Read before the call, or its start, returns.
  std::span<const std::size_t> input_counts = {};
  std::span<const std::size_t> output_counts = {};

  static Call barrier() { return {}; }
  static Call broadcast(Buffer buffer, Rank root) {
    return {.collective = Collective::kBroadcast, .input = buffer, .output = buffer, .root = root};
  }
  static Call all_gather(ConstBuffer input, Buffer output) {
    return {.collective = Collective::kAllGather, .input = input, .output = output};
  }
  static Call reduce_scatter(ConstBuffer input, Buffer output, Reduction op) {
    return {.collective = Collective::kReduceScatter, .input = input, .output = output, .op = op};
  }
  static Call all_reduce(ConstBuffer input, Buffer output, Reduction op) {
    return {.collective = Collective::kAllReduce, .input = input, .output = output, .op = op};
  }
  static Call reduce(ConstBuffer input, Buffer output, Reduction op, Rank root) {
    return {.collective = Collective::kReduce, .input = input, .output = output, .op = op, .root = root};
  }
  static Call gather(ConstBuffer input, Buffer output, Rank root) {
    return {.collective = Collective::kGather, .input = input, .output = output, .root = root};
  }
  static Call scatter(ConstBuffer input, Buffer output, Rank root) {
    return {.collective = Collective::kScatter, .input = input, .output = output, .root = root};
  }
  static Call all_to_all(ConstBuffer input, Buffer output) {
    return {.collective = Collective::kAllToAll, .input = input, .output = output};
  }
  static Call all_gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts) {
    return all_gather(input, output).by_counts({}, counts);
  }
  static Call reduce_scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Reduction op) {
    return reduce_scatter(input, output, op).by_counts(counts, {});
  }
  static Call gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root) {
    return gather(input, output, root).by_counts({}, counts);
  }
  static Call scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts, Rank root) {
    return scatter(input, output, root).by_counts(counts, {});
  }
  static Call all_to_all_v(ConstBuffer input, std::span<const std::size_t> input_counts, Buffer output,
                           std::span<const std::size_t> output_counts) {
    return all_to_all(input, output).by_counts(input_counts, output_counts);
  }
  static Call send(ConstBuffer buffer, Rank to, std::int32_t tag = 0) {
    return {
        .collective = Collective::kSendRecv, .input = buffer, .peer = to, .direction = Direction::kSend, .tag = tag};
  }
  static Call recv(Buffer buffer, Rank from, std::int32_t tag = 0) {
    return {.collective = Collective::kSendRecv,
            .output = buffer,
            .peer = from,
            .direction = Direction::kReceive,
            .tag = tag};
  }

 private:
  Call by_counts(std::span<const std::size_t> of_input, std::span<const std::size_t> of_output) const {
    Call call = *this;
    call.division = Division::kByCounts;
    call.input_counts = of_input;
    call.output_counts = of_output;
    return call;
  }
};

}  // namespace accord
