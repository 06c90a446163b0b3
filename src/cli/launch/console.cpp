// A write happens only after poll() has reported that the descriptor accepts at least PIPE_BUF bytes, and is no
// larger than that. So it does not block, although the descriptor, which others may share, stays in blocking mode.
#include "cli/launch/console.hpp"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accord::cli {
namespace {

bool same_file(int a, int b) {
  struct stat first = {};
  struct stat second = {};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Console::Console() {
  queues_[0] = std::make_shared<Queue>();
  queues_[0]->fd = STDOUT_FILENO;
  queues_[1] = queues_[0];
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) return;
  queues_[1] = std::make_shared<Queue>();
  queues_[1]->fd = STDERR_FILENO;
}

void Console::write_line(Stream stream, std::string_view prefix, std::string_view line) {
  Queue& lines = queue(stream);
  if (lines.broken) return;
  lines.text.append(prefix).append(line).push_back('\n');
}

bool Console::empty() const { return queues_[0]->text.empty() && queues_[1]->text.empty(); }

void Console::drop_if_full() {
  for (const std::shared_ptr<Queue>& lines : queues_) {
    if (lines->text.size() >= kFull) *lines = Queue{lines->fd, "", 0, true};
  }
}

void Console::add_watches(Watches& watches) {
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    const std::shared_ptr<Queue>& lines = queues_[i];
    if (lines->text.empty() || (i == 1 && lines == queues_[0])) continue;
    watches.push_back({lines->fd, POLLOUT, [lines] { write_some(*lines); }});
  }
}

void Console::write_some(Queue& queue) {
  const std::size_t bytes = std::min<std::size_t>(PIPE_BUF, queue.text.size() - queue.written);
  const ssize_t written = write(queue.fd, queue.text.data() + queue.written, bytes);
  if (written < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    queue.broken = true;
    queue.text.clear();
    queue.written = 0;
    return;
  }
  queue.written += static_cast<std::size_t>(written);
  if (queue.written < queue.text.size() && queue.written < kFull) return;
  queue.text.erase(0, queue.written);
  queue.written = 0;
}

}  // namespace accord::cli
