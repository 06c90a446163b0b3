// The public interface of a SharedWindow.
#include "accord/window.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "base/text.hpp"
#include "comm/group.hpp"
#include "comm/window/shared_window.hpp"
#include "exec/window_layout.hpp"

namespace accord {

WindowBlock::WindowBlock(std::shared_ptr<comm::WindowBlockState> state) : state_(std::move(state)) {}

std::span<std::byte> WindowBlock::bytes() const {
  const comm::SharedWindow& window = *state_->window;
  return window.memory(window.group().rank()).subspan(state_->offset, state_->bytes);
}
std::size_t WindowBlock::offset() const { return state_->offset; }

Window::Window(std::shared_ptr<comm::SharedWindow> window) : window_(std::move(window)) {}

Rank Window::rank() const { return window_->group().rank(); }
int Window::size() const { return window_->group().size(); }
int Window::number() const { return window_->number(); }
std::size_t Window::bytes(Rank rank) const { return window_->bytes(rank); }
std::span<std::byte> Window::local() const { return window_->memory(rank()); }
std::span<std::byte> Window::peer(Rank rank) const { return window_->memory(rank); }

Status Window::put(ConstBuffer source, Rank to, std::size_t offset) { return window_->put(source, to, offset); }
Status Window::get(Buffer destination, Rank from, std::size_t offset) {
  return window_->get(destination, from, offset);
}
Status Window::signal(Rank to) { return window_->signal(to); }
Status Window::wait(Rank from, const CallOptions& options) {
  return window_->wait(from, options.timeout.value_or(timeout()));
}
Duration Window::timeout() const { return window_->group().options().timeout; }

Result<WindowBlock> Window::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > exec::kPage)
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: alignment {} is not a power of two of at most {}",
                                                            window_->where("allocate"), alignment, exec::kPage));
  memory::BlockAllocator& allocator = window_->allocator();
  if (const std::optional<std::size_t> offset = allocator.allocate(bytes, alignment))
    return WindowBlock(std::make_shared<comm::WindowBlockState>(window_, *offset, bytes));
  return Status(StatusCode::kResourceExhausted,
                fmt::format("{}: no room for {} at alignment {}; of {}, {} are free, at most {} in one piece",
                            window_->where("allocate"), bytes_text(bytes), alignment, bytes_text(this->bytes(rank())),
                            bytes_text(allocator.free_bytes()), bytes_text(allocator.largest_free())));
}

}  // namespace accord
