#pragma once
// Language models that answer: an engine, its cache of keys and values, and the scheduler that shares them among requests.

#include <chrono>
#include <memory>
#include <optional>

#include "accord/engine.hpp"
#include "accord/generation.hpp"
#include "accord/text_generation.hpp"
#include "accord/tokenizer.hpp"

namespace accord {

namespace engine {
class EngineModel;
class Generation;
class PlanChannel;
class TokenStream;
}  // namespace engine

struct LanguageModelOptions {
  std::int32_t cache_tokens = 0;   ///< that the cache holds, of all sequences together; 0: those of one whole context
  std::int32_t block_tokens = 16;  ///< a multiple of 16
  DType cache_dtype = DType::kFloat32;  ///< or bfloat16, or int8 with a scale for each token and head
  std::int32_t max_sequences = 64;      ///< that one step computes
  std::int32_t max_rows = 512;          ///< tokens that one step computes: longer prompts take several steps
};

/// The events of one request, to be taken as they come. One thread at a time; its end cancels what has not ended.
/// Until it has given its last event it keeps its model, also when no handle of that is left.
class GenerationStream {
 public:
  RequestId id() const;
  /// Waits for the next event; nullopt once all samples have ended; kTimeout after `timeout`, and it may be called again.
  [[nodiscard]] Result<std::optional<GenerationEvent>> next(std::chrono::milliseconds timeout);
  /// Ends the request soon: events that are there, or come until then, are given first.
  void cancel();

  /// `model`: anything that the stream needs alive.
  GenerationStream(engine::TokenStream stream, std::shared_ptr<const void> model);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A language model on all ranks of an engine: rank 0 takes requests, decides what is computed and samples; the others follow.
///
/// A handle: copies refer to the same model. Thread-safe. On rank 0 the last handle stops it, or the last stream that
/// still goes on.
class LanguageModel {
 public:
  /// Makes the cache and, on rank 0, the thread that runs the model. Collective over the engine's groups, and agreed: if one rank
  /// cannot, every rank gets its error. `all_ranks` connects the ranks of an engine that is bound to several groups. The
  /// engine must be bound; from now on its contexts may only be run by all ranks alike, between generations.
  /// kUnsupported if the package is no language model; kInvalidArgument for options that cannot be; kResourceExhausted.
  [[nodiscard]] static Result<LanguageModel> create(const Engine& engine, const LanguageModelOptions& options = {},
                                                    std::optional<Communicator> all_ranks = {});

  /// Rank 0: continues a prompt. kInvalidArgument names what cannot be; kResourceExhausted: too many wait; kClosed after stop(),
  /// or what ended the model. kWrongState on the other ranks.
  [[nodiscard]] Result<GenerationStream> submit(GenerationRequest request);
  /// Rank 0: continues a text or answers a conversation, in text. As submit(); also kNotFound if the package has no tokenizer, or
  /// no chat format where messages are given, and what Tokenizer::encode() and ChatFormat::render() say.
  [[nodiscard]] Result<TextStream> generate(TextRequest request);
  /// The other ranks: computes what rank 0 decides, until it stops (ok) or something fails on any rank.
  [[nodiscard]] Status follow();
  /// Rank 0: ends all requests and the other ranks' follow(). Idempotent. Gives the failure if there was one.
  Status stop();

  /// Whether this is rank 0, which takes requests; else it follows.
  bool leads() const;
  /// Tokens of one sequence, prompt and answer.
  std::int32_t max_context() const;
  std::int32_t vocabulary() const;
  /// Tokens that end a text, as the package says: for GenerationRequest::stop_tokens.
  const std::vector<TokenId>& stop_tokens() const;
  std::size_t cache_bytes() const;
  /// The package's tokenizer.json; nullopt if it has none.
  const std::optional<std::string>& tokenizer_json() const;
  /// The package's tokenizer and chat format, read when they are first wanted; kNotFound if it has none, kUnsupported with the
  /// reason if its chat template is no table.
  [[nodiscard]] Result<Tokenizer> tokenizer() const;
  [[nodiscard]] Result<ChatFormat> chat_format() const;

 private:
  struct State;
  explicit LanguageModel(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace accord
