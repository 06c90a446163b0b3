#pragma once
// The internals of HostRuntime: a stream's thread, a point in it, and a capture of it. The runtime's mutex guards all
// of it.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "device/host_runtime.hpp"

namespace accord::testing {

/// A kernel that has started before the one ahead of it in its stream has ended.
class EarlyKernel {
 public:
  virtual ~EarlyKernel() = default;
  virtual void finish() = 0;
};

/// Something in a stream.
struct Task {
  enum class Kind : std::uint8_t { kKernel, kPoint, kOther };
  std::function<void()> run;
  Kind kind = Kind::kOther;
  /// Set for kernels that start early, and used in place of `run` if the task ahead, apart from points, is a kernel.
  std::function<std::unique_ptr<EarlyKernel>()> begin = nullptr;
};

struct CapturedGraph {
  struct Node {
    Task task;
    std::size_t lane;
    std::set<std::size_t> after;
  };
  std::vector<Device> lanes;  ///< devices of the streams that took part, beginning with the first
  std::vector<Node> nodes;    ///< each after all nodes that it must follow
  PointRef last_launch;       ///< launches of one graph do not overlap
  bool is_uploaded = false;
};

struct Capture {
  Graph graph = std::make_shared<CapturedGraph>();
  std::vector<Worker*> members;
  bool valid = true;
  bool ended = false;
};

struct Point {
  bool reached = false;
  std::shared_ptr<Capture> capture;
  std::set<std::size_t> nodes;  ///< of the capture: the nodes that it follows
};

struct Worker {
  Device device;
  std::uint64_t id = 0;
  bool is_default = false;
  bool is_blocking = false;  ///< it and the device's default stream wait for each other
  bool retired = false;      ///< ends when its queue is empty
  bool ended = false;
  std::deque<Task> queue = {};
  std::size_t unfinished = 0;               ///< tasks that have not ended; points do not count
  std::unique_ptr<EarlyKernel> begun = {};  ///< the next kernel in the queue
  std::thread thread = {};
  std::condition_variable work = {};  ///< the queue has grown, or the stream or the runtime ends
  std::shared_ptr<Capture> capture = {};
  std::size_t lane = 0;
  std::set<std::size_t> tail = {};  ///< nodes of the capture that the next node must follow
};

}  // namespace accord::testing
