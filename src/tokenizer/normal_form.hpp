#pragma once
// Unicode normal forms.

#include <string>
#include <string_view>

namespace accord::tokenizer {

enum class NormalForm : unsigned char { kNfc, kNfd, kNfkc, kNfkd };

/// Returns `text` in a normal form. REQUIRES: well-formed UTF-8. Cost: a copy for ASCII; n log n at worst (a run of n
/// marks is sorted).
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace accord::tokenizer
