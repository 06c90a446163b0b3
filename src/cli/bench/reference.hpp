#pragma once
// Inputs for a call whose result is known, and the check of its output.

#include <cstddef>
#include <memory>

#include "accord/buffer.hpp"
#include "accord/call.hpp"

namespace accord::cli {

/// The properties of a call that define its result.
struct KnownCall {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int size = 1;
  Rank root = 0;
  std::size_t count = 0;  ///< elements, of one part if the collective divides a buffer
};

/// Factor of each rank's input if the op is premul_sum.
inline constexpr double kKnownFactor = 2;

/// The wrong elements of an output.
struct WrongElements {
  std::size_t count = 0;
  std::size_t first = 0;  ///< position of the first one
};

/// The inputs and outputs of one call: small whole numbers, chosen so that every order of a sum gives the same bits
/// in every dtype. They are computed from the definition of the collective, one element at a time, without any code
/// that the runtime uses.
class Reference {
 public:
  explicit Reference(const KnownCall& call);
  ~Reference();
  Reference(const Reference&) = delete;

  const KnownCall& call() const { return call_; }
  /// Elements of the rank's buffers; 0 if it has none.
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
