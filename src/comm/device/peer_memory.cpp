// In one collective of the group the ranks publish where their memory is: its process, its device, a handle for other
// processes, and the number under which ranks of the same process find it. Each rank opens the memory of the others
// under a lease that it takes first; virtual memory with a file descriptor that a second collective passes to
// all. The last collective turns an error of one rank into an error of all.
#include "comm/device/peer_memory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/rounding.hpp"
#include "comm/device/descriptor_exchange.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm {

using nlohmann::json;

/// CUDA shares whole blocks of this size, in which smaller allocations may lie next to others.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

struct PeerMemory::Allocation {
  Allocation(device::Runtime& runtime_, Device device_, const LentMemory& lent)
      : runtime(runtime_), device(device_), memory(lent.memory), owner(lent.owner) {}
  ~Allocation() {
    release_after(std::move(leases),
                  [&its = runtime, device = device, memory = is_own ? memory : nullptr, owner = std::move(owner)] {
                    if (memory != nullptr) (void)its.release(device, memory);
                  });
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  device::Runtime& runtime;
  const Device device;
  std::byte* const memory;
  std::shared_ptr<const void> owner;  ///< of lent memory
  bool is_own = false;
  MemoryLeases leases;
};

namespace {

/// The allocations of this process, by numbers that it assigns.
class Allocations {
 public:
  static Allocations& instance() {
    static auto* const all = new Allocations;  // for threads that outlive static objects
    return *all;
  }
  std::uint64_t add(const std::shared_ptr<PeerMemory::Allocation>& allocation) {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& each) { return each.second.expired(); });
    known_[++last_] = allocation;
    return last_;
  }
  std::shared_ptr<PeerMemory::Allocation> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(number);
    return found == known_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<PeerMemory::Allocation>> known_;
  std::uint64_t last_ = 0;
};

/// Distinguishes this process from others, including those in other process id namespaces and its forked children.
std::string process_name() {
  static const std::uint64_t drawn = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return fmt::format("{}-{:x}", ::getpid(), drawn);
}

/// Whether ranks have to pass each other descriptors: those of several processes, all of one host, of which some have
/// memory with a descriptor. `texts`: what all ranks have published.
bool needs_descriptors(const Group& group, const std::vector<std::string>& texts) {
  if (group.topology().host_count() > 1) return false;
  std::set<std::string> processes;
  bool has_descriptor = false;
  for (const std::string& text : texts) {
    const json reply = json::parse(text, nullptr, false);
    if (!reply.is_object()) continue;
    processes.insert(reply.value("process", ""));
    has_descriptor |= reply.value("has_descriptor", false);
  }
  return has_descriptor && processes.size() > 1;
}

}  // namespace

Status PeerMemory::allocate() {
  ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime_.allocate(device_, round_up(bytes_, kBlockBytes)));
  mine_ = std::make_shared<Allocation>(runtime_, device_, LentMemory{static_cast<std::byte*>(memory)});
  mine_->is_own = true;
  ACCORD_ASSIGN_OR_RETURN(mine_->leases, MemoryLeases::create());
  // Uses a stream of its own: the default one may be part of a capture.
  ACCORD_ASSIGN_OR_RETURN(const Stream stream, runtime_.create_stream(device_, false));
  Status zeroed = runtime_.fill(memory, 0, bytes_, device_, stream);
  if (zeroed.ok()) zeroed = runtime_.synchronize(device_, stream);
  (void)runtime_.destroy_stream(device_, stream);
  return zeroed;
}

Status PeerMemory::open(Group& group, Rank rank, const std::string& text, int descriptor) {
  Part& part = parts_[static_cast<std::size_t>(rank)];
  if (rank == group.rank()) {
    part = {.memory = mine_->memory, .allocation = mine_};
    return {};
  }
  const auto failed = [&](const Status& why) {
    return Status(why.code(), fmt::format("the memory of rank {}: {}", rank, why.message()));
  };
  const json reply = json::parse(text, nullptr, false);
  if (!reply.is_object())
    return Status(StatusCode::kInternal, fmt::format("the reply of rank {} cannot be read", rank));
  if (reply.contains("error"))
    return Status(StatusCode::kUnsupported, fmt::format("rank {}: {}", rank, reply.value("error", "")), {rank});
  if (reply.value("bytes", std::size_t{0}) != bytes_)
    return Status(StatusCode::kMismatch,
                  fmt::format("rank {} has {} bytes of peer memory, rank {} has {}", rank,
                              reply.value("bytes", std::size_t{0}), group.rank(), bytes_),
                  {rank});
  if (reply.value("process", "") == process_name()) {
    part.allocation = Allocations::instance().find(reply.value("number", std::uint64_t{0}));
    if (part.allocation == nullptr)
      return Status(StatusCode::kPeerLost, fmt::format("rank {} has released its peer memory", rank), {rank});
    part.memory = part.allocation->memory;
    const Status reached = runtime_.reach(device_, part.allocation->device, part.memory, bytes_);
    return reached.ok() ? reached : failed(reached);
  }
  if (group.topology().host_of(rank) != group.topology().host_of(group.rank()))
    return Status(StatusCode::kUnsupported, fmt::format("rank {} is on another host", rank));
  device::MemoryHandle handle;
  const std::vector<unsigned char> bytes = reply.value("handle", std::vector<unsigned char>());
  if (bytes.size() != handle.bytes.size())
    return Status(StatusCode::kUnsupported,
                  fmt::format("rank {} sent no handle: {}", rank, reply.value("no_handle", "")), {rank});
  std::copy(bytes.begin(), bytes.end(), handle.bytes.begin());
  handle.allocated = reply.value("allocated", std::size_t{0});
  handle.offset = reply.value("offset", std::size_t{0});
  Result<MemoryLease> lease = MemoryLease::take(reply.value("lease", ""));
  if (!lease.ok()) return failed(lease.status());
  const Result<void*> opened = runtime_.open_shared(device_, handle, descriptor);
  if (!opened.ok()) return failed(opened.status());
  part.lease = *std::move(lease);
  part.memory = static_cast<std::byte*>(*opened);
  return {};
}

Result<std::unique_ptr<PeerMemory>> PeerMemory::create(Group& group, device::Runtime& runtime, Device device,
                                                       std::size_t bytes, Deadline deadline, const Status& ready) {
  release_waiting();
  std::unique_ptr<PeerMemory> memory(new PeerMemory(runtime, device, bytes));
  const Status allocated = ready.ok() ? memory->allocate() : ready;
  ACCORD_RETURN_IF_ERROR(memory->exchange(group, allocated, deadline));
  return memory;
}

Result<std::unique_ptr<PeerMemory>> PeerMemory::share(Group& group, device::Runtime& runtime, Device device,
                                                      const LentMemory& lent, std::size_t bytes, Deadline deadline) {
  std::unique_ptr<PeerMemory> memory(new PeerMemory(runtime, device, bytes));
  memory->mine_ = std::make_shared<Allocation>(runtime, device, lent);
  Result<MemoryLeases> leases = MemoryLeases::create();
  const Status ready = leases.status();
  if (ready.ok()) memory->mine_->leases = *std::move(leases);
  ACCORD_RETURN_IF_ERROR(memory->exchange(group, ready, deadline));
  return memory;
}

Status PeerMemory::exchange(Group& group, const Status& ready, Deadline deadline) {
  json mine;
  UniqueFd descriptor;
  if (ready.ok()) {
    mine = {{"process", process_name()},
            {"number", Allocations::instance().add(mine_)},
            {"bytes", bytes_},
            {"lease", mine_->leases.name()}};
    // Ranks of this process need no handle. It is required only if there are ranks in other processes.
    const Result<device::MemoryHandle> handle = runtime_.share(device_, mine_->memory, bytes_, descriptor);
    if (handle.ok()) {
      mine["handle"] = handle->bytes;
      mine["allocated"] = handle->allocated;
      mine["offset"] = handle->offset;
      mine["has_descriptor"] = descriptor.valid();
    } else {
      mine["no_handle"] = handle.status().message().substr(0, kMaxText / 2);
    }
  } else {
    mine = {{"error", ready.message().substr(0, kMaxText / 2)}};
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group, mine.dump(), deadline.remaining()));
  std::vector<UniqueFd> descriptors(static_cast<std::size_t>(group.size()));
  Status failure = ready;
  if (needs_descriptors(group, texts)) {
    Result<std::vector<UniqueFd>> received = exchange_descriptors(group, descriptor, deadline);
    if (received.ok())
      descriptors = *std::move(received);
    else if (failure.ok())
      failure = received.status();
  }
  parts_.resize(static_cast<std::size_t>(group.size()));
  for (Rank rank = 0; failure.ok() && rank < group.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    failure = open(group, rank, texts[r], descriptors[r].get());
  }
  Status agreed = all_ok(group, failure, deadline);
  if (mine_ != nullptr) mine_->leases.accept();
  return agreed;
}

PeerMemory::~PeerMemory() {
  for (const Part& part : parts_)
    if (part.memory != nullptr && part.allocation == nullptr) (void)runtime_.close_shared(device_, part.memory);
}

}  // namespace accord::comm
