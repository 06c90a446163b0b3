// A token's text depends on its neighbors: a character may be spread over several tokens, and the first token of a
// text loses its space. So the tokens whose text was returned last are decoded again together with the new ones. The
// new text at the end is returned, unless it ends in U+FFFD, which may stand for an incomplete character.
// DecodeStream of the tokenizers library does the same, but fails if invalid bytes change text that it has already
// returned; here the new tokens are then decoded separately.

#include "accord/tokenizer.hpp"
#include "tokenizer/pipeline.hpp"
#include "tokenizer/utf8.hpp"

namespace accord {
namespace {

// A character has at most four bytes and so spans at most four tokens. If this many tokens are not yet text, they
// never will be.
constexpr std::size_t kMaxPending = 8;

}  // namespace

Result<std::string> StreamingDecoder::new_text() const {
  ACCORD_ASSIGN_OR_RETURN(std::string text, pipeline_->decode(window_, special_));
  if (text.starts_with(returned_text_)) return text.substr(returned_text_.size());
  return pipeline_->decode(std::span(window_).subspan(returned_), special_);
}

Result<std::string> StreamingDecoder::push(TokenId id) {
  if (pipeline_->is_skipped(id, special_)) return std::string();
  window_.push_back(id);
  ACCORD_ASSIGN_OR_RETURN(std::string text, new_text());
  const bool may_change = text.empty() || text.ends_with(tokenizer::kReplacement);
  if (may_change && window_.size() - returned_ <= kMaxPending) return std::string();
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(returned_));
  returned_ = window_.size();
  ACCORD_ASSIGN_OR_RETURN(returned_text_, pipeline_->decode(window_, special_));
  return text;
}

Result<std::string> StreamingDecoder::finish() {
  ACCORD_ASSIGN_OR_RETURN(std::string rest, new_text());
  window_.clear();
  returned_ = 0;
  returned_text_.clear();
  return rest;
}

}  // namespace accord
