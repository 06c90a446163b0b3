#pragma once
// Reads the text of a selection table as a user gives it, which may name a file of the tuner.

#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord::comm {

/// A table with the contents of its file.
struct SelectText {
  std::string table;           ///< in the grammar of plan/selector.hpp
  std::string file = {};       ///< the file that it begins with; empty if none was named
  std::size_t file_bytes = 0;  ///< bytes of `table` that come from the file
};

/// "RULES" is that table; "@FILE" or "@FILE;RULES" is the table in a file of `accord tune`, followed by the rules.
/// kNotFound, kCorrupt and kInvalidArgument name the file, and the line in it: it does not exist, is not such a file,
/// is truncated, or was measured on another processor.
Result<SelectText> read_select(std::string_view select);

}  // namespace accord::comm
