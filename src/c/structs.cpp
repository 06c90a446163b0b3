// As Linux reads the structs of its extensible system calls (copy_struct_from_user): a smaller struct is filled up with
// defaults, a larger one is taken if what this library does not know is zero.
#include "c/structs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace accord::c {

Status copy_struct(const void* from, void* to, std::size_t known, const StructRule& rule, std::string_view function) {
  const auto refuse = [&](std::string_view why) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", function, why));
  };
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size < rule.first_size || size > kLargestStruct)
    return refuse(
        fmt::format("{} has a struct_size of {}, expected {} as {} sets it", rule.name, size, known, rule.initializer));
  const auto* bytes = static_cast<const unsigned char*>(from);
  const auto* unknown =
      std::find_if(bytes + std::min(size, known), bytes + size, [](unsigned char b) { return b != 0; });
  if (unknown != bytes + size)
    return refuse(
        fmt::format("{} has a struct_size of {}, and byte {} is set, in a field that accord {} does not know: it "
                    "knows {} bytes",
                    rule.name, size, unknown - bytes, accord_version(), known));
  std::memcpy(to, from, std::min(size, known));
  return {};
}

}  // namespace accord::c
