#pragma once
// The launcher's own standard output and error: whole lines in order, without ever blocking the launcher.

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "cli/launch/watch.hpp"

namespace accord::cli {

enum class Stream : std::uint8_t { kOutput, kError };

/// Queues lines and writes them as the reader accepts them. If both streams lead to one file (2>&1), they share a
/// queue, so that lines of one never break up lines of the other. Not thread-safe.
class Console {
 public:
  Console();

  /// Queues `prefix`, `line` and a newline.
  void write_line(Stream stream, std::string_view prefix, std::string_view line);
  /// True if so much is queued that the sources of this stream should wait.
  bool full(Stream stream) const { return queue(stream).text.size() >= kFull; }
  /// True if the stream no longer has a reader.
  bool broken(Stream stream) const { return queue(stream).broken; }
  bool empty() const;
  /// Discards what nobody reads, so that the launcher can end.
  void drop_if_full();
  void add_watches(Watches& watches);

 private:
  static constexpr std::size_t kFull = std::size_t{1} << 20;
  struct Queue {
    int fd = -1;
    std::string text;
    std::size_t written = 0;
    bool broken = false;
  };
  static void write_some(Queue& queue);
  const Queue& queue(Stream stream) const { return *queues_[static_cast<std::size_t>(stream)]; }
  Queue& queue(Stream stream) { return *queues_[static_cast<std::size_t>(stream)]; }

  std::array<std::shared_ptr<Queue>, 2> queues_;
};

}  // namespace accord::cli
