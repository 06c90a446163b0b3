#pragma once
// A diagnosis as text for people, and as JSON for programs.

#include <string>
#include <vector>

#include "cli/diagnose/diagnosis.hpp"

namespace accord::cli {

/// Text on communicators in which a rank waits, or that have failed, with a line for each rank. The others are only
/// counted.
std::string to_text(const std::vector<GroupDiagnosis>& groups);
/// JSON of all communicators, as described in docs/diagnose.md.
std::string to_json(const std::vector<GroupDiagnosis>& groups);

}  // namespace accord::cli
