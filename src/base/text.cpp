// The nearest name is the one with the smallest optimal string alignment distance (insertion, deletion, replacement
// and swap of neighbours cost 1 each; case is ignored). It counts as a match if the distance is at most a third of
// the longer word, at least 1. Numbers are read by from_chars, which ignores the locale and accepts no surrounding
// space.
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace accord {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// "a", "a and b", "a, b and c".
std::string join_with_and(std::span<const std::string> parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

}  // namespace

std::optional<std::string_view> nearest_name(std::string_view word, std::span<const std::string_view> names) {
  // A word far longer than any name matches none; computing the distance would only cost time.
  constexpr std::size_t kLongest = 256;
  std::optional<std::string_view> nearest;
  std::size_t smallest = std::numeric_limits<std::size_t>::max();
  if (word.size() > kLongest) return nearest;
  for (const std::string_view name : names) {
    if (name.size() > kLongest) continue;
    const std::size_t distance = edit_distance(word, name);
    if (distance > std::max<std::size_t>(1, std::max(word.size(), name.size()) / 3)) continue;
    if (distance >= std::max(word.size(), name.size()) || distance >= smallest) continue;
    smallest = distance;
    nearest = name;
  }
  return nearest;
}

Status unknown_name(std::string_view what, std::string_view word, std::span<const std::string_view> names) {
  std::string message = fmt::format("unknown {} {}", what, quoted_text(word));
  if (const auto nearest = nearest_name(word, names)) {
    message += fmt::format("; did you mean \"{}\"?", *nearest);
  } else if (names.empty()) {
    message += "; none is available";
  } else {
    message += fmt::format("; available: {}", join_with_and(std::vector<std::string>(names.begin(), names.end())));
  }
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

std::string ranks_text(std::span<const Rank> ranks) {
  if (ranks.empty()) return "no ranks";
  std::vector<Rank> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  if (sorted.size() == 1) return "rank " + std::to_string(sorted[0]);
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < sorted.size();) {
    std::size_t last = first;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (last - first >= 2) {
      parts.push_back(fmt::format("{}-{}", sorted[first], sorted[last]));
    } else {
      for (std::size_t i = first; i <= last; ++i) parts.push_back(std::to_string(sorted[i]));
    }
    first = last + 1;
  }
  return "ranks " + join_with_and(parts);
}

std::string bytes_text(std::size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double tenths = std::round(static_cast<double>(bytes) / 1024 * 10);
  std::size_t unit = 0;
  for (double scaled = static_cast<double>(bytes) / 1024; tenths >= 10240 && unit + 1 < std::size(kUnits); ++unit) {
    scaled /= 1024;
    tenths = std::round(scaled * 10);
  }
  const auto whole = static_cast<std::uint64_t>(tenths);
  if (whole % 10 == 0) return fmt::format("{} {}", whole / 10, kUnits[unit]);
  return fmt::format("{}.{} {}", whole / 10, whole % 10, kUnits[unit]);
}

std::string duration_text(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1000);
  return fmt::format("{:.10g} s", std::round(seconds * 10) / 10);
}

std::string quoted_text(std::string_view text, std::size_t limit) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, limit)) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c >= 0x20 && c != 0x7f && (static_cast<unsigned char>(c) < 0x80)) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > limit) quoted += "...";
  return quoted + '"';
}

std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    pieces.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

Result<std::int64_t> parse_integer(std::string_view text, std::string_view what) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: \"{}\" does not fit in 64 bits", what, text));
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: \"{}\" is not a whole number", what, text));
  }
  return value;
}

Result<std::size_t> parse_bytes(std::string_view text) {
  if (text == "inf") return std::numeric_limits<std::size_t>::max();
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const int shift = unit.empty()                                  ? 0
                    : unit == "k" || unit == "K" || unit == "KiB" ? 10
                    : unit == "m" || unit == "M" || unit == "MiB" ? 20
                    : unit == "g" || unit == "G" || unit == "GiB" ? 30
                                                                  : -1;
  if (error == std::errc::invalid_argument || shift < 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("\"{}\" is not a size; write bytes as 4096, 4k, 2M, 1g, 1GiB or inf", text));
  }
  if (error == std::errc::result_out_of_range || value > std::numeric_limits<std::size_t>::max() >> shift) {
    return Status(StatusCode::kInvalidArgument, fmt::format("size \"{}\" does not fit in 64 bits", text));
  }
  return value << shift;
}

}  // namespace accord
