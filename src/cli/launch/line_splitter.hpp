#pragma once
// Splits the bytes of a stream, as they arrive, into whole lines.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace accord::cli {

/// Lines end at "\n", "\r\n" or "\r" (so that each state of a progress bar is shown). A line longer than 1 MiB is
/// passed on in pieces of that size.
class LineSplitter {
 public:
  using LineHandler = std::function<void(std::string_view line)>;

  /// Passes each line that `bytes` completes to `handle`, without its end.
  void add(std::string_view bytes, const LineHandler& handle);
  /// The stream has ended: passes on what is left, if anything.
  void finish(const LineHandler& handle);

 private:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;
  std::string partial_;
  bool after_return_ = false;  ///< the last byte was "\r"; a "\n" that follows belongs to it
};

}  // namespace accord::cli
