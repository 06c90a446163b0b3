#pragma once
// The text of a selection table as a user gives it, which may name the tuner's file.

#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord::comm {

/// A table with nothing left to read.
struct SelectText {
  std::string table;           ///< in the grammar of plan/selector.hpp
  std::string file = {};       ///< that it begins with; empty if none was named
  std::size_t file_bytes = 0;  ///< of `table` that come from it
};

/// "RULES" is that table; "@FILE" or "@FILE;RULES" that of a file of `accord tune`, and then the rules. kNotFound, kCorrupt, kInvalidArgument
/// name the file, and the line in it: it is absent, no such file, cut off, or was measured on another processor.
Result<SelectText> read_select(std::string_view select);

}  // namespace accord::comm
