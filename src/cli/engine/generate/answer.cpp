#include "cli/engine/generate/answer.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "base/clock.hpp"

namespace accord::cli {
namespace {

constexpr auto kInterruptCheckInterval = std::chrono::milliseconds(50);  // between two checks of the interrupt key

void show(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

Result<Answer> read_answer(TextStream stream, Showing showing, const InterruptWatch& watch) {
  const auto begin = Clock::now();
  Answer answer;
  for (bool cancelled = false;;) {
    if (watch.interrupted() && !cancelled) {
      stream.cancel();
      cancelled = true;
    }
    Result<std::optional<TextEvent>> event = stream.next(kInterruptCheckInterval);
    if (!event.ok() && event.status().code() == StatusCode::kTimeout) continue;
    if (!event.ok()) return event.status();
    if (!*event) break;
    if (answer.first_token_seconds == 0) answer.first_token_seconds = seconds_since(begin);
    answer.text += (*event)->text;
    if (showing == Showing::kStreaming) show((*event)->text);
    if ((*event)->finish) answer.finish = *(*event)->finish;
    if (!(*event)->status.ok()) return (*event)->status;
  }
  answer.seconds = seconds_since(begin);
  answer.usage = stream.usage();
  if (showing == Showing::kStreaming) show("\n");
  if (showing == Showing::kAtEnd) show(answer.text + "\n");
  return answer;
}

std::optional<double> tokens_per_second(const Answer& answer) {
  const double seconds = answer.seconds - answer.first_token_seconds;
  if (answer.usage.completion_tokens < 2 || seconds <= 0) return std::nullopt;
  return static_cast<double>(answer.usage.completion_tokens - 1) / seconds;
}

std::string stats_text(const Answer& answer) {
  std::string text = fmt::format("{} prompt tokens, {} answer tokens; first after {:.3f} s", answer.usage.prompt_tokens,
                                 answer.usage.completion_tokens, answer.first_token_seconds);
  if (const std::optional<double> rate = tokens_per_second(answer))
    text += fmt::format(", then {:.1f} tokens/s", *rate);
  return text;
}

}  // namespace accord::cli
