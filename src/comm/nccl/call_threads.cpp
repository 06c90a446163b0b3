// A thread is joined when the next one starts, or at exit, since the end of a thread calls into CUDA as well. One that
// is late at exit never ends.
#include "comm/nccl/call_threads.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "base/blocked_signals.hpp"
#include "comm/progress.hpp"

namespace accord::comm::nccl {
namespace {

constexpr std::chrono::seconds kExitTimeout(5);

class CallThreads {
 public:
  void run(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    join_finished();
    Running& one = running_.emplace_back();
    const BlockedSignals blocked;
    one.thread = std::thread([this, &one, call = std::move(call)]() mutable {
      pthread_setname_np(pthread_self(), "accord-nccl");
      call();
      call = nullptr;
      std::unique_lock ending(mutex_);
      one.is_over = true;
      is_over_.notify_all();
      const bool exits = exits_;
      ending.unlock();
      while (exits) ::pause();
    });
  }
  void end() {
    std::unique_lock lock(mutex_);
    join_finished();
    exits_ = true;
    (void)is_over_.wait_for(lock, kExitTimeout, [this] {
      return std::all_of(running_.begin(), running_.end(), [](const Running& one) { return one.is_over; });
    });
  }

 private:
  struct Running {
    std::thread thread;
    bool is_over = false;
  };
  /// REQUIRES: mutex_ is held.
  void join_finished() {
    if (exits_) return;  // they do not end
    std::erase_if(running_, [](Running& one) {
      if (one.is_over) one.thread.join();
      return one.is_over;
    });
  }

  std::mutex mutex_;
  std::condition_variable is_over_;
  // Guarded by mutex_:
  std::list<Running> running_;
  bool exits_ = false;
};

CallThreads* the_threads = nullptr;  // never deleted; a forked child creates its own
int generation_of_threads = -1;      // of forks, in which they were created

}  // namespace

void run_in_thread(std::function<void()> call) {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (generation_of_threads != ProgressThread::fork_generation()) {
    the_threads = new CallThreads;
    generation_of_threads = ProgressThread::fork_generation();
    // Runs before the handlers that CUDA and NCCL have registered earlier.
    static const int registered = std::atexit([] {
      if (generation_of_threads == ProgressThread::fork_generation()) the_threads->end();
    });
    (void)registered;
  }
  the_threads->run(std::move(call));
}

}  // namespace accord::comm::nccl
