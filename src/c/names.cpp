// The names of accord.h's numbers. Every name is a literal, so it is null-terminated.
#include "c/numbers.hpp"

namespace c = accord::c;

extern "C" const char* accord_status_name(accord_status_t status) {
  const auto code = c::find_value(c::kStatusCodes, status);
  return code ? accord::to_string(*code).data() : "unknown";
}

extern "C" const char* accord_dtype_name(accord_dtype_t dtype) {
  const auto value = c::find_value(c::kDTypes, dtype);
  return value ? accord::to_string(*value).data() : "unknown";
}

extern "C" size_t accord_dtype_size(accord_dtype_t dtype) {
  const auto value = c::find_value(c::kDTypes, dtype);
  return value ? accord::size_of(*value) : 0;
}
