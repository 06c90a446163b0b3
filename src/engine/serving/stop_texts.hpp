#pragma once
// Texts that end an answer, found while it comes.

#include <string>
#include <string_view>
#include <vector>

namespace accord::engine {

/// Looks for the first of some texts in what is pushed, piece by piece. A value.
class StopTexts {
 public:
  /// REQUIRES: none of them is empty.
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// What certainly comes before any of the texts, and was not given yet.
  std::string push(std::string_view piece);
  /// What was held back because one of the texts might have begun there.
  std::string finish();
  /// One of them came. REQUIRES: nothing is pushed after that.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace accord::engine
