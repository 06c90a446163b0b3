// In one collective of the group the ranks publish where their memory is: its process, its device, a handle for other
// processes, and the number under which ranks of the same process find it. Each rank opens the memory of the others,
// under a lease that it takes first.
// A second collective turns an error of one rank into an error of all.
#include "comm/device/peer_memory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm {

using nlohmann::json;

struct PeerMemory::Allocation {
  Allocation(device::Runtime& runtime_, Device device_, void* memory_)
      : runtime(runtime_), device(device_), memory(static_cast<std::byte*>(memory_)) {}
  ~Allocation() {
    release_after(std::move(leases),
                  [&its = runtime, device = device, memory = memory] { (void)its.release(device, memory); });
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  device::Runtime& runtime;
  const Device device;
  std::byte* const memory;
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

}  // namespace

Status PeerMemory::allocate() {
  ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime_.allocate(device_, bytes_));
  mine_ = std::make_shared<Allocation>(runtime_, device_, memory);
  ACCORD_ASSIGN_OR_RETURN(mine_->leases, MemoryLeases::create());
  // Uses a stream of its own: the default one may be part of a capture.
  ACCORD_ASSIGN_OR_RETURN(const Stream stream, runtime_.create_stream(device_, false));
  Status zeroed = runtime_.fill(memory, 0, bytes_, device_, stream);
  if (zeroed.ok()) zeroed = runtime_.synchronize(device_, stream);
  (void)runtime_.destroy_stream(device_, stream);
  return zeroed;
}

Status PeerMemory::open(Group& group, Rank rank, const std::string& text) {
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
    const Status reached = runtime_.reach(device_, part.allocation->device);
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
  Result<MemoryLease> lease = MemoryLease::take(reply.value("lease", ""));
  if (!lease.ok()) return failed(lease.status());
  const Result<void*> opened = runtime_.open_shared(device_, handle);
  if (!opened.ok()) return failed(opened.status());
  part.lease = *std::move(lease);
  part.memory = static_cast<std::byte*>(*opened);
  return {};
}

Result<std::unique_ptr<PeerMemory>> PeerMemory::create(Group& group, device::Runtime& runtime, Device device,
                                                       std::size_t bytes, Deadline deadline, const Status& ready) {
  release_waiting();
  std::unique_ptr<PeerMemory> memory(new PeerMemory(runtime, device, bytes));
  json mine;
  Status failure = ready.ok() ? memory->allocate() : ready;
  if (failure.ok()) {
    mine = {{"process", process_name()},
            {"number", Allocations::instance().add(memory->mine_)},
            {"bytes", bytes},
            {"lease", memory->mine_->leases.name()}};
    // Ranks of this process need no handle. It is required only if there are ranks in other processes.
    const Result<device::MemoryHandle> handle = runtime.share(device, memory->mine_->memory);
    if (handle.ok())
      mine["handle"] = handle->bytes;
    else
      mine["no_handle"] = handle.status().message().substr(0, kMaxText / 2);
  } else {
    mine = {{"error", failure.message().substr(0, kMaxText / 2)}};
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group, mine.dump(), deadline.remaining()));
  memory->parts_.resize(static_cast<std::size_t>(group.size()));
  for (Rank rank = 0; failure.ok() && rank < group.size(); ++rank)
    failure = memory->open(group, rank, texts[static_cast<std::size_t>(rank)]);
  const Status agreed = all_ok(group, failure, deadline);
  if (memory->mine_ != nullptr) memory->mine_->leases.accept();
  ACCORD_RETURN_IF_ERROR(agreed);
  return memory;
}

PeerMemory::~PeerMemory() {
  for (const Part& part : parts_)
    if (part.memory != nullptr && part.allocation == nullptr) (void)runtime_.close_shared(device_, part.memory);
}

}  // namespace accord::comm
