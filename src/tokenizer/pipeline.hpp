#pragma once
// A tokenizer with all its components, and the steps of encoding and decoding.

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/tokenizer.hpp"
#include "tokenizer/added_tokens.hpp"
#include "tokenizer/decoder.hpp"
#include "tokenizer/model.hpp"
#include "tokenizer/normalizer.hpp"
#include "tokenizer/post_processor.hpp"
#include "tokenizer/pre_tokenizer.hpp"
#include "tokenizer/word_cache.hpp"

namespace accord::tokenizer {

/// Immutable except for the word caches. Each call uses one cache exclusively.
class Pipeline {
 public:
  /// `name`: the name of the file, for errors.
  static Result<std::shared_ptr<const Pipeline>> make(TokenizerFile file, std::string_view name);

  /// `second`: the second text of a pair, or nullopt.
  Result<Encoding> encode(std::string_view first, std::optional<std::string_view> second,
                          const EncodeOptions& options) const;
  Result<std::string> decode(std::span<const TokenId> ids, ShowSpecial special) const;
  /// See Tokenizer::bytes_of().
  Result<std::optional<std::string>> bytes_of(TokenId id) const;
  /// True if decode() skips `id`.
  bool is_skipped(TokenId id, ShowSpecial special) const { return !text_of(id, special).has_value(); }

  const Vocabulary& vocabulary() const { return model_->vocabulary(); }
  const AddedTokens& added_tokens() const { return *added_; }

 private:
  Pipeline() = default;
  Status add_tokens(std::string_view text, std::vector<TokenId>& ids) const;
  Status add_input(std::string_view text, bool begins_input, WordCache& cache, std::vector<TokenId>& ids) const;
  Status add_normalized(std::string_view text, bool begins_input, WordCache& cache, std::vector<TokenId>& ids) const;
  Status add_word(std::string_view word, WordCache& cache, std::vector<TokenId>& ids) const;
  std::optional<std::string> text_of(TokenId id, ShowSpecial special) const;
  std::unique_ptr<WordCache> acquire_cache() const;
  void release_cache(std::unique_ptr<WordCache> cache) const;

  std::vector<std::unique_ptr<Normalizer>> normalizers_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<Model> model_;
  std::optional<AddedTokens> added_;
  Frames frames_;
  Decoders decoders_;
  std::optional<Truncation> truncation_;
  std::optional<Padding> padding_;
  mutable std::mutex caches_mutex_;
  mutable std::vector<std::unique_ptr<WordCache>> caches_;  // caches that no call is using
};

}  // namespace accord::tokenizer
