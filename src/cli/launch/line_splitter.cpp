// A line that arrives in one piece is passed on without a copy. Only an incomplete line at the end of `bytes` is
// kept.
#include "cli/launch/line_splitter.hpp"

#include <algorithm>

namespace accord::cli {

void LineSplitter::add(std::string_view bytes, const LineHandler& handle) {
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_return_ = false;
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    const std::size_t room = kLongest - partial_.size();
    const std::string_view piece = bytes.substr(0, std::min(end, room));
    const bool ends = piece.size() == end && end < bytes.size();
    bytes.remove_prefix(piece.size());
    if (!ends && partial_.size() + piece.size() < kLongest) {
      partial_ += piece;
      continue;
    }
    if (partial_.empty()) {
      handle(piece);
    } else {
      partial_ += piece;
      handle(partial_);
      partial_.clear();
    }
    if (!ends) continue;
    after_return_ = bytes.front() == '\r';
    bytes.remove_prefix(1);
  }
}

void LineSplitter::finish(const LineHandler& handle) {
  if (!partial_.empty()) handle(partial_);
  partial_.clear();
  after_return_ = false;
}

}  // namespace accord::cli
