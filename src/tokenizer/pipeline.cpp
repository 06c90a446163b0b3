// Encoding a text takes these steps: find added tokens in the raw text; normalize the text between them; find added
// tokens in the normalized text; split the text between those into words; look up the tokens of each word in the
// cache or compute them with the model. Finally, truncate, add the frame of special tokens, and pad.

#include "tokenizer/pipeline.hpp"

#include <array>

#include "tokenizer/components.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

// Returns the file's value at `key`, or null if there is none.
JsonNode part(const JsonNode& root, std::string_view key) {
  static const JsonNode::Json null;
  return root.has(key) ? root.at(key) : JsonNode(null, "", std::string(key));
}

}  // namespace

Result<std::shared_ptr<const Pipeline>> Pipeline::make(TokenizerFile file, std::string_view name) {
  const JsonNode root(*file.tree, name, "");
  constexpr std::array<std::string_view, 9> kKeys = {"version",        "truncation", "padding",
                                                     "added_tokens",   "normalizer", "pre_tokenizer",
                                                     "post_processor", "decoder",    "model"};
  if (!root.json().is_object()) return root.error("expected an object");
  for (const auto& [key, value] : root.json().items()) {
    if (std::ranges::find(kKeys, key) == kKeys.end()) return root.error(unknown_name("key", key, kKeys).message());
  }
  if (root.has("version") && root.at("version").json() != "1.0") {
    return root.at("version").error_as(StatusCode::kUnsupported, "accord reads only version \"1.0\"");
  }
  const std::shared_ptr<Pipeline> pipeline(new Pipeline);
  ACCORD_ASSIGN_OR_RETURN(const JsonNode model, root.required("model"));
  ACCORD_ASSIGN_OR_RETURN(pipeline->model_, read_model(model, std::move(file.lists)));
  ACCORD_ASSIGN_OR_RETURN(pipeline->normalizers_, read_normalizers(part(root, "normalizer")));
  ACCORD_ASSIGN_OR_RETURN(pipeline->pre_tokenizers_, read_pre_tokenizers(part(root, "pre_tokenizer")));
  ACCORD_ASSIGN_OR_RETURN(pipeline->frames_, read_frames(part(root, "post_processor")));
  ACCORD_ASSIGN_OR_RETURN(pipeline->decoders_, read_decoders(part(root, "decoder")));
  ACCORD_ASSIGN_OR_RETURN(pipeline->truncation_, read_truncation(part(root, "truncation"), pipeline->frames_));
  ACCORD_ASSIGN_OR_RETURN(pipeline->padding_, read_padding(part(root, "padding")));
  static const auto no_tokens = JsonNode::Json::array();
  const JsonNode added = root.has("added_tokens") ? root.at("added_tokens") : JsonNode(no_tokens, "", "added_tokens");
  ACCORD_ASSIGN_OR_RETURN(pipeline->added_, AddedTokens::read(added, pipeline->vocabulary(), pipeline->normalizers_));
  return std::shared_ptr<const Pipeline>(pipeline);
}

Result<Encoding> Pipeline::encode(std::string_view first, std::optional<std::string_view> second,
                                  const EncodeOptions& options) const {
  std::vector<TokenId> ids[2];
  ACCORD_RETURN_IF_ERROR(add_tokens(first, ids[0]));
  if (second) ACCORD_RETURN_IF_ERROR(add_tokens(*second, ids[1]));
  const Frame& frame = second ? frames_.pair : frames_.single;
  const bool is_framed = options.special_tokens == SpecialTokens::kAdd;
  const bool is_prescribed = options.length == TextLength::kAsPrescribed;
  if (truncation_ && is_prescribed) {
    ACCORD_RETURN_IF_ERROR(
        truncate(*truncation_, is_framed ? count_special(frame) : 0, ids[0], second ? &ids[1] : nullptr));
  }
  Encoding encoding;
  for (const FramePiece& piece : frame) {
    const bool is_special = piece.kind == FramePiece::Kind::kSpecial;
    if (is_special && !is_framed) continue;
    const auto& list = is_special ? piece.ids : ids[piece.kind == FramePiece::Kind::kFirst ? 0 : 1];
    encoding.ids.insert(encoding.ids.end(), list.begin(), list.end());
    encoding.type_ids.resize(encoding.ids.size(), piece.type_id);
  }
  encoding.attention_mask.assign(encoding.ids.size(), 1);
  if (padding_ && is_prescribed) pad(*padding_, encoding);
  return encoding;
}

Status Pipeline::add_tokens(std::string_view text, std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!is_well_formed(text)) text = repaired = well_formed(text);
  ids.reserve(text.size() / 3);
  auto cache = acquire_cache();
  std::vector<Stretch> stretches;
  added_->of_input().find(text, stretches);
  Status status;
  for (const Stretch& stretch : stretches) {
    if (stretch.token != nullptr) {
      ids.push_back(stretch.token->id);
    } else if (status =
                   add_input(text.substr(stretch.begin, stretch.end - stretch.begin), stretch.begin == 0, *cache, ids);
               !status.ok()) {
      break;
    }
  }
  release_cache(std::move(cache));
  return status;
}

Status Pipeline::add_input(std::string_view text, bool begins_input, WordCache& cache,
                           std::vector<TokenId>& ids) const {
  NormalText normal{std::string(text), begins_input};
  for (const auto& normalizer : normalizers_) ACCORD_RETURN_IF_ERROR(normalizer->apply(normal));
  std::vector<Stretch> stretches;
  added_->of_normalized().find(normal.text, stretches);
  for (const Stretch& stretch : stretches) {
    if (stretch.token != nullptr) {
      ids.push_back(stretch.token->id);
      continue;
    }
    const auto between = std::string_view(normal.text).substr(stretch.begin, stretch.end - stretch.begin);
    ACCORD_RETURN_IF_ERROR(add_normalized(between, normal.begins_input && stretch.begin == 0, cache, ids));
  }
  return {};
}

Status Pipeline::add_normalized(std::string_view text, bool begins_input, WordCache& cache,
                                std::vector<TokenId>& ids) const {
  Words words{std::string(text), {{0, text.size(), begins_input}}};
  for (const auto& pre_tokenizer : pre_tokenizers_.list) ACCORD_RETURN_IF_ERROR(pre_tokenizer->apply(words));
  for (const Word& word : words.list) {
    ACCORD_RETURN_IF_ERROR(
        add_word(std::string_view(words.text).substr(word.begin, word.end - word.begin), cache, ids));
  }
  return {};
}

Status Pipeline::add_word(std::string_view word, WordCache& cache, std::vector<TokenId>& ids) const {
  const WordForm form = pre_tokenizers_.ends_in_bytes ? WordForm::kBytes : WordForm::kText;
  if (word.size() > WordCache::kMaxBytes) return model_->encode(word, form, ids);
  const WordCache::Key key(word);
  const auto cached = cache.find(key);
  if (!cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return {};
  }
  const std::size_t before = ids.size();
  ACCORD_RETURN_IF_ERROR(model_->encode(word, form, ids));
  cache.store(key, std::span(ids).subspan(before));
  return {};
}

Result<std::string> Pipeline::decode(std::span<const TokenId> ids, ShowSpecial special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const TokenId id : ids) {
    if (auto token = text_of(id, special)) tokens.push_back(*std::move(token));
  }
  for (const auto& decoder : decoders_.list) ACCORD_RETURN_IF_ERROR(decoder->apply(tokens));
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && decoders_.joins_by_space) text += ' ';
    text += tokens[i];
  }
  return text;
}

Result<std::optional<std::string>> Pipeline::bytes_of(TokenId id) const {
  std::optional<std::string> bytes = text_of(id, ShowSpecial::kSkip);
  if (!bytes) return bytes;
  Joined joined = Joined::kNo;
  for (const auto& decoder : decoders_.list) {
    ACCORD_ASSIGN_OR_RETURN(bytes, decoder->apply_inside(*std::move(bytes), joined));
    if (decoder->joins()) joined = Joined::kYes;
  }
  if (decoders_.joins_by_space) bytes->insert(bytes->begin(), ' ');
  return bytes;
}

std::optional<std::string> Pipeline::text_of(TokenId id, ShowSpecial special) const {
  std::optional<std::string> text;
  if (const AddedToken* added = added_->find(id)) {
    text = added_->decoded_text(*added);
  } else if (const auto token = vocabulary().token_of(id)) {
    text = *token;
  }
  if (text && special == ShowSpecial::kSkip && added_->is_special(*text)) return std::nullopt;
  return text;
}

std::unique_ptr<WordCache> Pipeline::acquire_cache() const {
  const std::lock_guard lock(caches_mutex_);
  if (caches_.empty()) return std::make_unique<WordCache>();
  auto cache = std::move(caches_.back());
  caches_.pop_back();
  return cache;
}

void Pipeline::release_cache(std::unique_ptr<WordCache> cache) const {
  const std::lock_guard lock(caches_mutex_);
  caches_.push_back(std::move(cache));
}

}  // namespace accord::tokenizer
