#pragma once
// One answer of `accord engine generate`: shown while it comes, and told what it cost.

#include <cstdint>
#include <optional>
#include <string>

#include "accord/language_model.hpp"
#include "cli/interrupt.hpp"

namespace accord::cli {

/// Whether the text of an answer is written to standard output while it comes, or at its end, or not at all.
enum class Showing : std::uint8_t { kStreaming, kAtEnd, kSilent };

struct Answer {
  std::string text;
  FinishReason finish = FinishReason::kCancelled;
  TextUsage usage;
  double first_token_seconds = 0;  ///< from the request to the first text
  double seconds = 0;              ///< to the end
};

/// Waits for all of it; an interrupt cancels it. The failure that ended it, if one did.
Result<Answer> take_answer(TextStream stream, Showing showing, const InterruptWatch& watch);

/// Tokens after the first text, by the time they took; nullopt if there are none.
std::optional<double> tokens_per_second(const Answer& answer);

/// "40 tokens of prompt, 12 of answer; first after 0.35 s, then 14.2 tokens/s"
std::string stats_text(const Answer& answer);

}  // namespace accord::cli
