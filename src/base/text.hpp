#pragma once
// Text for messages: the nearest known name, lists, sizes.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord {

/// Returns the name with the smallest edit distance to `word`, or nullopt if none is similar enough.
std::optional<std::string_view> nearest_name(std::string_view word, std::span<const std::string_view> names);

/// Returns kInvalidArgument: `unknown <what> "word"; did you mean "name"?`, or the list of names if none is similar.
Status unknown_name(std::string_view what, std::string_view word, std::span<const std::string_view> names);

/// "rank 2", "ranks 0, 3 and 5", "ranks 0-3".
std::string ranks_text(std::span<const Rank> ranks);

/// "8 B", "64 KiB", "1.5 MiB".
std::string bytes_text(std::size_t bytes);

/// "250 ms", "1.5 s", "300 s".
std::string duration_text(Duration duration);

/// `text` in double quotes for a message, cut after `limit` bytes; non-printing bytes are written as \xNN.
std::string quoted_text(std::string_view text, std::size_t limit = 80);

/// The pieces between `separator`s; an empty text has none.
std::vector<std::string_view> split_text(std::string_view text, char separator);

/// Reads a whole decimal number. Fails with kInvalidArgument and names `what`.
Result<std::int64_t> parse_integer(std::string_view text, std::string_view what);

/// Reads a size in bytes: "4096", "4k", "2M", "1g" (powers of 1024), "inf".
Result<std::size_t> parse_bytes(std::string_view text);

}  // namespace accord
