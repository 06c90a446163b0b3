// `accord plan list`: prints all algorithms, with their costs for a number of ranks and a size, or with the facts in
// their rows.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text.hpp"
#include "cli/plan/commands.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanListOptions {
  std::string collective;
  int ranks = 4;
  PlanCallText call;
  bool as_json = false;
  bool as_markdown = false;
};

// A plan's requirements on callers and communicators.
std::vector<std::string> needs_of(const plan::Plan& plan) {
  std::vector<std::string> needs;
  if (plan::needs_mapped_peers(plan)) needs.push_back("mapped peers");
  if (plan.buffers != plan::Buffers::kAnywhere) needs.push_back("buffers in windows");
  if (plan.buffers == plan::Buffers::kInWindowsApart) needs.push_back("input and output apart");
  bool adds_in_parts =
      plan.partial_chunks > 0 || plan.order == plan::Order::kFixed || plan.order == plan::Order::kSwitch;
  if (plan.order != plan::Order::kNone && adds_in_parts) needs.push_back("no avg or premul_sum");
  return needs;
}

Result<Json> row_of(const plan::AlgorithmEntry& entry, const PlanListOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const PlanCall call, read_plan_call(options.call, entry.collective));
  const int ranks = entry.collective == Collective::kSendRecv ? 2 : options.ranks;
  ACCORD_ASSIGN_OR_RETURN(const plan::Plan plan,
                          make_plan(entry, topology::Topology::uniform(ranks), {.collective = entry.collective}));
  const PlanFigures figures = figures_of(plan, call);
  Json row = {{"collective", to_string(entry.collective)},
              {"name", entry.name},
              {"source", entry.description.source},
              {"order", plan::to_string(entry.order)},
              {"ranks", ranks}};
  row.update(figures_json(call, figures));
  row["needs"] = needs_of(plan);
  row["refused"] = figures.runs.ok() ? "" : figures.runs.message();
  return row;
}

bool is_listed(Collective collective, const PlanListOptions& options) {
  return options.collective.empty() || to_string(collective) == options.collective;
}

Result<Json> rows_of(const PlanListOptions& options) {
  Json rows = Json::array();
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (!is_listed(entry.collective, options)) continue;
    ACCORD_ASSIGN_OR_RETURN(Json row, row_of(entry, options));
    rows.push_back(std::move(row));
  }
  return rows;
}

// A table of docs/algorithms.md, below its heading.
std::string markdown_of(Collective collective) {
  const plan::CollectiveTraits& traits = plan::traits_of(collective);
  const bool moves = traits.input.holders != plan::Holders::kNobody;
  std::string text = fmt::format(
      "## {}\n| name | steps | {} |{} hosts | default | source |\n|---|---|---|{}---|---|---|\n", traits.name,
      moves ? "bytes" : "signals of a rank", traits.reduces ? " order |" : "", traits.reduces ? "---|" : "");
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.collective != collective) continue;
    const std::string order = traits.reduces ? fmt::format(" {} |", plan::to_string(entry.order)) : "";
    text += fmt::format("| `{}` | {} | {} |{} {} | {} | {} |\n", entry.name, entry.description.steps,
                        entry.description.bytes, order, entry.spans_hosts ? "any" : "one", entry.description.selected,
                        entry.description.source);
  }
  return text;
}

std::string needs_text(const Json& row) {
  std::string text = row["refused"].get<std::string>();
  for (const Json& need : row["needs"]) {
    if (!text.empty()) text += "; ";
    text += need.get<std::string>();
  }
  return text;
}

int list(const PlanListOptions& options) {
  if (!options.collective.empty()) {
    const auto known = collective_from_string(options.collective);
    if (!known.ok()) return report_failure("plan list", known.status());
  }
  if (options.as_markdown) {
    for (int i = 0; i < kCollectiveCount; ++i)
      if (const auto collective = static_cast<Collective>(i); is_listed(collective, options))
        fmt::print("{}\n", markdown_of(collective));
    return kSuccess;
  }
  const Result<Json> rows = rows_of(options);
  if (!rows.ok()) return report_failure("plan list", rows.status());
  if (options.as_json) {
    fmt::print("{}\n", rows->dump(2));
    return kSuccess;
  }
  fmt::print("{} ranks, {} of {}; steps, hops and bytes are those of the rank with the most\n\n", options.ranks,
             options.call.bytes, options.call.dtype);
  fmt::print("{:<15} {:<19} {:<10} {:>5} {:>5} {:>6} {:>10} {:>10}  {}\n", "collective", "algorithm", "order", "steps",
             "hops", "rounds", "exchanged", "predicted", "needs");
  for (const Json& row : *rows) {
    fmt::print("{:<15} {:<19} {:<10} {:>5} {:>5} {:>6} {:>10} {:>10}  {}\n", row["collective"].get<std::string>(),
               row["name"].get<std::string>(), row["order"].get<std::string>(), row["steps"].get<int>(),
               row["hops"].get<int>(), row["rounds"].get<std::uint64_t>(),
               bytes_text(row["bytes_exchanged"].get<std::size_t>()), time_text(row["predicted_seconds"].get<double>()),
               needs_text(row));
  }
  return kSuccess;
}

}  // namespace

void add_plan_list(CLI::App& plan, Action& chosen) {
  CLI::App* command = plan.add_subcommand("list", "List all algorithms, with steps, bytes and predicted time");
  const auto options = std::make_shared<PlanListOptions>();
  command->add_option("collective", options->collective, "List only the algorithms of this collective");
  command->add_option("-n,--ranks", options->ranks, "Ranks")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--bytes", options->call.bytes, "Bytes of the caller's buffer, or of one part if it is divided")
      ->capture_default_str();
  add_plan_call(*command, options->call);
  CLI::Option* const json = command->add_flag("--json", options->as_json, "Print a JSON list of objects");
  command->add_flag("--markdown", options->as_markdown, "Print tables of steps, bytes, use and source, in Markdown")
      ->excludes(json);
  command->callback([options, &chosen] { chosen = [options] { return list(*options); }; });
}

}  // namespace accord::cli
