// An event's token passes through the decoder of its sample, which returns whole characters, and these through the
// sample's search for stop texts. A sample that a stop text has ended may continue to generate until its request ends:
// its events are ignored. When the last sample has ended, the request is cancelled.
#include "engine/serving/text_stream.hpp"

#include "base/clock.hpp"

namespace accord {

TextStream::State::State(GenerationStream stream, const Tokenizer& tokenizer, const std::vector<std::string>& stop,
                         std::size_t prompt_tokens, int samples)
    : id(stream.id()),
      tokens(std::move(stream)),
      usage{static_cast<std::int64_t>(prompt_tokens), 0},
      samples_(static_cast<std::size_t>(samples), Sample{tokenizer.streaming_decoder(), engine::StopTexts(stop)}),
      running_(samples) {}

Result<TextEvent> TextStream::State::text_of(const GenerationEvent& event) {
  Sample& sample = samples_[static_cast<std::size_t>(event.sample)];
  TextEvent text_event{event.sample, "", event.finish, event.status};
  if (event.token) {
    ++usage.completion_tokens;
    if (event.finish != FinishReason::kStopToken) {
      ACCORD_ASSIGN_OR_RETURN(const std::string piece, sample.decoder.push(*event.token));
      text_event.text = sample.stops.push(piece);
    }
  }
  if (event.finish && !sample.stops.found()) {
    ACCORD_ASSIGN_OR_RETURN(const std::string rest, sample.decoder.finish());
    text_event.text += sample.stops.push(rest);
    if (!sample.stops.found()) text_event.text += sample.stops.finish();
  }
  if (sample.stops.found()) text_event.finish = FinishReason::kStopSequence;
  sample.ended = text_event.finish.has_value();
  return text_event;
}

Result<std::optional<TextEvent>> TextStream::State::next(std::chrono::milliseconds timeout) {
  // The most that a clock can add.
  static constexpr std::chrono::milliseconds kMaxTimeout = std::chrono::hours(24 * 365);
  const Deadline deadline = Deadline::in(std::min(timeout, kMaxTimeout));
  while (running_ > 0) {
    ACCORD_ASSIGN_OR_RETURN(const std::optional<GenerationEvent> event,
                            tokens.next(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining())));
    if (!event) break;
    if (samples_[static_cast<std::size_t>(event->sample)].ended) continue;
    ACCORD_ASSIGN_OR_RETURN(TextEvent text_event, text_of(*event));
    if (text_event.finish && --running_ == 0) tokens.cancel();  // stop texts may have ended them
    if (text_event.finish || !text_event.text.empty()) return std::optional(std::move(text_event));
  }
  return std::optional<TextEvent>();
}

RequestId TextStream::id() const { return state_->id; }

Result<std::optional<TextEvent>> TextStream::next(std::chrono::milliseconds timeout) { return state_->next(timeout); }

void TextStream::cancel() { state_->tokens.cancel(); }

TextUsage TextStream::usage() const { return state_->usage; }

}  // namespace accord
