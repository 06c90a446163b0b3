#pragma once
// One answer of `accord engine generate`: shown as it arrives, with its statistics.

#include <cstdint>
#include <optional>
#include <string>

#include "accord/language_model.hpp"
#include "cli/interrupt.hpp"

namespace accord::cli {

/// Whether the text of an answer is written to standard output as it arrives, at its end, or not at all.
enum class Showing : std::uint8_t { kStreaming, kAtEnd, kSilent };

struct Answer {
  std::string text;
  FinishReason finish = FinishReason::kCancelled;
  TextUsage usage;
  double first_token_seconds = 0;  ///< from the request to the first text
  double seconds = 0;              ///< from the request to the end
};

/// Waits for the whole answer; an interrupt cancels it. Returns the failure that ended it, if one did.
Result<Answer> read_answer(TextStream stream, Showing showing, const InterruptWatch& watch);

/// Tokens after the first text, divided by the time they took; nullopt if there are none.
std::optional<double> tokens_per_second(const Answer& answer);

/// Statistics in words: "40 prompt tokens, 12 answer tokens; first after 0.35 s, then 14.2 tokens/s".
std::string stats_text(const Answer& answer);

}  // namespace accord::cli
