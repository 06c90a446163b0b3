// `accord plan`: collects its subcommands, and finds the plan that a user refers to.
#include "cli/plan/commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "exec/lowered.hpp"
#include "plan/json.hpp"

namespace accord::cli {
namespace {

constexpr int kMaxRanks = 1024;

Status no_algorithm(std::string_view name) {
  std::vector<std::string_view> names;
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) names.push_back(entry.name);
  }
  return unknown_name("algorithm", name, names);
}

exec::DomainLayout layout_for(const plan::Plan& plan) {
  const Result<Config>& known = config();
  const exec::WindowLayout layout(plan.size, known.ok() ? known->hints.slot_bytes : GroupHints().slot_bytes);
  return plan.collective == Collective::kSendRecv ? layout.pair() : layout.group();
}

}  // namespace

void add_plan(CLI::App& app, Action& chosen) {
  CLI::App* plan =
      app.add_subcommand("plan", "List, draw, check and export the plans of collectives, and explain their selection");
  plan->require_subcommand(0, 1);
  add_plan_list(*plan, chosen);
  add_plan_show(*plan, chosen);
  add_plan_verify(*plan, chosen);
  add_plan_export(*plan, chosen);
  add_plan_import(*plan, chosen);
  add_plan_run(*plan, chosen);
  add_plan_why(*plan, chosen);
}

int plan_refused(const char* command, const Status& status) {
  fmt::print(stderr, "accord plan {}: {}\n", command, status.message());
  return kFailure;
}

void add_plan_source(CLI::App& command, PlanSource& source) {
  command
      .add_option("plan", source.name,
                  "An algorithm (two_shot, or all_reduce:direct if several collectives have one of that name), or a "
                  "file (ends in .json or has a slash)")
      ->required()
      ->type_name("ALGORITHM|FILE");
  command.add_option("-n,--ranks", source.ranks, "Number of ranks, for an algorithm; a file has its own number")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  command.add_option("--root", source.root, "The root, for an algorithm that has one")->capture_default_str();
}

bool is_plan_file(const PlanSource& source) {
  return source.name.ends_with(".json") || source.name.find('/') != std::string::npos;
}

Result<const plan::AlgorithmEntry*> algorithm_of(std::string_view name) {
  const std::size_t colon = name.find(':');
  if (colon != name.npos) {
    ACCORD_ASSIGN_OR_RETURN(const Collective collective, collective_from_string(name.substr(0, colon)));
    Result<const plan::AlgorithmEntry*> found = plan::algorithm_by_name(collective, name.substr(colon + 1));
    if (found.ok()) return found;
    return Status(StatusCode::kInvalidArgument, found.status().message());
  }
  std::vector<const plan::AlgorithmEntry*> found;
  std::vector<std::string> full_names;
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.name != name) continue;
    found.push_back(&entry);
    full_names.push_back(fmt::format("{}:{}", to_string(entry.collective), name));
  }
  if (found.empty()) return no_algorithm(name);
  if (found.size() == 1) return found[0];
  return Status(StatusCode::kInvalidArgument, fmt::format("{} collectives have an algorithm \"{}\"; write one of {}",
                                                          found.size(), name, fmt::join(full_names, ", ")));
}

Result<plan::Plan> read_plan_source(const PlanSource& source) {
  if (is_plan_file(source)) {
    ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(source.name));
    Result<plan::Plan> plan = plan::plan_from_json(text);
    if (plan.ok()) return plan;
    return plan.status().with_context(source.name);
  }
  ACCORD_ASSIGN_OR_RETURN(const plan::AlgorithmEntry* entry, algorithm_of(source.name));
  return plan::make_plan(*entry, topology::Topology::uniform(source.ranks),
                         {.collective = entry->collective, .root = source.root});
}

void add_plan_call(CLI::App& command, PlanCallText& text) {
  command.add_option("--dtype", text.dtype, "Dtype of the elements")->capture_default_str();
  command.add_option("--op", text.op, "Op of a collective that reduces")->capture_default_str();
}

Result<PlanCall> read_plan_call(const PlanCallText& text, Collective collective) {
  PlanCall call;
  ACCORD_ASSIGN_OR_RETURN(call.bytes, parse_bytes(text.bytes));
  ACCORD_ASSIGN_OR_RETURN(call.dtype, dtype_from_string(text.dtype));
  ACCORD_ASSIGN_OR_RETURN(call.op, reduce_op_from_string(text.op));
  const plan::CollectiveTraits& traits = plan::traits_of(collective);
  if (call.bytes > std::size_t{1} << 50)
    return Status(StatusCode::kInvalidArgument, fmt::format("{} is larger than any buffer", text.bytes));
  if (call.bytes % size_of(call.dtype) != 0)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} bytes are not a whole number of elements of {}, which have {} bytes each", call.bytes,
                              to_string(call.dtype), size_of(call.dtype)));
  if (traits.reduces && !is_defined(call.op, call.dtype))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} has no meaning for {}", to_string(call.op), to_string(call.dtype)));
  if (traits.input.holders == plan::Holders::kNobody) call.bytes = 0;
  return call;
}

int write_plan(const char* command, const plan::Plan& plan, const std::string& path) {
  if (path.empty()) {
    fmt::print("{}", plan::to_json(plan));
    return kSuccess;
  }
  const Status written = write_file(path, plan::to_json(plan));
  return written.ok() ? kSuccess : report_failure(fmt::format("plan {}", command), written);
}

PlanFigures figures_of(const plan::Plan& plan, const PlanCall& call, std::size_t slot_bytes) {
  const std::size_t element = size_of(call.dtype);
  const exec::DomainLayout layout = layout_for(plan);
  const bool in_windows = plan.buffers != plan::Buffers::kAnywhere;
  const exec::RequestRecord record{.collective = plan.collective,
                                   .dtype = call.dtype,
                                   .op = call.op,
                                   .phase = in_windows ? exec::Phase::kRegistered : exec::Phase::kEqualParts,
                                   .root = plan.root,
                                   .count = call.bytes / element};
  PlanFigures figures;
  figures.cost = plan::cost_of(plan, record.count, element, size_of(exec::accumulator_of(call.dtype)));
  const auto lowered = exec::lower(plan, plan.root, layout,
                                   slot_bytes != 0 ? slot_bytes
                                   : in_windows    ? SIZE_MAX
                                                   : layout.slot_bytes,
                                   record);
  if (lowered.ok()) figures.rounds = lowered->rounds;
  figures.runs = lowered.status();
  figures.seconds = plan::predicted_seconds(figures.cost, figures.rounds);
  return figures;
}

nlohmann::ordered_json figures_json(const PlanCall& call, const PlanFigures& figures) {
  return {{"bytes", call.bytes},
          {"steps", figures.cost.steps},
          {"hops", figures.cost.hops},
          {"rounds", figures.rounds},
          {"bytes_exchanged", figures.cost.bytes_exchanged},
          {"bytes_touched", figures.cost.bytes_touched},
          {"predicted_seconds", figures.seconds}};
}

std::string time_text(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

}  // namespace accord::cli
