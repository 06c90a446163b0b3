#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/text.hpp"
#include "plan/step_rules.hpp"
#include "sim/goal.hpp"

namespace accord::sim {
namespace {

enum class TokenKind : std::uint8_t { kWord, kNumber, kMark, kLineEnd, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;
  std::uint64_t number = 0;
  bool is(std::string_view word) const { return kind != TokenKind::kNumber && text == word; }
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::size_t line() const { return line_; }

  Token next() {
    skip_blanks();
    if (at_ == text_.size()) return {};
    const std::size_t begin = at_;
    const char first = text_[at_++];
    if (first == '\n') {
      ++line_;
      return {.kind = TokenKind::kLineEnd, .text = {}};
    }
    if (is_digit(first)) {
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      Token token{.kind = TokenKind::kNumber, .text = text_.substr(begin, at_ - begin)};
      const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), token.number);
      if (error != std::errc()) token.kind = TokenKind::kMark;  // no number that anything accepts
      return token;
    }
    if (!is_letter(first)) return {.kind = TokenKind::kMark, .text = text_.substr(begin, 1)};
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    return {.kind = TokenKind::kWord, .text = text_.substr(begin, at_ - begin)};
  }

 private:
  // Also skips comments, but not the end of a line.
  void skip_blanks() {
    while (at_ < text_.size()) {
      const std::string_view rest = text_.substr(at_);
      if (rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r') {
        ++at_;
      } else if (rest.starts_with("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (rest.starts_with("/*")) {
        const std::size_t end = std::min(text_.find("*/", at_ + 2), text_.size() - 2);
        line_ += static_cast<std::size_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                     text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

class GoalParser {
 public:
  explicit GoalParser(std::string_view text) : scanner_(text) { advance(); }

  Result<Goal> parse() {
    while (now_.kind != TokenKind::kEnd) {
      if (now_.kind == TokenKind::kLineEnd) {
        advance();
        continue;
      }
      ACCORD_RETURN_IF_ERROR(statement());
      if (now_.kind != TokenKind::kLineEnd && now_.kind != TokenKind::kEnd) return unexpected("the end of the line");
    }
    if (rank_ >= 0) return failure(fmt::format("rank {} has no \"}}\"", rank_));
    if (goal_.ranks == 0) return failure("\"num_ranks\" is missing");
    return std::move(goal_);
  }

 private:
  struct Requirement {
    std::string_view task, before;
    bool is_begin = false;
    std::size_t line = 0;
  };

  void advance() {
    line_ = scanner_.line();
    now_ = scanner_.next();
  }

  Status failure_in(std::size_t line, std::string_view problem) const {
    return {StatusCode::kInvalidArgument, fmt::format("line {}: {}", line, problem)};
  }
  Status failure(std::string_view problem) const { return failure_in(line_, problem); }
  Status unexpected(std::string_view wanted) const {
    const bool is_over = now_.kind == TokenKind::kEnd || now_.kind == TokenKind::kLineEnd;
    return failure(fmt::format("{} instead of {}", is_over ? "the end of the line" : quoted_text(now_.text), wanted));
  }

  Status expect(std::string_view word) {
    if (!now_.is(word)) return unexpected(fmt::format("\"{}\"", word));
    advance();
    return {};
  }

  Result<std::uint64_t> number(std::string_view what, std::uint64_t most) {
    if (now_.is("-") || now_.kind != TokenKind::kNumber) return unexpected(what);
    if (now_.number > most) return failure(fmt::format("{} is at most {}, not {}", what, most, now_.number));
    const std::uint64_t value = now_.number;
    advance();
    return value;
  }

  Result<Rank> rank_number(std::string_view what) {
    if (now_.is("-"))
      return Status(StatusCode::kUnsupported, fmt::format("line {}: receives from any rank are not supported", line_));
    if (goal_.ranks == 0) return failure("\"num_ranks\" comes first");
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t value, number(what, static_cast<std::uint64_t>(goal_.ranks) - 1));
    return static_cast<Rank>(value);
  }

  Status statement() {
    if (now_.is("num_ranks")) return ranks();
    if (rank_ < 0) return begin_rank();
    if (now_.is("}")) return end_rank();
    if (now_.is("calc") || now_.is("send") || now_.is("recv")) return operation();
    if (now_.kind != TokenKind::kWord) return unexpected("a label or an operation");
    const std::string_view label = now_.text;
    advance();
    if (now_.is("requires") || now_.is("irequires")) {
      Requirement found{.task = label, .before = {}, .is_begin = now_.is("irequires"), .line = line_};
      advance();
      if (now_.kind != TokenKind::kWord) return unexpected("a label");
      found.before = now_.text;
      requirements_.push_back(found);
      advance();
      return {};
    }
    ACCORD_RETURN_IF_ERROR(expect(":"));
    if (!labels_.try_emplace(label, static_cast<std::uint32_t>(goal_.tasks.size())).second)
      return failure(fmt::format("label {} is used twice", quoted_text(label)));
    return operation();
  }

  Status ranks() {
    if (goal_.ranks != 0) return failure("\"num_ranks\" is there twice");
    advance();
    ACCORD_ASSIGN_OR_RETURN(const std::uint64_t count, number("the number of ranks", plan::kMaxSize));
    if (count == 0) return failure("there must be at least one rank");
    goal_.ranks = static_cast<int>(count);
    has_rank_.resize(count);
    return {};
  }

  Status begin_rank() {
    ACCORD_RETURN_IF_ERROR(expect("rank"));
    ACCORD_ASSIGN_OR_RETURN(rank_, rank_number("the rank"));
    if (has_rank_[static_cast<std::size_t>(rank_)]) return failure(fmt::format("rank {} is there twice", rank_));
    has_rank_[static_cast<std::size_t>(rank_)] = true;
    return expect("{");
  }

  Status end_rank() {
    advance();
    for (const Requirement& one : requirements_) {
      const auto task = labels_.find(one.task), before = labels_.find(one.before);
      if (task == labels_.end() || before == labels_.end())
        return failure_in(one.line, fmt::format("rank {} has no label {}", rank_,
                                                quoted_text(task == labels_.end() ? one.task : one.before)));
      (one.is_begin ? goal_.after_begin : goal_.after_end).push_back({before->second, task->second});
    }
    requirements_.clear();
    labels_.clear();
    rank_ = -1;
    return {};
  }

  Status operation() {
    GoalTask task{.rank = rank_};
    if (now_.is("calc")) {
      advance();
      ACCORD_ASSIGN_OR_RETURN(task.amount, number("nanoseconds", std::uint64_t{1} << 62));
    } else if (now_.is("send") || now_.is("recv")) {
      task.kind = now_.is("send") ? GoalKind::kSend : GoalKind::kReceive;
      advance();
      ACCORD_ASSIGN_OR_RETURN(task.amount, number("bytes", std::uint64_t{1} << 50));
      ACCORD_RETURN_IF_ERROR(expect("b"));
      ACCORD_RETURN_IF_ERROR(expect(task.kind == GoalKind::kSend ? "to" : "from"));
      ACCORD_ASSIGN_OR_RETURN(task.peer, rank_number("the other rank"));
    } else {
      return unexpected("\"calc\", \"send\" or \"recv\"");
    }
    while (now_.kind == TokenKind::kWord) ACCORD_RETURN_IF_ERROR(attribute(task));
    goal_.tasks.push_back(task);
    return {};
  }

  Status attribute(GoalTask& task) {
    constexpr std::uint64_t kMostStreams = 64;
    if (now_.is("cpu")) {
      advance();
      ACCORD_ASSIGN_OR_RETURN(const std::uint64_t stream, number("the cpu", kMostStreams - 1));
      task.stream = static_cast<std::uint32_t>(stream);
    } else if (now_.is("tag") && task.kind != GoalKind::kCompute) {
      advance();
      if (now_.is("-"))
        return {StatusCode::kUnsupported, fmt::format("line {}: receives of any tag are not supported", line_)};
      ACCORD_ASSIGN_OR_RETURN(const std::uint64_t tag, number("the tag", 0xffffffff));
      task.tag = static_cast<std::uint32_t>(tag);
    } else if (now_.is("nic")) {  // the machine decides which NIC a rank uses
      advance();
      return number("the nic", 255).status();
    } else {
      return unexpected("\"tag\", \"cpu\" or \"nic\"");
    }
    return {};
  }

  Scanner scanner_;
  Token now_;
  std::size_t line_ = 1;  // of now_
  Goal goal_;
  Rank rank_ = -1;  // whose part is read
  std::vector<bool> has_rank_;
  std::unordered_map<std::string_view, std::uint32_t> labels_;  // tasks of the rank
  std::vector<Requirement> requirements_;                       // of the rank
};

}  // namespace

Result<Goal> parse_goal(std::string_view text) { return GoalParser(text).parse(); }

std::string goal_text(const Goal& goal) {
  std::string text = fmt::format("num_ranks {}\n", goal.ranks);
  std::vector<GoalEdge> edges = goal.after_end, begins = goal.after_begin;
  const auto by_task = [](const GoalEdge& a, const GoalEdge& b) { return a.task < b.task; };
  std::stable_sort(edges.begin(), edges.end(), by_task);
  std::stable_sort(begins.begin(), begins.end(), by_task);
  std::size_t edge = 0, begin = 0;
  std::uint32_t number = 0;
  for (Rank rank = 0; rank < goal.ranks; ++rank) {
    text += fmt::format("\nrank {} {{\n", rank);
    for (; number < goal.tasks.size() && goal.tasks[number].rank == rank; ++number) {
      const GoalTask& task = goal.tasks[number];
      const std::string stream = task.stream == 0 ? "" : fmt::format(" cpu {}", task.stream);
      switch (task.kind) {
        case GoalKind::kCompute: text += fmt::format("l{}: calc {}{}\n", number, task.amount, stream); break;
        case GoalKind::kSend:
          text += fmt::format("l{}: send {}b to {} tag {}{}\n", number, task.amount, task.peer, task.tag, stream);
          break;
        case GoalKind::kReceive:
          text += fmt::format("l{}: recv {}b from {} tag {}{}\n", number, task.amount, task.peer, task.tag, stream);
          break;
      }
      for (; edge < edges.size() && edges[edge].task == number; ++edge)
        text += fmt::format("l{} requires l{}\n", number, edges[edge].before);
      for (; begin < begins.size() && begins[begin].task == number; ++begin)
        text += fmt::format("l{} irequires l{}\n", number, begins[begin].before);
    }
    text += "}\n";
  }
  return text;
}

}  // namespace accord::sim
