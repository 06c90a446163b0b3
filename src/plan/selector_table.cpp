// A recursive descent parser for the grammar in selector.hpp, with one function per rule. Blanks, line ends and
// comments between words are ignored, so the tuner writes one rule per line. An error gives the place as a character
// position counted from 1, and the word found there.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "plan/selector.hpp"
#include "plan/tuning.hpp"

namespace accord::plan {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr int kMaxRanks = 1 << 30;
constexpr std::string_view kMarks = "[],:;=@-#";

class TableParser {
 public:
  explicit TableParser(std::string_view text) : text_(text) {}

  Result<SelectorTable> parse() {
    while (true) {
      while (accept(';')) {
      }
      if (at_end()) return std::move(table_);
      ACCORD_RETURN_IF_ERROR(parse_rule());
      if (!at_end() && !accept(';')) return expected("\",\" or \";\"");
    }
  }

 private:
  void skip_blanks() {
    at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size());
    while (at_ < text_.size() && text_[at_] == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size());
    }
  }
  bool at_end() {
    skip_blanks();
    return at_ == text_.size();
  }
  bool accept(char mark) {
    if (at_end() || text_[at_] != mark) return false;
    ++at_;
    return true;
  }
  // The text up to the next mark or blank; empty if a mark comes first.
  std::string_view word() {
    skip_blanks();
    word_at_ = at_;
    while (at_ < text_.size() && kBlanks.find(text_[at_]) == kBlanks.npos && kMarks.find(text_[at_]) == kMarks.npos)
      ++at_;
    return text_.substr(word_at_, at_ - word_at_);
  }

  Status error_at(std::size_t place, std::string_view problem) const {
    const std::size_t line_begin = text_.substr(0, place).rfind('\n') + 1;  // npos + 1: the first line
    const std::string line = text_.find('\n') == text_.npos ? "" : fmt::format("line {}, ", line_of(text_, place));
    return {StatusCode::kInvalidArgument,
            fmt::format("selection table, {}at character {}: {}", line, place - line_begin + 1, problem)};
  }
  Status expected(std::string_view what) {
    const bool end = at_end();
    return error_at(at_, fmt::format("expected {}, found {}", what,
                                     end ? std::string("the end") : fmt::format("\"{}\"", text_.substr(at_, 1))));
  }
  Status expect(char mark) {
    if (accept(mark)) return {};
    return expected(fmt::format("\"{}\"", mark));
  }

  Status parse_rule() {
    SelectorRow row{.collective = Collective::kBarrier};
    const std::string_view name = word();
    if (name.empty()) return expected("a collective");
    if (name == "deterministic") return parse_deterministic();
    const Result<Collective> collective = collective_from_string(name);
    if (!collective.ok()) return error_at(word_at_, collective.status().message());
    row.collective = *collective;
    if (accept('[')) ACCORD_RETURN_IF_ERROR(parse_conditions(row));
    ACCORD_RETURN_IF_ERROR(expect(':'));
    do {
      ACCORD_RETURN_IF_ERROR(parse_range(row));
    } while (accept(','));
    return {};
  }

  Status parse_deterministic() {
    static constexpr std::array<std::string_view, 1> kNames = {"canonical"};
    ACCORD_RETURN_IF_ERROR(expect('='));
    const std::string_view value = word();
    if (value.empty()) return expected("canonical");
    if (value != kNames[0]) return error_at(word_at_, unknown_name("value", value, kNames).message());
    table_.canonical_only = true;
    return {};
  }

  Status parse_conditions(SelectorRow& row) {
    do {
      ACCORD_RETURN_IF_ERROR(parse_condition(row));
    } while (accept(','));
    return expect(']');
  }

  Status parse_condition(SelectorRow& row) {
    static constexpr std::array<std::string_view, 5> kNames = {"ranks", "hosts", "oversubscribed", "registered",
                                                               "memory"};
    const std::string_view name = word();
    const std::size_t place = word_at_;
    if (name.empty()) return expected("a condition (ranks, hosts, oversubscribed, registered or memory)");
    if (name == "ranks") return parse_span(place, name, row.min_ranks, row.max_ranks);
    if (name == "hosts") return parse_span(place, name, row.min_hosts, row.max_hosts);
    if (name == "oversubscribed") {
      ACCORD_RETURN_IF_ERROR(expect('='));
      ACCORD_ASSIGN_OR_RETURN(const bool yes, parse_yes_no());
      row.oversubscribed = yes ? SelectorRow::Oversubscribed::kYes : SelectorRow::Oversubscribed::kNo;
      return {};
    }
    if (name == "registered") {
      ACCORD_RETURN_IF_ERROR(expect('='));
      ACCORD_ASSIGN_OR_RETURN(const bool yes, parse_yes_no());
      row.registered = yes ? SelectorRow::Registered::kYes : SelectorRow::Registered::kNo;
      return {};
    }
    if (name == "memory") {
      ACCORD_RETURN_IF_ERROR(expect('='));
      return parse_memory(row.memory);
    }
    return error_at(place, unknown_name("condition", name, kNames).message());
  }

  Status parse_span(std::size_t place, std::string_view name, int& least, int& most) {
    ACCORD_RETURN_IF_ERROR(expect('='));
    ACCORD_RETURN_IF_ERROR(parse_number(name, least));
    ACCORD_RETURN_IF_ERROR(expect('-'));
    ACCORD_RETURN_IF_ERROR(parse_number(name, most));
    if (least <= most) return {};
    return error_at(place, fmt::format("{} {}-{} is an empty range", name, least, most));
  }

  Status parse_number(std::string_view what, int& result) {
    const std::string_view number = word();
    if (number.empty()) return expected(fmt::format("a number of {}", what));
    result = kMaxRanks;
    if (number == "inf") return {};
    const Result<std::int64_t> value = parse_integer(number, fmt::format("number of {}", what));
    if (!value.ok()) return error_at(word_at_, value.status().message());
    if (*value < 1 || *value > kMaxRanks)
      return error_at(word_at_, fmt::format("{} is not a number of {}", number, what));
    result = static_cast<int>(*value);
    return {};
  }

  Result<bool> parse_yes_no() {
    static constexpr std::array<std::string_view, 2> kNames = {"yes", "no"};
    const std::string_view value = word();
    if (value.empty()) return expected("yes or no");
    if (value != "yes" && value != "no") return error_at(word_at_, unknown_name("value", value, kNames).message());
    return value == "yes";
  }

  Status parse_memory(DeviceType& memory) {
    static constexpr std::array<std::string_view, 2> kNames = {"cpu", "cuda"};
    const std::string_view value = word();
    if (value.empty()) return expected("cpu or cuda");
    if (value != kNames[0] && value != kNames[1])
      return error_at(word_at_, unknown_name("value", value, kNames).message());
    memory = value == kNames[0] ? DeviceType::kCpu : DeviceType::kCuda;
    return {};
  }

  Status parse_size(std::size_t& bytes) {
    const std::string_view size = word();
    if (size.empty()) return expected("bytes, such as 4096, 4k or inf");
    const Result<std::size_t> value = parse_bytes(size);
    if (!value.ok()) return error_at(word_at_, value.status().message());
    bytes = *value;
    return {};
  }

  Status parse_range(SelectorRow row) {
    ACCORD_RETURN_IF_ERROR(parse_size(row.from_bytes));
    const std::size_t place = word_at_;
    ACCORD_RETURN_IF_ERROR(expect('-'));
    ACCORD_RETURN_IF_ERROR(parse_size(row.to_bytes));
    if (row.from_bytes >= row.to_bytes) {
      return error_at(place, fmt::format("the range \"{}\" is empty", text_.substr(place, at_ - place)));
    }
    ACCORD_RETURN_IF_ERROR(expect('='));
    const std::string_view name = word();
    if (name.empty()) return expected("an algorithm");
    const Result<const AlgorithmEntry*> algorithm = algorithm_by_name(row.collective, name);
    if (!algorithm.ok()) return error_at(word_at_, algorithm.status().message());
    row.algorithm = *algorithm;
    if ((row.algorithm->is_library || row.algorithm->multicasts) && row.memory == DeviceType::kCpu)
      return error_at(word_at_, fmt::format("{} is for memory=cuda", name));
    if (accept('@')) {
      ACCORD_RETURN_IF_ERROR(parse_size(row.slot_bytes));
      if (row.slot_bytes == 0) return error_at(word_at_, "a slot needs at least one byte");
    }
    table_.rows.push_back(row);
    table_.places.push_back(place);
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t word_at_ = 0;
  SelectorTable table_;
};

}  // namespace

Result<SelectorTable> parse_table(std::string_view text) { return TableParser(text).parse(); }

}  // namespace accord::plan
