#pragma once
// A line on the terminal that says what is under way.

#include <string_view>

namespace accord::cli {

/// On standard error, if that is a terminal. Whoever prints something else clears the line first.
class ProgressLine {
 public:
  explicit ProgressLine(bool prints);
  /// "`what` ...", in place of the line before.
  void show(std::string_view what) const;
  void clear() const;

 private:
  bool prints_;
};

}  // namespace accord::cli
