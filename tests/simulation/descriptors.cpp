// A process that waits for descriptors waits under its own address and looks at all of them again whenever one of its
// descriptors changes. The descriptor of another process becomes readable some time after that process has ended, as
// long as a kernel may take to tear it down.
#include "simulation/descriptors.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accord::simulation {
namespace {

constexpr Time kTeardown = 20 * kMillisecond, kSlowTeardown = 300 * kMillisecond;
constexpr std::uint64_t kSlowOneIn = 20;

Descriptors* the_descriptors = nullptr;

class ProcessFile final : public OpenFile {
 public:
  explicit ProcessFile(int pid) : pid_(pid) {}
  std::uint32_t events() const override {
    return Descriptors::current()->is_known_to_have_ended(pid_) ? std::uint32_t{EPOLLIN} : 0;
  }

 private:
  const int pid_;
};

class EpollFile final : public OpenFile {
 public:
  std::uint32_t events() const override { return 0; }
  std::map<int, epoll_event> interests;
};

}  // namespace

std::int64_t OpenFile::read(void*, std::size_t) { return -EINVAL; }
std::int64_t OpenFile::write(const void*, std::size_t) { return -EINVAL; }

Descriptors* Descriptors::current() { return the_descriptors; }

Descriptors::Descriptors(Scheduler& scheduler) : scheduler_(scheduler) {
  the_descriptors = this;
  scheduler.on_end([this](Process& process) { on_end(process); });
}

Descriptors::~Descriptors() {
  for (auto& [process, held] : held_) release(held);
  the_descriptors = nullptr;
}

int Descriptors::add(std::unique_ptr<OpenFile> file) {
  auto slot = std::ranges::find_if(slots_, [](const Slot& one) { return one.file == nullptr; });
  if (slot == slots_.end()) slot = slots_.emplace(slots_.end());
  *slot = {std::move(file), Scheduler::fiber()->process};
  return kFirstDescriptor + static_cast<int>(slot - slots_.begin());
}

OpenFile* Descriptors::find(int descriptor) const {
  const int index = descriptor - kFirstDescriptor;
  if (index < 0 || index >= static_cast<int>(slots_.size())) return nullptr;
  return slots_[static_cast<std::size_t>(index)].file.get();
}

bool Descriptors::close(int descriptor) {
  if (find(descriptor) == nullptr) return false;
  for (const Slot& slot : slots_)
    if (auto* const epoll = dynamic_cast<EpollFile*>(slot.file.get())) epoll->interests.erase(descriptor);
  slots_[static_cast<std::size_t>(descriptor - kFirstDescriptor)] = {};
  return true;
}

std::size_t Descriptors::count(const Process& process) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(slots_, [&](const Slot& slot) { return slot.file != nullptr && slot.owner == &process; }));
}

std::size_t Descriptors::count_real(const Process& process) const {
  const auto held = held_.find(&process);
  return held == held_.end() ? 0 : held->second.files.size() + held->second.mappings.size();
}

int Descriptors::open_process(int pid) {
  if (scheduler_.find_process(pid) == nullptr || is_known_to_have_ended(pid)) {
    errno = ESRCH;
    return -1;
  }
  return add(std::make_unique<ProcessFile>(pid));
}

bool Descriptors::is_known_to_have_ended(int pid) const { return known_to_have_ended_.contains(pid); }

int Descriptors::open_epoll() { return add(std::make_unique<EpollFile>()); }

int Descriptors::control_epoll(int epoll, int operation, int descriptor, const epoll_event* event) {
  auto* const set = dynamic_cast<EpollFile*>(find(epoll));
  if (set == nullptr || find(descriptor) == nullptr) {
    errno = EBADF;
    return -1;
  }
  const bool is_there = set->interests.contains(descriptor);
  if (is_there == (operation == EPOLL_CTL_ADD)) {
    errno = is_there ? EEXIST : ENOENT;
    return -1;
  }
  if (operation == EPOLL_CTL_DEL) {
    set->interests.erase(descriptor);
  } else {
    set->interests[descriptor] = *event;
  }
  notify(*Scheduler::fiber()->process);
  return 0;
}

int Descriptors::wait_epoll(int epoll, epoll_event* ready, int limit, Time deadline) {
  while (true) {
    auto* const set = dynamic_cast<EpollFile*>(find(epoll));
    if (set == nullptr) {
      errno = EBADF;
      return -1;
    }
    int count = 0;
    for (const auto& [descriptor, event] : set->interests) {
      const std::uint32_t now = find(descriptor)->events() & (event.events | EPOLLERR | EPOLLHUP);
      if (now == 0 || count == limit) continue;
      ready[count].events = now;
      ready[count++].data = event.data;
    }
    if (count > 0 || deadline <= scheduler_.now()) return count;
    scheduler_.block("descriptors", Scheduler::fiber()->process, deadline);
  }
}

void Descriptors::notify_all() {
  for (const auto& process : scheduler_.processes()) notify(*process);
}

void Descriptors::on_end(Process& process) {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].owner == &process) close(kFirstDescriptor + static_cast<int>(i));
  Random& random = scheduler_.random();
  const Time teardown = random.spread(kMicrosecond, random.one_in(kSlowOneIn) ? kSlowTeardown : kTeardown);
  scheduler_.at(scheduler_.now() + teardown, [this, pid = process.pid] {
    known_to_have_ended_[pid] = true;
    notify_all();
  });
}

void Descriptors::note_mapping(void* begin, std::size_t bytes) {
  held_[Scheduler::fiber()->process].mappings.push_back({begin, bytes});
}

void Descriptors::forget_file(int file) { std::erase(held_[Scheduler::fiber()->process].files, file); }

void Descriptors::forget_mapping(void* begin) {
  std::erase_if(held_[Scheduler::fiber()->process].mappings, [&](const Mapping& one) { return one.begin == begin; });
}

void Descriptors::release(Held& held) {
  for (const int file : held.files) ::close(file);
  for (const Mapping& mapping : held.mappings) ::munmap(mapping.begin, mapping.bytes);
}

}  // namespace accord::simulation
