#include "comm/device/memory_lease.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/packets.hpp"
#include "base/wait.hpp"
#include "comm/progress.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::comm {
namespace {

constexpr std::chrono::milliseconds kEndTimeout(200);
constexpr char kEnded = 'e';

struct Waiting {
  MemoryLeases leases;
  std::function<void()> release;
};

std::mutex waiting_mutex;
/// Memory whose leases had not ended. Never deleted, for threads that outlive static objects.
std::vector<Waiting>& waiting() {
  static auto* const all = new std::vector<Waiting>;
  return *all;
}

}  // namespace

Result<MemoryLease> MemoryLease::take(const std::string& name) {
  ACCORD_ASSIGN_OR_RETURN(UniqueFd line, transport::connect_to(name));
  // The queue holds more connections than a host has ranks.
  if (!line.valid()) return Status(StatusCode::kResourceExhausted, "the owner's queue of connections is full");
  return MemoryLease(std::move(line));
}

MemoryLease::MemoryLease(UniqueFd line) : line_(std::move(line)), generation_(ProgressThread::fork_generation()) {}

MemoryLease::~MemoryLease() {
  // The owner may be gone, or a forked child may hold the socket as well, so closing it would not suffice.
  // Such a child must not report it.
  const bool is_inherited = generation_ != ProgressThread::fork_generation();
  if (line_.valid() && !is_inherited) (void)::send(line_.get(), &kEnded, sizeof(kEnded), MSG_NOSIGNAL);
}

Result<MemoryLeases> MemoryLeases::create() {
  MemoryLeases leases;
  ACCORD_ASSIGN_OR_RETURN(leases.name_, transport::random_word());
  ACCORD_ASSIGN_OR_RETURN(leases.listener_, transport::listen_at(leases.name_));
  return leases;
}

void MemoryLeases::accept() {
  while (true) {
    Result<UniqueFd> line = transport::accept_from(listener_);
    if (line.ok() && !line->valid()) break;
    const Result<transport::SocketPeer> peer = line.ok() ? transport::peer_of(*line) : line.status();
    has_unknown_ |= !peer.ok();
    if (!peer.ok()) break;
    if (!transport::is_same_user(*peer)) continue;  // a stranger
    holders_.push_back({*std::move(line), transport::watch_process(peer->process)});
  }
  listener_.reset();
}

bool MemoryLeases::has_ended(const Holder& holder) {
  std::array<std::byte, 1> report = {};
  const auto bytes = receive_packet(holder.line.get(), report, MSG_PEEK | MSG_DONTWAIT);
  if (bytes > 0) return true;
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  // Its process has died, and its kernels may run until the operating system is through with it.
  const auto& process = holder.process.process;
  return process == nullptr || wait_readable(process->ended().get(), Deadline::in(Duration::zero()), "").ok();
}

bool MemoryLeases::have_ended() {
  if (listener_.valid()) accept();
  std::erase_if(holders_, has_ended);
  return holders_.empty() && !has_unknown_;
}

void release_after(MemoryLeases leases, std::function<void()> release) {
  release_waiting();
  Waiter waiter(WaitPolicy::kYield);
  const Deadline deadline = Deadline::in(kEndTimeout);
  while (!leases.have_ended() && !deadline.passed()) (void)waiter.pause();
  if (leases.have_ended()) return release();
  const std::lock_guard lock(waiting_mutex);
  waiting().push_back({std::move(leases), std::move(release)});
}

void release_waiting() {
  std::vector<Waiting> ended;
  {
    const std::lock_guard lock(waiting_mutex);
    const auto first =
        std::partition(waiting().begin(), waiting().end(), [](Waiting& memory) { return !memory.leases.have_ended(); });
    std::move(first, waiting().end(), std::back_inserter(ended));
    waiting().erase(first, waiting().end());
  }
  for (const Waiting& memory : ended) memory.release();
}

}  // namespace accord::comm
