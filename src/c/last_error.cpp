// The last failure is in thread-local storage, so that a caller can read it after the call without a lock and without
// owning it. It is stored as a Status, which shares its text: storing it allocates nothing, so it works even when
// memory has run out.
#include <fmt/format.h>

#include <cstdint>
#include <type_traits>

#include "c/answer.hpp"

namespace accord::c {
namespace {

thread_local Status last_error;
const Status kOutOfMemory(StatusCode::kResourceExhausted, "out of memory");

static_assert(std::is_same_v<Rank, std::int32_t>, "accord_last_error_ranks returns ranks without converting them");

}  // namespace

accord_status_t record_status(const Status& status) noexcept {
  if (!status.ok()) last_error = status;
  return static_cast<accord_status_t>(status.code());
}

accord_status_t record_out_of_memory() noexcept { return record_status(kOutOfMemory); }

Status null_argument(std::string_view function, std::string_view name) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} is null", function, name));
}

Status invalid_argument(std::string_view function, std::string_view why) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", function, why));
}

}  // namespace accord::c

extern "C" const char* accord_last_error(void) { return accord::c::last_error.message().c_str(); }

extern "C" const int32_t* accord_last_error_ranks(size_t* count) {
  if (count != nullptr) *count = accord::c::last_error.ranks().size();
  return accord::c::last_error.ranks().data();
}
