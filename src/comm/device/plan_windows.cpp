// Two windows of a rank may have the same memory. A buffer is then in the one that was added last: for equal addresses
// it comes last by address, which is where the search ends.
#include "comm/device/plan_windows.hpp"

#include <algorithm>
#include <utility>

#include "comm/buffer_checks.hpp"

namespace accord::comm {

void PlanWindows::add(int number, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const auto above = [](std::uintptr_t address, const LocalRange& range) { return address < range.begin; };
  ranges_.insert(std::upper_bound(ranges_.begin(), ranges_.end(), begin, above),
                 {.begin = begin, .end = begin + bytes, .window = number});
}

void PlanWindows::remove(int number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ranges_, [number](const LocalRange& range) { return range.window == number; });
}

bool PlanWindows::empty() const {
  const std::lock_guard lock(mutex_);
  return ranges_.empty();
}

std::uint64_t PlanWindows::free_numbers() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t free = ~std::uint64_t{0};
  for (const LocalRange& range : ranges_) free &= ~(std::uint64_t{1} << range.window);
  return free;
}

std::optional<PlanWindows::Places> PlanWindows::places_of(const exec::RequestRecord& record, const void* input,
                                                          const void* output, Rank rank, int size) const {
  const auto [in, out] = buffer_bytes_of(record, rank, size);
  if (in + out == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Places places;
  if (in > 0) places.input = place_of(ranges_, input, in);
  if (out > 0) places.output = place_of(ranges_, output, out);
  if ((in > 0 && places.input == exec::kNoPlace) || (out > 0 && places.output == exec::kNoPlace)) return std::nullopt;
  places.in_place = in > 0 && out > 0 && !are_disjoint(input, in, output, out);
  return places;
}

PlanWindow::PlanWindow(std::shared_ptr<PlanWindows> windows, int number, std::unique_ptr<PeerMemory> memory, Rank rank)
    : windows_(std::move(windows)), number_(number), memory_(std::move(memory)), data_(memory_->of(rank)) {
  windows_->add(number_, data_, memory_->bytes());
}

PlanWindow::~PlanWindow() { windows_->remove(number_); }

}  // namespace accord::comm
