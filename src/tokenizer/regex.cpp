// PCRE2 compiles the translated pattern to machine code if it can. If the machine code needs a larger stack than it
// has, PCRE2's interpreter repeats the match; it keeps its stack on the heap.

#include "tokenizer/regex.hpp"

#include <fmt/format.h>

#include <array>

#include "base/text.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace accord::tokenizer {
namespace {

constexpr std::uint32_t kMaxSteps = 10'000'000;
constexpr std::uint32_t kMaxHeap = 64 << 10;  // KiB

std::string error_text(int error) {
  std::array<char, 256> text = {};
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  return text.data();
}

// The working memory of a match; one per thread, shared by all patterns.
class MatchState {
 public:
  static const MatchState& of_thread() {
    thread_local const MatchState state;
    return state;
  }
  MatchState() : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context_, kMaxSteps);
    pcre2_set_heap_limit(context_, kMaxHeap);
  }
  ~MatchState() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data() const { return data_; }
  pcre2_match_context* context() const { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool has_machine_code = false;
  ~Code() { pcre2_code_free(code); }
};

Result<Regex> Regex::compile(std::string_view pattern) {
  ACCORD_ASSIGN_OR_RETURN(const std::string translated, translate_regex(pattern));
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t offset = 0;
  const auto code = std::make_shared<Code>();
  // In Ruby, ^ and $ match at every line.
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code->code == nullptr) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the regex {} cannot be read: {} (at character {} of {})", quoted_text(pattern, 200),
                              error_text(error), offset, quoted_text(translated, 400)));
  }
  code->has_machine_code = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(code);
}

Result<bool> Regex::find(std::string_view text, std::size_t from, Match& match) const {
  const MatchState& state = MatchState::of_thread();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->has_machine_code) {
    found = pcre2_jit_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.data(), state.context());
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data(),
                        state.context());
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    return Status(StatusCode::kResourceExhausted, fmt::format("a regex of the tokenizer cannot search {}: {}",
                                                              quoted_text(text.substr(from)), error_text(found)));
  }
  const auto* const ends = pcre2_get_ovector_pointer(state.data());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace accord::tokenizer
