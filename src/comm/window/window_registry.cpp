// Tables are replaced, never changed: a running call continues with the table that it began with.
#include "comm/window/window_registry.hpp"

#include <algorithm>
#include <utility>

namespace accord::comm {

std::shared_ptr<const WindowTable> WindowRegistry::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

template <typename Change>
void WindowRegistry::update(Change change) {
  std::shared_ptr<const WindowTable> old;  // destroyed without the lock; may be the last owner of links
  const std::lock_guard lock(mutex_);
  auto next = std::make_shared<WindowTable>(*table_);
  change(*next);
  ++next->version;
  old = std::exchange(table_, std::move(next));
  version_.store(table_->version, std::memory_order_release);
}

void WindowRegistry::add(int number, std::span<std::byte> local, std::vector<std::byte*> members,
                         std::shared_ptr<const Links> links) {
  const auto begin = reinterpret_cast<std::uintptr_t>(local.data());
  update([&](WindowTable& table) {
    const LocalRange range{begin, begin + local.size(), number};
    const auto by_begin = [](const LocalRange& a, const LocalRange& b) { return a.begin < b.begin; };
    table.ranges.insert(std::upper_bound(table.ranges.begin(), table.ranges.end(), range, by_begin), range);
    const auto by_number = [](int one, const exec::MappedWindow& other) { return one < other.number; };
    const auto place = std::upper_bound(table.windows.begin(), table.windows.end(), number, by_number);
    table.links.insert(table.links.begin() + (place - table.windows.begin()), std::move(links));
    table.windows.insert(place, {number, std::move(members)});
  });
}

void WindowRegistry::remove(int number) {
  update([&](WindowTable& table) {
    std::erase_if(table.ranges, [&](const LocalRange& range) { return range.window == number; });
    const auto is_it = [&](const exec::MappedWindow& window) { return window.number == number; };
    const auto place = std::find_if(table.windows.begin(), table.windows.end(), is_it);
    if (place == table.windows.end()) return;
    table.links.erase(table.links.begin() + (place - table.windows.begin()));
    table.windows.erase(place);
  });
}

}  // namespace accord::comm
