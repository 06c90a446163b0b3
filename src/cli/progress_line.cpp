#include "cli/progress_line.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace accord::cli {

ProgressLine::ProgressLine(bool prints) : prints_(prints && isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::string_view what) const {
  if (prints_) fmt::print(stderr, "\r\033[K{} ...", what);
}

void ProgressLine::clear() const {
  if (prints_) fmt::print(stderr, "\r\033[K");
}

}  // namespace accord::cli
