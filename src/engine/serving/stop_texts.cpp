#include "engine/serving/stop_texts.hpp"

#include <algorithm>
#include <utility>

namespace accord::engine {
namespace {

// Returns the number of bytes at the end of `text` that may be the beginning of `stop`.
std::size_t partial_match_bytes(std::string_view text, std::string_view stop) {
  std::size_t length = std::min(text.size(), stop.size() - 1);
  while (!text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

std::string StopTexts::push(std::string_view piece) {
  held_ += piece;
  std::size_t first = std::string::npos;
  std::size_t partial = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    partial = std::max(partial, partial_match_bytes(held_, stop));
  }
  found_ = first != std::string::npos;
  const std::size_t safe = found_ ? first : held_.size() - partial;
  std::string text = held_.substr(0, safe);
  held_ = found_ ? "" : held_.substr(safe);
  return text;
}

std::string StopTexts::finish() { return std::exchange(held_, {}); }

}  // namespace accord::engine
