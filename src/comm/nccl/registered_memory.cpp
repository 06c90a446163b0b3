// Three steps, whose results all ranks exchange so that they stay together: memory for all; an NCCL window over it, if
// NCCL can make one on all ranks; and if any rank got no window, a registration by each rank. Where the machine has no
// windows, NCCL returns success and no window.
//
// NCCL maps the physical allocations behind a window into an address range of its own, at the same place on all ranks,
// and computes the addresses of peers from its own. It checks none of this between ranks: a rank whose memory it
// rejects leaves the others waiting, and one whose memory it places elsewhere gets wrong data. So each rank describes
// where its window would be, from what the driver says about the memory, and all descriptions must be equal.
#include "comm/nccl/registered_memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"
#include "comm/progress.hpp"

namespace accord::comm::nccl {
namespace {

/// The first version in which windows of one allocation may be released in any order.
constexpr int kFirstWithSharedAllocations = 22800;
/// The first version whose windows may lie in several allocations.
constexpr int kFirstWithSeveralAllocations = 23000;

/// Whether this process was forked from the one that made an object in `generation`. The parent still uses it.
bool is_inherited(int generation) { return generation != ProgressThread::fork_generation(); }

/// For a thread that releases memory while another one is in a call, which ends by itself.
Status keep_waiting(std::string_view /*function*/) { return {}; }

}  // namespace

class Memory final : public RegisteredMemory {
 public:
  explicit Memory(const Registration& with)
      : library_(with.library), runtime_(with.runtime), device_(with.device), registry_(with.registry) {}
  ~Memory() override {
    if (!is_inherited(generation_)) deregister();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const override { return data_; }
  WindowUse use() const override { return use_; }
  std::shared_ptr<const void> allocation() const override { return allocation_; }

  Status hold(void* memory, std::size_t bytes) {
    bytes_ = bytes;
    data_ = memory;
    if (memory != nullptr) return {};
    if (library_.call.MemAlloc == nullptr) {
      ACCORD_ASSIGN_OR_RETURN(data_, runtime_.allocate(device_, bytes));
      allocation_.reset(data_, [&runtime = runtime_, device = device_, generation = generation_](void* its) {
        if (!is_inherited(generation)) (void)runtime.release(device, its);
      });
      return {};
    }
    if (const int code = library_.call.MemAlloc(&data_, bytes); code != kSuccess)
      return library_.failure(fmt::format("MemAlloc of {}", bytes_text(bytes)), code);
    allocation_.reset(
        data_, [&library = library_, &runtime = runtime_, device = device_, generation = generation_](void* its) {
          if (is_inherited(generation)) return;
          const device::CurrentDevice current(runtime, device);
          (void)library.call.MemFree(its);
        });
    return {};
  }
  /// Describes where NCCL would place a window over this memory; "" if it cannot make one.
  Result<std::string> place_of_window() {
    if (library_.call.CommWindowRegister == nullptr) return std::string();
    ACCORD_ASSIGN_OR_RETURN(const device::MappedMemory behind, runtime_.mapped_memory(device_, data_, bytes_));
    if (behind.allocations == 0 || behind.offset % kWindowAlignment != 0) return std::string();
    if (behind.allocations > 1 && library_.version < kFirstWithSeveralAllocations) return std::string();
    begin_ = static_cast<const std::byte*>(data_) - behind.offset;
    const std::lock_guard lock(registry_->mutex);
    std::vector<int> others;  // NCCL's space has holes where windows were released
    int same = -1;            // a window in the same allocation, which NCCL then does not map again
    for (const auto& [number, other] : registry_->windows) {
      others.push_back(number);
      if (other->begin_ == begin_ && same < 0) same = number;
    }
    if (same >= 0 && library_.version < kFirstWithSharedAllocations) return std::string();
    return fmt::format("at {} of {} bytes, beside {}, in that of {}", behind.offset, behind.bytes,
                       fmt::join(others, " "), same);
  }
  /// Ok, with use() unchanged, if the machine has no windows. The group has failed after an error.
  Status make_symmetric(const Registration& with, const std::shared_ptr<Memory>& self, int number) {
    const auto call = [self](Communicator* communicator) {
      return self->library_.call.CommWindowRegister(communicator, self->data_, self->bytes_, &self->window_,
                                                    kSymmetric);
    };
    ACCORD_RETURN_IF_ERROR(registry_->connection->run("CommWindowRegister", call, with.check));
    if (window_ == nullptr) return {};
    set_registered(WindowUse::kSymmetric);
    const std::lock_guard lock(registry_->mutex);
    registry_->windows.emplace(number, this);
    return {};
  }
  Status make_registered(const WaitCheck& check) {
    if (library_.call.CommRegister == nullptr) return {};
    {
      Use entered(*registry_->connection, "CommRegister", check);
      ACCORD_RETURN_IF_ERROR(entered.status());
      const int code = library_.call.CommRegister(entered.communicator(), data_, bytes_, &handle_);
      ACCORD_RETURN_IF_ERROR(entered.result("CommRegister", code));
    }  // a thread that deregisters waits for this one with the registry's mutex held
    set_registered(WindowUse::kRegistered);
    return {};
  }
  void deregister() {
    const std::lock_guard lock(registry_->mutex);
    deregister_locked();
    use_ = WindowUse::kPlain;
  }
  /// REQUIRES: the registry's mutex is held.
  void deregister_locked() {
    if (registry_->registered.erase(this) == 0) return;
    std::erase_if(registry_->windows, [this](const auto& window) { return window.second == this; });
    const Use entered(*registry_->connection, "CommDeregister", keep_waiting);
    if (!entered.status().ok()) return;
    const device::CurrentDevice current(runtime_, device_);
    if (use_ == WindowUse::kSymmetric) (void)library_.call.CommWindowDeregister(entered.communicator(), window_);
    if (use_ == WindowUse::kRegistered) (void)library_.call.CommDeregister(entered.communicator(), handle_);
  }

 private:
  void set_registered(WindowUse use) {
    use_ = use;
    const std::lock_guard lock(registry_->mutex);
    registry_->registered.insert(this);
  }

  const Library& library_;
  device::Runtime& runtime_;
  const Device device_;
  const std::shared_ptr<Registry> registry_;
  const int generation_ = ProgressThread::fork_generation();  ///< of forks
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  const std::byte* begin_ = nullptr;  ///< of the first allocation behind it, if a window can be made
  std::shared_ptr<void> allocation_ = {};
  WindowUse use_ = WindowUse::kPlain;
  Window* window_ = nullptr;
  void* handle_ = nullptr;
};

void Registry::deregister_all() {
  const std::lock_guard lock(mutex);
  while (!registered.empty()) (*registered.begin())->deregister_locked();
}

namespace {

constexpr char kError = 'e';
constexpr char kText = 't';

/// Exchanges texts with all ranks. An error of one rank is returned on all of them; this rank's own has precedence.
Result<std::vector<std::string>> exchange_texts(const Registration& with, const Status& mine, const std::string& text) {
  const std::string own = mine.ok() ? kText + text : kError + mine.message().substr(0, kMaxText / 2);
  ACCORD_ASSIGN_OR_RETURN(std::vector<std::string> all, gather_texts(with.group, own, with.deadline.remaining()));
  ACCORD_RETURN_IF_ERROR(mine);
  for (Rank rank = 0; rank < with.group.size(); ++rank) {
    std::string& theirs = all[static_cast<std::size_t>(rank)];
    if (theirs.front() == kError)
      return Status(StatusCode::kResourceExhausted, fmt::format("rank {}: {}", rank, theirs.substr(1)), {rank});
    theirs.erase(0, 1);
  }
  return all;
}

/// Whether NCCL can make a window over this memory on all ranks, and would place it alike. Windows that a rank has and
/// another has released make the places differ.
Result<bool> is_symmetric(const Registration& with, Memory& memory) {
  const Result<std::string> place = memory.place_of_window();
  // Many windows make a text longer than can be exchanged, so its hash stands for it.
  const std::string mine =
      place.ok() && !place->empty() ? fmt::format("{:x}", xxh3(std::as_bytes(std::span(*place)))) : "";
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> all, exchange_texts(with, place.status(), mine));
  return !mine.empty() && std::ranges::all_of(all, [&](const std::string& theirs) { return theirs == mine; });
}

}  // namespace

Result<std::shared_ptr<RegisteredMemory>> register_memory(const Registration& with, void* memory, std::size_t bytes) {
  const int number = with.registry->collectives++;
  const auto made = std::make_shared<Memory>(with);
  const std::string size = fmt::format("{} bytes", bytes);
  const Status held = made->hold(memory, bytes);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> sizes, exchange_texts(with, held, size));
  for (Rank rank = 0; rank < with.group.size(); ++rank)
    if (const std::string& theirs = sizes[static_cast<std::size_t>(rank)]; theirs != size)
      return Status(StatusCode::kMismatch,
                    fmt::format("rank {} asks for {}, rank {} for {}", rank, theirs, with.group.rank(), size), {rank});

  ACCORD_ASSIGN_OR_RETURN(bool symmetric, is_symmetric(with, *made));
  if (symmetric) {
    if (const Status status = made->make_symmetric(with, made, number); !status.ok())
      return with.group.state().fail(status.with_context(with.group.where("device_window")));
    const std::string mine = made->use() == WindowUse::kSymmetric ? "yes" : "no";
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> all, exchange_texts(with, {}, mine));
    symmetric = std::ranges::all_of(all, [](const std::string& theirs) { return theirs == "yes"; });
  }
  if (symmetric) return std::shared_ptr<RegisteredMemory>(made);
  made->deregister();
  const Status status = made->make_registered(with.check);
  ACCORD_RETURN_IF_ERROR(exchange_texts(with, status, "").status());
  return std::shared_ptr<RegisteredMemory>(made);
}

}  // namespace accord::comm::nccl
