#pragma once
// Plans of the user's own: checked, registered, and then chosen for the ordinary calls of communicators like built-in ones.
//
// A plan is JSON (docs/plan-format.md), written by hand, by accord.plan.Program, by `accord plan export` or `import`.

#include <cstdint>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

/// How a plan is registered.
struct PlanOptions {
  std::string name = {};  ///< what selection tables call it; absent: the plan's own name
  std::string bytes =
      {};  ///< "0-4k": it serves calls of these sizes without a table that says so; absent: by name only
};

/// Registers a plan for all communicators of this process, also those that exist.
///
/// From then on selection tables may name it, `ACCORD_SELECT="all_reduce:0-4k=my_plan"`; with `bytes` it comes before the default
/// table, and after whatever ACCORD_SELECT and the select option say. Plans for several numbers of ranks (and roots) may have one
/// name. A call that none of them fits is passed on to the next rule; an op that a plan cannot do is kUnsupported.
/// All ranks need the same plans before any of them makes a call that they serve: if they differ, that call ends with kMismatch.
/// Thread-safe; registering the same again does nothing.
/// kCorrupt: no plan; kInvalidArgument: the verifier refuses it and names the step, or the name is taken, or the options have no
/// meaning. Cost: the proof of the plan, milliseconds; seconds for many ranks and steps.
[[nodiscard]] Status register_plan(std::string_view json, const PlanOptions& options = {});

/// What register_plan() would say of the plan alone.
[[nodiscard]] Status verify_plan(std::string_view json);

/// What becomes of ops of an execution plan that go through a switch between all ranks (multimem).
enum class SwitchOps : std::uint8_t {
  kMulticast,  ///< steps through multicast memory, which only GPUs behind a switch run
  kOrdinary,   ///< copies, and sums over the memory of all, which run anywhere
};

/// A plan of ours, as JSON, that does what an execution plan of MSCCL++ (its JSON) does, and is verified. kCorrupt and kUnsupported
/// name the place; docs/plan-format.md says what is taken.
[[nodiscard]] Result<std::string> import_mscclpp_plan(std::string_view json, SwitchOps ops = SwitchOps::kMulticast);

}  // namespace accord
