// Highway keeps one process-wide choice of target, made at the first dispatch. To force a target, this file tells
// Highway that the machine supports only that one and makes it choose again.

#include "kernels/instruction_set.hpp"

#include "base/text.hpp"
#include "kernels/simd_targets.hpp"  // must precede Highway

// clang-format off
#include <hwy/highway.h>
// clang-format on

namespace accord::kernels {

namespace {

std::vector<std::int64_t> targets_of_machine() {
  hwy::SetSupportedTargetsForTest(0);
  return hwy::SupportedAndGeneratedTargets();
}

}  // namespace

const char* instruction_set() {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  // Arm without AES instructions supports none of Highway's targets and runs what the compiler's baseline allows.
  return hwy::TargetName(targets.empty() ? HWY_STATIC_TARGET : targets.front());
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : targets_of_machine()) names.emplace_back(hwy::TargetName(target));
  return names;
}

Status use_instruction_set(std::string_view name) {
  const std::vector<std::int64_t> targets = targets_of_machine();
  std::vector<std::string_view> names;
  for (const std::int64_t target : targets) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(target);
      return {};
    }
    names.emplace_back(hwy::TargetName(target));
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  if (name.empty()) return {};
  return unknown_name("instruction set", name, names);
}

}  // namespace accord::kernels
