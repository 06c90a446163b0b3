// `accord moe report`: prints the matrices as text, then which ranks and experts had most to do, what was lost, and
// which ranks were waited for.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/fd.hpp"
#include "cli/moe/commands.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;
using Counts = std::vector<std::int64_t>;

struct MoeReportOptions {
  std::vector<std::string> reports;
  std::string chart;
  bool as_json = false;
};

std::vector<double> doubles(const Counts& counts) { return {counts.begin(), counts.end()}; }
std::int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
std::size_t largest(const Counts& counts) {
  return static_cast<std::size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

/// Formats a number with at most four digits and a letter.
std::string short_number(double number) {
  for (const char* const unit : {"", "k", "M", "G", "T"}) {
    if (number < 9999.5)
      return number == std::floor(number) && *unit == '\0' ? fmt::format("{:.0f}", number)
                                                           : fmt::format("{:.4g}{}", number, unit);
    number /= 1000;
  }
  return fmt::format("{:.3g}", number);
}

std::string rows_text(const expert::Report& report) {
  constexpr int kMaxColumns = 16;
  std::string text = "\nrows from each rank (down) to each (across)\n      ";
  const int columns = std::min(report.size, kMaxColumns);
  for (int to = 0; to < columns; ++to) text += fmt::format("{:>8}", to);
  text += columns < report.size ? "   ...\n" : "\n";
  for (int from = 0; from < columns; ++from) {
    text += fmt::format("{:>6}", from);
    for (int to = 0; to < columns; ++to)
      text += fmt::format(
          "{:>8}",
          short_number(static_cast<double>(report.traffic[static_cast<std::size_t>(from) * report.size + to])));
    text += "\n";
  }
  return columns < report.size ? text + "   ...  (--json and --chart have all ranks)\n" : text;
}

std::string loads_text(const expert::Report& report) {
  std::vector<std::size_t> order(report.loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return report.loads[a] > report.loads[b]; });
  const auto list = [&](auto begin, auto end) {
    std::string text;
    for (; begin != end; ++begin)
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", *begin,
                          short_number(static_cast<double>(report.loads[*begin])));
    return text;
  };
  const auto few = static_cast<std::ptrdiff_t>(std::min<std::size_t>(5, order.size()));
  return fmt::format("choices by expert: most {}; fewest {}; the busiest has {:.2f} times the mean\n",
                     list(order.begin(), order.begin() + few), list(order.rbegin(), order.rbegin() + few),
                     imbalance(doubles(report.loads)));
}

std::string lost_text(const expert::Report& report) {
  std::string text;
  const auto add = [&](const Counts& counts, std::string_view what) {
    if (sum(counts) == 0) return;
    text += fmt::format("{}: {} in total, most of them ({}) by rank {}\n", what, sum(counts), counts[largest(counts)],
                        largest(counts));
  };
  add(report.dropped, "choices dropped by overflow");
  add(report.out_of_range, "ids out of range");
  add(report.duplicates, "ids that appeared twice in a token");
  return text;
}

std::string waits_text(const JoinedReport& joined) {
  std::string text;
  for (std::size_t rank = 0; rank < joined.waits.size(); ++rank) {
    const std::vector<double>& waits = joined.waits[rank];
    if (waits.empty()) continue;
    const auto longest = std::max_element(waits.begin(), waits.end());
    text += fmt::format("rank {} waited longest for rank {}: {:.3f} s of {:.3f} s\n", rank, longest - waits.begin(),
                        *longest, std::accumulate(waits.begin(), waits.end(), 0.0));
  }
  return text;
}

std::string text_of(const JoinedReport& joined) {
  const expert::Report& report = joined.all;
  std::string text = fmt::format("group \"{}\": {} ranks, {} experts, top {}, {} maps\n", report.group, report.size,
                                 report.experts, report.top_k, report.prepares);
  text += rows_text(report) + "\n";
  const std::int64_t rows = sum(report.traffic), padded = sum(report.recv_rows);
  const std::size_t busiest = largest(report.recv_rows);
  text += fmt::format(
      "rows received: {}, and {} of padding; rank {} has most, {:.2f} times the mean, at most {} at once{}\n", rows,
      padded - rows, busiest, imbalance(doubles(report.recv_rows)), report.most_rows[busiest],
      report.max_recv_rows > 0 ? fmt::format(" of {}", report.max_recv_rows) : "");
  return text + loads_text(report) + lost_text(report) + waits_text(joined);
}

std::string json_of(const JoinedReport& joined) {
  const expert::Report& report = joined.all;
  Json json = {{"group", report.group},
               {"size", report.size},
               {"experts", report.experts},
               {"top_k", report.top_k},
               {"maps", report.prepares},
               {"traffic", Json::array()},
               {"loads", report.loads},
               {"recv_rows", report.recv_rows},
               {"most_rows", report.most_rows},
               {"dropped", report.dropped},
               {"out_of_range", report.out_of_range},
               {"duplicates", report.duplicates},
               {"imbalance_of_ranks", imbalance(doubles(report.recv_rows))},
               {"imbalance_of_experts", imbalance(doubles(report.loads))},
               {"wait_seconds", Json::array()}};
  for (int from = 0; from < report.size; ++from) {
    const auto begin = report.traffic.begin() + static_cast<std::ptrdiff_t>(from) * report.size;
    json["traffic"].push_back(Counts(begin, begin + report.size));
    const std::vector<double>& waits = joined.waits[static_cast<std::size_t>(from)];
    json["wait_seconds"].push_back(waits.empty() ? Json() : Json(waits));
  }
  return json.dump(2) + "\n";
}

Status show(const MoeReportOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const JoinedReport joined, read_reports(options.reports));
  if (!options.chart.empty()) ACCORD_RETURN_IF_ERROR(write_file(options.chart, moe_chart(joined)));
  fmt::print("{}", options.as_json ? json_of(joined) : text_of(joined));
  return {};
}

}  // namespace

void add_moe_report(CLI::App& moe, Action& chosen) {
  const auto options = std::make_shared<MoeReportOptions>();
  CLI::App* command = moe.add_subcommand(
      "report", "Show the rows from rank to rank, the choices of each expert, dropped choices and waiting times");
  command
      ->add_option(
          "REPORTS", options->reports,
          "reports of ranks of one group: the JSON of ExpertGroup.report(); one suffices for all but the waits")
      ->required();
  command->add_option("--chart", options->chart, "draw the matrices in this SVG file");
  command->add_flag("--json", options->as_json, "print JSON");
  command->callback([options, &chosen] {
    chosen = [options] {
      const Status status = show(*options);
      return status.ok() ? kSuccess : moe_failure("report", status);
    };
  });
}

}  // namespace accord::cli
