// The head is six lines in a fixed order. It is followed by a table, in which a user may add comments, up to the last
// line. Text after that line, or a second head, is a mistake that would otherwise go unnoticed.
#include "plan/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/text.hpp"

namespace accord::plan {
namespace {

constexpr std::string_view kFirstLine = "# accord tuning table 1";
constexpr std::string_view kAnyVersion = "# accord tuning table ";
constexpr std::string_view kEnd = "# end";

struct Field {
  std::string_view name;
  std::string_view value;  ///< format of the value, for error messages
};
// The fields of the lines after the first one.
constexpr std::array<Field, 5> kFields = {
    {{"version", "VERSION"}, {"processor", "NAME"}, {"cores", "NUMBER"}, {"ranks", "NUMBER"}, {"measured", "DAY"}}};

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  return line;
}

std::string beginning_of(const Field& field) { return fmt::format("# {}:", field.name); }

Status corrupt_line(std::size_t index, std::string_view problem) {
  return {StatusCode::kCorrupt, fmt::format("line {}: {}", index + 1, problem)};
}

Status wrong_head(std::size_t index, std::string_view found) {
  const Field& field = kFields[index - 1];
  return corrupt_line(index,
                      fmt::format("expected \"# {}: {}\", found {}", field.name, field.value, quoted_text(found)));
}

// "AMD EPYC" from "# processor: AMD EPYC".
Result<std::string> value_of(const std::vector<std::string_view>& lines, std::size_t index) {
  const std::string_view line = index < lines.size() ? trimmed(lines[index]) : std::string_view();
  const std::string beginning = beginning_of(kFields[index - 1]) + " ";
  if (!line.starts_with(beginning) || line.size() == beginning.size()) return wrong_head(index, line);
  return std::string(line.substr(beginning.size()));
}

Result<int> number_of(const std::vector<std::string_view>& lines, std::size_t index) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, value_of(lines, index));
  const Result<std::int64_t> value = parse_integer(text, "number");
  if (value.ok() && *value > 0 && *value < 1 << 30) return static_cast<int>(*value);
  return wrong_head(index, trimmed(lines[index]));
}

// Checks the lines after the head: one end, nothing after it, and no second head.
Status check_body(const std::vector<std::string_view>& lines) {
  std::size_t end = lines.size();
  for (std::size_t i = kFields.size() + 1; i < lines.size(); ++i) {
    const std::string_view line = trimmed(lines[i]);
    if (end < i && !line.empty())
      return corrupt_line(i,
                          fmt::format("{} follows the line \"{}\", which must be the last", quoted_text(line), kEnd));
    if (line == kEnd) end = i;
    const bool is_head = line.starts_with(kAnyVersion) ||
                         std::any_of(kFields.begin(), kFields.end(),
                                     [&](const Field& field) { return line.starts_with(beginning_of(field)); });
    if (is_head)
      return corrupt_line(i, fmt::format("{} belongs to the head, and there is one already", quoted_text(line)));
  }
  if (end < lines.size()) return {};
  return {StatusCode::kCorrupt, fmt::format("it is cut off: the line \"{}\" is missing", kEnd)};
}

}  // namespace

std::string tuning_head(const TuningFacts& facts) {
  return fmt::format("{}\n# version: {}\n# processor: {}\n# cores: {}\n# ranks: {}\n# measured: {}\n", kFirstLine,
                     facts.version, facts.processor, facts.cores, facts.ranks, facts.measured);
}

std::string_view tuning_end() { return "# end\n"; }

std::size_t line_of(std::string_view text, std::size_t place) {
  return 1 + static_cast<std::size_t>(std::count(
                 text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(place, text.size())), '\n'));
}

Result<TuningFacts> parse_tuning(std::string_view text) {
  const std::vector<std::string_view> lines = split_text(text, '\n');
  const std::string_view first = lines.empty() ? std::string_view() : trimmed(lines.front());
  if (first != kFirstLine)
    return Status(StatusCode::kCorrupt,
                  first.starts_with(kAnyVersion)
                      ? fmt::format("it is a tuning table of another version ({})", quoted_text(first))
                      : fmt::format("it is not a tuning table: its first line is {}, not \"{}\"", quoted_text(first),
                                    kFirstLine));
  TuningFacts facts;
  ACCORD_ASSIGN_OR_RETURN(facts.version, value_of(lines, 1));
  ACCORD_ASSIGN_OR_RETURN(facts.processor, value_of(lines, 2));
  ACCORD_ASSIGN_OR_RETURN(facts.cores, number_of(lines, 3));
  ACCORD_ASSIGN_OR_RETURN(facts.ranks, number_of(lines, 4));
  ACCORD_ASSIGN_OR_RETURN(facts.measured, value_of(lines, 5));
  ACCORD_RETURN_IF_ERROR(check_body(lines));
  const Result<SelectorTable> table = parse_table(text);
  if (!table.ok()) return table.status();
  return facts;
}

}  // namespace accord::plan
