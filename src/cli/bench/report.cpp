// Each row is printed as soon as it is measured, so the widths are fixed. Text has microseconds and GB (10^9 bytes)
// per second, as in nccl-tests; JSON has seconds and bytes per second.
#include "cli/bench/report.hpp"

#include <fmt/format.h>

#include "accord/info.hpp"
#include "plan/collective.hpp"

namespace accord::cli {
namespace {

constexpr double kMicro = 1e6;
constexpr double kGiga = 1e-9;

std::string microseconds(double seconds) {
  const double value = seconds * kMicro;
  return value < 10     ? fmt::format("{:.3f}", value)
         : value < 1000 ? fmt::format("{:.2f}", value)
                        : fmt::format("{:.0f}", value);
}

}  // namespace

double BenchReport::algorithm_bandwidth(const BenchRow& row) const {
  if (row.bytes == 0 || row.measured.median <= 0) return 0;
  return total_bytes(*row.operation, row.bytes, ranks) / row.measured.median;
}

double BenchReport::bus_bandwidth(const BenchRow& row) const {
  return algorithm_bandwidth(row) * bus_factor(*row.operation, ranks);
}

std::string setting_text(const BenchReport& report) {
  return fmt::format("{} rank{}, {} core{} ({}), {}{}", report.ranks, report.ranks == 1 ? "" : "s", report.cores,
                     report.cores == 1 ? "" : "s", report.processor, to_string(report.dtype),
                     report.in_place ? ", in place" : "");
}

std::string chart_title(const BenchReport& report) {
  return fmt::format("accord bench: {}, medians of the slowest rank{}", setting_text(report),
                     report.interrupted ? "; interrupted" : "");
}

std::string report_head(const BenchReport& report) {
  return fmt::format(
      "accord {}: {}\ntimes of the slowest rank; bandwidths as defined by nccl-tests\n"
      "{:>12} {:>12} {:>12} {:>12} {:>10} {:>10} {:>7}  {}\n",
      version(), setting_text(report), "bytes", "min us", "median us", "max us", "alg GB/s", "bus GB/s", "wrong",
      "algorithm");
}

std::string operation_text(const BenchReport& report, const BenchOperation& operation) {
  const bool reduces = plan::traits_of(operation.collective).reduces;
  return fmt::format("{}{}\n", operation.name, reduces ? fmt::format(" ({})", to_string(report.op)) : "");
}

std::string row_text(const BenchReport& report, const BenchRow& row) {
  const Measured& measured = row.measured;
  const std::string serves =
      row.contender == "default" ? measured.algorithm : fmt::format("{} ({})", measured.algorithm, row.contender);
  return fmt::format("{:>12} {:>12} {:>12} {:>12} {:>10.3f} {:>10.3f} {:>7}  {}\n", row.bytes,
                     microseconds(measured.minimum), microseconds(measured.median), microseconds(measured.maximum),
                     report.algorithm_bandwidth(row) * kGiga, report.bus_bandwidth(row) * kGiga, measured.wrong,
                     serves);
}

nlohmann::ordered_json to_json(const BenchReport& report) {
  auto results = nlohmann::ordered_json::array();
  for (const BenchRow& row : report.rows) {
    results.push_back({{"operation", row.operation->name},
                       {"bytes", row.bytes},
                       {"total_bytes", total_bytes(*row.operation, row.bytes, report.ranks)},
                       {"contender", row.contender},
                       {"algorithm", row.measured.algorithm},
                       {"calls", row.measured.calls},
                       {"samples", row.measured.samples},
                       {"minimum_seconds", row.measured.minimum},
                       {"median_seconds", row.measured.median},
                       {"maximum_seconds", row.measured.maximum},
                       {"algorithm_bandwidth", report.algorithm_bandwidth(row)},
                       {"bus_bandwidth", report.bus_bandwidth(row)},
                       {"wrong", row.measured.wrong}});
  }
  return {{"version", version()},
          {"ranks", report.ranks},
          {"cores", report.cores},
          {"processor", report.processor},
          {"dtype", to_string(report.dtype)},
          {"op", to_string(report.op)},
          {"in_place", report.in_place},
          {"interrupted", report.interrupted},
          {"results", std::move(results)}};
}

}  // namespace accord::cli
