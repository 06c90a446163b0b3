#pragma once
// What is done to a text before it is split: normal forms, lower case, replacements.

#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

/// A text on its way. `begins_input` says whether it begins with the first character of what the caller gave; Metaspace asks.
struct NormalText {
  std::string text;
  bool begins_input = true;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual Status apply(NormalText& text) const = 0;
};

/// The list that the file's "normalizer" stands for; sequences are flattened.
Result<std::vector<std::unique_ptr<Normalizer>>> read_normalizers(const JsonNode& node);

}  // namespace accord::tokenizer
