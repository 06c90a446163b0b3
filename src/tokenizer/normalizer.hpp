#pragma once
// Transformations of a text before it is split: normal forms, lower case, replacements.

#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

/// A text being normalized. `begins_input` is true if it begins with the first character of the caller's text;
/// Metaspace needs this.
struct NormalText {
  std::string text;
  bool begins_input = true;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual Status apply(NormalText& text) const = 0;
};

/// Reads the file's "normalizer" as a list; sequences are flattened.
Result<std::vector<std::unique_ptr<Normalizer>>> read_normalizers(const JsonNode& node);

}  // namespace accord::tokenizer
