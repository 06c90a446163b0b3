#pragma once
// Sums each token's rows in the canonical order. A thread adds a few columns of one token. The latest sum is kept in
// registers; the sums that wait for it are in the thread's local memory. The columns are few because a kernel that
// needs more local memory than those before it makes CUDA allocate, which waits for all running work.

#include "exec/device/elements.hpp"
#include "expert/device/map.hpp"
#include "expert/device/meeting.hpp"

namespace accord::expert {

/// Elements that are read or written together.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};

/// Adds up the rows that PushSlots wrote, and rounds once (kernels/row_tree.hpp). A NaN becomes the positive quiet
/// NaN.
struct SumRows {
  static constexpr const char* kName = "expert_sum_rows";
  static constexpr int kThreads = 256;
  static constexpr int kScaleBlock = 128;
  Peers peers;
  Map map;
  DType dtype = DType::kFloat32, result_dtype = DType::kFloat32;
  int hidden = 0;
  bool scaled = false;            ///< rows have scales
  const void* weights = nullptr;  ///< [tokens, top_k] float32 or float64: rows are multiplied by them; or null
  bool wide_weights = false;      ///< weights are float64
  void* result = nullptr;         ///< [tokens, hidden]

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (has_failed(block, peers) || map.numbers->blocked != 0) return;
    Waiting waiting;
    switch (dtype) {
      case DType::kFloat64: return sum<DType::kFloat64, DType::kFloat64>(block, waiting.wide);
      case DType::kFloat32: return sum_to<DType::kFloat32>(block, waiting.narrow);
      case DType::kBFloat16: return sum_to<DType::kBFloat16>(block, waiting.narrow);
      case DType::kFloat16: return sum_to<DType::kFloat16>(block, waiting.narrow);
      case DType::kFloat8E4M3FN: return sum_to<DType::kFloat8E4M3FN>(block, waiting.narrow);
      case DType::kFloat8E5M2: return sum_to<DType::kFloat8E5M2>(block, waiting.narrow);
      default: return;
    }
  }

 private:
  template <DType kDType>
  using Stored = typename exec::ElementOf<kDType>::Stored;
  /// Maximum number of columns per thread.
  template <typename Sum>
  static constexpr int kWide = 16 / sizeof(Sum);
  template <typename Sum>
  using Sums = Sum[kWide<Sum>];
  /// Shared by all dtypes: the compiler would give each its own.
  union Waiting {
    Sums<float> narrow[kMaxWaiting];
    Sums<double> wide[kMaxWaiting];
  };

  template <DType kFrom, typename Block>
  ACCORD_ON_DEVICE void sum_to(Block& block, Sums<float>* waiting) const {
    switch (result_dtype) {
      case DType::kFloat32: return sum<kFrom, DType::kFloat32>(block, waiting);
      case DType::kBFloat16: return sum<kFrom, DType::kBFloat16>(block, waiting);
      case DType::kFloat16: return sum<kFrom, DType::kFloat16>(block, waiting);
      default: return;
    }
  }

  template <DType kFrom, DType kTo, typename Block, typename Sum, int kMaxColumns>
  ACCORD_ON_DEVICE void sum(Block& block, Sum (*waiting)[kMaxColumns]) const {
    const bool is_aligned = hidden % kMaxColumns == 0 && reinterpret_cast<std::size_t>(result) % 16 == 0;
    if (is_aligned)
      sum_columns<kFrom, kTo, kMaxColumns>(block, waiting);
    else
      sum_columns<kFrom, kTo, 1>(block, waiting);
  }

  template <DType kFrom, DType kTo, int kColumns, typename Block, typename Sum, int kMaxColumns>
  ACCORD_ON_DEVICE void sum_columns(Block& block, Sum (*waiting)[kMaxColumns]) const {
    const auto groups = static_cast<std::size_t>(hidden / kColumns);
    const std::size_t end = static_cast<std::size_t>(map.counted[map.rank].tokens) * groups;
    for (std::size_t i = block.first(); i < end; i += block.stride()) {
      const std::size_t token = i / groups, first = i % groups * kColumns,
                        to = token * static_cast<std::size_t>(hidden) + first;
      *reinterpret_cast<Pack<Stored<kTo>, kColumns>*>(static_cast<Stored<kTo>*>(result) + to) =
          sum_of<kFrom, kTo, kColumns>(token, first, waiting);
    }
  }

  template <DType kFrom, DType kTo, int kColumns, typename Sum, int kMaxColumns>
  ACCORD_ON_DEVICE Pack<Stored<kTo>, kColumns> sum_of(std::size_t token, std::size_t first,
                                                      Sum (*waiting)[kMaxColumns]) const {
    Sum last[kColumns] = {};
    int depth = 0;  // sums so far, the latest one included
    const std::size_t of_token = token * static_cast<std::size_t>(map.top_k);
    for (int i = 0; i < map.top_k && map.order[of_token + i] >= 0; ++i) {
      const std::size_t choice = of_token + static_cast<std::size_t>(map.order[of_token + i]);
      Sum row[kColumns];
      read<kFrom, kColumns>(choice, first, row);
      int merges = map.merges[of_token + i];
      if (merges == 0) {
        for (int c = 0; c < kColumns; ++c) {
          if (depth > 0) waiting[depth - 1][c] = last[c];
          last[c] = row[c];
        }
        ++depth;
        continue;
      }
      for (int c = 0; c < kColumns; ++c) last[c] = last[c] + row[c];
      for (; merges > 1; --merges) {
        --depth;
        for (int c = 0; c < kColumns; ++c) last[c] = waiting[depth - 1][c] + last[c];
      }
    }
    Pack<Stored<kTo>, kColumns> rounded;
    for (int c = 0; c < kColumns; ++c) rounded.at[c] = exec::ElementOf<kTo>::narrow(last[c]);
    return rounded;
  }

  /// Reads some columns of a choice's row, times its scale and its weight.
  template <DType kFrom, int kColumns>
  ACCORD_ON_DEVICE void read(std::size_t choice, std::size_t first, typename exec::ElementOf<kFrom>::Sum* row) const {
    using Element = exec::ElementOf<kFrom>;
    using Sum = typename Element::Sum;
    using T = Stored<kFrom>;
    const T* const elements = peers.mine<T>(peers.at.rows) + choice * static_cast<std::size_t>(hidden) + first;
    const auto packed = *reinterpret_cast<const Pack<T, kColumns>*>(elements);
    for (int c = 0; c < kColumns; ++c) row[c] = Element::widen(packed.at[c]);
    if (scaled) {
      const auto of_row = static_cast<std::size_t>((hidden + kScaleBlock - 1) / kScaleBlock);
      const Sum scale = peers.mine<float>(peers.at.scales)[choice * of_row + first / kScaleBlock];
      for (int c = 0; c < kColumns; ++c) row[c] = row[c] * scale;
    }
    if (weights == nullptr) return;
    const Sum weight = wide_weights ? static_cast<Sum>(static_cast<const double*>(weights)[choice])
                                    : static_cast<Sum>(static_cast<const float*>(weights)[choice]);
    for (int c = 0; c < kColumns; ++c) row[c] = row[c] * weight;
  }
};

}  // namespace accord::expert
