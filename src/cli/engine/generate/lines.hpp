#pragma once
// Lines that a user types.

#include <optional>
#include <string>

#include "accord/status.hpp"

namespace accord::cli {

/// Lines of standard input. Waits until there is one, or until another descriptor becomes readable.
class InputLines {
 public:
  /// Returns the next line without its end; nullopt at the end of the input, or if `interrupt` is readable. Fails
  /// with kIo.
  Result<std::optional<std::string>> next(int interrupt);

 private:
  std::string text_;
  bool ended_ = false;
};

}  // namespace accord::cli
