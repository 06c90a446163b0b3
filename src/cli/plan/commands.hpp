#pragma once
// The subcommands of `accord plan`, one file for each, and what they share: which plan is meant, and what it costs
// here.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "cli/commands.hpp"
#include "exec/window_layout.hpp"
#include "plan/algorithms.hpp"
#include "plan/cost.hpp"
#include "plan/plan.hpp"

namespace accord::cli {

void add_plan_list(CLI::App& plan, Action& chosen);
void add_plan_show(CLI::App& plan, Action& chosen);
void add_plan_verify(CLI::App& plan, Action& chosen);
void add_plan_export(CLI::App& plan, Action& chosen);
void add_plan_import(CLI::App& plan, Action& chosen);
void add_plan_run(CLI::App& plan, Action& chosen);
void add_plan_why(CLI::App& plan, Action& chosen);

/// Writes the plan's JSON to `path`, or to standard output if `path` is empty; returns the exit code.
int write_plan(const char* command, const plan::Plan& plan, const std::string& path);

/// Prints why the verifier rejected a plan, and returns kFailure.
int plan_refused(const char* command, const Status& status);

/// The source of a plan, as the user gives it.
struct PlanSource {
  std::string name;  ///< ALGORITHM ("two_shot", "all_reduce:two_shot") or FILE (ends in .json or has a slash)
  int ranks = 4;     ///< for an algorithm; a file has its own number
  Rank root = 0;
};

/// Adds the argument ALGORITHM|FILE and its options.
void add_plan_source(CLI::App& command, PlanSource& source);

/// True if the source names a file.
bool is_plan_file(const PlanSource& source);

/// Returns the algorithm of that name. Fails with kInvalidArgument, which names the nearest algorithm, or the
/// collectives that have one of that name.
Result<const plan::AlgorithmEntry*> algorithm_of(std::string_view name);

/// Returns the plan with the programs of all ranks, not verified. Fails with kNotFound if there is no such file, with
/// kCorrupt if it is not a plan, and otherwise like algorithm_of().
Result<plan::Plan> read_plan_source(const PlanSource& source);

/// The call that a plan is evaluated for.
struct PlanCall {
  std::size_t bytes = std::size_t{64} << 10;  ///< of the caller's buffer, or of one part if it is divided
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

/// PlanCall as written on the command line.
struct PlanCallText {
  std::string bytes = "64k";
  std::string dtype = "float32";
  std::string op = "sum";
};
void add_plan_call(CLI::App& command, PlanCallText& text);
/// Fails with kInvalidArgument if the size, dtype or op is invalid, if the op is not defined for the dtype, or if the
/// bytes are not a whole number of elements.
Result<PlanCall> read_plan_call(const PlanCallText& text, Collective collective);

/// The costs of a plan for a call, each on the rank that has most of it.
struct PlanFigures {
  plan::Cost cost;
  std::uint64_t rounds = 1;
  double seconds = 0;  ///< predicted; see plan/cost.hpp
  Status runs;         ///< why it does not run on a communicator of this configuration, if so
};
PlanFigures figures_of(const plan::Plan& plan, const PlanCall& call, std::size_t slot_bytes = 0);

/// The size of the call and its figures, as in every `--json`.
nlohmann::ordered_json figures_json(const PlanCall& call, const PlanFigures& figures);

/// Formats a time: "820 ns", "3.2 us", "1.5 ms".
std::string time_text(double seconds);

}  // namespace accord::cli
