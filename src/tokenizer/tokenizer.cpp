#include "accord/tokenizer.hpp"

#include "base/fd.hpp"
#include "tokenizer/pipeline.hpp"

namespace accord {
namespace {

constexpr std::size_t kMaxTokenizerBytes = std::size_t{1} << 28;

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxTokenizerBytes));
  return parse(text, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(tokenizer::TokenizerFile file, tokenizer::TokenizerFile::parse(json, name));
  ACCORD_ASSIGN_OR_RETURN(auto pipeline, tokenizer::Pipeline::make(std::move(file), name));
  return Tokenizer(std::move(pipeline));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  ACCORD_ASSIGN_OR_RETURN(Encoding encoding, pipeline_->encode(text, std::nullopt, options));
  return std::move(encoding.ids);
}

Result<Encoding> Tokenizer::encode_with_mask(std::string_view text, const EncodeOptions& options) const {
  return pipeline_->encode(text, std::nullopt, options);
}

Result<Encoding> Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                        const EncodeOptions& options) const {
  return pipeline_->encode(first, second, options);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, ShowSpecial special) const {
  return pipeline_->decode(ids, special);
}

Result<std::optional<std::string>> Tokenizer::bytes_of(TokenId id) const { return pipeline_->bytes_of(id); }

StreamingDecoder Tokenizer::streaming_decoder(ShowSpecial special) const {
  return StreamingDecoder(pipeline_, special);
}

std::size_t Tokenizer::vocabulary_size() const {
  return pipeline_->vocabulary().size() + pipeline_->added_tokens().count_beyond(pipeline_->vocabulary());
}

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  if (const auto* added = pipeline_->added_tokens().find(token)) return added->id;
  return pipeline_->vocabulary().id_of(token);
}

std::optional<std::string> Tokenizer::token_of(TokenId id) const {
  if (const auto* added = pipeline_->added_tokens().find(id)) return added->content;
  const auto token = pipeline_->vocabulary().token_of(id);
  return token ? std::optional(std::string(*token)) : std::nullopt;
}

}  // namespace accord
