// Rank 0 creates the memory and passes its descriptor to the others. A collective after each phase (create, join,
// bind) turns an error of one rank into an error of all: CUDA would block for a device that never joins.
#include "comm/device/multicast_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/device/descriptor_exchange.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm {
namespace {

using nlohmann::json;

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

Status MulticastMemory::join(Group& group, std::size_t bytes, Deadline deadline) {
  UniqueFd descriptor;
  Result<device::Multicast> part = device::Multicast();
  if (group.rank() == 0) part = runtime_.create_multicast(device_, group.size(), bytes, descriptor);
  if (part.ok()) part_ = *part;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<UniqueFd> descriptors, exchange_descriptors(group, descriptor, deadline));
  if (group.rank() == 0) return part.status();
  if (!descriptors[0].valid()) return Status(StatusCode::kUnsupported, "rank 0 could not create it", {0});
  ACCORD_ASSIGN_OR_RETURN(part_, runtime_.join_multicast(device_, descriptors[0].get(), bytes));
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
  Status joined = memory->join(group, terms.bytes, deadline);
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
