// A token's text depends on its neighbours: a character may lie in several tokens, the first token of a text loses its space. So the
// tokens of the last text that was given are decoded again with those that came since; what is new at the end is given, unless it
// ends in U+FFFD, which may stand for a character that is not whole yet. As in DecodeStream of the tokenizers library, which fails
// where bytes that are no character change what was given before; here they are taken by themselves.

#include "accord/tokenizer.hpp"
#include "tokenizer/pipeline.hpp"
#include "tokenizer/utf8.hpp"

namespace accord {
namespace {

// A character has at most four bytes and so lies in at most four tokens; tokens that are still no text then will not become one.
constexpr std::size_t kMostWaiting = 8;

}  // namespace

Result<std::string> StreamingDecoder::new_text() const {
  ACCORD_ASSIGN_OR_RETURN(std::string text, pipeline_->decode(window_, special_));
  if (text.starts_with(given_text_)) return text.substr(given_text_.size());
  return pipeline_->decode(std::span(window_).subspan(given_), special_);
}

Result<std::string> StreamingDecoder::push(TokenId id) {
  if (pipeline_->is_skipped(id, special_)) return std::string();
  window_.push_back(id);
  ACCORD_ASSIGN_OR_RETURN(std::string text, new_text());
  const bool may_change = text.empty() || text.ends_with(tokenizer::kReplacement);
  if (may_change && window_.size() - given_ <= kMostWaiting) return std::string();
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(given_));
  given_ = window_.size();
  ACCORD_ASSIGN_OR_RETURN(given_text_, pipeline_->decode(window_, special_));
  return text;
}

Result<std::string> StreamingDecoder::finish() {
  ACCORD_ASSIGN_OR_RETURN(std::string rest, new_text());
  window_.clear();
  given_ = 0;
  given_text_.clear();
  return rest;
}

}  // namespace accord
