// Rank 0 creates the memory and passes its descriptor to the others through a Unix socket, whose name it sends in a
// collective of the group. A collective after each phase (create, join, bind) turns an error of one rank into an
// error of all: CUDA would block for a device that never joins.
#include "comm/device/multicast_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/wait.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::comm {
namespace {

using nlohmann::json;

/// Time for all ranks to connect.
constexpr std::chrono::seconds kHandingOver(10);

/// Calls `attempt` until it returns true.
template <typename Attempt>
Status until_done(Group& group, Deadline deadline, std::string_view what, Attempt attempt) {
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(const bool done, attempt());
    if (done) return {};
    if (!group.state().healthy()) return group.state().status();
    if (deadline.passed()) return Status(StatusCode::kTimeout, fmt::format("{} took too long", what));
    (void)waiter.pause();
  }
}

/// Checks that the other end may have the memory.
Status check_user(const UniqueFd& socket) {
  ACCORD_ASSIGN_OR_RETURN(const transport::SocketPeer peer, transport::peer_of(socket));
  if (transport::is_same_user(peer)) return {};
  return Status(StatusCode::kUnsupported,
                "a rank runs as another user, and multicast memory is not shared between users");
}

struct Terms {
  std::size_t bytes = 0;
  std::vector<std::string> leases = {};  ///< by rank: the name under which its leases are taken
};

/// Agrees on what all ranks need: as many bytes as any GPU requires, and each rank on a GPU of its own.
Result<Terms> agree_on_terms(Group& group, device::Runtime& runtime, Device device, std::size_t bytes,
                             const std::string& lease, Deadline deadline) {
  const Result<std::size_t> rounded = runtime.multicast_bytes(device, group.size(), bytes);
  const Result<std::string> identity = runtime.identity(device);
  json mine;
  if (rounded.ok() && identity.ok())
    mine = {{"bytes", *rounded}, {"device", *identity}, {"lease", lease}};
  else
    mine = {{"error", (rounded.ok() ? identity.status() : rounded.status()).message().substr(0, kMaxText / 2)}};
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group, mine.dump(), deadline.remaining()));
  Terms terms;
  std::set<std::string> devices;
  for (Rank rank = 0; rank < group.size(); ++rank) {
    const json reply = json::parse(texts[static_cast<std::size_t>(rank)], nullptr, false);
    if (!reply.is_object() || reply.contains("error"))
      return Status(
          StatusCode::kUnsupported,
          fmt::format("rank {}: {}", rank, reply.is_object() ? reply.value("error", "") : "its reply cannot be read"),
          {rank});
    terms.bytes = std::max(terms.bytes, reply.value("bytes", std::size_t{0}));
    terms.leases.push_back(reply.value("lease", ""));
    if (!devices.insert(reply.value("device", "")).second)
      return Status(StatusCode::kUnsupported, fmt::format("rank {} shares its GPU with another rank", rank), {rank});
  }
  return terms;
}

}  // namespace

Status MulticastMemory::create_here(Group& group, std::size_t bytes, Deadline deadline) {
  std::string name;
  UniqueFd listener, descriptor;
  const auto prepare = [&]() -> Status {
    ACCORD_ASSIGN_OR_RETURN(part_, runtime_.create_multicast(device_, group.size(), bytes, descriptor));
    ACCORD_ASSIGN_OR_RETURN(name, transport::random_word());
    ACCORD_ASSIGN_OR_RETURN(listener, transport::listen_at(name));
    return {};
  };
  const Status prepared = prepare();
  if (!prepared.ok()) name.clear();
  ACCORD_RETURN_IF_ERROR(gather_texts(group, name, deadline.remaining()).status());
  ACCORD_RETURN_IF_ERROR(prepared);
  // A rank that cannot connect reports that in the next collective.
  deadline = Deadline::in(std::min<Duration>(deadline.remaining(), kHandingOver));
  for (int left = group.size() - 1; left > 0; --left) {
    UniqueFd guest;
    const auto accept = [&]() -> Result<bool> {
      ACCORD_ASSIGN_OR_RETURN(guest, transport::accept_from(listener));
      return guest.valid() && check_user(guest).ok();  // strangers are turned away
    };
    const auto hand_over = [&]() -> Result<bool> {
      const std::byte nothing{};
      ACCORD_ASSIGN_OR_RETURN(const transport::Exchange sent,
                              transport::send_descriptor(guest, {&nothing, 1}, descriptor.get()));
      return sent != transport::Exchange::kLater;
    };
    ACCORD_RETURN_IF_ERROR(until_done(group, deadline, "the request of a rank for multicast memory", accept));
    ACCORD_RETURN_IF_ERROR(until_done(group, deadline, "sending multicast memory to a rank", hand_over));
  }
  return {};
}

Status MulticastMemory::join_there(Group& group, std::size_t bytes, Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group, "", deadline.remaining()));
  if (texts[0].empty()) return Status(StatusCode::kUnsupported, "rank 0 could not create it", {0});
  UniqueFd line;
  transport::ReceivedDescriptor received;
  const auto call = [&]() -> Result<bool> {
    ACCORD_ASSIGN_OR_RETURN(line, transport::connect_to(texts[0]));
    return line.valid();
  };
  const auto receive = [&]() -> Result<bool> {
    std::byte nothing{};
    ACCORD_ASSIGN_OR_RETURN(received, transport::receive_descriptor(line, {&nothing, 1}));
    return received.exchange != transport::Exchange::kLater;
  };
  ACCORD_RETURN_IF_ERROR(until_done(group, deadline, "requesting multicast memory from rank 0", call));
  ACCORD_RETURN_IF_ERROR(check_user(line));
  ACCORD_RETURN_IF_ERROR(until_done(group, deadline, "multicast memory of rank 0", receive));
  if (received.exchange != transport::Exchange::kDone)
    return Status(StatusCode::kUnsupported, "rank 0 sent no multicast memory", {0});
  ACCORD_ASSIGN_OR_RETURN(part_, runtime_.join_multicast(device_, received.descriptor.get(), bytes));
  return {};
}

Result<std::unique_ptr<MulticastMemory>> MulticastMemory::create(Group& group, device::Runtime& runtime, Device device,
                                                                 std::size_t bytes, Deadline deadline) {
  std::unique_ptr<MulticastMemory> memory(new MulticastMemory(runtime, device));
  Result<MemoryLeases> leases = MemoryLeases::create();
  ACCORD_RETURN_IF_ERROR(all_ok(group, leases.status(), deadline));
  memory->leases_ = *std::move(leases);
  ACCORD_ASSIGN_OR_RETURN(const Terms terms,
                          agree_on_terms(group, runtime, device, bytes, memory->leases_.name(), deadline));
  Status joined = group.rank() == 0 ? memory->create_here(group, terms.bytes, deadline)
                                    : memory->join_there(group, terms.bytes, deadline);
  if (joined.ok()) joined = memory->take_leases(group.rank(), terms.leases);
  ACCORD_RETURN_IF_ERROR(all_ok(group, joined, deadline));
  memory->leases_.accept();
  ACCORD_RETURN_IF_ERROR(all_ok(group, runtime.bind_multicast(device, memory->part_), deadline));
  return memory;
}

Status MulticastMemory::take_leases(Rank me, const std::vector<std::string>& names) {
  for (Rank rank = 0; rank < static_cast<Rank>(names.size()); ++rank) {
    if (rank == me) continue;
    ACCORD_ASSIGN_OR_RETURN(MemoryLease lease, MemoryLease::take(names[static_cast<std::size_t>(rank)]));
    taken_.push_back(std::move(lease));
  }
  return {};
}

MulticastMemory::~MulticastMemory() {
  if (part_.handle == nullptr) return;
  taken_.clear();
  release_after(std::move(leases_),
                [&its = runtime_, device = device_, part = part_] { (void)its.leave_multicast(device, part); });
}

}  // namespace accord::comm
