#pragma once
// A suite of communicators that run selected plans, and the values that their ranks contribute.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "conformance/comm/reference.hpp"
#include "plan/selector.hpp"
#include "sanitized.hpp"

namespace accord::testing {

/// A transport and the selected plans (CommunicatorOptions::select).
struct PlannedCase {
  std::string name;
  std::string transport;
  std::string select;
};

class Planned : public ::testing::TestWithParam<PlannedCase> {
 protected:
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.transport = GetParam().transport;
    options.select = GetParam().select;
    return options;
  }
};

/// Returns whether the selected plans can run over the transport. Over ucx, ranks are on different hosts. Rules for
/// buffers in windows do not matter, since they are skipped for the buffers of these suites.
inline bool can_run(std::string_view transport, std::string_view select) {
  if (transport != "ucx") return true;
  const std::vector<plan::SelectorRow> rows = plan::parse_table(select).value().rows;
  return std::all_of(rows.begin(), rows.end(), [](const plan::SelectorRow& row) {
    return row.algorithm->spans_hosts || row.algorithm->buffers != plan::Buffers::kAnywhere;
  });
}

/// The name of a case, for INSTANTIATE_TEST_SUITE_P.
inline std::string name_of(const ::testing::TestParamInfo<PlannedCase>& test) { return test.param.name; }

inline const std::vector<std::size_t> kCounts =
    kSanitized ? std::vector<std::size_t>{0, 1, 7, 5003} : std::vector<std::size_t>{0, 1, 2, 7, 64, 1000, 20011};
inline const std::vector<int> kSizes = kSanitized ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 2, 3, 4, 7};

/// The text of an error message after the call's name, in a group of two.
inline const std::string kOfWorld = " on group \"world\" (ranks 0 and 1): ";

/// Returns the values of `rank` at positions `first` to `first + count`.
template <typename T = float>
std::vector<T> samples(int rank, std::size_t count, std::size_t first = 0) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(sample(rank, first + i));
  return values;
}

/// Returns the values of `ranks` ranks at those positions, combined in the canonical order.
template <typename T = float>
std::vector<T> combined(ReduceOp op, int ranks, std::size_t count, std::size_t first = 0) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<T> column;
    for (int r = 0; r < ranks; ++r) column.push_back(static_cast<T>(sample(r, first + i)));
    values[i] = combine(op, column);
  }
  return values;
}

/// Returns the values of `ranks` ranks at those positions, one rank after the other.
template <typename T = float>
std::vector<T> gathered(int ranks, std::size_t count, std::size_t first = 0) {
  std::vector<T> all;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<T> theirs = samples<T>(r, count, first);
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

template <typename T>
Buffer buffer(std::vector<T>& values, DType dtype) {
  return {values.data(), values.size(), dtype};
}
inline Buffer buffer(std::vector<float>& values) { return buffer(values, DType::kFloat32); }

}  // namespace accord::testing
