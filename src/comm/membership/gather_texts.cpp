// Each text ends with a zero; each rank has a part of equal size.
#include "comm/membership/gather_texts.hpp"

#include <fmt/format.h>

#include "comm/membership/exchange.hpp"

namespace accord::comm {

Result<std::vector<std::string>> gather_texts(Group& group, const std::string& mine, Duration timeout) {
  constexpr std::size_t kBytes = kMaxText + 1;
  std::string text = mine;
  text.resize(kBytes);  // pads with zeros
  text.back() = '\0';
  std::vector<char> all(kBytes * static_cast<std::size_t>(group.size()));
  ACCORD_RETURN_IF_ERROR(group.run(
      Call::all_gather(ConstBuffer(text.data(), kBytes, DType::kUInt8), Buffer{all.data(), all.size(), DType::kUInt8}),
      {.timeout = timeout}));
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += kBytes) texts.emplace_back(&all[at]);
  return texts;
}

Status all_ok(Group& group, const Status& mine, Deadline deadline) {
  const std::string text = mine.ok() ? "" : mine.message().substr(0, kMaxText);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group, text, deadline.remaining()));
  ACCORD_RETURN_IF_ERROR(mine);
  for (Rank rank = 0; rank < group.size(); ++rank) {
    const std::string& error = texts[static_cast<std::size_t>(rank)];
    if (!error.empty()) return Status(StatusCode::kUnsupported, fmt::format("rank {}: {}", rank, error), {rank});
  }
  return {};
}

}  // namespace accord::comm
