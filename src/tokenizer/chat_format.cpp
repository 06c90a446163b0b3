#include "accord/chat_format.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <ctime>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/fd.hpp"
#include "base/json_node.hpp"
#include "tokenizer/characters.hpp"
#include "tokenizer/utf8.hpp"

namespace accord {
// A named namespace, because ChatFormat::Table is built from these types.
namespace chat_format {

// Literal text, or a strftime format for today's date.
struct Part {
  std::string text;
  bool is_date = false;
};
using Parts = std::vector<Part>;
using ByRole = std::map<std::string, Parts, std::less<>>;

}  // namespace chat_format

namespace {

using chat_format::ByRole;
using chat_format::Part;
using chat_format::Parts;

constexpr std::size_t kMaxFormatBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDateBytes = 256;

Result<Part> read_part(const JsonNode& node) {
  if (!node.json().is_object()) {
    ACCORD_ASSIGN_OR_RETURN(std::string text, node.text());
    return Part{std::move(text)};
  }
  ACCORD_RETURN_IF_ERROR(node.check_keys(std::array<std::string_view, 1>{"date"}));
  ACCORD_ASSIGN_OR_RETURN(std::string format, node.at("date").text());
  return Part{std::move(format), true};
}

// Reads "text", or a list of texts and dates.
Result<Parts> read_parts(const JsonNode& node) {
  Parts parts;
  if (!node.json().is_array()) {
    ACCORD_ASSIGN_OR_RETURN(Part part, read_part(node));
    parts.push_back(std::move(part));
    return parts;
  }
  ACCORD_ASSIGN_OR_RETURN(const auto items, node.items());
  for (const JsonNode& item : items) {
    ACCORD_ASSIGN_OR_RETURN(Part part, read_part(item));
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<ByRole> read_by_role(const JsonNode& node) {
  if (!node.json().is_object()) return node.error("expected an object");
  ByRole by_role;
  for (const auto& [role, json] : node.json().items()) {
    ACCORD_ASSIGN_OR_RETURN(by_role[role], read_parts(node.at(role)));
  }
  return by_role;
}

void append(const Parts& parts, std::string& text) {
  for (const Part& part : parts) {
    if (!part.is_date) {
      text += part.text;
      continue;
    }
    const std::time_t now = std::time(nullptr);
    std::tm local = {};
    localtime_r(&now, &local);
    std::array<char, kMaxDateBytes> date = {};
    text.append(date.data(), std::strftime(date.data(), date.size(), part.text.c_str(), &local));
  }
}

// Strips the spaces at both ends, like Python's str.strip().
std::string_view trimmed(std::string_view text) {
  std::size_t begin = text.size();
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t before = at;
    const char32_t c = tokenizer::next_character(text, at);
    if (tokenizer::is_space(c) || (c >= 0x1c && c <= 0x1f)) continue;
    begin = std::min(begin, before);
    end = at;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::vector<std::string_view> names_of(const ByRole& by_role) {
  std::vector<std::string_view> names;
  for (const auto& [role, parts] : by_role) names.push_back(role);
  return names;
}

// Returns the entry for `role`. If there is none, the error lists the roles that exist.
Result<const Parts*> find_parts(const ByRole& by_role, const std::string& role, const std::string& where) {
  const auto found = by_role.find(role);
  if (found != by_role.end()) return &found->second;
  const auto names = names_of(by_role);
  return Status(StatusCode::kInvalidArgument,
                fmt::format("this chat format does not allow a message of {} {}{}", quoted_text(role), where,
                            names.empty() ? "" : fmt::format("; allowed roles: {}", fmt::join(names, ", "))));
}

}  // namespace

struct ChatFormat::Table {
  ByRole start;
  std::map<std::string, ByRole, std::less<>> between;  // keyed by the role before, then the role after
  ByRole end;
  ByRole generation;  // replaces the end if an answer is to follow
  std::set<std::string, std::less<>> trimmed;
};

Result<ChatFormat> ChatFormat::load(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxFormatBytes));
  return parse(text, path);
}

Result<ChatFormat> ChatFormat::parse(std::string_view json, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const JsonTree tree, JsonTree::parse(json, name));
  const JsonNode root = tree.root();
  ACCORD_ASSIGN_OR_RETURN(const JsonNode format, root.required("format"));
  if (format.json() != "accord-chat-format") return format.error("expected \"accord-chat-format\"");
  ACCORD_ASSIGN_OR_RETURN(const JsonNode version, root.required("format_version"));
  if (version.json() != 1)
    return version.error_as(StatusCode::kUnsupported, "this version of accord reads only version 1");
  if (root.has("unsupported")) {
    ACCORD_ASSIGN_OR_RETURN(const std::string reason, root.at("unsupported").name());
    return root.error_as(StatusCode::kUnsupported,
                         "the model's chat template cannot be expressed in this format: " + reason);
  }
  std::vector<std::string_view> keys = {"format", "format_version", "start", "between", "end", "generation", "trimmed"};
  for (const std::string_view key : {"template", "special_tokens"}) {
    if (root.has(key)) keys.push_back(key);  // for programs that render the template themselves, with tools for example
  }
  ACCORD_RETURN_IF_ERROR(root.check_keys(keys));
  const auto table = std::make_shared<Table>();
  ACCORD_ASSIGN_OR_RETURN(table->start, read_by_role(root.at("start")));
  ACCORD_ASSIGN_OR_RETURN(table->end, read_by_role(root.at("end")));
  ACCORD_ASSIGN_OR_RETURN(table->generation, read_by_role(root.at("generation")));
  const JsonNode between = root.at("between");
  if (!between.json().is_object()) return between.error("expected an object");
  for (const auto& [role, following] : between.json().items()) {
    ACCORD_ASSIGN_OR_RETURN(table->between[role], read_by_role(between.at(role)));
  }
  ACCORD_ASSIGN_OR_RETURN(const auto trimmed_roles, root.at("trimmed").items());
  for (const JsonNode& item : trimmed_roles) {
    ACCORD_ASSIGN_OR_RETURN(std::string role, item.text());
    table->trimmed.insert(std::move(role));
  }
  return ChatFormat(table);
}

Result<std::string> ChatFormat::render(std::span<const ChatMessage> messages, AddGenerationPrompt prompt) const {
  if (messages.empty()) return Status(StatusCode::kInvalidArgument, "a conversation must have at least one message");
  std::string text;
  const ByRole* before = &table_->start;
  std::string where = "at the start";
  static const ByRole nothing;
  for (const ChatMessage& message : messages) {
    ACCORD_ASSIGN_OR_RETURN(const Parts* parts, find_parts(*before, message.role, where));
    append(*parts, text);
    const std::string repaired = tokenizer::well_formed(message.content);
    text += table_->trimmed.contains(message.role) ? trimmed(repaired) : std::string_view(repaired);
    const auto following = table_->between.find(message.role);
    before = following != table_->between.end() ? &following->second : &nothing;
    where = fmt::format("after a message of {}", quoted_text(message.role));
  }
  const bool is_prompt = prompt == AddGenerationPrompt::kYes;
  ACCORD_ASSIGN_OR_RETURN(const Parts* parts,
                          find_parts(is_prompt ? table_->generation : table_->end, messages.back().role,
                                     is_prompt ? "before an answer" : "at the end"));
  append(*parts, text);
  return text;
}

}  // namespace accord
