// A thread is joined by the next one that ends, or at exit, since the end of a thread calls into CUDA as well, which
// may block. One that is late at exit never ends.
#include "comm/nccl/call_threads.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.hpp"
#include "comm/progress.hpp"

namespace accord::comm::nccl {
namespace {

constexpr std::chrono::seconds kExitTimeout(5);

class CallThreads {
 public:
  Status run(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    const auto place = running_.emplace(running_.end());
    const BlockedSignals blocked;
    auto work = [this, place, call = std::move(call)]() mutable {
      pthread_setname_np(pthread_self(), "accord-nccl");
      call();
      call = nullptr;
      end_thread(place);
    };
    try {
      *place = std::thread(std::move(work));
    } catch (const std::system_error& error) {
      running_.erase(place);
      return Status(StatusCode::kResourceExhausted,
                    fmt::format("a thread for a call of NCCL cannot be started: {}", error.what()));
    }
    return {};
  }
  void end() {
    std::list<std::thread> over;
    {
      std::unique_lock lock(mutex_);
      (void)is_over_.wait_for(lock, kExitTimeout, [this] { return running_.empty(); });
      exits_ = true;
      over.swap(over_);
    }
    for (std::thread& one : over) one.join();
  }

 private:
  void end_thread(std::list<std::thread>::iterator place) {
    std::list<std::thread> earlier;
    std::unique_lock lock(mutex_);
    while (exits_) {
      lock.unlock();
      ::pause();
      lock.lock();
    }
    earlier.swap(over_);
    over_.splice(over_.end(), running_, place);
    is_over_.notify_all();
    lock.unlock();
    for (std::thread& one : earlier) one.join();
  }

  std::mutex mutex_;
  std::condition_variable is_over_;
  // Guarded by mutex_:
  std::list<std::thread> running_;
  std::list<std::thread> over_;
  bool exits_ = false;
};

CallThreads* the_threads = nullptr;  // never deleted; a forked child creates its own
int generation_of_threads = -1;      // of forks, in which they were created

}  // namespace

Status run_in_thread(std::function<void()> call) {
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
  return the_threads->run(std::move(call));
}

}  // namespace accord::comm::nccl
