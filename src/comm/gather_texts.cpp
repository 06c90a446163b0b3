// Each text ends with a zero, in a part of equal size for each rank.
#include "comm/gather_texts.hpp"

#include "comm/exchange.hpp"

namespace accord::comm {

Result<std::vector<std::string>> gather_texts(Group& group, const std::string& mine, Duration timeout) {
  constexpr std::size_t kBytes = kMostText + 1;
  std::string text = mine;
  text.resize(kBytes);  // with zeros behind it
  text.back() = '\0';
  std::vector<char> all(kBytes * static_cast<std::size_t>(group.size()));
  ACCORD_RETURN_IF_ERROR(group.run(
      Call::all_gather(ConstBuffer(text.data(), kBytes, DType::kUInt8), Buffer{all.data(), all.size(), DType::kUInt8}),
      {.timeout = timeout}));
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += kBytes) texts.emplace_back(&all[at]);
  return texts;
}

}  // namespace accord::comm
