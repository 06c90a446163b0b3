#pragma once
// User-defined plans: checked, registered, and then selected for the ordinary calls of communicators like built-in
// ones.
//
// A plan is JSON (docs/plan-format.md), written by hand, by accord.plan.Program, or by `accord plan export` or
// `import`.

#include <cstdint>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

/// How a plan is registered.
struct PlanOptions {
  std::string name = {};  ///< name in selection tables; absent: the plan's own name
  /// "0-4k": serves calls of these sizes even if no table names it; absent: only by name.
  std::string bytes = {};
};

/// Registers a plan for all communicators of this process, including existing ones.
///
/// Selection tables may then name it, as in `ACCORD_SELECT="all_reduce:0-4k=my_plan"`. With `bytes` it has precedence
/// over the default table, but not over ACCORD_SELECT and the select option. Plans for different numbers of ranks
/// (and roots) may share a name. A call that none of them fits is passed on to the next rule; an op that a plan does
/// not support is kUnsupported. All ranks need the same plans before any of them makes a call that they serve: if
/// they differ, that call ends with kMismatch. Thread-safe; registering the same plan again does nothing.
/// Fails with kCorrupt if `json` is not a plan, and kInvalidArgument if the verifier rejects it (the error names the
/// step), the name is taken, or the options are invalid. Cost: the verification of the plan, milliseconds; seconds
/// for many ranks and steps.
[[nodiscard]] Status register_plan(std::string_view json, const PlanOptions& options = {});

/// Returns what register_plan() would return for the plan alone.
[[nodiscard]] Status verify_plan(std::string_view json);

/// How the import treats ops of an execution plan that use a switch between all ranks (multimem).
enum class SwitchOps : std::uint8_t {
  kMulticast,  ///< as steps through multicast memory, which run only on GPUs behind a switch
  kOrdinary,   ///< as copies, and sums over the memory of all ranks, which run anywhere
};

/// Converts an execution plan of MSCCL++ (its JSON) to a verified plan of accord with the same effect, as JSON.
/// kCorrupt and kUnsupported name the place; docs/plan-format.md lists what is supported.
[[nodiscard]] Result<std::string> import_mscclpp_plan(std::string_view json, SwitchOps ops = SwitchOps::kMulticast);

}  // namespace accord
