// Windows for C callers. Allocated pieces are identified by their addresses and stored with the handle.
#include "accord/window.hpp"

#include <fmt/format.h>

#include <span>

#include "accord/accord.h"
#include "c/answer.hpp"
#include "c/handles.hpp"
#include "c/times.hpp"

using accord::DType;
using accord::Status;
using accord::StatusCode;
using accord::Window;
using accord::c::answer;

namespace {

void set_memory(std::span<std::byte> memory, std::size_t held, void** address, std::size_t* bytes) {
  if (address != nullptr) *address = memory.empty() ? nullptr : memory.data();
  if (bytes != nullptr) *bytes = held;
}

}  // namespace

extern "C" accord_status_t accord_window_create(accord_communicator_t* communicator, size_t bytes, int64_t timeout_ns,
                                                accord_window_t** window) {
  if (window != nullptr) *window = nullptr;
  return answer(__func__, {{"communicator", communicator}, {"window", window}},
                [&](std::string_view function) -> Status {
                  accord::CallOptions options;
                  ACCORD_ASSIGN_OR_RETURN(options.timeout, accord::c::timeout_of(timeout_ns, function));
                  ACCORD_ASSIGN_OR_RETURN(Window made, communicator->communicator.window(bytes, options));
                  *window = new accord_window{std::move(made)};
                  return {};
                });
}

extern "C" accord_status_t accord_window_local(accord_window_t* window, void** memory, size_t* bytes) {
  return answer(__func__, {{"window", window}}, [&](std::string_view) -> Status {
    set_memory(window->window.local(), window->window.local().size(), memory, bytes);
    return {};
  });
}

extern "C" accord_status_t accord_window_peer(accord_window_t* window, int32_t rank, void** memory, size_t* bytes) {
  return answer(__func__, {{"window", window}}, [&](std::string_view function) -> Status {
    if (rank < 0 || rank >= window->window.size())
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: rank {} is not a rank of the group, which has ranks 0 to {}", function, rank,
                                window->window.size() - 1));
    set_memory(window->window.peer(rank), window->window.bytes(rank), memory, bytes);
    return {};
  });
}

extern "C" accord_status_t accord_window_put(accord_window_t* window, const void* source, size_t bytes, int32_t to,
                                             size_t offset) {
  return answer(__func__, {{"window", window}}, [&](std::string_view) {
    return window->window.put({source, bytes, DType::kUInt8}, to, offset);
  });
}

extern "C" accord_status_t accord_window_get(accord_window_t* window, void* destination, size_t bytes, int32_t from,
                                             size_t offset) {
  return answer(__func__, {{"window", window}}, [&](std::string_view) {
    return window->window.get({destination, bytes, DType::kUInt8, {}}, from, offset);
  });
}

extern "C" accord_status_t accord_window_signal(accord_window_t* window, int32_t to) {
  return answer(__func__, {{"window", window}}, [&](std::string_view) { return window->window.signal(to); });
}

extern "C" accord_status_t accord_window_wait(accord_window_t* window, int32_t from, int64_t timeout_ns) {
  return answer(__func__, {{"window", window}}, [&](std::string_view function) -> Status {
    accord::CallOptions options;
    ACCORD_ASSIGN_OR_RETURN(options.timeout, accord::c::timeout_of(timeout_ns, function));
    return window->window.wait(from, options);
  });
}

extern "C" accord_status_t accord_window_allocate(accord_window_t* window, size_t bytes, size_t alignment,
                                                  void** memory) {
  if (memory != nullptr) *memory = nullptr;
  return answer(__func__, {{"window", window}, {"memory", memory}}, [&](std::string_view) -> Status {
    ACCORD_ASSIGN_OR_RETURN(accord::WindowBlock block, window->window.allocate(bytes, alignment == 0 ? 64 : alignment));
    void* const address = block.bytes().data();
    const std::lock_guard lock(window->mutex);
    window->blocks.emplace(address, std::move(block));
    *memory = address;
    return {};
  });
}

extern "C" accord_status_t accord_window_release(accord_window_t* window, void* memory) {
  return answer(__func__, {{"window", window}, {"memory", memory}}, [&](std::string_view function) -> Status {
    const std::lock_guard lock(window->mutex);
    if (window->blocks.erase(memory) == 1) return {};
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: memory is not an allocated piece of this window", function));
  });
}

extern "C" void accord_window_free(accord_window_t* window) { delete window; }
