// Input is buffered here and not by stdio, because poll() does not see what stdio has buffered.
#include "cli/engine/generate/lines.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/fd.hpp"

namespace accord::cli {

Result<std::optional<std::string>> InputLines::next(int interrupt) {
  for (;;) {
    if (const std::size_t end = text_.find('\n'); end != std::string::npos) {
      std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      return std::optional(std::move(line));
    }
    if (ended_) return text_.empty() ? std::optional<std::string>() : std::optional(std::exchange(text_, {}));
    std::array<pollfd, 2> fds = {{{STDIN_FILENO, POLLIN, 0}, {interrupt, POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return errno_status(errno, "waiting for standard input");
    }
    if (fds[1].revents != 0) return std::optional<std::string>();
    std::array<char, 4096> bytes;
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return errno_status(errno, "reading standard input");
    if (count > 0) text_.append(bytes.data(), static_cast<std::size_t>(count));
    ended_ = count == 0;
  }
}

}  // namespace accord::cli
