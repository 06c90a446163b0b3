// While works are pending the thread polls their cursors round-robin, paced by a Waiter, and looks now and then at
// the peers' descriptors, which several groups may share. Otherwise it sleeps in epoll. The watch list refers to
// groups weakly; the thread holds a group strongly only while one of its channels has works, so a group may be
// destroyed on any thread, including this one.
#include "comm/progress.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/blocked_signals.hpp"
#include "base/wait.hpp"
#include "comm/group.hpp"
#include "transport/shm/process_watch.hpp"

namespace accord::comm {
namespace {

constexpr int kWakeupKey = -1;  // not a descriptor
constexpr int kPollsPerPeerCheck = 1024;
/// Interval of looks while other threads drive all channels, in case one of them stops without notice.
constexpr int kAttendedMilliseconds = 5;

std::atomic<ProgressThread*> the_thread = nullptr;
std::mutex creation_mutex;

}  // namespace

ProgressThread& ProgressThread::instance() { return *the_thread.load(std::memory_order_acquire); }

Result<ProgressThread*> ProgressThread::start() {
  const std::lock_guard lock(creation_mutex);
  if (ProgressThread* thread = the_thread.load(std::memory_order_acquire)) return thread;
  static const int registered = pthread_atfork([] { creation_mutex.lock(); }, [] { creation_mutex.unlock(); },
                                               [] {
                                                 creation_mutex.unlock();
                                                 after_fork_in_child();
                                               });
  (void)registered;
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<ProgressThread> thread, make());
  the_thread.store(thread.get(), std::memory_order_release);
  return thread.release();  // never deleted: it must outlive every static that holds a communicator
}

// The child has none of the parent's threads. Everything that the parent's thread held stays as it is, unused.
void ProgressThread::after_fork_in_child() {
  the_thread.store(nullptr);
  forks_.fetch_add(1);
}

ProgressThread::ProgressThread(UniqueFd epoll, UniqueFd wakeup)
    : epoll_(std::move(epoll)), wakeup_(std::move(wakeup)) {}

Result<std::unique_ptr<ProgressThread>> ProgressThread::make() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_status(errno, "the progress thread: epoll_create1");
  UniqueFd wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.valid()) return errno_status(errno, "the progress thread: eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = kWakeupKey;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wakeup.get(), &event) != 0)
    return errno_status(errno, "the progress thread: epoll_ctl");
  std::unique_ptr<ProgressThread> made(new ProgressThread(std::move(epoll), std::move(wakeup)));
  try {
    const BlockedSignals blocked;
    std::thread([thread = made.get()] {
      pthread_setname_np(pthread_self(), "accord");
      thread->loop();
    }).detach();
  } catch (const std::system_error& error) {
    return Status(StatusCode::kResourceExhausted, fmt::format("the progress thread could not start: {}", error.what()));
  }
  return made;
}

void ProgressThread::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wakeup_.get(), &one, sizeof one);
}

void ProgressThread::activate(std::shared_ptr<Group> group, Channel& channel, std::uint64_t handover) {
  bool asleep;
  {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({std::move(group), &channel, handover});
    asleep = asleep_;
  }
  if (asleep) wake();
}

void ProgressThread::recheck() {
  if (asleep_) wake();
}

Status ProgressThread::watch(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  if (watched_.empty() && asleep_) wake();  // from now on it checks for ended processes
  for (const auto& link : group->links()) {
    if (link == nullptr || link->liveness_fd() < 0) continue;
    std::vector<Watcher>& watchers = watched_[link->liveness_fd()];
    if (watchers.empty()) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = link->liveness_fd();
      if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link->liveness_fd(), &event) != 0) {
        const int error = errno;
        watched_.erase(link->liveness_fd());
        return errno_status(error, "cannot watch a peer");
      }
    }
    watchers.push_back({group, group.get(), link->peer()});
  }
  return {};
}

void ProgressThread::forget(Group& group) {
  const std::lock_guard lock(mutex_);
  for (const auto& link : group.links())
    if (link != nullptr && link->liveness_fd() >= 0)
      drop(link->liveness_fd(), [&](const Watcher& watcher) { return watcher.address == &group; });
}

template <typename Which>
void ProgressThread::drop(int fd, Which which) {
  const auto watched = watched_.find(fd);
  if (watched == watched_.end()) return;
  std::erase_if(watched->second, which);
  if (!watched->second.empty()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(watched);
}

void ProgressThread::poll_peers(int timeout_milliseconds) {
  std::array<epoll_event, 32> events;
  const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_milliseconds);
  for (int i = 0; i < n; ++i) {
    if (events[i].data.fd == kWakeupKey) {
      std::uint64_t count;
      [[maybe_unused]] const ssize_t got = read(wakeup_.get(), &count, sizeof count);
      continue;
    }
    notify_watchers(events[i].data.fd);
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - last_end_check_ < transport::kDeathPollInterval) return;
  last_end_check_ = now;
  for (const int fd : transport::ended_processes()) notify_watchers(fd);
}

void ProgressThread::notify_watchers(int fd) {
  // Released without the lock: the last handle of a group closes it, and closing calls forget().
  std::vector<std::pair<std::shared_ptr<Group>, Rank>> concerned;
  {
    const std::lock_guard lock(mutex_);
    const auto watched = watched_.find(fd);
    if (watched == watched_.end()) return;
    for (const Watcher& watcher : watched->second)
      if (std::shared_ptr<Group> group = watcher.group.lock()) concerned.emplace_back(std::move(group), watcher.peer);
    // A peer that has gone has no more news.
    drop(fd, [](const Watcher& watcher) {
      const std::shared_ptr<Group> group = watcher.group.lock();
      return group != nullptr && group->links()[watcher.peer]->update_peer_state() != transport::PeerState::kAlive;
    });
  }
  for (const auto& [group, peer] : concerned) group->state().on_peer_change(peer);
}

// As patient as the least patient of the groups. Where the thread has no core to itself, the callers' threads go
// first.
WaitPolicy ProgressThread::policy_of(const std::vector<Active>& active) {
  WaitPolicy policy = WaitPolicy::kSpin;
  for (const Active& entry : active) policy = std::max(policy, entry.group->wait_policy_of_progress());
  return policy;
}

void ProgressThread::sleep(int timeout_milliseconds) {
  poll_peers(timeout_milliseconds);
  asleep_ = false;
}

void ProgressThread::loop() {
  std::vector<Active> active;
  Waiter waiter(WaitPolicy::kSpin);
  int polls = 0;
  bool attended = false;  // other threads drive all channels
  while (true) {
    bool arrivals = false, watches = false;
    {
      const std::lock_guard lock(mutex_);
      attended = attended && arrived_.empty();
      arrivals = !arrived_.empty();
      std::move(arrived_.begin(), arrived_.end(), std::back_inserter(active));
      arrived_.clear();
      watches = !watched_.empty();
      asleep_ = active.empty() || attended;
    }
    if (asleep_) {
      const int unattended = watches ? static_cast<int>(transport::kDeathPollInterval.count()) : -1;
      sleep(active.empty() ? unattended : kAttendedMilliseconds);
      attended = false;
      continue;
    }
    bool moved = arrivals;
    attended = true;
    std::erase_if(active, [&](const Active& entry) {
      const Channel::Driven driven = entry.channel->drive(entry.handover);
      moved |= driven == Channel::Driven::kMoved;
      attended &= driven == Channel::Driven::kByAnother || driven == Channel::Driven::kIdle;
      return driven == Channel::Driven::kIdle;
    });
    if (attended) continue;
    if (moved) waiter = Waiter(policy_of(active));
    if (waiter.pause() || ++polls % kPollsPerPeerCheck == 0) poll_peers(0);
  }
}

}  // namespace accord::comm
