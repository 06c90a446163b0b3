#pragma once
// A diagnosis for people and for programs.

#include <string>
#include <vector>

#include "cli/diagnose/diagnosis.hpp"

namespace accord::cli {

/// Communicators in which somebody waits, or that have failed, with a line for each rank; the others are counted.
std::string to_text(const std::vector<GroupDiagnosis>& groups);
/// All of them; docs/diagnose.md describes it.
std::string to_json(const std::vector<GroupDiagnosis>& groups);

}  // namespace accord::cli
