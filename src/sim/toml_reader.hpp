#pragma once
// Reads tables of TOML files, with errors that name the key and its line.

#include <toml++/toml.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "sim/rate_curve.hpp"

namespace accord::sim {

/// Parses the text and calls `read`. Fails with kInvalidArgument, as `read` does.
Status read_toml(std::string_view text, const std::function<Status(const toml::table&)>& read);

/// An error of a key, such as "host.ranks (line 3): expected a number from 1".
Status invalid_toml(const std::string& key, const toml::node* node, std::string_view problem);

/// Fails unless the file consists of tables with these names, with all of `required` among them.
Status check_tables(const toml::table& file, std::span<const std::string_view> names,
                    std::span<const std::string_view> required);

/// Reads the keys of one table. The first error remains, and is that of finish(). A key that is optional leaves its
/// value as it is if it is absent.
class TomlReader {
 public:
  enum class Need : std::uint8_t { kRequired, kOptional };

  TomlReader(const toml::table& table, std::string name) : table_(table), name_(std::move(name)) {}

  void number(std::string_view key, double& value, double least, Need need = Need::kRequired);
  /// A number of bytes per second, or pairs of a size and such a number.
  void rate(std::string_view key, RateCurve& curve, Need need = Need::kRequired);
  /// Optional.
  void flag(std::string_view key, bool& value);
  /// A whole number from `least` on.
  void count(std::string_view key, int& value, Need need = Need::kRequired, int least = 1);
  void counts(std::string_view key, std::vector<int>& values);
  /// One of `words`.
  std::string_view word(std::string_view key, std::span<const std::string_view> words, Need need = Need::kRequired);

  /// Fails if the table has other keys than those that were read.
  Status finish();

 private:
  const toml::node* find(std::string_view key, Need need);
  int whole(std::string_view key, const toml::node& node, int least);
  void fail(std::string_view key, const toml::node* node, std::string_view problem);

  const toml::table& table_;
  std::string name_;
  std::vector<std::string_view> known_;
  Status status_;
};

}  // namespace accord::sim
