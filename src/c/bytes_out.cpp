// The caller gets the length from a first call and passes memory in a second one.
#include "c/bytes_out.hpp"

#include <fmt/format.h>

#include <cstring>

namespace accord::c {

Status write_out(std::string_view bytes, void* buffer, std::size_t size, std::size_t* needed,
                 std::string_view function) {
  if (buffer == nullptr && size > 0)
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: buffer is null, but size is {}", function, size));
  if (needed != nullptr) *needed = bytes.size();
  if (buffer == nullptr) return {};
  if (size < bytes.size())
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("{}: the buffer has {} bytes, {} are needed", function, size, bytes.size()));
  if (!bytes.empty()) std::memcpy(buffer, bytes.data(), bytes.size());
  return {};
}

}  // namespace accord::c
