#pragma once
// Sums each token's rows in the canonical order. A thread adds a few columns of one token. The latest sum is kept in
// registers; the sums that wait for it are in the thread's local memory. The columns are few because a kernel that
// needs more local memory than those before it makes CUDA allocate, which waits for all running work.

#include "exec/device/elements.hpp"
#include "expert/device/map.hpp"

namespace accord::expert {

/// Elements that are read or written together.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};

/// Adds up the rows that came back for this rank's tokens, and rounds once (kernels/row_tree.hpp). A NaN becomes the
/// positive quiet NaN.
struct RowSums {
  static constexpr int kScaleBlock = 128;
  DType dtype = DType::kFloat32, result_dtype = DType::kFloat32;
  int hidden = 0;
  const std::byte* rows = nullptr;
  const std::byte* scales = nullptr;             ///< null: rows have none
  std::size_t row_stride = 0, scale_stride = 0;  ///< bytes from one row to the next
  /// [tokens, top_k]: where the row of each choice is among `rows`; null: they are in the order of the choices
  const std::int32_t* positions = nullptr;
  const void* weights = nullptr;  ///< [tokens, top_k] float32 or float64: rows are multiplied by them; or null
  bool wide_weights = false;      ///< weights are float64
  void* result = nullptr;         ///< [tokens, hidden]

  /// Elements that a thread adds up at a time.
  ACCORD_ON_DEVICE int columns() const {
    const int most = 16 / static_cast<int>(dtype == DType::kFloat64 ? sizeof(double) : sizeof(float));
    return hidden % most == 0 && reinterpret_cast<std::size_t>(result) % 16 == 0 ? most : 1;
  }

  /// Adds up the tokens [first, last) with the threads `thread`, `thread` + `threads`, ... of a loop over their
  /// elements.
  ACCORD_ON_DEVICE void add_up(const Map& map, std::int64_t first, std::int64_t last, std::size_t thread,
                               std::size_t threads) const {
    const Part part{map, static_cast<std::size_t>(first), static_cast<std::size_t>(last), thread, threads};
    Waiting waiting;
    switch (dtype) {
      case DType::kFloat64: return sum<DType::kFloat64, DType::kFloat64>(part, waiting.wide);
      case DType::kFloat32: return sum_to<DType::kFloat32>(part, waiting.narrow);
      case DType::kBFloat16: return sum_to<DType::kBFloat16>(part, waiting.narrow);
      case DType::kFloat16: return sum_to<DType::kFloat16>(part, waiting.narrow);
      case DType::kFloat8E4M3FN: return sum_to<DType::kFloat8E4M3FN>(part, waiting.narrow);
      case DType::kFloat8E5M2: return sum_to<DType::kFloat8E5M2>(part, waiting.narrow);
      default: return;
    }
  }

 private:
  /// The work of one thread.
  struct Part {
    const Map& map;
    std::size_t first, last, thread, threads;
  };
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

  template <DType kFrom>
  ACCORD_ON_DEVICE void sum_to(const Part& part, Sums<float>* waiting) const {
    switch (result_dtype) {
      case DType::kFloat32: return sum<kFrom, DType::kFloat32>(part, waiting);
      case DType::kBFloat16: return sum<kFrom, DType::kBFloat16>(part, waiting);
      case DType::kFloat16: return sum<kFrom, DType::kFloat16>(part, waiting);
      default: return;
    }
  }

  template <DType kFrom, DType kTo, typename Sum, int kMaxColumns>
  ACCORD_ON_DEVICE void sum(const Part& part, Sum (*waiting)[kMaxColumns]) const {
    if (columns() == kMaxColumns)
      sum_columns<kFrom, kTo, kMaxColumns>(part, waiting);
    else
      sum_columns<kFrom, kTo, 1>(part, waiting);
  }

  template <DType kFrom, DType kTo, int kColumns, typename Sum, int kMaxColumns>
  ACCORD_ON_DEVICE void sum_columns(const Part& part, Sum (*waiting)[kMaxColumns]) const {
    const auto groups = static_cast<std::size_t>(hidden / kColumns);
    for (std::size_t i = part.first * groups + part.thread; i < part.last * groups; i += part.threads) {
      const std::size_t token = i / groups, first = i % groups * kColumns,
                        to = token * static_cast<std::size_t>(hidden) + first;
      *reinterpret_cast<Pack<Stored<kTo>, kColumns>*>(static_cast<Stored<kTo>*>(result) + to) =
          sum_of<kFrom, kTo, kColumns>(part.map, token, first, waiting);
    }
  }

  template <DType kFrom, DType kTo, int kColumns, typename Sum, int kMaxColumns>
  ACCORD_ON_DEVICE Pack<Stored<kTo>, kColumns> sum_of(const Map& map, std::size_t token, std::size_t first,
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
    const std::size_t at = positions != nullptr ? static_cast<std::size_t>(positions[choice]) : choice;
    const T* const elements = reinterpret_cast<const T*>(rows + at * row_stride) + first;
    const auto packed = *reinterpret_cast<const Pack<T, kColumns>*>(elements);
    for (int c = 0; c < kColumns; ++c) row[c] = Element::widen(packed.at[c]);
    if (scales != nullptr) {
      const Sum scale = reinterpret_cast<const float*>(scales + at * scale_stride)[first / kScaleBlock];
      for (int c = 0; c < kColumns; ++c) row[c] = row[c] * scale;
    }
    if (weights == nullptr) return;
    const Sum weight = wide_weights ? static_cast<Sum>(static_cast<const double*>(weights)[choice])
                                    : static_cast<Sum>(static_cast<const float*>(weights)[choice]);
    for (int c = 0; c < kColumns; ++c) row[c] = row[c] * weight;
  }
};

}  // namespace accord::expert
