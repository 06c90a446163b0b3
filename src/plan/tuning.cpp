// The head is read line by line up to the first one that is no comment; a line that is not known is passed over, as a user may
// write remarks of his own.
#include "plan/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.hpp"

namespace accord::plan {
namespace {

constexpr std::string_view kFirstLine = "# accord tuning table 1";
constexpr std::string_view kAnyVersion = "# accord tuning table ";
constexpr std::string_view kEnd = "# end";

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  return line;
}

// "# processor: AMD EPYC" for "processor".
std::string_view field(const std::vector<std::string_view>& lines, std::string_view name) {
  for (const std::string_view line : lines) {
    const std::string head = fmt::format("# {}: ", name);
    if (!line.starts_with('#')) break;
    if (line.starts_with(head)) return trimmed(line.substr(head.size()));
  }
  return {};
}

Result<int> number(const std::vector<std::string_view>& lines, std::string_view name) {
  const Result<std::int64_t> value = parse_integer(field(lines, name), name);
  if (value.ok() && *value > 0 && *value < 1 << 30) return static_cast<int>(*value);
  return Status(StatusCode::kCorrupt, fmt::format("its head has no line \"# {}: NUMBER\"", name));
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
    return Status(
        StatusCode::kCorrupt,
        first.starts_with(kAnyVersion)
            ? fmt::format("it is a tuning table of another version ({})", quoted_text(first))
            : fmt::format("it is no tuning table: its first line is {}, not \"{}\"", quoted_text(first), kFirstLine));
  const auto is_end = [](std::string_view line) { return trimmed(line) == kEnd; };
  if (std::none_of(lines.begin(), lines.end(), is_end))
    return Status(StatusCode::kCorrupt, fmt::format("it is cut off: the line \"{}\" is missing", kEnd));
  TuningFacts facts{.version = std::string(field(lines, "version")),
                    .processor = std::string(field(lines, "processor")),
                    .measured = std::string(field(lines, "measured"))};
  if (facts.processor.empty()) return Status(StatusCode::kCorrupt, "its head has no line \"# processor: NAME\"");
  ACCORD_ASSIGN_OR_RETURN(facts.cores, number(lines, "cores"));
  ACCORD_ASSIGN_OR_RETURN(facts.ranks, number(lines, "ranks"));
  const Result<SelectorTable> table = parse_table(text);
  if (!table.ok()) return table.status();
  return facts;
}

}  // namespace accord::plan
