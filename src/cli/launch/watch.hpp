#pragma once
// The launcher's only loop: each part names the descriptors it waits for, and is called when they are ready.

#include <functional>
#include <vector>

namespace accord::cli {

/// A descriptor to poll for `events` (POLLIN, POLLOUT), and the action when it is ready, has ended or has failed.
struct Watch {
  int fd = -1;
  short events = 0;
  std::function<void()> ready;
};
using Watches = std::vector<Watch>;

}  // namespace accord::cli
