#include "tokenizer/tokenizer_file.hpp"

#include "tokenizer/vocabulary.hpp"

namespace accord::tokenizer {
namespace {

using Json = JsonNode::Json;

// Implements nlohmann's SAX interface: each function returns false to stop; `error` then holds the reason.
class Reader : public nlohmann::json_sax<Json> {
 public:
  TokenizerFile file;
  std::string error;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override {
    return place_ == Place::kScore ? add_score(static_cast<double>(value)) : add(value);
  }
  bool number_float(number_float_t value, const string_t&) override {
    return place_ == Place::kScore ? add_score(value) : add(value);
  }
  bool binary(binary_t& value) override { return add(Json::binary(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kScore) return add_score(static_cast<double>(value));
    if (place_ != Place::kVocab || value > kMaxTokenId) return add(value);
    file.lists.vocab->emplace_back(std::move(key_), static_cast<TokenId>(value));
    return true;
  }
  bool string(string_t& text) override {
    if (place_ == Place::kMerges) {
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return merge_error();
      file.lists.merges->emplace_back(text.substr(0, space), text.substr(space + 1));
      return true;
    }
    if (place_ == Place::kScore && pair_size_++ == 0) return pair_.first = std::move(text), true;
    if (place_ != Place::kPair) return add(std::move(text));
    if (pair_size_ == 2) return merge_error();
    (pair_size_++ == 0 ? pair_.first : pair_.second) = std::move(text);
    return true;
  }
  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }

  bool start_object(std::size_t) override {
    if (in_model() && key_ == "vocab") {
      file.lists.vocab.emplace();
      return add(nullptr) && (place_ = Place::kVocab, true);
    }
    return open(Json::object());
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kMerges) {
      pair_size_ = 0;
      place_ = Place::kPair;
      return true;
    }
    if (place_ == Place::kScores) {
      pair_size_ = 0;
      place_ = Place::kScore;
      return true;
    }
    if (in_model() && key_ == "vocab") {
      file.lists.scores.emplace();
      return add(nullptr) && (place_ = Place::kScores, true);
    }
    if (in_model() && key_ == "merges") {
      file.lists.merges.emplace();
      return add(nullptr) && (place_ = Place::kMerges, true);
    }
    return open(Json::array());
  }
  bool end_object() override { return close(); }
  bool end_array() override {
    if (place_ == Place::kScore) {
      if (pair_size_ < 2) return score_error();
      place_ = Place::kScores;
      return true;
    }
    if (place_ != Place::kPair) return close();
    if (pair_size_ < 2) return merge_error();
    file.lists.merges->push_back(std::move(pair_));
    place_ = Place::kMerges;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& exception) override {
    error = exception.what();
    return false;
  }

 private:
  enum class Place : std::uint8_t { kTree, kVocab, kScores, kScore, kMerges, kPair };

  bool in_model() const { return place_ == Place::kTree && open_.size() == 2 && open_[1] == model_; }
  bool merge_error() {
    error = fmt::format("model.merges: entry {}: expected two tokens", file.lists.merges->size());
    return false;
  }
  bool score_error() {
    error = fmt::format("model.vocab: entry {}: expected a token and its score", file.lists.scores->size());
    return false;
  }
  bool add_score(double score) {
    if (pair_size_++ != 1) return score_error();
    file.lists.scores->emplace_back(std::move(pair_.first), score);
    return true;
  }
  // Adds a value to the innermost open object or array of the tree.
  Json* insert(Json value) {
    if (open_.empty()) return &(*file.tree = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(Json value) {
    if (place_ == Place::kVocab) {
      error =
          fmt::format("model.vocab: the id of {} is not a non-negative integer of up to 31 bits", quoted_text(key_));
      return false;
    }
    if (place_ == Place::kScores || place_ == Place::kScore) return score_error();
    if (place_ != Place::kTree) return merge_error();
    insert(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (place_ != Place::kTree) return add(std::move(value));
    const bool is_model = open_.size() == 1 && open_[0]->is_object() && key_ == "model";
    open_.push_back(insert(std::move(value)));
    if (is_model) model_ = open_.back();
    return true;
  }
  bool close() {
    if (place_ == Place::kTree) {
      if (open_.back() == model_) model_ = nullptr;
      open_.pop_back();
    }
    place_ = Place::kTree;
    return true;
  }

  Place place_ = Place::kTree;
  std::string key_;              // the latest key
  std::vector<Json*> open_;      // open objects and arrays of the tree, from its root
  const Json* model_ = nullptr;  // the object at "model" while it is open
  std::pair<std::string, std::string> pair_;
  int pair_size_ = 0;
};

}  // namespace

Result<TokenizerFile> TokenizerFile::parse(std::string_view text, std::string_view name) {
  Reader reader;
  if (!Json::sax_parse(text, &reader)) return Status(StatusCode::kCorrupt, fmt::format("{}: {}", name, reader.error));
  return std::move(reader.file);
}

}  // namespace accord::tokenizer
