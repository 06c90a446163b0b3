// Words with a space between them. A round: number, uuid, ids, number of members, their ids and handles, the others.
#include "elastic/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/text.hpp"

namespace accord::elastic {
namespace {

constexpr std::string_view kLeft = "left";
constexpr std::string_view kWaiting = "waiting";

Status damaged(std::string_view where, std::string_view text) {
  return Status(StatusCode::kCorrupt, fmt::format("{} is {}", where, quoted_text(text)));
}

}  // namespace

std::string to_text(const MemberRecord& record) {
  if (record.has_left) return std::string(kLeft);
  return fmt::format("{} {} {} {}", kWaiting, record.after, record.handle, record.life);
}

Result<MemberRecord> parse_member(std::string_view text, std::string_view where) {
  if (text == kLeft) return MemberRecord{.has_left = true, .handle = {}, .life = {}};
  const std::vector<std::string_view> words = split_text(text, ' ');
  if (words.size() != 4 || words[0] != kWaiting) return damaged(where, text);
  const Result<std::int64_t> after = parse_integer(words[1], where);
  if (!after.ok() || *after < 0) return damaged(where, text);
  return MemberRecord{.after = *after, .handle = std::string(words[2]), .life = std::string(words[3])};
}

std::string to_text(const Round& round) {
  std::string text = fmt::format("{} {} {} {}", round.number, round.uuid, round.ids, round.members.size());
  for (std::size_t i = 0; i < round.members.size(); ++i)
    text += fmt::format(" {} {}", round.members[i], round.handles[i]);
  for (const std::int64_t other : round.others) text += fmt::format(" {}", other);
  return text;
}

Result<Round> parse_round(std::string_view text, std::string_view where) {
  constexpr std::size_t kHeader = 4;
  const std::vector<std::string_view> words = split_text(text, ' ');
  bool is_whole = words.size() >= kHeader;
  const auto number = [&](std::size_t word, std::int64_t least) {
    const Result<std::int64_t> value = parse_integer(words[word], where);
    is_whole = is_whole && value.ok() && *value >= least;
    return is_whole ? *value : 0;
  };
  Round round;
  if (is_whole) {
    round.number = number(0, 1);
    round.uuid = words[1];
    round.ids = number(2, 1);
    const std::size_t members = static_cast<std::size_t>(number(3, 1));
    is_whole = is_whole && members <= (words.size() - kHeader) / 2;
    const std::size_t end = is_whole ? kHeader + 2 * members : words.size();
    for (std::size_t i = kHeader; is_whole && i < end; i += 2) {
      round.members.push_back(number(i, 1));
      round.handles.emplace_back(words[i + 1]);
    }
    for (std::size_t i = end; is_whole && i < words.size(); ++i) round.others.push_back(number(i, 1));
  }
  if (!is_whole) return damaged(where, text);
  return round;
}

}  // namespace accord::elastic
