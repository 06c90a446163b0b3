#pragma once
// The results of `accord bench` as text, JSON and a chart.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/meter.hpp"
#include "cli/bench/operations.hpp"

namespace accord::cli {

/// One size of one operation, served by one contender.
struct BenchRow {
  const BenchOperation* operation = nullptr;
  std::size_t bytes = 0;
  std::string contender;  ///< as requested: "default", or a rule of a selection table
  Measured measured;
};

struct BenchReport {
  int ranks = 1;
  int cores = 1;
  std::string processor;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  bool interrupted = false;
  std::vector<BenchRow> rows;

  /// Bytes per second; 0 if the operation moves none.
  double algorithm_bandwidth(const BenchRow& row) const;
  double bus_bandwidth(const BenchRow& row) const;
};

/// The setting in words: "2 ranks, 2 cores (AMD EPYC), float32".
std::string setting_text(const BenchReport& report);
/// The setting of the measurement, and the column headings.
std::string report_head(const BenchReport& report);
/// The name of an operation, as the heading of its rows.
std::string operation_text(const BenchReport& report, const BenchOperation& operation);
std::string row_text(const BenchReport& report, const BenchRow& row);

/// JSON as described in docs/bench.md.
nlohmann::ordered_json to_json(const BenchReport& report);

/// "accord bench: 2 ranks, ..., medians of the slowest rank".
std::string chart_title(const BenchReport& report);
/// Charts of time and bus bandwidth over size for each operation, with the ranges of the algorithms behind the first
/// contender's lines.
std::string to_svg(const BenchReport& report, std::string_view title);

}  // namespace accord::cli
