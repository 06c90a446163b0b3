// `accord plan why`: shows what the selector does with a call, row by row from the last one on, in the order in which
// it looks for a match; then the predicted costs of the other algorithms of the collective. The ranks are assumed to
// be on this machine, or with --hosts on several like it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accord/plan.hpp"
#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "comm/internal.hpp"
#include "plan/registry.hpp"
#include "plan/selector.hpp"
#include "plan/tuning.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanWhyOptions {
  std::string collective;
  int ranks = 2;
  int hosts = 1;
  PlanCallText call;
  std::string select;
  std::vector<std::string> plans;
  bool registered = false;
  bool in_place = false;
  bool cuda = false;
  bool as_json = false;
};

std::string reason_text(plan::RowVerdict verdict, const plan::SelectorRow& row, std::size_t bytes,
                        const topology::Topology& topology) {
  switch (verdict) {
    case plan::RowVerdict::kMatches: return "matches";
    case plan::RowVerdict::kOtherCollective: return "is for another collective";
    case plan::RowVerdict::kRanks: return fmt::format("is not for {} ranks", topology.size());
    case plan::RowVerdict::kHosts:
      return fmt::format("is not for {} host{}", topology.host_count(), topology.host_count() == 1 ? "" : "s");
    case plan::RowVerdict::kTopology: return "is not for this placement of ranks on hosts";
    case plan::RowVerdict::kOp: return "adds partial sums, which avg and premul_sum do not support";
    case plan::RowVerdict::kOversubscribed:
      return topology.oversubscribed() ? "is for ranks with a core each"
                                       : "is for more ranks than cores, and here each has one";
    case plan::RowVerdict::kMemory:
      return row.memory == DeviceType::kCpu ? "is for memory of the CPU" : "is for memory of GPUs (--cuda)";
    case plan::RowVerdict::kNoLibrary: return "NCCL is not available";
    case plan::RowVerdict::kNoReach: return "the ranks' GPUs cannot access each other's memory";
    case plan::RowVerdict::kNoMulticast: return "no switch with multicast connects the ranks' GPUs";
    case plan::RowVerdict::kBytes: return fmt::format("is not for {}", bytes_text(bytes));
    case plan::RowVerdict::kRegistered:
      return row.registered == plan::SelectorRow::Registered::kYes ? "is for buffers in windows (--registered)"
                                                                   : "is for buffers outside of windows";
    case plan::RowVerdict::kNeedsWindows:
      return fmt::format("{} is for buffers in windows (--registered){}", row.algorithm->name,
                         row.algorithm->only_reads ? ", or ranks that may read each other's memory" : "");
    case plan::RowVerdict::kNeedsApart: return fmt::format("{} is not for calls in place", row.algorithm->name);
    case plan::RowVerdict::kNoPlan: return fmt::format("no plan of that name supports {} ranks", topology.size());
    case plan::RowVerdict::kOrder:
      return fmt::format("{} does not add in the canonical order, which deterministic=canonical requires",
                         row.algorithm->name);
  }
  return "?";
}

// The tables in the order in which a communicator reads them.
struct Tables {
  struct Source {
    std::string name;
    comm::SelectText text;
    plan::SelectorTable table;

    // Returns where row `row` comes from: the table's name, or the tuner's file and the line in it.
    std::string of_row(std::size_t row) const {
      if (table.places[row] >= text.file_bytes) return name;
      return fmt::format("{}:{}", text.file, plan::line_of(text.table, table.places[row]));
    }
  };
  Source environment;
  Source option;

  std::string joined() const {
    const std::string& first = environment.text.table;
    return first + (first.empty() || option.text.table.empty() ? "" : ";") + option.text.table;
  }
};

Result<Tables::Source> read_source(std::string name, const std::string& select) {
  Tables::Source source{.name = std::move(name), .text = {}, .table = {}};
  ACCORD_ASSIGN_OR_RETURN(source.text, comm::read_select(select));
  Result<plan::SelectorTable> table = plan::parse_table(source.text.table);
  if (!table.ok()) return table.status().with_context(source.name);
  source.table = *std::move(table);
  return source;
}

Result<Tables> read_tables(const std::string& option) {
  ACCORD_RETURN_IF_ERROR(config().status());
  Tables tables;
  ACCORD_ASSIGN_OR_RETURN(tables.environment, read_source("ACCORD_SELECT", config()->select));
  ACCORD_ASSIGN_OR_RETURN(tables.option, read_source("--select", option));
  return tables;
}

struct Question {
  Collective collective = Collective::kBarrier;
  PlanCall call;
  topology::Topology topology;
  Tables tables;
  plan::Selector selector;
  plan::SelectorCall selected;
};

/// The topology of `ranks` on this machine, or on `hosts` machines like it. If they do not divide evenly, the first
/// hosts have one rank more.
Result<topology::Topology> topology_of(int ranks, int hosts) {
  if (hosts > ranks)
    return Status(StatusCode::kInvalidArgument, fmt::format("--hosts {}: there are {} ranks", hosts, ranks));
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  std::vector<topology::Place> places(static_cast<std::size_t>(ranks), place);
  for (int host = 0, rank = 0; host < hosts; ++host)
    for (const int end = rank + ranks / hosts + (host < ranks % hosts ? 1 : 0); rank < end; ++rank)
      places[static_cast<std::size_t>(rank)].host += fmt::format(" {}", host);
  return topology::Topology(std::move(places));
}

Result<Question> question_of(const PlanWhyOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const Collective collective, collective_from_string(options.collective));
  ACCORD_ASSIGN_OR_RETURN(const PlanCall call, read_plan_call(options.call, collective));
  for (const std::string& path : options.plans) {
    ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path));
    const Status registered = register_plan(text);
    if (!registered.ok()) return registered.with_context(path);
  }
  ACCORD_ASSIGN_OR_RETURN(Tables tables, read_tables(options.select));
  ACCORD_ASSIGN_OR_RETURN(plan::Selector selector, plan::Selector::create(tables.joined()));
  if (options.registered && options.hosts > 1)
    return Status(StatusCode::kInvalidArgument, "--registered: windows are not mapped between hosts");
  const int ranks = collective == Collective::kSendRecv ? 2 : options.ranks;
  ACCORD_ASSIGN_OR_RETURN(topology::Topology topology, topology_of(ranks, options.hosts));
  const bool readable = topology.readable() && !options.cuda;
  const bool one_host = topology.host_count() == 1;
  return Question{collective,
                  call,
                  std::move(topology),
                  std::move(tables),
                  std::move(selector),
                  {.collective = collective,
                   .bytes = call.bytes,
                   .op = call.op,
                   .registered = options.registered,
                   .readable = readable,
                   .in_place = options.registered && options.in_place,
                   .memory = options.cuda ? DeviceType::kCuda : DeviceType::kCpu,
                   .has_nccl = options.cuda,
                   .has_plans = options.cuda && one_host,
                   .has_multicast = options.cuda && one_host}};
}

// Rows of the collective, the last first, without the defaults for the other kind of memory: the rows passed over,
// the row that matches, and the rows that it overrides.
Json considered(const Question& question) {
  const std::vector<plan::SelectorRow> rows = question.selector.rows();
  const std::size_t defaults = plan::parse_table(plan::default_table())->rows.size();
  const std::size_t options = rows.size() - question.tables.option.table.rows.size();
  const std::size_t environment = options - question.tables.environment.table.rows.size();
  const auto table_of = [&](std::size_t row) -> std::string {
    if (row >= options) return question.tables.option.of_row(row - options);
    if (row >= environment) return question.tables.environment.of_row(row - environment);
    return row < defaults ? "default" : "registered";
  };
  bool decided = false;
  Json answer = Json::array();
  for (std::size_t i = rows.size(); i-- > 0;) {
    const auto verdict = question.selector.judge(rows[i], question.selected, question.topology);
    if (verdict == plan::RowVerdict::kOtherCollective) continue;
    if (verdict == plan::RowVerdict::kMemory && i < defaults) continue;
    const bool matches = verdict == plan::RowVerdict::kMatches;
    answer.push_back(
        {{"rule", to_string(rows[i])},
         {"table", table_of(i)},
         {"decides", matches && !decided},
         {"reason", matches && decided ? "matches, but a later rule takes precedence"
                                       : reason_text(verdict, rows[i], question.call.bytes, question.topology)}});
    decided = decided || matches;
  }
  return answer;
}

Result<Json> alternatives(const Question& question, const plan::Choice& choice) {
  Json answer = Json::array();
  std::vector<const plan::AlgorithmEntry*> entries = plan::registered_algorithms();
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) entries.push_back(&entry);
  for (const plan::AlgorithmEntry* entry : entries) {
    if (entry->collective != question.collective) continue;
    const int ranks = question.topology.size();
    if (entry->registered != nullptr && entry->registered->find(ranks, 0) == nullptr) continue;
    if (entry->multicasts && !question.selected.has_multicast) continue;
    if (entry->fits != nullptr && !entry->fits(question.topology)) continue;
    ACCORD_ASSIGN_OR_RETURN(const plan::Plan plan,
                            make_plan(*entry, question.topology, {.collective = entry->collective}));
    const bool in_windows = plan.buffers != plan::Buffers::kAnywhere;
    const bool reads = entry->only_reads && question.selected.readable;
    if (in_windows && !question.selected.registered && !reads) continue;
    if (plan.buffers == plan::Buffers::kInWindowsApart && question.selected.in_place) continue;
    const bool chosen = entry->name == choice.algorithm->name;
    const PlanFigures figures = figures_of(plan, question.call, chosen ? choice.slot_bytes : 0);
    answer.push_back({{"algorithm", entry->name},
                      {"chosen", chosen},
                      {"order", plan::to_string(plan.order)},
                      {"hops", figures.cost.hops},
                      {"rounds", figures.rounds},
                      {"bytes_exchanged", figures.cost.bytes_exchanged},
                      {"predicted_seconds", figures.seconds},
                      {"refused", figures.runs.message()}});
  }
  return answer;
}

Result<Json> answer_of(const PlanWhyOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const Question question, question_of(options));
  ACCORD_ASSIGN_OR_RETURN(const plan::Choice choice, question.selector.choose(question.selected, question.topology));
  ACCORD_ASSIGN_OR_RETURN(Json others, alternatives(question, choice));
  return Json{{"collective", to_string(question.collective)},
              {"bytes", question.call.bytes},
              {"dtype", to_string(question.call.dtype)},
              {"op", to_string(question.call.op)},
              {"ranks", question.topology.size()},
              {"hosts", question.topology.host_count()},
              {"oversubscribed", question.topology.oversubscribed()},
              {"registered", question.selected.registered},
              {"algorithm", choice.algorithm->name},
              {"slot_bytes", choice.slot_bytes == 0 ? config()->hints.slot_bytes : choice.slot_bytes},
              {"rules", considered(question)},
              {"algorithms", std::move(others)}};
}

void print_text(const Json& answer) {
  const int hosts = answer["hosts"].get<int>();
  fmt::print("{} of {} ({}{}) on {} ranks of {}{}: {}\n\nrules, the last first:\n",
             answer["collective"].get<std::string>(), bytes_text(answer["bytes"].get<std::size_t>()),
             answer["dtype"].get<std::string>(), answer["registered"].get<bool>() ? ", in windows" : "",
             answer["ranks"].get<int>(), hosts == 1 ? "this machine" : fmt::format("{} machines like this", hosts),
             answer["oversubscribed"].get<bool>() ? ", with fewer cores" : "", answer["algorithm"].get<std::string>());
  for (const Json& rule : answer["rules"]) {
    fmt::print("  {} {:<14} {}: {}\n", rule["decides"].get<bool>() ? "->" : "  ", rule["table"].get<std::string>(),
               rule["rule"].get<std::string>(), rule["reason"].get<std::string>());
  }
  fmt::print("\npredicted times of the algorithms:\n");
  for (const Json& row : answer["algorithms"]) {
    const std::string refused = row["refused"].get<std::string>();
    fmt::print("  {} {:<20} {:>10}  {} hop{}, {} exchanged, {} round{}, order {}{}\n",
               row["chosen"].get<bool>() ? "->" : "  ", row["algorithm"].get<std::string>(),
               time_text(row["predicted_seconds"].get<double>()), row["hops"].get<int>(),
               row["hops"].get<int>() == 1 ? "" : "s", bytes_text(row["bytes_exchanged"].get<std::size_t>()),
               row["rounds"].get<std::uint64_t>(), row["rounds"].get<std::uint64_t>() == 1 ? "" : "s",
               row["order"].get<std::string>(), refused.empty() ? "" : "; refused: " + refused);
  }
}

int why(const PlanWhyOptions& options) {
  const Result<Json> answer = answer_of(options);
  if (!answer.ok()) return report_failure("plan why", answer.status());
  if (options.as_json) {
    fmt::print("{}\n", answer->dump(2));
  } else {
    print_text(*answer);
  }
  return kSuccess;
}

}  // namespace

void add_plan_why(CLI::App& plan, Action& chosen) {
  CLI::App* command =
      plan.add_subcommand("why", "Show which algorithm serves a call, by which rule, and what the others cost");
  const auto options = std::make_shared<PlanWhyOptions>();
  command->add_option("collective", options->collective, "all_reduce, ...")->required();
  command->add_option("bytes", options->call.bytes, "Bytes of the caller's buffer, or of one part if it is divided")
      ->capture_default_str();
  command->add_option("-n,--ranks", options->ranks, "Ranks")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--hosts", options->hosts, "Machines like this one that the ranks are on, in equal blocks")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_plan_call(*command, options->call);
  command->add_option("--plan", options->plans, "Register this plan first, as a program would; may be repeated")
      ->type_name("FILE");
  command->add_option("--select", options->select, "A selection table, read after ACCORD_SELECT");
  command->add_flag("--registered", options->registered, "For buffers in windows (docs/windows.md)");
  command->add_flag("--in-place", options->in_place, "With --registered: input and output are the same memory");
  command->add_flag("--cuda", options->cuda,
                    "For memory of GPUs that can access each other's memory on a host, with NCCL (docs/gpu.md)");
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return why(*options); }; });
}

}  // namespace accord::cli
