#pragma once
// Lines that a person types.

#include <optional>
#include <string>

#include "accord/status.hpp"

namespace accord::cli {

/// Lines of standard input, waited for until there is one or another descriptor becomes readable.
class InputLines {
 public:
  /// The next line without its end; nullopt at the end of the input, or if `interrupt` is readable. kIo.
  Result<std::optional<std::string>> next(int interrupt);

 private:
  std::string text_;
  bool ended_ = false;
};

}  // namespace accord::cli
