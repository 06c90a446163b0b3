#pragma once
// Inputs for a call whose result is known, and the check of what came out.

#include <cstddef>
#include <memory>

#include "accord/buffer.hpp"
#include "accord/call.hpp"

namespace accord::cli {

/// A call as its definition sees it.
struct KnownCall {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int size = 1;
  Rank root = 0;
  std::size_t count = 0;  ///< elements; of a part, where the collective divides a buffer
};

/// What each rank's input is multiplied by where the op is premul_sum.
inline constexpr double kKnownFactor = 2;

/// What is wrong with an output.
struct WrongElements {
  std::size_t count = 0;
  std::size_t first = 0;  ///< place of the first one
};

/// The inputs and outputs of one call: small whole numbers, chosen so that every order of a sum gives the same bits in every dtype.
/// Computed from what the collective is meant to do, one element at a time, by nothing that the runtime uses.
class Reference {
 public:
  explicit Reference(const KnownCall& call);
  ~Reference();
  Reference(const Reference&) = delete;

  const KnownCall& call() const { return call_; }
  /// Elements of the rank's buffers, 0 where it has none.
  std::size_t input_count(Rank rank) const;
  std::size_t output_count(Rank rank) const;
  /// Writes the rank's whole input to `input`.
  void fill(Rank rank, const Buffer& input) const;
  /// Compares the rank's whole output, bit for bit.
  WrongElements check(Rank rank, const ConstBuffer& output) const;

 private:
  struct Tables;
  const KnownCall call_;
  const std::unique_ptr<const Tables> tables_;
};

}  // namespace accord::cli
