// An ok Status holds nothing, so success costs one null pointer. The copies of a failure share one immutable Detail.
// with_context() creates a new Detail, since failures are rare and seldom copied.
#include "accord/status.hpp"

#include <utility>

namespace accord {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kMismatch: return "mismatch";
    case StatusCode::kPeerLost: return "peer_lost";
    case StatusCode::kTimeout: return "timeout";
    case StatusCode::kAborted: return "aborted";
    case StatusCode::kClosed: return "closed";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kIo: return "io";
    case StatusCode::kResourceExhausted: return "resource_exhausted";
    case StatusCode::kWrongState: return "wrong_state";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message, std::vector<Rank> ranks) {
  if (code == StatusCode::kOk) return;
  detail_ = std::make_shared<const Detail>(Detail{code, std::move(message), std::move(ranks)});
}

const std::string& Status::message() const {
  static const std::string none;
  return ok() ? none : detail_->message;
}

const std::vector<Rank>& Status::ranks() const {
  static const std::vector<Rank> none;
  return ok() ? none : detail_->ranks;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(accord::to_string(detail_->code)) + ": " + detail_->message;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(detail_->code, std::string(context) + ": " + detail_->message, detail_->ranks);
}

}  // namespace accord
