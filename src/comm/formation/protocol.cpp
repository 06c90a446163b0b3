#include "comm/formation/protocol.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace accord::comm {
namespace {

using Json = nlohmann::json;

constexpr int kLastCode = static_cast<int>(StatusCode::kInternal);

Status corrupt(Rank from) {
  return Status(StatusCode::kCorrupt, fmt::format("rank {} sent a message that has no meaning", from), {from});
}

}  // namespace

std::string encode(const FormationMessage& message) {
  const Json object = {{"kind", static_cast<int>(message.kind)},
                       {"step", message.step},
                       {"texts", message.texts},
                       {"patience", message.patience},
                       {"code", static_cast<int>(message.failure.code())},
                       {"reason", message.failure.message()},
                       {"ranks", message.failure.ranks()}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<FormationMessage> decode_message(std::string_view bytes) {
  const Json object = Json::parse(bytes, nullptr, false);
  try {
    FormationMessage message;
    const int kind = object.at("kind").get<int>();
    const int code = object.at("code").get<int>();
    object.at("texts").get_to(message.texts);
    const bool has_failed = kind == static_cast<int>(FormationMessage::Kind::kFailed);
    const bool is_whole = object.at("patience").is_number_unsigned() && object.at("step").is_number_unsigned();
    if (is_whole && kind >= 0 && kind <= static_cast<int>(FormationMessage::Kind::kFailed) && code >= 0 &&
        code <= kLastCode && (code != 0) == has_failed) {
      message.kind = static_cast<FormationMessage::Kind>(kind);
      message.step = object.at("step").get<std::uint64_t>();
      message.patience = object.at("patience").get<std::int64_t>();
      if (has_failed)
        message.failure = Status(static_cast<StatusCode>(code), object.at("reason").get<std::string>(),
                                 object.at("ranks").get<std::vector<Rank>>());
      return message;
    }
  } catch (const Json::exception&) {  // falls through: not an object, or a field is missing or of another type
  }
  return Status(StatusCode::kCorrupt, "not a message of a formation");
}

FormationProtocol::FormationProtocol(Rank rank, int size) : rank_(rank), size_(size) {}

std::vector<Rank> FormationProtocol::others() const {
  if (rank_ != 0) return {0};
  std::vector<Rank> ranks;
  for (Rank r = 1; r < size_; ++r) ranks.push_back(r);
  return ranks;
}

void FormationProtocol::begin(std::string text) {
  ++step_;
  texts_.reset();
  if (!loss_.ok()) return fail(loss_);
  if (rank_ == 0) {
    on_message(0, {.kind = FormationMessage::Kind::kText, .step = step_, .texts = {std::move(text)}});
  } else {
    outgoing_.push_back({{0}, {.kind = FormationMessage::Kind::kText, .step = step_, .texts = {std::move(text)}}});
  }
}

void FormationProtocol::on_message(Rank from, FormationMessage message) {
  if (!failure_.ok() || is_finished_) return;
  if (message.kind == FormationMessage::Kind::kFailed) return fail(std::move(message.failure));
  if (rank_ != 0) {
    const bool is_right = message.kind == FormationMessage::Kind::kTexts && message.step == step_ && !texts_ &&
                          message.texts.size() == static_cast<std::size_t>(size_);
    if (!is_right) return fail(corrupt(from));
    texts_ = std::move(message.texts);
    return;
  }
  // A rank is ahead once it has the texts of the last step, which rank 0 sent when it had them itself.
  const bool is_due = message.step == step_ || (message.step == step_ + 1 && (texts_ || step_ == 0));
  if (message.kind != FormationMessage::Kind::kText || message.texts.size() != 1 || !is_due) return fail(corrupt(from));
  std::vector<std::optional<std::string>>& arrived = arrived_[message.step];
  arrived.resize(static_cast<std::size_t>(size_));
  if (arrived[from]) return fail(corrupt(from));
  arrived[from] = std::move(message.texts[0]);
  collect();
}

void FormationProtocol::collect() {
  if (step_ == 0 || texts_ || !missing().empty()) return;
  texts_.emplace();
  for (std::optional<std::string>& text : arrived_[step_]) texts_->push_back(*std::move(text));
  arrived_.erase(step_);
  if (size_ > 1)
    outgoing_.push_back({others(), {.kind = FormationMessage::Kind::kTexts, .step = step_, .texts = *texts_}});
}

void FormationProtocol::on_lost(Rank peer, const Status& why) {
  if (rank_ != 0 && peer != 0) return;
  if (texts_) {
    loss_ = why;
  } else {
    fail(why);
  }
}

void FormationProtocol::fail(Status why, std::optional<Status> told) {
  if (!failure_.ok() || is_finished_) return;
  failure_ = std::move(why);
  told_failure_ = told ? *std::move(told) : failure_;
  outgoing_.push_back({others(), {.kind = FormationMessage::Kind::kFailed, .step = step_, .failure = told_failure_}});
}

std::vector<FormationProtocol::Outgoing> FormationProtocol::take_outgoing() { return std::exchange(outgoing_, {}); }

std::vector<Rank> FormationProtocol::missing() const {
  std::vector<Rank> ranks;
  const auto found = arrived_.find(step_);
  for (Rank r = 0; r < size_; ++r)
    if (found == arrived_.end() || !found->second[static_cast<std::size_t>(r)]) ranks.push_back(r);
  return ranks;
}

}  // namespace accord::comm
