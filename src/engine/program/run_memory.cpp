#include "engine/program/run_memory.hpp"

namespace accord::engine {

Status RunMemory::run_each(const Program& program, const Execution& execution, const AfterStep& after) {
  return run_steps(execution, [&](const Execution& placed) {
    for (const ProgramStep& step : program.steps) {
      ACCORD_RETURN_IF_ERROR(step.run(placed));
      ACCORD_RETURN_IF_ERROR(wait_for_steps());
      ACCORD_RETURN_IF_ERROR(after(step));
    }
    return Status();
  });
}

}  // namespace accord::engine
