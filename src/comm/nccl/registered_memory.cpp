// Three steps, whose results all ranks exchange so that they stay together: memory for all; an NCCL window over it,
// if the version has windows and the memory is aligned; and if any rank got no window, a registration by each rank.
// Where the machine has no windows, NCCL returns success and no window.
#include "comm/nccl/registered_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm::nccl {

class Memory final : public RegisteredMemory {
 public:
  explicit Memory(const Registration& with)
      : library_(with.library), runtime_(with.runtime), device_(with.device), registry_(with.registry) {}
  ~Memory() override {
    if (!is_registered_) return;
    const std::lock_guard lock(registry_->calls);
    deregister();
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
      allocation_.reset(data_,
                        [&runtime = runtime_, device = device_](void* its) { (void)runtime.release(device, its); });
      return {};
    }
    if (const int code = library_.call.MemAlloc(&data_, bytes); code != kSuccess)
      return library_.failure(fmt::format("MemAlloc of {}", bytes_text(bytes)), code);
    allocation_.reset(data_, [&library = library_, &runtime = runtime_, device = device_](void* its) {
      const device::CurrentDevice current(runtime, device);
      (void)library.call.MemFree(its);
    });
    return {};
  }
  bool can_be_symmetric() const {
    return library_.call.CommWindowRegister != nullptr &&
           reinterpret_cast<std::uintptr_t>(data_) % kWindowAlignment == 0;
  }

  // REQUIRES, for all of these: the registry's calls are held.
  /// Ok, with use() unchanged, if the machine has no windows.
  Status make_symmetric(const Registration& with) {
    const int code = library_.call.CommWindowRegister(registry_->communicator, data_, bytes_, &window_, kSymmetric);
    if (code != kSuccess && code != kInProgress) return library_.failure("CommWindowRegister", code);
    ACCORD_RETURN_IF_ERROR(with.wait_until_idle("CommWindowRegister"));
    if (window_ != nullptr) set_registered(WindowUse::kSymmetric);
    return {};
  }
  Status make_registered() {
    if (library_.call.CommRegister == nullptr) return {};
    const int code = library_.call.CommRegister(registry_->communicator, data_, bytes_, &handle_);
    if (code != kSuccess) return library_.failure("CommRegister", code);
    set_registered(WindowUse::kRegistered);
    return {};
  }
  void deregister() {
    if (registry_->registered.erase(this) == 0) return;
    if (use_ == WindowUse::kSymmetric) (void)library_.call.CommWindowDeregister(registry_->communicator, window_);
    if (use_ == WindowUse::kRegistered) (void)library_.call.CommDeregister(registry_->communicator, handle_);
  }
  void forget() {
    deregister();
    use_ = WindowUse::kPlain;
    is_registered_ = false;
  }

 private:
  void set_registered(WindowUse use) {
    use_ = use;
    is_registered_ = true;
    registry_->registered.insert(this);
  }

  const Library& library_;
  device::Runtime& runtime_;
  const Device device_;
  const std::shared_ptr<Registry> registry_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> allocation_ = {};
  WindowUse use_ = WindowUse::kPlain;
  bool is_registered_ = false;
  Window* window_ = nullptr;
  void* handle_ = nullptr;
};

void Registry::end(End how) {
  while (how == End::kDestroyed && !registered.empty()) (*registered.begin())->deregister();
  registered.clear();
  communicator = nullptr;
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

}  // namespace

Result<std::shared_ptr<RegisteredMemory>> register_memory(const Registration& with, void* memory, std::size_t bytes) {
  const auto made = std::make_shared<Memory>(with);
  // Calls forget() first, since the destructor would otherwise lock the registry's calls, which are held here.
  const auto give_up = [&](const Status& why) {
    made->forget();
    return why;
  };
  const std::string size = fmt::format("{} bytes", bytes);
  const Status held = made->hold(memory, bytes);
  Result<std::vector<std::string>> sizes = exchange_texts(with, held, size);
  ACCORD_RETURN_IF_ERROR(sizes.status());
  for (Rank rank = 0; rank < with.group.size(); ++rank)
    if (const std::string& theirs = (*sizes)[static_cast<std::size_t>(rank)]; theirs != size)
      return Status(StatusCode::kMismatch,
                    fmt::format("rank {} asks for {}, rank {} for {}", rank, theirs, with.group.rank(), size), {rank});

  const auto all_are = [&](bool mine) -> Result<bool> {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> all, exchange_texts(with, {}, mine ? "yes" : "no"));
    return std::all_of(all.begin(), all.end(), [](const std::string& theirs) { return theirs == "yes"; });
  };
  ACCORD_ASSIGN_OR_RETURN(bool symmetric, all_are(made->can_be_symmetric()));
  if (symmetric) {
    if (const Status status = made->make_symmetric(with); !status.ok()) {
      with.registry->unfinished.push_back(made);
      return with.group.state().fail(give_up(status).with_context(with.group.where("device_window")));
    }
    const Result<bool> all = all_are(made->use() == WindowUse::kSymmetric);
    if (!all.ok()) return give_up(all.status());
    symmetric = *all;
  }
  if (symmetric) return std::shared_ptr<RegisteredMemory>(made);
  made->forget();
  const Status status = made->make_registered();
  if (const Status all = exchange_texts(with, status, "").status(); !all.ok()) return give_up(all);
  return std::shared_ptr<RegisteredMemory>(made);
}

}  // namespace accord::comm::nccl
