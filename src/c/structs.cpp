// Structs are handled as Linux does for its extensible system calls (copy_struct_from_user): a smaller struct is
// completed with defaults, and a larger one is accepted if the part that this library does not know is zero.
#include "c/structs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "c/answer.hpp"

namespace accord::c {
namespace {

/// Reads the struct_size that every struct begins with.
Result<std::size_t> size_of_struct(const void* given, std::size_t known, const StructRule& rule,
                                   std::string_view function) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size >= rule.first_size && size <= kMaxStructBytes) return size;
  return invalid_argument(function, fmt::format("{} has a struct_size of {}, expected {} as {} sets it", rule.name,
                                                size, known, rule.initializer));
}

}  // namespace

Status check_struct(const void* given, std::size_t known, const StructRule& rule, std::string_view function) {
  return size_of_struct(given, known, rule, function).status();
}

Status check_reserved(std::int32_t reserved, const StructRule& rule, std::string_view function) {
  if (reserved == 0) return {};
  return invalid_argument(
      function, fmt::format("reserved is {}, expected 0: initialize the struct with {}", reserved, rule.initializer));
}

Status copy_struct(const void* from, void* to, std::size_t known, const StructRule& rule, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const std::size_t size, size_of_struct(from, known, rule, function));
  const auto* bytes = static_cast<const unsigned char*>(from);
  const auto* unknown =
      std::find_if(bytes + std::min(size, known), bytes + size, [](unsigned char b) { return b != 0; });
  if (unknown != bytes + size)
    return invalid_argument(
        function,
        fmt::format("{} has a struct_size of {}, and byte {} is set, in a field that accord {} does not know: it "
                    "knows {} bytes",
                    rule.name, size, unknown - bytes, accord_version(), known));
  std::memcpy(to, from, std::min(size, known));
  return {};
}

Status fill_struct(const void* from, void* to, std::size_t known, const StructRule& rule, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const std::size_t size, size_of_struct(to, known, rule, function));
  auto* bytes = static_cast<unsigned char*>(to);
  std::memset(bytes + sizeof(size), 0, size - sizeof(size));
  std::memcpy(bytes + sizeof(size), static_cast<const unsigned char*>(from) + sizeof(size),
              std::min(size, known) - sizeof(size));
  return {};
}

}  // namespace accord::c
