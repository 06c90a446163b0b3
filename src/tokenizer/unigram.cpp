// Unigram: of all ways to divide a word into tokens, the one with the largest sum of scores. best[i] is the best way to
// divide the first i bytes; each token that begins there may improve the best way for the bytes up to its end. A
// character that is no token itself becomes the unknown token, whose score is below all others. Neighboring unknown
// characters are one token.
//
// Kudo 2018. Ties, and the score of unknown characters, are as in the tokenizers library.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/model.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10.0;

/// The tokens as a tree of their bytes. Children of a node are neighbors, in the order of their bytes.
class TokenTree {
 public:
  explicit TokenTree(const ScoredTokens& tokens) {
    struct Range {
      std::size_t node, first, last, depth;
    };
    std::vector<TokenId> order(tokens.size());
    for (std::size_t id = 0; id < order.size(); ++id) order[id] = static_cast<TokenId>(id);
    const auto text_of = [&](std::size_t place) -> const std::string& {
      return tokens[static_cast<std::size_t>(order[place])].first;
    };
    std::ranges::sort(order, {},
                      [&](TokenId id) { return std::string_view(tokens[static_cast<std::size_t>(id)].first); });
    nodes_.push_back({});
    std::vector<Range> open = {{0, 0, order.size(), 0}};
    for (std::size_t at = 0; at < open.size(); ++at) {
      const Range range = open[at];
      std::size_t first = range.first;
      if (first < range.last && text_of(first).size() == range.depth) nodes_[range.node].id = order[first++];
      nodes_[range.node].children = static_cast<std::uint32_t>(nodes_.size());
      while (first < range.last) {
        const char byte = text_of(first)[range.depth];
        std::size_t last = first;
        while (last < range.last && text_of(last)[range.depth] == byte) ++last;
        open.push_back({nodes_.size(), first, last, range.depth + 1});
        nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
        ++nodes_[range.node].count;
        first = last;
      }
    }
  }

  /// Calls found(length, id) for each token that `text` begins with, the shortest first.
  template <typename Found>
  void for_each_prefix(std::string_view text, Found found) const {
    const Node* node = &nodes_.front();
    for (std::size_t length = 0; length < text.size();) {
      const auto byte = static_cast<unsigned char>(text[length++]);
      const auto begin = nodes_.begin() + node->children, end = begin + node->count;
      const auto child =
          std::lower_bound(begin, end, byte, [](const Node& one, unsigned char b) { return one.byte < b; });
      if (child == end || child->byte != byte) return;
      node = &*child;
      if (node->id >= 0) found(length, node->id);
    }
  }

 private:
  struct Node {
    std::uint32_t children = 0;
    std::uint16_t count = 0;
    unsigned char byte = 0;
    TokenId id = -1;
  };
  std::vector<Node> nodes_;
};

class Unigram : public Model {
 public:
  Unigram(Vocabulary vocabulary, const ScoredTokens& tokens, std::optional<TokenId> unknown, bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), tree_(tokens), unknown_(unknown) {
    if (byte_fallback) bytes_ = byte_tokens(vocabulary_);
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [token, score] : tokens) {
      scores_.push_back(score);
      least = std::min(least, score);
    }
    unknown_score_ = least - kUnknownPenalty;
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  Status encode(std::string_view word, WordForm form, std::vector<TokenId>& ids) const override {
    if (form == WordForm::kBytes) return encode(encode_bytes(word), WordForm::kText, ids);
    std::vector<Step> best(word.size() + 1);
    for (std::size_t at = 0; at < word.size();) {
      std::size_t next = at;
      next_character(word, next);
      bool has_character = false;
      const auto improve = [&](std::size_t end, double score, TokenId id) {
        Step& step = best[end];
        const double sum = best[at].score + score;
        if (step.id == kNoToken || sum > step.score) step = {sum, at, id};
      };
      tree_.for_each_prefix(word.substr(at), [&](std::size_t length, TokenId id) {
        improve(at + length, scores_[static_cast<std::size_t>(id)], id);
        has_character = has_character || at + length == next;
      });
      if (!has_character) {
        if (!unknown_)
          return Status(StatusCode::kInvalidArgument,
                        fmt::format("the vocabulary lacks {} and has no token for unknown characters",
                                    quoted_text(word.substr(at, next - at))));
        improve(next, unknown_score_, *unknown_);
      }
      at = next;
    }
    std::vector<std::string_view> pieces;  // last first
    bool was_unknown = false;
    for (std::size_t end = word.size(); end > 0;) {
      const Step& step = best[end];
      const bool is_unknown = unknown_ && step.id == *unknown_;
      const std::string_view piece = word.substr(step.begin, end - step.begin);
      if (is_unknown && was_unknown) {
        pieces.back() = word.substr(step.begin, piece.size() + pieces.back().size());
      } else {
        pieces.push_back(piece);
      }
      was_unknown = is_unknown;
      end = step.begin;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) add(*piece, ids);
    return {};
  }

 private:
  /// The last token of the best way to divide the bytes up to some place.
  struct Step {
    double score = 0;
    std::size_t begin = 0;
    TokenId id = kNoToken;
  };

  // Adds the token of a piece, or those of its bytes, or the unknown one.
  void add(std::string_view piece, std::vector<TokenId>& ids) const {
    if (const auto id = vocabulary_.id_of(piece)) return ids.push_back(*id);
    const auto id_of = [&](char c) { return (*bytes_)[static_cast<unsigned char>(c)]; };
    if (!bytes_ || std::ranges::any_of(piece, [&](char c) { return id_of(c) == kNoToken; }))
      return ids.push_back(*unknown_);
    for (const char c : piece) ids.push_back(id_of(c));
  }

  Vocabulary vocabulary_;
  TokenTree tree_;
  std::vector<double> scores_;
  std::optional<TokenId> unknown_;
  double unknown_score_ = 0;
  std::optional<ByteTokens> bytes_;  // of unknown characters, if the model has byte_fallback
};

}  // namespace

Result<std::unique_ptr<Model>> read_unigram(const JsonNode& node, ModelLists lists) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"vocab", "unk_id"}, {"byte_fallback"}));
  if (!lists.scores || lists.scores->empty())
    return node.at("vocab").error("expected a list of tokens and their scores");
  std::vector<std::pair<std::string, TokenId>> tokens;
  tokens.reserve(lists.scores->size());
  for (const auto& [token, score] : *lists.scores) tokens.emplace_back(token, static_cast<TokenId>(tokens.size()));
  ACCORD_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::make(std::move(tokens), node.at("vocab")));
  std::optional<TokenId> unknown;
  if (!is_null(node, "unk_id")) {
    ACCORD_ASSIGN_OR_RETURN(unknown, read_token_id(node.at("unk_id")));
    if (static_cast<std::size_t>(*unknown) >= lists.scores->size())
      return node.at("unk_id").error(
          fmt::format("{} is not below {}, the number of tokens", *unknown, lists.scores->size()));
  }
  ACCORD_ASSIGN_OR_RETURN(const bool byte_fallback, boolean_or(node, "byte_fallback", false));
  return std::unique_ptr<Model>(
      std::make_unique<Unigram>(std::move(vocabulary), *lists.scores, unknown, byte_fallback));
}

}  // namespace accord::tokenizer
