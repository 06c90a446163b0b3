#pragma once
// Messages that arrived before their receive was called.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "exec/domain.hpp"

namespace accord::comm {

/// A message in memory of its own.
struct KeptMessage {
  exec::RequestRecord record;  ///< as its sender described it
  std::unique_ptr<std::byte[]> memory = {};
  std::uint64_t algorithm = 0;  ///< its number in the recorder
};

/// The kept messages of one pair of ranks and direction: by tag, in the order in which they arrived.
class KeptMessages {
 public:
  bool empty() const { return by_tag_.empty(); }
  bool has(Rank tag) const { return by_tag_.contains(tag); }
  std::size_t count(Rank tag) const {
    const auto found = by_tag_.find(tag);
    return found == by_tag_.end() ? 0 : found->second.size();
  }
  void keep(KeptMessage message) { by_tag_[message.record.root].push_back(std::move(message)); }
  /// Removes and returns the first message of that tag.
  std::optional<KeptMessage> take(Rank tag) {
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end()) return std::nullopt;
    KeptMessage message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) by_tag_.erase(found);
    return message;
  }
  /// "3, 7, 12, ...": the lowest tags of kept messages.
  std::string tags_text() const {
    constexpr std::size_t kMaxShown = 8;
    std::string text;
    std::size_t shown = 0;
    for (const auto& [tag, messages] : by_tag_) {
      if (++shown > kMaxShown) return text + ", ...";
      text += fmt::format("{}{}", text.empty() ? "" : ", ", tag);
    }
    return text;
  }

 private:
  std::map<Rank, std::deque<KeptMessage>> by_tag_;
};

}  // namespace accord::comm
