#pragma once
// Finds texts that end an answer while the answer is generated.

#include <string>
#include <string_view>
#include <vector>

namespace accord::engine {

/// Searches for the first of several texts in pieces that are pushed. A value.
class StopTexts {
 public:
  /// REQUIRES: no text is empty.
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Returns the text that certainly precedes all of the texts and was not returned before.
  std::string push(std::string_view piece);
  /// Returns what was held back because one of the texts might have begun there.
  std::string finish();
  /// Returns true once one of the texts was found. REQUIRES: push() is not called after that.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace accord::engine
