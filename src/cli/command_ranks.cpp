// Ranks that are started here are forks of the command, made before it has any thread, so they have read the same
// arguments. They meet in a TCP store of rank 0, which sends them its port through a pipe. They die with rank 0. By
// agreement only rank 0 prints to standard output.
#include "cli/command_ranks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/launch/cpu_binding.hpp"
#include "comm/internal.hpp"

namespace accord::cli {
namespace {

constexpr const char* kHost = "127.0.0.1";

Status bind_to(const std::vector<int>& processors) {
  if (processors.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : processors) CPU_SET(static_cast<unsigned>(cpu), &set);
  return sched_setaffinity(0, sizeof set, &set) == 0 ? Status() : errno_status(errno, "binding a rank to its cores");
}

// Returns the port in "tcp://127.0.0.1:29500".
Result<std::int64_t> port_in(const std::string& url) { return parse_integer(url.substr(url.rfind(':') + 1), "port"); }

}  // namespace

// Communicators detect the death of a rank, but not while one is being created. Therefore a thread of rank 0 waits
// for the children. If one ends early and the command has not ended because of that, the thread ends the command.
class CommandRanks::Watcher {
 public:
  explicit Watcher(std::vector<pid_t> children) : children_(std::move(children)), thread_([this] { watch(); }) {}
  ~Watcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stopped_.notify_all();
    for (const pid_t child : children_) kill(child, SIGKILL);
    thread_.join();
    for (const pid_t child : children_) {
      while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

 private:
  void watch() {
    siginfo_t ended = {};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
    std::unique_lock lock(mutex_);
    if (stopped_.wait_for(lock, kExitTimeout, [this] { return stopping_; })) return;
    const auto rank = std::find(children_.begin(), children_.end(), ended.si_pid) - children_.begin() + 1;
    fmt::print(stderr, "accord: rank {} (process {}) {} {} before the end\n", rank, ended.si_pid,
               ended.si_code == CLD_EXITED ? "ended with exit code" : "was ended by signal", ended.si_status);
    _exit(kFailure);
  }

  static constexpr auto kExitTimeout = std::chrono::seconds(5);
  const std::vector<pid_t> children_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

Result<CommandRanks> CommandRanks::create(std::optional<int> wanted, int default_ranks) {
  ACCORD_RETURN_IF_ERROR(config().status());
  CommandRanks ranks;
  ACCORD_ASSIGN_OR_RETURN(const comm::JobPlace place, comm::job_place(process_environment()));
  if (place.launcher == "none") {
    ranks.size_ = wanted.value_or(default_ranks);
    ACCORD_RETURN_IF_ERROR(ranks.fork_others());
    return ranks;
  }
  if (wanted && *wanted != place.size)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--ranks is {}, but a launcher ({}) has started {} rank{}", *wanted, place.launcher,
                              place.size, place.size == 1 ? "" : "s"));
  ranks.rank_ = place.rank;
  ranks.size_ = place.size;
  ACCORD_ASSIGN_OR_RETURN(ranks.store_, comm::job_store(place, Deadline::in(config()->timeout)));
  return ranks;
}

Status CommandRanks::fork_others() {
  ACCORD_ASSIGN_OR_RETURN(const auto processors, processors_of_ranks(Binding::kCore, size_));
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return errno_status(errno, "pipe");
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (Rank rank = 1; rank < size_ && rank_ == 0; ++rank) {
    const pid_t child = fork();
    if (child < 0) return errno_status(errno, fmt::format("starting rank {}", rank));
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kFailure);  // the parent died before the line above
    children.clear();
    in.reset();
    rank_ = rank;
  }
  if (!children.empty()) watcher_ = std::make_unique<Watcher>(std::move(children));
  ACCORD_RETURN_IF_ERROR(bind_to(processors[static_cast<std::size_t>(rank_)]));
  return meet(out.get(), in.get());
}

Status CommandRanks::meet(int read_end, int write_end) {
  const Deadline deadline = Deadline::in(config()->timeout);
  std::int64_t port = 0;
  const auto bytes = std::as_writable_bytes(std::span(&port, 1));
  if (rank_ > 0) {
    ACCORD_RETURN_IF_ERROR(read_all(read_end, bytes, deadline, "receiving the address of the store from rank 0"));
    ACCORD_ASSIGN_OR_RETURN(store_,
                            make_tcp_store(StoreRole::kClient, kHost, static_cast<int>(port), deadline.remaining()));
    return {};
  }
  ACCORD_ASSIGN_OR_RETURN(store_, make_tcp_store(StoreRole::kHost, kHost, 0, deadline.remaining()));
  ACCORD_ASSIGN_OR_RETURN(port, port_in(store_->describe()));
  for (int other = 1; other < size_; ++other)
    ACCORD_RETURN_IF_ERROR(write_all(write_end, bytes, deadline, "sending the address of the store to the ranks"));
  return {};
}

CommandRanks::CommandRanks(CommandRanks&& other) noexcept
    : rank_(other.rank_), size_(other.size_), store_(std::move(other.store_)), watcher_(std::move(other.watcher_)) {}

CommandRanks::~CommandRanks() = default;

Result<Communicator> CommandRanks::communicator(const std::string& name, const std::string& select) const {
  return Communicator::create(store_, rank_, size_, {.name = name, .select = select});
}

}  // namespace accord::cli
