#pragma once
// The return types of calls that can fail: a Status, or a Result that holds a value or a Status.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accord {

/// A member of a group, counted from 0.
using Rank = int;

/// Why a call failed. `bindings/` has one Python exception class for each code.
enum class StatusCode : std::uint8_t {
  kOk,
  kInvalidArgument,    ///< the caller passed something without meaning
  kUnsupported,        ///< meaningful, but this build, machine or version cannot do it
  kNotFound,           ///< a key, file, name or device does not exist
  kMismatch,           ///< ranks disagree about a call, a package or a plan
  kPeerLost,           ///< a rank died or closed its communicator
  kTimeout,            ///< a rank did not arrive in time
  kAborted,            ///< abort() was called
  kClosed,             ///< used after close()
  kCorrupt,            ///< data is damaged or malformed
  kIo,                 ///< the operating system refused
  kResourceExhausted,  ///< out of memory, descriptors or space
  kWrongState,         ///< the object's state does not allow the call
  kInternal,           ///< a defect of accord
};

/// Returns the code's name in snake_case, e.g. "peer_lost".
std::string_view to_string(StatusCode code);

/// Success, or a failure: a code, a message for the person who reads it, and the ranks at fault. Cheap to copy.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::vector<Rank> ranks = {});

  bool ok() const { return detail_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : detail_->code; }
  /// Empty when ok.
  const std::string& message() const;
  /// The ranks at fault, as ranks of the communicator whose call failed; empty if none is known.
  const std::vector<Rank>& ranks() const;
  /// "ok", or "peer_lost: all_reduce on group ...".
  std::string to_string() const;
  /// The same failure with `context` and ": " before its message.
  Status with_context(std::string_view context) const;

 private:
  struct Detail {
    StatusCode code;
    std::string message;
    std::vector<Rank> ranks;
  };
  std::shared_ptr<const Detail> detail_;
};

/// A T, or the Status that says why there is none. Never holds an ok Status.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    if (std::get<1>(state_).ok()) state_ = Status(StatusCode::kInternal, "a Result was made of an ok Status");
  }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  /// REQUIRES: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace accord

#define ACCORD_CONCAT_INNER(a, b) a##b
#define ACCORD_CONCAT(a, b) ACCORD_CONCAT_INNER(a, b)

/// Returns from the enclosing function if `expression` (a Status) is not ok.
#define ACCORD_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::accord::Status accord_status = (expression); \
    if (!accord_status.ok()) return accord_status; \
  } while (false)

/// `ACCORD_ASSIGN_OR_RETURN(auto value, some_result());`
#define ACCORD_ASSIGN_OR_RETURN(declaration, expression) \
  ACCORD_ASSIGN_OR_RETURN_INNER(ACCORD_CONCAT(accord_result_, __LINE__), declaration, expression)
#define ACCORD_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                          \
  if (!result.ok()) return result.status();                            \
  declaration = std::move(result).value()
